"""A server that a test kills, as a power cut does, and begins again at its address."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from tests.support.ports import free_port


class KillableServer(ABC):
    """A process of its own. Begun when it is made."""

    def __init__(self, *, quiet: bool = False) -> None:
        """quiet: what it prints is thrown away."""
        self.port = free_port()
        self._output = subprocess.DEVNULL if quiet else None
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @abstractmethod
    def command(self) -> Sequence[str]:
        """What begins it, on `port`."""

    @abstractmethod
    def until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        """Wait."""

    def start(self) -> None:
        """Begin, and wait until it answers."""
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(self.command(), cwd=root, stdout=self._output, stderr=self._output)
        self.until_it_answers(self._process)

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """As a power cut does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
