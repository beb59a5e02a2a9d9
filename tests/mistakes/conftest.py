"""Prints each mistake's answer beside the one wanted, at the end of the run."""

from __future__ import annotations

import pytest

from tests.mistakes.mistake import Answer, Mistake

ANSWERS = pytest.StashKey[list[tuple[Mistake, Answer]]]()
LINES = 40


@pytest.fixture
def answers(request: pytest.FixtureRequest) -> list[tuple[Mistake, Answer]]:
    """Return the list of answers that is printed at the end."""
    return request.config.stash.setdefault(ANSWERS, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print number, mistake, wanted answer, and the last lines of the screen."""
    for mistake, answer in sorted(config.stash.get(ANSWERS, []), key=lambda pair: pair[0].number):
        terminalreporter.section(f"{mistake.number}: {mistake.mistake}")
        terminalreporter.write_line(f"wanted: {mistake.wanted}")
        terminalreporter.write_line(f"exit code {answer.code}")
        for line in answer.screen.rstrip().splitlines()[-LINES:]:
            terminalreporter.write_line(f"    {line}")
