"""One mistake of a first day: what is in the project, what is typed, and how its answer is recognised."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.mistakes.project import write_project
from tests.support.ajet_process import command, environment

FRAME = re.compile(r'File ".*/ajet/[\w/]+\.py", line')
LIMIT = 240.0


@dataclass(frozen=True)
class Interrupt:
    """Signals sent, a second apart, once the output matches `after`."""

    after: str
    signals: tuple[signal.Signals, ...]


@dataclass(frozen=True)
class Mistake:
    """A row of the list.

    Args:
        number: its number in the list; rows that hold several mistakes of one kind repeat it.
        mistake: what the user does wrong.
        wanted: the answer that the user needs.
        typed: command lines, run one after another; a function changes the project between two of them.
        code: exit code of the last command.
        shows: texts that the last command prints, without regard to line breaks: file and line, key, suggestion.
        hides: texts that it does not print.
        files: files that replace or add to the project's own.
        interrupt: signals to the last command.
        variables: environment variables of all commands.
    """

    number: int
    mistake: str
    wanted: str
    typed: tuple[str | Callable[[Path], None], ...]
    code: int = 2
    shows: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()
    files: dict[str, str | bytes] = field(default_factory=dict)
    interrupt: Interrupt | None = None
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What the last command printed, and how it ended."""

    screen: str
    code: int

    def missing(self, mistake: Mistake) -> list[str]:
        """Return what is wrong with this answer, in words; empty if it is the wanted one."""
        folded = fold(self.screen)
        wrong = [f"does not show {text!r}" for text in mistake.shows if fold(text) not in folded]
        wrong += [f"shows {text!r}" for text in mistake.hides if fold(text) in folded]
        if self.code != mistake.code:
            wrong.append(f"exit code {self.code} instead of {mistake.code}")
        if FRAME.search(self.screen):
            wrong.append("shows frames of ajet")
        return wrong


def fold(text: str) -> str:
    """Return the text without blanks, line breaks and panel borders, so that wrapping does not matter."""
    return re.sub(r"[\s│]+", "", text)


def make_mistake(mistake: Mistake, folder: Path) -> Answer:
    """Write the project into `folder`, run what is typed, and return the last command's answer."""
    write_project(folder, mistake.files)
    *before, last = mistake.typed
    for step in before:
        if callable(step):
            step(folder)
        else:
            run_line(step, folder, mistake.variables)
    assert isinstance(last, str)
    return run_line(last, folder, mistake.variables, mistake.interrupt)


def run_line(line: str, folder: Path, variables: dict[str, str], interrupt: Interrupt | None = None) -> Answer:
    """Run one command line; `ajet` and `python` are this environment's."""
    program, *arguments = shlex.split(line)
    words = command(*arguments) if program == "ajet" else [sys.executable, *arguments]
    surroundings = environment(**{"COLUMNS": "100", **variables})
    printed = folder.parent / f"{folder.name}.screen"
    with printed.open("wb") as output:
        process = subprocess.Popen(
            words, cwd=folder, env=surroundings, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            if interrupt is not None:
                send_signals(process, printed, interrupt)
            code = process.wait(LIMIT)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return Answer(printed.read_text(errors="replace"), code)


def send_signals(process: subprocess.Popen[bytes], printed: Path, interrupt: Interrupt) -> None:
    """Send the signals to the process once it has printed what they wait for."""
    until = time.monotonic() + LIMIT
    while not re.search(interrupt.after, printed.read_text(errors="replace")):
        assert time.monotonic() < until and process.poll() is None, printed.read_text(errors="replace")
        time.sleep(0.1)
    for number in interrupt.signals:
        process.send_signal(number)
        time.sleep(1)
