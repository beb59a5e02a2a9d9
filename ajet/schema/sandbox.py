"""The sandbox protocol: a confined environment for unknown code. Closing a sandbox ends all processes inside.

Invariant: the end of a call is data. Only a sandbox that could not be created or was lost raises SandboxFailure. A
single test suite runs over all implementations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from ajet.schema.errors import SandboxFailure

EndReason = Literal["exit", "signal", "time", "memory", "output", "disk", "stopped", "killed"]
"""Reason why a call ended: by itself; by a signal; by a limit on seconds (clock or processor), memory, bytes of output
or disk; by `stop`; with the lost sandbox."""
NO_VARIABLES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one call in a sandbox. Sizes are in bytes, times in seconds."""

    wall: float = 30.0
    cpu: int = 30
    """CPU seconds of each process."""
    memory: int = 512 * 2**20
    """Bytes of all processes of the sandbox together, and of each process's address space."""
    processes: int = 64
    files: int = 1024  # Node.js opens several hundred to load a program
    """Number of open files per process."""
    disk: int = 256 * 2**20
    """Bytes in the working folder, and in /tmp."""
    output: int = 2**20
    """Bytes of standard output and error together. Exceeding the limit ends the call."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a call.

    `code`: exit code, or minus the signal's number. `kept`: True if state is held for the next call with `keep`.
    """

    stdout: bytes
    stderr: bytes
    code: int
    ended: EndReason
    seconds: float
    kept: bool = False

    @property
    def good(self) -> bool:
        """True if the call ended by itself with code 0."""
        return self.ended == "exit" and self.code == 0


class Sandbox(Protocol):
    """A sandbox owned by an episode. Thread-safe; concurrent calls run one after the other."""

    mechanism: str
    """Name of the mechanism, as in `environment.sandbox`."""
    folder: str
    """The working folder as seen from inside."""
    lost: str
    """The reason for the loss of the sandbox, or "" while usable."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] = NO_VARIABLES,
        limits: Limits | None = None,
    ) -> Result:
        """Run a command in the sandbox's working folder, without the host's environment variables.

        Raises:
            SandboxFailure: The sandbox is lost. A command that fails or exceeds a limit is a Result instead.
        """
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
        """Run Python code in a fork of a started interpreter, which takes less time than a new process.

        Args:
            keep: Share a process and names with earlier calls with `keep`. A call ended by a limit or signal discards
                the shared state.

        Raises:
            SandboxFailure: The sandbox is lost. Code that fails or exceeds a limit is a Result instead.
        """
        ...

    def put(self, path: str, content: bytes) -> None:
        """Write a file into the working folder, and create its parent folders.

        Raises:
            SandboxFailure: The sandbox is lost.
            UnsafePathError: The path leads out of the working folder.
        """
        ...

    def read(self, path: str, longest: int) -> bytes:
        """Return the first `longest` bytes of a file. Raises FileNotFoundError, SandboxFailure, UnsafePathError."""
        ...

    def stop(self) -> None:
        """End the call that now runs, if any; its Result then has the reason `stopped`."""
        ...

    def close(self) -> None:
        """End all processes in the sandbox and remove its files. Idempotent."""
        ...


class SandboxFactory(Protocol):
    """Opens the sandboxes of an experiment, for a value of `environment.sandbox`."""

    mechanism: str
    """Name of the mechanism, `none` without confinement."""
    limits: Limits
    """Limits of a call that passes none."""

    @classmethod
    def of(cls, config: Any, base: Path) -> SandboxFactory:
        """Return the factory for the settings of the section `environment`. Raise ConfigError if they are invalid.

        Args:
            config: The section.
            base: The folder to resolve relative paths against.
        """
        ...

    def open(self, environment: Mapping[str, str] = NO_VARIABLES) -> Sandbox:
        """Open a sandbox whose calls see these environment variables. Raises SandboxFailure, ConfigError."""
        ...


class UnsafePathError(SandboxFailure):
    """A path leading out of the working folder: absolute, with .., or over a link."""

    retryable = False
