"""Prints each mistake's answer beside the one wanted, at the end of the run.

The answers travel as properties of the tests' reports, which pytest-xdist sends from its workers.
"""

from __future__ import annotations

import pytest

PROPERTY = "answer to a mistake"
LINES = 40


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print number, mistake, wanted answer, and the last lines of the screen."""
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind)]
    answers = [value for each in reports for name, value in each.user_properties if name == PROPERTY]
    for answer in sorted(answers, key=lambda answer: answer["number"]):
        terminalreporter.section(f"{answer['number']}: {answer['mistake']}")
        terminalreporter.write_line(f"wanted: {answer['wanted']}")
        terminalreporter.write_line(f"exit code {answer['code']}")
        for line in answer["screen"].rstrip().splitlines()[-LINES:]:
            terminalreporter.write_line(f"    {line}")
