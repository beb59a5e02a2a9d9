"""An interrupt as a screen begins gives the terminal back."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from ajet.record import progress
from ajet.record.live_screen import LiveLine, live_screen


class Interrupted(io.StringIO):
    """A terminal whose user presses Ctrl-C as the first words appear."""

    def write(self, text: str) -> int:
        if "drawn" in text or "bar" in text:
            raise KeyboardInterrupt
        return super().write(text)


def terminal() -> Console:
    return Console(file=Interrupted(), force_terminal=True, width=80, _environ={"TERM": "xterm"})


def screen() -> None:
    with live_screen("drawn", terminal()):
        pass


def line() -> None:
    with LiveLine(lambda: ["drawn"], terminal()):
        pass


def bars() -> None:
    shown = progress.Progress(terminal())
    bar = shown.bar("bar", 3)
    with shown, bar:
        pass


@pytest.mark.parametrize("begins", [screen, line, bars])
def test_output_is_the_programs_own_again(begins):
    out, err = sys.stdout, sys.stderr
    with pytest.raises(KeyboardInterrupt):
        begins()
    assert sys.stdout is out and sys.stderr is err
