"""What a library does to loguru's one logger neither silences a run nor makes it fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from loguru import logger

from ajet.cli import screen
from ajet.cli.screen import show_logs
from ajet.record import logs
from ajet.record.logs import LogFile, show_logs_in_program
from ajet.record.secrets import Redactor


@pytest.mark.parametrize(
    "meddle",
    [
        lambda: logger.remove(),
        lambda: logger.remove(0),
        lambda: logger.configure(handlers=[{"sink": lambda message: None}]),
        lambda: [logger.remove(number) for number in range(1, 1_000_000) if number in logger._core.handlers],
    ],
    ids=["remove", "remove 0", "configure", "remove each"],
)
def test_our_sinks_stay_until_we_close_them(tmp_path: Path, meddle, capsys) -> None:
    show_logs()
    log = LogFile(tmp_path / "ajet.log", Redactor())
    theirs: list[str] = []
    number = logger.add(theirs.append, format="{message}")
    logger.info("before")
    meddle()
    meddle()
    logger.info("after")
    log.close()
    log.close()
    logger.info("later")
    assert screen._shown is not None
    screen._shown.close()
    assert theirs[0] == "before\n" and len(theirs) == (3 if meddle.__code__.co_consts[-1] == 0 else 1)
    written = (tmp_path / "ajet.log").read_text()
    assert "before" in written and "after" in written and "later" not in written
    assert capsys.readouterr().out.split() == ["before", "after", "later"]
    if len(theirs) == 3:
        logger.remove(number)
    with pytest.raises(ValueError, match="no existing handler"):
        logger.remove(number)
    logger.add(sys.stderr)


def test_a_program_shows_log_lines_as_a_command_does_unless_it_says_otherwise(capsys, monkeypatch) -> None:
    logger.remove()
    mine = logger.add(sys.stdout, format="mine {message}")
    with show_logs_in_program():
        logger.info("said once")
    assert capsys.readouterr().out == "mine said once\n"
    logger.remove(mine)
    monkeypatch.setattr(logs, "_first", logger.add(sys.stderr))  # as a process begins
    for _ in range(2):  # a program may tune twice
        with show_logs_in_program():
            logger.info("said short")
        told = capsys.readouterr()
        assert (told.out, told.err) == ("said short\n", "")
        logger.info("as before")
        assert "| INFO " in capsys.readouterr().err
    logger.remove(0)  # the program means that one
    logger.info("to nobody")
    assert capsys.readouterr() == ("", "")
