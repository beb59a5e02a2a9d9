"""What the processes of a command have used of the processor, by what they are."""

from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import psutil

NEWCOMERS_S = 1.0
"""Between two searches for new processes, each of which reads of every process of the machine."""


class Family:
    """A command's process and all that it started. A process that ends before it is seen counts as its parent's."""

    def __init__(self, command: psutil.Popen) -> None:
        self.command = command
        self._members: dict[int, Any] = {}
        self._searched = -NEWCOMERS_S

    @property
    def members(self) -> list[Any]:
        """All that were seen, the command first."""
        return [self.command, *self._members.values()]

    def search(self) -> None:
        """Look for processes that are new, unless that was just done."""
        if time.monotonic() - self._searched >= NEWCOMERS_S:
            self._searched = time.monotonic()
            with suppress(psutil.NoSuchProcess):
                self._members |= {each.pid: each for each in self.command.children(recursive=True)}

    def used(self) -> Counter[str]:
        """Processor seconds of each kind of process, of their own and of children that have ended."""
        found: Counter[str] = Counter()
        for each in self.members:
            with suppress(psutil.NoSuchProcess):
                name = "the command" if each is self.command else _kind(each.cmdline())
                found[name] += sum(each.cpu_times()[:4])
        return found

    def end(self) -> None:
        """None of them lives on."""
        for each in self.members:
            if each.is_running():
                each.kill()
        psutil.wait_procs(self._members.values(), timeout=30)


def _kind(line: list[str]) -> str:
    """Of a process whose command line this is: Ray and vLLM say there what one does."""
    title = line[0] if line else ""
    if title.startswith("ray::"):
        name = re.sub(r"\d.*", "", title.removeprefix("ray::").split(".")[0].split("(")[0])
        return "Ray's idle processes" if name == "IDLE" else name
    if title.startswith("VLLM::"):
        return title
    return "Ray's own processes"
