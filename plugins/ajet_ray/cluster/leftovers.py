"""Leftovers of a run's processes killed by Ray, and the remover process.

Leftovers are temporary files (vLLM's sockets, verl's lock files, Ray's session) and shared memory (vLLM's randomly
named segments). Invariants: the processes share a temporary folder, removed after the end of all processes. A segment
is removed only if a descendant process used the segment, the file is unchanged, and no process maps it. The remover
reads both from a pipe and acts once the pipe closes, also after a kill of the run's process. Processes of a joined
cluster are not descendants: a batch script starts Ray on its nodes through `run_with_leftovers`.

The file is also run as a program, by the remover and by nodes: the top level must not import ajet.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

FOLDER = "/dev/shm/"
OURS = ("VLLM::", "sglang::", "ray::")
"""Prefixes of the names of processes whose shared memory is recorded."""
RANDOM = ("psm_", "sem.mp-")
"""Python's prefixes of random names, for memory and for locks."""
PATIENCE_S = 120.0
"""Longest time in seconds for which the remover waits for processes after the run's own process ended."""
ENDED_S = 20.0
"""Longest time in seconds for which a regular end of the run waits for the remover."""
POLL_S = 5.0
"""Seconds between two looks at a node's processes."""
LONGEST = 26
"""Characters of the temporary folder's path: Ray's socket paths below it have at most 107."""


class RunLeftovers:
    """Sends the names of leftovers from the run's own process to a separate remover process.

    Its attribute `folder` is the temporary folder shared by the run's processes.
    """

    def __init__(self) -> None:
        """Create the temporary folder and start the remover process, which reads names from its standard input."""
        parent = tempfile.gettempdir()
        self.folder = Path(tempfile.mkdtemp(prefix="v", dir=parent if len(parent) <= LONGEST else "/tmp"))
        # -I: the remover needs nothing but Python. A session of its own, so that signals to the run do not end it.
        command = [sys.executable, "-I", __file__]
        self._removing_process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._seen_leftovers: set[tuple[str, int]] = set()
        self._send_line(f"{self.folder}\n")

    def record_segments(self) -> None:
        """Send the shared-memory segments mapped now by this process's descendants to the remover."""
        import psutil

        for child in psutil.Process().children(recursive=True):
            try:
                is_own = child.name().startswith(OURS)
            except psutil.NoSuchProcess:
                continue
            for name, inode in list_segments(child.pid) if is_own else ():
                if (name, inode) not in self._seen_leftovers:
                    self._seen_leftovers.add((name, inode))
                    self._send_line(f"{name} {inode}\n")

    def close(self) -> None:
        """Let the remover delete the leftovers once the processes ended, and wait up to 20 s for it. Idempotent."""
        stream = self._removing_process.stdin
        assert stream is not None
        if not stream.closed:
            stream.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the remover continues alone
                self._removing_process.wait(ENDED_S)

    def _send_line(self, line: str) -> None:
        """Send a line to the remover. Does nothing if the remover has ended."""
        stream = self._removing_process.stdin
        assert stream is not None
        try:
            stream.write(line.encode())
            stream.flush()
        except BrokenPipeError:  # the remover was ended: segments stay, the run continues
            return


def list_segments(pid: int) -> Iterator[tuple[str, int]]:
    """Yield name and inode of each randomly named shared-memory segment mapped by a process.

    Yields nothing for a process that has ended or belongs to another user. Segments are matched by inode, because a
    semaphore is mapped under an earlier name.
    """
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:  # the process has ended, or belongs to a user who cannot open our files
        return
    # Columns of a line: address, permissions, offset, device, inode, path.
    inodes = {int(line.split(maxsplit=5)[4]) for line in lines if FOLDER in line}
    for path in Path(FOLDER).iterdir() if inodes else ():
        if path.name.startswith(RANDOM) and (inode := _read_inode(path)) in inodes:
            yield path.name, inode


def _read_inode(path: Path) -> int:
    """Return the inode of a file, or -1, which no file has, if the file does not exist any more."""
    try:
        return path.stat().st_ino
    except OSError:
        return -1


def _remove_leftovers(folder: Path, segments: set[tuple[str, int]]) -> None:
    """Remove each segment and the folder as soon as no process uses it, for at most two minutes.

    Args:
        folder: the temporary folder of the run's processes.
        segments: (name, inode) of shared-memory segments. Removed ones leave the set.
    """
    deadline = time.monotonic() + PATIENCE_S
    while (segments or folder.exists()) and time.monotonic() < deadline:
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        unmapped = segments - {segment for pid in pids for segment in list_segments(pid)}
        for name, inode in unmapped:
            path = Path(FOLDER, name)
            if _read_inode(path) == inode:  # another program may have reused the random name
                path.unlink(missing_ok=True)
        segments -= unmapped
        if not any(_mentions_folder(pid, folder) for pid in pids):
            shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.5 if segments or folder.exists() else 0)


def _mentions_folder(pid: int, folder: Path) -> bool:
    """True if the environment or arguments of a process contain the folder's path: then the process may use it."""
    for proc_file in ("environ", "cmdline"):
        try:
            if str(folder).encode() in Path(f"/proc/{pid}/{proc_file}").read_bytes():
                return True
        except OSError:  # the process has ended, or belongs to another user
            continue
    return False


def run_with_leftovers(command: Sequence[str]) -> int:
    """Run a command that starts Ray on a node, and have its temporary files and shared memory removed at the end.

    SIGINT, SIGTERM and SIGHUP are forwarded to the command. Returns its exit code, or 128 plus the number of the signal
    that ended it, as shells do.
    """
    with contextlib.closing(RunLeftovers()) as leftovers:
        child = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(leftovers.folder)})
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # respect nohup
                signal.signal(number, lambda received, _: child.send_signal(received))
        while True:
            try:
                code = child.wait(POLL_S)  # negative: minus the number of the signal that ended the command
                return code if code >= 0 else 128 - code
            except subprocess.TimeoutExpired:
                leftovers.record_segments()


def _run_remover() -> None:
    """Read the names of leftovers from standard input until it closes, then remove them.

    The first line is the temporary folder, each further line the name and inode of a segment.
    """
    folder_line = sys.stdin.readline()
    if not folder_line.endswith("\n"):  # the writer was killed before its first line
        return
    folder = Path(folder_line[:-1])
    segments: set[tuple[str, int]] = set()
    for line in sys.stdin:
        name, _, inode = line.partition(" ")
        if inode.endswith("\n"):  # an incomplete line was cut off by a kill of the writer: ignore it
            segments.add((name, int(inode)))
    _remove_leftovers(folder, segments)


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(run_with_leftovers(sys.argv[1:]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _run_remover()
