"""Read users' text files in any editor's encoding.

Invariant: UTF-8 and encodings with a byte order mark are read. Any other encoding is refused by name, never guessed.
"""

from __future__ import annotations

import codecs
from pathlib import Path

from ajet.schema.errors import UserError

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def guess_encoding(data: bytes) -> str:
    """Return the likely encoding of data that is not UTF-8, by the name that iconv knows."""
    for byte_order_mark, encoding in _MARKS:
        if data.startswith(byte_order_mark):
            return "utf-16" if encoding.startswith("utf-16") else encoding
    if b"\0" in data:  # text has NUL bytes in UTF-16 only
        return "utf-16-be" if data.startswith(b"\0") else "utf-16-le"
    try:
        data.decode("cp1252")
    except UnicodeDecodeError:
        return "latin-1"  # has a byte that cp1252 does not define
    return "cp1252"


def read_marked_encoding(path: Path) -> str:
    """Return the encoding of a file's byte order mark by Python's name, or "utf-8" without a mark."""
    with path.open("rb") as stream:
        head = stream.read(4)
    marked = next((encoding for byte_order_mark, encoding in _MARKS if head.startswith(byte_order_mark)), "utf-8")
    return marked.removesuffix("-le").removesuffix("-be")  # the names without endings skip the mark on reading


def format_convert_command(path: Path, encoding: str) -> str:
    """Return a shell command that writes the file as UTF-8 to a new file beside it."""
    return f"iconv -f {encoding} -t utf-8 {path.name} > {path.stem}.utf8{path.suffix}"


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8 or in the encoding of its byte order mark.

    Raises:
        UserError: The file has another encoding; the message names the likely one.
    """
    data = path.read_bytes()
    byte_order_mark, encoding = next(
        ((byte_order_mark, marked) for byte_order_mark, marked in _MARKS if data.startswith(byte_order_mark)),
        (b"", "utf-8"),
    )
    try:
        text = data[len(byte_order_mark) :].decode(encoding)
        if "\0" not in text:  # NUL bytes: UTF-16 without a byte order mark decodes as UTF-8
            return text
        start = 0
    except UnicodeDecodeError as error:
        start = error.start
    guess = guess_encoding(data)
    line = 1 if guess.startswith("utf-") else data[:start].count(b"\n") + 1
    raise UserError(
        f"{path.name} is not UTF-8; it looks like {guess}.",
        where=f"{path}:{line}",
        expected="UTF-8, or UTF-16 with a byte order mark",
        do=f"save it as UTF-8 in your editor, or run: {format_convert_command(path, guess)}",
    )
