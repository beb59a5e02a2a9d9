"""The process of a worker, as the rollout sees it: sockets, output, priority and end.

Invariants: a worker is killed with all descendants (Linux; on other systems with its process group), by the recorded
id, and before the id can belong to another process. The output is read all the time and only the end is stored: a
worker never waits for the rollout to read. The worker's priority is lower than this process's: the gateway, and with it
the engine and the trainer, get the processor first.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

import psutil

from ajet.config.programs import build_command
from ajet.environment.family import end_family
from ajet.rollout.failure import OUTPUT_CHARS, keep_tail
from ajet.rollout.isolation.channel import Message, MessageChannel
from ajet.rollout.isolation.messages import CLOSE, CLOSED, GRACE, ID_BYTES, LOCATE, WorkerSetup, encode_setup

WORKER = "ajet.rollout.isolation.worker"
"""The module run by a worker."""
SANDBOX_EXIT_S = 2.0
"""Seconds for a sandbox to end after the worker inside."""
LOCATE_TIMEOUT_S = 0.5
"""Seconds to wait for the reply to LOCATE. A worker whose code holds the interpreter lock sends no reply."""
NICE_STEPS = 10
"""Steps of `nice` between this process and a worker. Each step takes about a fifth of the worker's share."""
_PRIORITY_TRIES, _PRIORITY_PAUSE_S = 10, 0.1
"""Linux accepts ten changes of session priorities a second from all users other than root together."""
_STORED_BYTES = 4 * OUTPUT_CHARS
"""Bytes of stored output: as many as OUTPUT_CHARS characters may need."""
_PIPE_BYTES = 1 << 16
_READ_PAUSE_S = 0.02
"""Seconds between two reads of a pipe that is less than half full."""
_kill_threads: WeakSet[threading.Thread] = WeakSet()


class WorkerFds(NamedTuple):
    """File descriptors that a worker inherits."""

    channel: int
    control: int
    output: int
    """File descriptor that becomes the worker's standard output and error."""


class StartedWorker(NamedTuple):
    """A started worker process, as `StartWorker` returns it."""

    process: subprocess.Popen[bytes]
    remove: Callable[[], None] = lambda: None
    """Called after the end, to remove everything created for the worker."""
    base_url: str = ""
    """The gateway's address inside the worker, or "" if the address is the same as in this process."""
    sandboxed: bool = False
    """True if the worker ends with a sandbox. Processes started by the worker then get no SIGTERM before the kill."""


StartWorker = Callable[[WorkerSetup, WorkerFds], StartedWorker]
"""Starts a worker. Isolations differ only in the place of the worker. Raises SandboxFailure and OSError."""


class WorkerProcess:
    """A worker's process. Thread-safe, but only one thread may receive."""

    def __init__(self, setup: WorkerSetup, start: StartWorker) -> None:
        """Start the process by `start`, with sockets and a pipe for its output, lower its priority and
        send the setup.
        """
        self._driver_socket, worker_socket = socket.socketpair()
        self._control, control = socket.socketpair()
        self._output = WorkerOutput()
        # The worker has inherited its ends; this process closes its copies, so that the end of the worker is noticed.
        with worker_socket, control:
            try:
                self._started_worker = start(
                    setup, WorkerFds(worker_socket.fileno(), control.fileno(), self._output.writer)
                )
            finally:
                self._output.begin()
        self._process = self._started_worker.process
        self._channel = MessageChannel(self._driver_socket.fileno(), self._driver_socket.fileno())
        self._send_lock, self._end_lock = threading.Lock(), threading.Lock()
        self.base_url = self._started_worker.base_url
        self.pid = self._process.pid
        lower_priority(self.pid)
        lower_session_priority(self.pid)
        if self.base_url:
            setup = replace(setup, ambient=replace(setup.ambient, base_url=self.base_url))
        with suppress(OSError):  # the process is gone, as the receiving thread will notice
            self.send(0, "setup", encode_setup(setup))

    @property
    def is_alive(self) -> bool:
        """True while the process runs.

        The check does not reap the process: its id must stay reserved until the process group is killed.
        """
        if self._process.returncode is not None:
            return False
        try:
            return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:  # other code has waited for the process
            return False

    def send(self, attempt_number: int, kind: str, body: bytes) -> None:
        """Send a message. Raises OSError when the process is gone."""
        with self._send_lock:
            self._channel.send(attempt_number, kind, body)

    def receive(self) -> Message:
        """Wait for a message. Raises EOFError or OSError when the process is gone, ValueError for other data."""
        return self._channel.receive()

    def locate(self, number: int) -> str:
        """Return the attempt's current line of user code, or "" without a reply in time."""
        received = b""
        with suppress(OSError):
            self._control.settimeout(LOCATE_TIMEOUT_S)
            self._control.sendall(LOCATE + number.to_bytes(ID_BYTES, "big"))
            while not received.endswith(b"\n") and len(received) < 1 << 16 and (chunk := self._control.recv(4096)):
                received += chunk
        return received.decode(errors="replace").strip() if received.endswith(b"\n") else ""

    def output(self) -> str:
        """Return the end of standard output and error since the last `forget_output`."""
        return self._output.read_text()

    def forget_output(self) -> None:
        """Drop the output so far."""
        self._output.forget()

    def explain_death(self, problem: Exception) -> str:
        """End a process that is gone or that sent unreadable data. Return the reason and the output."""
        if isinstance(problem, ValueError):
            self._end_process(0.0)
            cause = f"ajet could not read a message of the workflow's process ({problem}) and ended the process"
        else:
            cause = f"the workflow's process ended with code {self._end_process(0.0, SANDBOX_EXIT_S)}"
        return f"{cause}\n{self.output()}".strip()

    def kill(self) -> None:
        """Kill the process with all descendants, in a thread. Does not wait."""
        thread = threading.Thread(target=self._end_process, args=(GRACE,), name="ajet-kill", daemon=True)
        _kill_threads.add(thread)
        thread.start()

    def _end_process(self, grace: float, sandbox_grace: float = 0.0) -> int:
        """End the process, wait for the end and return the exit code.

        Args:
            grace: Seconds for processes of the workflow after SIGTERM, before SIGKILL.
            sandbox_grace: Seconds for the sandbox of a dead worker to end by itself, with its own exit code.
        """
        with self._end_lock:
            if self._started_worker.sandboxed and sandbox_grace:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(sandbox_grace)
            if self._process.returncode is None:  # not reaped yet, and the id cannot belong to another process
                self._close_resources()
                end_family(self.pid, 0.0 if self._started_worker.sandboxed else grace)
                self._control.close()
            code = self._process.wait()
            self._started_worker.remove()
            return code

    def _close_resources(self) -> None:
        """Request the closing of the attempts' resources. Wait for CLOSED, at most GRACE seconds."""
        deadline = time.monotonic() + GRACE
        with suppress(OSError):
            self._control.settimeout(GRACE)
            self._control.sendall(CLOSE)
        ready = select.poll()
        ready.register(self._control.fileno(), select.POLLIN)
        process = psutil.Process(self.pid)
        with suppress(OSError, psutil.NoSuchProcess):
            while process.status() != psutil.STATUS_ZOMBIE and (remaining := deadline - time.monotonic()) > 0:
                if ready.poll(min(50.0, 1000 * remaining)):
                    received = self._control.recv(4096)
                    if not received or received.endswith(CLOSED):
                        return


class WorkerOutput:
    """A pipe for a worker's standard output and error. The last bytes are stored. Thread-safe."""

    def __init__(self) -> None:
        """Open the pipe. Call `begin` once the worker has inherited the writing end."""
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._lock = threading.Lock()
        self._stored_output = bytearray()
        self._dropped_bytes = 0
        self._is_open = True

    def begin(self) -> None:
        """Close the writing end in this process, and read in a thread until all copies are closed."""
        os.close(self.writer)
        threading.Thread(target=self._read_until_closed, name="ajet-printed", daemon=True).start()

    def read_text(self) -> str:
        """Return the end of the output up to now."""
        self._read_available()
        with self._lock:
            text = self._stored_output.decode(errors="replace")
            return keep_tail(text, OUTPUT_CHARS, dropped=self._dropped_bytes, unit="bytes")

    def forget(self) -> None:
        """Drop the output up to now."""
        self._read_available()
        with self._lock:
            self._stored_output.clear()
            self._dropped_bytes = 0

    def _read_until_closed(self) -> None:
        """Read the pipe until the worker and all its children have closed it. A nearly empty pipe is read after a
        pause, to save time.
        """
        ready = select.poll()
        ready.register(self._reader, select.POLLIN)
        while self._is_open:
            ready.poll()
            if self._read_available() < _PIPE_BYTES // 2:
                time.sleep(_READ_PAUSE_S)
        os.close(self._reader)

    def _read_available(self) -> int:
        """Read the available bytes, at most one full pipe, and return their number."""
        count = 0
        with self._lock:
            while self._is_open and count < _PIPE_BYTES:
                try:
                    chunk = os.read(self._reader, _PIPE_BYTES)
                except BlockingIOError:
                    break
                self._is_open = bool(chunk)
                count += len(chunk)
                self._stored_output += chunk
                excess = len(self._stored_output) - _STORED_BYTES
                if excess > 0:
                    del self._stored_output[:excess]
                    self._dropped_bytes += excess
        return count


def start_process(setup: WorkerSetup, fds: WorkerFds) -> StartedWorker:
    """Start a worker as a process of this machine."""
    process = subprocess.Popen(
        build_worker_command(fds),
        stdin=subprocess.DEVNULL,
        stdout=fds.output,
        stderr=fds.output,
        pass_fds=(fds.channel, fds.control),
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, setup.paths))},
    )
    return StartedWorker(process)


def build_worker_command(fds: WorkerFds) -> list[str]:
    """Return the command line of a worker."""
    return build_command(WORKER, str(fds.channel), str(fds.control), unbuffered=True)


def lower_priority(pid: int) -> None:
    """Lower the priority of a new process, and of all its future children."""
    with suppress(ProcessLookupError):  # the process has ended, and the output has the reason
        os.setpriority(os.PRIO_PROCESS, pid, min(os.getpriority(os.PRIO_PROCESS, 0) + NICE_STEPS, 19))


def lower_session_priority(pid: int) -> None:
    """Lower the priority of all processes of the session of `pid`.

    Linux may share the processor between sessions before looking at priorities within a session
    (`sched_autogroup_enabled`). A session of low priority would then count as much as any other.
    """
    group = Path(f"/proc/{pid}/autogroup")
    if not group.exists():
        return
    for _ in range(_PRIORITY_TRIES):
        try:
            group.write_text(str(NICE_STEPS))
            return
        except BlockingIOError:
            time.sleep(_PRIORITY_PAUSE_S)
        except OSError:  # it ended, or /proc is read-only: only the priority within the session counts
            return


@atexit.register
def _join_kill_threads() -> None:
    """Wait at the exit: a worker that has closed its resources is stopped until this process kills it."""
    deadline = time.monotonic() + 2 * GRACE + SANDBOX_EXIT_S
    for thread in tuple(_kill_threads):
        thread.join(max(0.0, deadline - time.monotonic()))
