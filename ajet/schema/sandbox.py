"""What a sandbox is: a place for code that nobody has read, with limits, whose end is the end of all that ran in it.

Invariant: how a call ended is data; only a sandbox that could not be made, or was lost, raises (SandboxFailure). One
suite runs over every implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from ajet.schema.errors import SandboxFailure

EndReason = Literal["exit", "signal", "time", "memory", "output", "disk", "stopped", "killed"]
"""Why a call ended: by itself; by a signal; because it had used its seconds (of the clock or of the processor), its
memory, its bytes of output or of disk; because `stop` was called; with the sandbox, which was lost."""
NO_VARIABLES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one call. Sizes in bytes, times in seconds."""

    wall: float = 30.0
    cpu: int = 30
    """Of each process."""
    memory: int = 512 * 2**20
    """Of all processes of the sandbox together, and of each one's addresses."""
    processes: int = 64
    files: int = 256
    """Open ones, of each process."""
    disk: int = 256 * 2**20
    """In the working folder, and in /tmp."""
    output: int = 2**20
    """Of standard output and error together; the rest is cut and the call ended."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a call ended. `code`: its exit code, or minus the signal's number. `kept`: whether state is held for the
    next call that asks for it."""

    stdout: bytes
    stderr: bytes
    code: int
    ended: EndReason
    seconds: float
    kept: bool = False

    @property
    def good(self) -> bool:
        """Ended by itself, and well."""
        return self.ended == "exit" and self.code == 0


class Sandbox(Protocol):
    """A sandbox of an episode's own. Members may be called from any thread; calls wait for each other."""

    mechanism: str
    """Its name: see `environment.sandbox`."""
    folder: str
    """The working folder, as code inside sees it."""
    lost: str
    """Why nothing can run here any more; "" while something can."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] = NO_VARIABLES,
        limits: Limits | None = None,
    ) -> Result:
        """A command in the working folder, with nothing of the host's environment. Raises SandboxFailure."""
        ...

    def python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] = NO_VARIABLES,
        limits: Limits | None = None,
        keep: bool = False,
    ) -> Result:
        """Code in a fork of a warm interpreter. keep: in one process with earlier calls that asked for it, whose names
        it sees; a call that does not end by itself takes their state with it. Raises SandboxFailure."""
        ...

    def put(self, path: str, content: bytes) -> None:
        """Write a file of the working folder, its folders too. Raises SandboxFailure, UnsafePathError."""
        ...

    def read(self, path: str, longest: int) -> bytes:
        """The file's first bytes, `longest` at most. Raises FileNotFoundError, SandboxFailure, UnsafePathError."""
        ...

    def stop(self) -> None:
        """End the call at hand, if there is one."""
        ...

    def close(self) -> None:
        """End all that runs here and remove what it left. Idempotent."""
        ...


class SandboxFactory(Protocol):
    """Opens the sandboxes of an experiment: what a value of `environment.sandbox` stands for."""

    mechanism: str
    """What holds them; `none` if nothing does."""
    limits: Limits
    """Of a call that names none."""

    @classmethod
    def of(cls, config: Any, base: Path) -> SandboxFactory:
        """Return one for the section `environment`; `base`: where relative paths begin. Raises ConfigError."""
        ...

    def open(self, environment: Mapping[str, str] = NO_VARIABLES) -> Sandbox:
        """Open a sandbox with these variables. Raises SandboxFailure, ConfigError."""
        ...


class UnsafePathError(SandboxFailure):
    """A path that leads out of the working folder: absolute, with .., or over a link that was left there."""

    retryable = False
