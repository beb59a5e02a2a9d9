"""Shared memory that inference servers leave behind when Ray ends them, and the process that removes it.

vLLM's engine and its workers talk through segments with names drawn at random; ended hard, they unlink none. Invariant:
a segment is removed only if a server's process below this one was seen with it, it is still the same file, and nobody
has it mapped any more. The remover hears of segments through a pipe and acts once that closes, so that it makes no
difference whether this process ends or is killed. Servers of a cluster that was joined are not below this process.

This file is also the remover's program: it must import nothing of ours at its top.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

FOLDER = "/dev/shm/"
SERVERS = ("VLLM::", "sglang::")
"""How processes begin their names."""
RANDOM = ("psm_", "sem.mp-")
"""How Python begins the names that it draws, for memory and for locks."""
PATIENCE_S = 120.0
"""How long servers may outlive the run's own process."""


class Segments:
    """Made in the run's own process."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", __file__]
        self._remover = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._seen: set[tuple[str, int]] = set()

    def look(self) -> None:
        """Note what servers have now."""
        import psutil

        for child in psutil.Process().children(recursive=True):
            try:
                server = child.name().startswith(SERVERS)
            except psutil.NoSuchProcess:
                continue
            for name, inode in mapped(child.pid) if server else ():
                if (name, inode) not in self._seen:
                    self._seen.add((name, inode))
                    self._tell(f"{name} {inode}\n")

    def close(self) -> None:
        """The servers are ended: what they left goes. Idempotent."""
        stream = self._remover.stdin
        assert stream is not None
        if not stream.closed:
            stream.close()

    def _tell(self, line: str) -> None:
        stream = self._remover.stdin
        assert stream is not None
        try:
            stream.write(line.encode())
            stream.flush()
        except BrokenPipeError:  # somebody ended it: segments stay, the run goes on
            return


def mapped(pid: int) -> Iterator[tuple[str, int]]:
    """Names and inodes of a process's segments with random names."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:  # it has ended, or is somebody else's, who could not open ours
        return
    for line in lines:
        if FOLDER in line:
            *_, inode, path = line.split(maxsplit=5)
            name = path.removeprefix(FOLDER)
            if name.startswith(RANDOM) and not name.endswith("(deleted)"):
                yield name, int(inode)


def _remove(segments: set[tuple[str, int]]) -> None:
    end = time.monotonic() + PATIENCE_S
    while segments and time.monotonic() < end:
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        free = segments - {found for pid in pids for found in mapped(pid)}
        for name, inode in free:
            path = Path(FOLDER, name)
            if path.exists() and path.stat().st_ino == inode:
                path.unlink(missing_ok=True)
        segments -= free
        time.sleep(0.5 if segments else 0)


def _main() -> None:
    told: set[tuple[str, int]] = set()
    for line in sys.stdin:
        name, _, inode = line.partition(" ")
        if inode.endswith("\n"):  # else its writer was killed within the line
            told.add((name, int(inode)))
    _remove(told)


if __name__ == "__main__":
    import signal

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _main()
