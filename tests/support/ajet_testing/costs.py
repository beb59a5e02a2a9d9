"""What each test costs: a row a test in the file that `AJET_TEST_COSTS` names, for scripts/suite_costs.py to add up.

Invariant: a row counts what its test alone caused in this worker: seconds, CPU-seconds of the worker and of every child
that was waited for, and `ajet` commands started as processes. Processes that outlive their parent are not seen here;
scripts/suite_costs.py adopts them, and finds the test in their environment (pytest's PYTEST_CURRENT_TEST).
"""

from __future__ import annotations

import functools
import json
import os
import resource
import subprocess
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

WHERE = "AJET_TEST_COSTS"
_counted = {"ajet": 0.0, "cpu": 0.0}


class Costs:
    """The pytest plugin. One in each worker; all append to one file, a line in one write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        count_commands()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        began, cpu, commands = time.perf_counter(), cpu_seconds(), _counted["ajet"]
        answer = yield
        seconds, cpu, commands = time.perf_counter() - began, cpu_seconds() - cpu, _counted["ajet"] - commands
        row = {"test": item.nodeid, "seconds": round(seconds, 3), "cpu": round(cpu, 3), "ajet": int(commands)}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return answer


def count_commands() -> None:
    """Count each `ajet` that this process starts from now on. An audit hook would run at every event, and cost 3 %."""
    start = subprocess.Popen.__init__

    @functools.wraps(start)
    def start_counted(process: subprocess.Popen[Any], args: Any, *rest: Any, **more: Any) -> None:
        start(process, args, *rest, **more)
        if is_ajet(args):
            count_command()

    subprocess.Popen.__init__ = start_counted  # type: ignore[assignment, method-assign]


def count_command() -> None:
    """One more `ajet` process."""
    _counted["ajet"] += 1


def add_cpu(seconds: float) -> None:
    """CPU-seconds of a process that somebody else waited for."""
    _counted["cpu"] += seconds


def is_ajet(command: str | Sequence[object]) -> bool:
    """Whether this command line starts `ajet`."""
    words = command.split() if isinstance(command, str) else [os.fsdecode(word) for word in command]  # type: ignore[arg-type]
    return any(word == "ajet.cli.launcher" or Path(word).name == "ajet" for word in words[:3])


def cpu_seconds() -> float:
    """CPU-seconds so far of this process, of its children that were waited for, and of those that others waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + _counted["cpu"]


def register(config: pytest.Config) -> None:
    """Count, if anybody wants to know."""
    path = os.environ.get(WHERE)
    if path:
        config.pluginmanager.register(Costs(Path(path)), "costs")
