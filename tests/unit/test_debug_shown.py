"""What the debug verb and the chat print of an episode."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

import ajet.run.debug as debug
from ajet.run.debug import printable, show_episode
from ajet.schema.episode import Episode, Failure
from ajet.schema.task import Task


def shown(monkeypatch: pytest.MonkeyPatch, failure: Failure) -> list[str]:
    out = io.StringIO()
    monkeypatch.setattr(debug, "console", Console(file=out, width=80))
    show_episode(Episode("u", Task(task_id="t"), 0, 1, "debug", "failed", failure=failure))
    return [line.strip("│ ") for line in out.getvalue().splitlines()]


def test_a_failure_is_said_once_with_the_frames_that_led_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = 'Traceback (most recent call last):\n  File "w.py", line 4, in execute\n    raise Bad(text)\n'
    lines = shown(monkeypatch, Failure("agent", "Bad", "one\ntwo", traceback=f"{frames}w.Bad: one\ntwo\n"))
    assert lines[1:-1] == [
        "✗ agent: Bad: one",
        "two",
        "Traceback (most recent call last):",
        'File "w.py", line 4, in execute',
        "raise Bad(text)",
    ]
    assert "0 calls · 0 tokens sampled" in lines[-1]


def test_frames_that_are_cut_off_do_not_begin_with_carets(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = "call()\n    ^^^^\n" + "".join(f"line {n}\n" for n in range(5))
    lines = shown(monkeypatch, Failure("agent", "Bad", "text", traceback=f"{frames}w.Bad: text\n"))
    assert lines[2:-1] == [f"line {n}" for n in range(5)]


def test_a_failure_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, Failure("agent", "no_model_call", "it never called"))[1:-1] == [
        "✗ agent: no_model_call: it never called"
    ]


def test_a_terminal_gets_nothing_that_it_would_obey() -> None:
    assert printable("a\x1b[2Jb\r\n\tc\u202e") == "a�[2Jb�\n\tc�"
    assert re.fullmatch(r"\[/bold\] \[red\]", printable("[/bold] [red]"))
