"""Runs a command with bounds on time, output and processes.

Invariants: every command leads its own process group, and the group is ended when the command ends or times out. Output
beyond the bound is read and dropped, so a command never blocks on a full pipe.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

DRAIN_S = 0.2
"""Seconds to read output after the command's end, while a child still holds the pipe."""
PASSED_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "TERM", "AJET_TOOL_SERVER")
"""Environment variables passed to a command.

The last variable marks processes started by a server, so ajet can find and end them in any session.
"""


@dataclass(frozen=True)
class Finished:
    """The result of an ended command."""

    code: int | None
    """Exit status; negative for a signal, None after a timeout."""
    output: str
    errors: str
    dropped: int
    """Bytes of output beyond the bound."""
    seconds: float


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables of a model's command: PASSED_VARIABLES, HOME and `more`, but no keys of the
    server.
    """
    passed = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
    return {"PATH": os.defpath, **passed, "HOME": str(home), **(more or {})}


def run(
    command: Sequence[str],
    *,
    folder: Path,
    timeout: float,
    limit: int,
    more: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
) -> Finished:
    """Run a command in a folder and return its result. All its processes are killed at the end.

    Args:
        timeout: seconds; the result's `code` is None after a timeout.
        limit: largest number of bytes of output, and of errors; further ones are dropped.
        more: further environment variables.
        descriptors: descriptors inherited by the command.

    Raises:
        OSError: the program does not exist.
    """
    started = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment(folder, more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        pass_fds=tuple(descriptors),
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            texts, dropped = _read_pipes(process, (process.stdout, process.stderr), started + timeout, limit)
            is_timed_out = process.poll() is None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    output, errors = (text.decode("utf-8", "replace") for text in texts)
    return Finished(None if is_timed_out else process.returncode, output, errors, dropped, time.monotonic() - started)


def _read_pipes(
    process: subprocess.Popen[bytes], pipes: Sequence[IO[bytes]], deadline: float, limit: int
) -> tuple[list[bytearray], int]:
    """Read both pipes until they close, the time is over, or the command has ended and is silent.

    Returns:
        (bytes of each pipe, at most `limit`; number of bytes dropped beyond the limit).
    """
    texts, dropped = [bytearray() for _ in pipes], 0
    with selectors.DefaultSelector() as selector:
        for pipe, text in zip(pipes, texts, strict=True):
            selector.register(pipe, selectors.EVENT_READ, text)
        while selector.get_map():
            remaining = deadline - time.monotonic()
            has_ended = process.poll() is not None
            ready = selector.select(min(max(remaining, 0.0), DRAIN_S))
            if (has_ended and not ready) or remaining <= 0:
                return texts, dropped
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fileobj)
                buffer: bytearray = key.data
                free = limit - len(buffer)
                buffer += data[:free]
                dropped += max(0, len(data) - free)
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))
    return texts, dropped
