"""A living container as seen from the host: its files, its processes, its network, and the gateway inside of it.

Invariant: the host reaches a container only through the namespaces noted at its start (`enter.py`). Whatever a program
inside does with files and links, it does to the container.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from ajet.schema.errors import SandboxFailure
from ajet_command.running import CommandSpec, Ended, RunningCommand
from ajet_containers import enter
from ajet_sandbox.cgroup import ROOT, ControlGroup
from ajet_sandbox.inside.door import make_forwarder

if TYPE_CHECKING:
    from ajet_sandbox.inside.door import Streams

ENTER_TIMEOUT_S = 60.0
KILL_TIMEOUT_S = 10.0
OUTPUT_BYTES = 4 << 20
"""Maximum bytes of a command's standard output, and of its standard error."""
Change = tuple[str, str]
"""What the container did to a path of its image (A: added, C: changed, D: deleted), and the path."""


class FileBundle:
    """Files and folders to put into a container, as a tar."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `put` closes it
        self._tar = tarfile.open(fileobj=self._file, mode="w")  # noqa: SIM115

    def add_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Add a file at an absolute path inside."""
        entry = tarfile.TarInfo(path.lstrip("/"))
        entry.size, entry.mode = len(content), mode
        self._tar.addfile(entry, io.BytesIO(content))

    def add_folder(self, path: str, mode: int = 0o755) -> None:
        """Add an empty folder; an existing one gets the mode."""
        entry = tarfile.TarInfo(path.lstrip("/"))
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        self._tar.addfile(entry)

    def add_tree(self, folder: Path, path: str) -> None:
        """Add a folder of the host with its content."""
        self._tar.add(folder, path.lstrip("/"))

    def finish(self) -> IO[bytes]:
        """Return the tar as an open file at its beginning."""
        self._tar.close()
        self._file.seek(0)
        return self._file


class LivingContainer(ABC):
    """A started container. Its processes and files end with `close`."""

    has_changes: bool
    """True if `list_changes` sees what was changed."""

    def __init__(self, pid: int, folder: Path) -> None:
        """Note the namespaces of the first process. Raises SandboxFailure if it has ended.

        Args:
            folder: the container's folder on the host, for files of the engine.
        """
        self.pid, self.folder = pid, folder
        try:
            self._spaces = {name: os.stat(f"/proc/{pid}/ns/{name}").st_ino for name in enter.FLAGS}
        except OSError as error:
            raise SandboxFailure(f"the container ended at its start: {error}") from error
        self._attempts_before = 0

    @abstractmethod
    def build_command(
        self, argv: Sequence[str], environment: Mapping[str, str], user: str | None, workdir: str | None
    ) -> tuple[list[str], dict[str, str]]:
        """Return the host's command line that runs `argv` inside, and the command's own environment."""

    @abstractmethod
    def read_variable(self, name: str) -> str:
        """Return a variable of the container's commands; "" without the variable. Raises SandboxFailure."""

    @abstractmethod
    def list_changes(self) -> list[Change]:
        """Return what was changed since the start. Raises SandboxFailure."""

    @abstractmethod
    def close(self) -> None:
        """Remove the container with its processes and files. Idempotent."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        user: str | None = None,
        workdir: str | None = None,
        timeout: float | None = None,
        stdin: str | None = None,
        output: int = OUTPUT_BYTES,
    ) -> Ended:
        """Run a command inside. Its processes are killed after a timeout; those that it detached live on.

        Raises:
            SandboxFailure: the container has ended, or the engine failed.
        """
        command, variables = await asyncio.to_thread(self.build_command, argv, environment, user, workdir)
        try:
            running = RunningCommand(CommandSpec(command, self.folder, variables, timeout, {}, output, stdin))
        except OSError as error:
            raise SandboxFailure(f"no process could be started: {error}") from error
        end_future = asyncio.get_running_loop().run_in_executor(None, running.wait)
        try:
            ended = await asyncio.shield(end_future)
        except asyncio.CancelledError:
            running.stop()
            await asyncio.wait([end_future])
            raise
        if ended.ended_by:
            await asyncio.to_thread(self._kill_command)
        if not self.is_alive():
            raise SandboxFailure(f"the container was killed while {argv[0]} ran in it")
        return ended

    def is_alive(self) -> bool:
        """True while the first process runs."""
        try:
            return os.stat(f"/proc/{self.pid}/ns/pid").st_ino == self._spaces["pid"]
        except OSError:
            return False

    def spell_spaces(self) -> str:
        """Return the noted namespaces as an argument of `enter.py`."""
        return ",".join(f"{name}={inode}" for name, inode in self._spaces.items())

    def put(self, bundle: FileBundle) -> None:
        """Write the files into the container, owned by root. Raises SandboxFailure."""
        with bundle.finish() as archive:
            self._run_inside("put", stdin=archive)

    def remove(self, *paths: str) -> None:
        """Remove files and folders inside. Raises SandboxFailure."""
        self._run_inside("remove", *paths)

    def get(self, path: str, most: int) -> bytes | None:
        """Return a file's content, or None without the file.

        Raises:
            ValueError: it is no regular file, or larger than `most` bytes.
            SandboxFailure: the container has ended.
        """
        result = self._run_inside("get", path, str(most), allowed=(enter.MISSING, enter.UNREADABLE))
        if result.returncode == enter.UNREADABLE:
            raise ValueError(f"{path} is no regular file of at most {most} bytes")
        return None if result.returncode == enter.MISSING else result.stdout

    @asynccontextmanager
    async def serve_gateway(self, base_url: str) -> AsyncIterator[None]:
        """Serve the host's gateway inside, on the loopback address and the gateway's port, during the block."""
        address = urlsplit(base_url)
        host, port = address.hostname or "127.0.0.1", address.port or 80
        listener = await asyncio.to_thread(self.listen, port)

        async def connect() -> Streams:
            return await asyncio.open_connection(host, port)

        server = await asyncio.start_server(make_forwarder(connect), sock=listener)
        try:
            yield
        finally:
            server.close()

    def listen(self, port: int) -> socket.socket:
        """Return a socket that listens on the container's loopback; the host accepts. Raises SandboxFailure."""
        if os.stat("/proc/self/ns/user").st_ino == self._spaces["user"]:
            return self._listen_in_thread(port)
        own_end, inner_end = socket.socketpair()
        with own_end, inner_end:
            self._run_inside("listen", str(inner_end.fileno()), str(port), passed=(inner_end.fileno(),))
            _, descriptors, *_ = socket.recv_fds(own_end, 16, 1)
        return socket.socket(fileno=descriptors[0])

    def _listen_in_thread(self, port: int) -> socket.socket:
        """Listen from a thread that enters the network namespace; other threads stay in theirs."""

        def enter_and_listen() -> socket.socket:
            enter.enter_namespaces(str(self.pid), {"net": str(self._spaces["net"])}, ("net",))
            return enter.open_listener(port)

        with ThreadPoolExecutor(1) as thread:
            try:
                return thread.submit(enter_and_listen).result()
            except (OSError, SystemExit) as error:
                raise SandboxFailure(f"the container's network cannot be entered: {error}") from error

    def count_network_attempts(self) -> int:
        """Return how many packets or connections had no way out of the container since the last call."""
        total = self._read_refused()
        new_attempts, self._attempts_before = total - self._attempts_before, total
        return new_attempts

    def count_processes(self) -> int:
        """Return the number of processes inside, without the two of the container itself."""
        return len(self._list_processes()) - 2

    def count_memory_kills(self) -> int:
        """Return how many processes the kernel killed for lack of memory."""
        with suppress(OSError):
            for row in Path(f"/proc/{self.pid}/cgroup").read_text().splitlines():
                _, names, path = row.split(":", 2)
                if "memory" in names.split(","):
                    return ControlGroup([ROOT / "memory" / path.strip("/")]).count_killed()
                if not names and (ROOT / "cgroup.controllers").exists():
                    return ControlGroup([ROOT / path.strip("/")]).count_killed()
        return 0

    def _read_refused(self) -> int:
        """Sum the kernel's counters of the network namespace: no route, and no listener for a datagram."""
        total = 0
        for name in ("snmp", "snmp6"):
            with suppress(OSError):
                rows = [row.split() for row in Path(f"/proc/{self.pid}/net/{name}").read_text().splitlines()]
                counters = {row[0]: row[-1] for row in rows if name == "snmp6"}
                # `snmp` has a line of labels before each line of values, both beginning with the protocol's name.
                for head, values in zip(rows[::2], rows[1::2], strict=True) if name == "snmp" else ():
                    counters |= {f"{head[0][:-1]}{label}": value for label, value in zip(head, values, strict=True)}
                for counter in ("IpOutNoRoutes", "UdpNoPorts", "Ip6OutNoRoutes", "Udp6NoPorts"):
                    total += int(counters.get(counter, 0))
        return total

    def _list_processes(self) -> dict[int, int]:
        """Return the parent of each process inside, by the host's process ids."""
        parents: dict[int, int] = {}
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(OSError):
                if os.stat(f"/proc/{name}/ns/pid").st_ino == self._spaces["pid"]:
                    fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                    if fields[0] != b"Z":
                        parents[int(name)] = int(fields[1])
        return parents

    def _kill_command(self) -> None:
        """Kill the process that entered from outside, with its descendants. Raises SandboxFailure if one survives."""
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while True:
            parents = self._list_processes()
            # A process that entered from outside has a parent outside of the container.
            doomed = {pid for pid, parent in parents.items() if parent not in parents and pid != self.pid}
            while children := {pid for pid, parent in parents.items() if parent in doomed} - doomed:
                doomed |= children
            if not doomed:
                return
            if time.monotonic() > deadline:
                raise SandboxFailure(
                    f"the container cannot be emptied: {len(doomed)} of its processes survived SIGKILL"
                )
            # All are stopped first, so that none can start another process meanwhile.
            for signal_number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in doomed:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal_number)
            time.sleep(0.02)

    def _run_inside(
        self,
        *arguments: str,
        stdin: IO[bytes] | None = None,
        passed: tuple[int, ...] = (),
        allowed: tuple[int, ...] = (),
    ) -> subprocess.CompletedProcess[bytes]:
        """Run an operation of `enter.py` in the container's namespaces and return its result.

        Args:
            arguments: the operation and its arguments.
            passed: descriptors that it inherits.
            allowed: exit codes besides 0 that are no failure.

        Raises:
            SandboxFailure: the container has ended, or the operation failed.
        """
        argv = [sys.executable, "-I", "-S", enter.__file__, str(self.pid), self.spell_spaces(), *arguments]
        try:
            result = subprocess.run(
                argv,
                stdin=stdin or subprocess.DEVNULL,
                capture_output=True,
                pass_fds=passed,
                env={},
                timeout=ENTER_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxFailure(f"the container cannot be entered: {error}") from error
        if result.returncode and result.returncode not in allowed:
            last_line = result.stderr.decode(errors="replace").strip().splitlines()[-1:]
            reason = "it has ended" if result.returncode == enter.GONE else "".join(last_line)
            raise SandboxFailure(f"the container cannot be entered ({arguments[0]}): {reason}")
        return result
