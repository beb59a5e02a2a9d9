"""The line that says what goes on: redrawn on a terminal, printed now and then elsewhere, silent over a prompt."""

from __future__ import annotations

import io
import pdb
import threading
import time
from typing import Any

from rich.console import Console

from ajet.record.live_screen import LiveLine, is_prompting
from tests.support.waiting import until


def test_elsewhere_it_prints_whole_lines_without_control_characters() -> None:
    out = io.StringIO()
    with LiveLine(lambda: ["stage", "the \x1b[2J words"], Console(file=out, width=20), every_s=0.02):
        assert until(lambda: out.getvalue().count("\n") >= 2)
    assert set(out.getvalue().splitlines()) == {"stage · the �[2J words"}
    silent = io.StringIO()
    with LiveLine(lambda: ["stage"], Console(file=silent), every_s=60):
        pass
    assert silent.getvalue() == "", "what is over at once needs no line"


def test_on_a_terminal_it_is_drawn_and_taken_away() -> None:
    out, count = io.StringIO(), iter(range(1000))
    console = Console(file=out, width=20, force_terminal=True, force_interactive=True, _environ={})
    with LiveLine(lambda: [f"stage {next(count)}", "w" * 90], console):
        assert until(lambda: "stage 1" in out.getvalue())
    assert "w" * 20 not in out.getvalue() and "…" in out.getvalue(), "it never wraps"
    assert out.getvalue().endswith("\x1b[2K"), "erased"


def test_nothing_is_drawn_over_a_debuggers_prompt() -> None:
    asked, answer, out = threading.Event(), threading.Event(), io.StringIO()

    class Prompt(pdb.Pdb):
        def cmdloop(self, intro: Any = None) -> None:
            asked.set()
            answer.wait(60)

    thread = threading.Thread(target=Prompt(stdin=io.StringIO(), stdout=io.StringIO()).cmdloop)
    thread.start()
    try:
        assert asked.wait(60) and is_prompting()
        with LiveLine(lambda: ["stage"], Console(file=out), every_s=0.01):
            time.sleep(0.05)
            assert out.getvalue() == ""
            answer.set()
            assert until(lambda: "stage" in out.getvalue())
    finally:
        answer.set()
        thread.join()
