"""The console of ajet: bars, lines and tables share one output.

Invariant: text from a model, a client or a foreign file never controls the terminal; control characters and direction
marks are replaced by �. A line printed with `soft_wrap` is one line in a file or pipe. A narrow terminal wraps the line
between words, but never inside a command or path.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_COMMAND = re.compile(r"(^|[\s`(])(\S*/)?(ajet|python3?|pip|uv|make|ray|git|export) [\w.-]")
_COLUMN = re.compile(r" *\S+ {2,}(?=\S)|  expected ")
LONGEST_LABEL = 64
WIDEST_COLUMN = 24
"""A first column up to this stays free below itself."""


def replace_control_characters(text: str) -> str:
    """Return the text with each character that controls a terminal, or changes text direction, replaced by �."""
    return _OBEYED.sub("�", text)


def printable(text: str) -> str:
    """Return a model's text with each invisible character replaced by �, except line breaks and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def label(name: str) -> str:
    """Return a task's name on one line, printable, and cut to `LONGEST_LABEL` characters."""
    line = " ".join(name.split())
    return printable(line if len(line) <= LONGEST_LABEL else f"{line[: LONGEST_LABEL - 1]}…")


def leave_terminal() -> None:
    """Redirect those standard streams that lead to a closed terminal to /dev/null.

    Writing to a closed terminal raises an error, which would end a background run.
    """
    with open(os.devnull, "r+b", buffering=0) as nowhere:
        for descriptor in (0, 1, 2):
            try:
                os.ttyname(descriptor)
            except OSError as error:
                if error.errno == errno.EIO:
                    os.dup2(nowhere.fileno(), descriptor)


_IN_PAIR = re.compile(r"(?<=[^\s,;]) (?=[-+±]?\d)|(?<=[\d%±]) (?=[^\s(])")
NO_BREAK = "\u00a0"


def keep_pairs(line: str) -> str:
    """Return a line of numbers in which a terminal does not split pairs such as `lr 0.0001` and `2.0 s`.

    Spaces within pairs become no-break spaces, printed as spaces by `wrap_between_words`. A file gets the line
    unchanged.
    """
    return _IN_PAIR.sub(NO_BREAK, line) if console.is_terminal else line


class SafeConsole(Console):
    """A console of rich that prints the control characters of a text as �, so that no text steers the terminal."""

    def _check_buffer(self) -> None:
        """Write the buffered output. If the terminal was closed, drop it, so that a background run goes on."""
        try:
            super()._check_buffer()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            leave_terminal()

    def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
        """Yield rich's segments with control characters in printed text replaced."""
        for segment in super().render(*args, **kwargs):
            if segment.control or not _OBEYED.search(segment.text):  # rich's own control of the terminal
                yield segment
            else:
                yield Segment(replace_control_characters(segment.text), segment.style)

    def print(self, *objects: Any, soft_wrap: bool | None = None, **how: Any) -> None:
        """Print like rich.

        With `soft_wrap`, a line wider than the terminal breaks between words instead of inside them.
        """
        wraps_softly = self.soft_wrap if soft_wrap is None else soft_wrap
        if wraps_softly and self.is_terminal and len(objects) == 1 and isinstance(objects[0], str | Text):
            line = objects[0]
            text = line if isinstance(line, Text) else self.render_str(line, markup=how.get("markup"))
            objects = (wrap_between_words(text, self.width),)
        super().print(*objects, soft_wrap=soft_wrap, **how)


def wrap_between_words(text: Text, width: int) -> Text:
    """Wrap each line wider than `width` columns between words.

    Continuation lines start under the second column of the text, or two columns right of the line's start. Lines with a
    command and words wider than the terminal stay unbroken. No-break spaces are printed as spaces.
    """
    wrapped = Text("\n").join(_wrap_line(line, width) for line in text.split("\n", allow_blank=True))
    wrapped.plain = wrapped.plain.replace(NO_BREAK, " ")
    return wrapped


def _wrap_line(line: Text, width: int) -> Text:
    """Return the line with line breaks between words, and with indented continuation lines.

    Unchanged if it fits, or if it holds a command, which must be copied in one piece.
    """
    if line.cell_len <= width or _COMMAND.search(line.plain):
        return line
    column = _COLUMN.match(line.plain)
    indent = len(column.group()) if column else len(line.plain) - len(line.plain.lstrip()) + 2
    indent = indent if indent <= min(WIDEST_COLUMN, width // 2) else 4
    breaks, used_columns = [], 0
    for word in re.finditer(rf"[^\S{NO_BREAK}]*[\S{NO_BREAK}]+", line.plain):
        if used_columns and used_columns + cell_len(word.group()) > width:
            breaks.append(word.start())
            used_columns = indent + cell_len(word.group().lstrip())
        else:
            used_columns += cell_len(word.group())
    first_line, *other_lines = line.divide(breaks)
    return Text(f"\n{' ' * indent}").join(
        [first_line, *(piece[len(piece) - len(piece.plain.lstrip()) :] for piece in other_lines)]
    )


console = SafeConsole(highlight=False)
"""Standard output: results, tables, bars."""


def print_line(text: str | Text, style: str | None = None) -> None:
    """Print text as it is, without rich's markup. A terminal wraps it between words; a file gets unbroken lines."""
    console.print(text, style=style, markup=False, soft_wrap=True)


def make_table(*names: str, texts: int = 1) -> Table:
    """Return a rich table with these column names. The first `texts` columns are left-aligned, the others numbers."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if index >= texts else "left", overflow="fold")
    return table


def format_number(value: float | None, form: str = ".3f") -> str:
    """Return a number in the format specification `form`, or a dash for None."""
    return "–" if value is None else format(value, form)


def counted(count: int, thing: str) -> str:
    """Return a count with its noun in singular or plural, such as "1 call" or "2 replies".

    Args:
        thing: The noun in singular.
    """
    # "reply" becomes "replies", "day" becomes "days".
    plural = re.sub(r"(?<=[^aeiou])y$", "ie", thing) + "s"
    return f"{count} {thing if count == 1 else plural}"


def format_bytes(count: float) -> str:
    """Return a number of bytes as short text: "121 KiB", "20 MiB", "1.5 GiB"."""
    if 0 < count < 2**20:
        return f"{max(1, round(count / 2**10))} KiB"
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 / 10 else f"{count / 2**20:.0f} MiB"


def format_seconds(seconds: float) -> str:
    """Return a duration as short text: "0.02 s", "40 s", "3 min", "2.5 h"."""
    if seconds < 0.1:
        return f"{seconds:.1g} s"
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_age(then: float | None) -> str:
    """Return the time since `then`, in seconds since the epoch, as "3 h ago", or a dash without a time."""
    if not then:
        return "–"
    elapsed = max(0.0, time.time() - then)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if elapsed >= length:
            return f"{int(elapsed // length)} {unit} ago"
    return f"{int(elapsed)} s ago"
