"""What reaches a terminal, or a file that one shows, is text, whoever wrote it."""

from __future__ import annotations

import io
import os

import pytest
from loguru import logger
from rich.table import Table
from rich.text import Text

from ajet.cli.exit import show_user_error
from ajet.record.console import SafeConsole, counted
from ajet.record.logs import LogFile
from ajet.record.secrets import Redactor
from ajet.schema.errors import UserError

OBEYED = "a\x1b]52;c;aGk=\x07b\x1b[2Jc\x9b31md\x08\u202ee\r"


def test_nothing_that_a_terminal_obeys_is_printed():
    out = io.StringIO()
    screen = SafeConsole(file=out, force_terminal=True, color_system="standard", width=200, highlight=False)
    screen.print(OBEYED, markup=False)
    table = Table("x")
    table.add_row(Text(OBEYED, style="bold red"))
    screen.print(table)
    said = out.getvalue().replace("\x1b[1;31m", "").replace("\x1b[0m", "").replace("\x1b[1m", "")
    assert "a�]52;c;aGk=" in said and "�[2Jc�31md" in said
    assert not set(said) & set("\x1b\x07\x9b\x08\u202e\r")


def test_errors_and_logs_show_it_as_text_too(tmp_path, capsys):
    show_user_error(UserError(OBEYED, where=OBEYED))
    log = LogFile(tmp_path / "ajet.log", Redactor({}))
    logger.warning("task {} is too old", OBEYED)
    log.close()
    for said in (capsys.readouterr().err, (tmp_path / "ajet.log").read_text()):
        assert "�]52;c;aGk=" in said and not set(said) & set("\x1b\x07\x9b\x08\u202e\r")


def test_a_line_goes_on_between_words_on_a_terminal_alone(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")  # a dumb one is 80 wide, whatever is said
    told = "  where    a file, a word thatiswiderthanthewholeterminalisforone"
    command = "Train it: ajet --conf a_long_name.yaml --backbone local"

    def shown(text: str, *, terminal: bool) -> list[str]:
        out = io.StringIO()
        screen = SafeConsole(file=out, force_terminal=terminal, color_system=None, width=30, highlight=False)
        screen.print(text, markup=False, soft_wrap=True)
        return out.getvalue().splitlines()

    assert shown(told, terminal=True) == [
        "  where    a file, a word",
        "           thatiswiderthanthewholeterminalisforone",
    ]
    assert shown("one two three four five six seven\nnext", terminal=True) == [
        "one two three four five six",
        "  seven",
        "next",
    ]
    assert shown(command, terminal=True) == [command], "it can be copied"
    pairs = "step 1/9  loss 0.5  lr\u00a00.0001  2.0\u00a0s"
    assert shown(pairs, terminal=True) == ["step 1/9  loss 0.5  lr 0.0001", "  2.0 s"]
    assert shown(told, terminal=False) == [told]


def test_a_terminal_that_is_gone_costs_its_output_alone():
    ours, theirs = os.openpty()
    terminal = os.fdopen(os.dup(theirs), "w")
    os.close(theirs)
    os.close(ours)
    screen = SafeConsole(file=terminal)
    for _ in range(2):
        screen.print("nobody reads this")
    with pytest.raises(OSError, match="Input/output"):
        terminal.close()  # it was gone indeed


def test_counted_things_have_their_plural() -> None:
    shown = [counted(count, thing) for count, thing in ((1, "reply"), (2, "reply"), (2, "day"), (0, "more task"))]
    assert shown == ["1 reply", "2 replies", "2 days", "0 more tasks"]
