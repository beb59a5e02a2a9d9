"""The process of a worker, seen from the rollout: its sockets, its output, its priority and its end.

Invariants: a worker is killed with all that descends from it (Linux; elsewhere with its process group), by its own
recorded id, and before that id can belong to another process. Its output is read all the time and only its end is
stored, so that a worker never waits for the rollout to read. Its priority is lower than this process': the gateway, and
with it the engine and the trainer, comes first where all of them want the processor at once.
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

from ajet.config.programs import program
from ajet.environment.family import end_family
from ajet.rollout.failure import OUTPUT_CHARS, keep_tail
from ajet.rollout.isolation.channel import Channel, Message
from ajet.rollout.isolation.messages import CLOSE, CLOSED, GRACE, ID_BYTES, LOCATE, Home, encode_home

WORKER = "ajet.rollout.isolation.worker"
"""The module that a worker runs."""
SANDBOX_ENDS_S = 2.0
"""Seconds in which a sandbox ends after the worker in it."""
ANSWERS_S = 0.5
"""Seconds in which a worker says where its attempt is; one whose code holds the interpreter cannot."""
YIELDS = 10
"""Steps of priority ("nice") by which a worker is below this process; each takes about a fifth of its share."""
_PRIORITY_TRIES, _PRIORITY_PAUSE_S = 10, 0.1
"""Linux accepts ten changes of a session's priority a second from users other than root, all users together."""
_STORED_BYTES = 4 * OUTPUT_CHARS
"""Bytes of output that are stored: as many as the characters that are kept may need."""
_PIPE_BYTES = 1 << 16
_READ_PAUSE_S = 0.02
"""Seconds between two reads of a pipe that is not filling up."""
_burials: WeakSet[threading.Thread] = WeakSet()


class Ends(NamedTuple):
    """Descriptors that a worker gets."""

    channel: int
    control: int
    output: int
    """For standard output and error."""


class Started(NamedTuple):
    """A worker that was started."""

    process: subprocess.Popen[bytes]
    remove: Callable[[], None] = lambda: None
    """Called when it has ended: removes what was made for it."""
    base_url: str = ""
    """The gateway's address as the worker sees it; "" if that is the address here."""
    sandboxed: bool = False
    """True if it ends with its sandbox: what it started is not asked to end before it is killed."""


StartWorker = Callable[[Home, Ends], Started]
"""Starts a worker; where it runs is all that isolations may do differently here. Raises SandboxFailure, OSError."""


class WorkerProcess:
    """A worker's process. Thread-safe, but that one thread receives."""

    def __init__(self, home: Home, start: StartWorker) -> None:
        self._line, theirs = socket.socketpair()
        self._control, control = socket.socketpair()
        self._output = WorkerOutput()
        with theirs, control:
            try:
                self._started = start(home, Ends(theirs.fileno(), control.fileno(), self._output.writer))
            finally:
                self._output.begin()
        self._process = self._started.process
        self._channel = Channel(self._line.fileno(), self._line.fileno())
        self._sending, self._burial = threading.Lock(), threading.Lock()
        self.base_url = self._started.base_url
        self.pid = self._process.pid
        lower_priority(self.pid)
        lower_session_priority(self.pid)
        if self.base_url:
            home = replace(home, ambient=replace(home.ambient, base_url=self.base_url))
        with suppress(OSError):  # it is gone: the thread that receives finds that
            self.send(0, "home", encode_home(home))

    @property
    def is_alive(self) -> bool:
        """True while it runs. It is not waited for here: its id stays its own until the rest of its group is killed."""
        if self._process.returncode is not None:
            return False
        try:
            return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:  # other code waited for it
            return False

    def send(self, about: int, kind: str, body: bytes) -> None:
        """Send a message. Raises OSError when the process is gone."""
        with self._sending:
            self._channel.send(about, kind, body)

    def receive(self) -> Message:
        """Wait for a message. Raises EOFError or OSError when the process is gone, ValueError for anything else."""
        return self._channel.receive()

    def locate(self, number: int) -> str:
        """Return the line of user code that the attempt is at; "" if the worker cannot say."""
        received = b""
        with suppress(OSError):
            self._control.settimeout(ANSWERS_S)
            self._control.sendall(LOCATE + number.to_bytes(ID_BYTES, "big"))
            while not received.endswith(b"\n") and len(received) < 1 << 16 and (more := self._control.recv(4096)):
                received += more
        return received.decode(errors="replace").strip() if received.endswith(b"\n") else ""

    def output(self) -> str:
        """Return the end of what was written to standard output and error since `forget_output`."""
        return self._output.read_text()

    def forget_output(self) -> None:
        """Drop the output so far."""
        self._output.forget()

    def explain_death(self, problem: Exception) -> str:
        """End a process that is gone or that sent what cannot be read; return what happened, and its output."""
        if isinstance(problem, ValueError):
            self._end(0.0)
            why = f"what came from the workflow's process cannot be read here ({problem}); it was ended"
        else:
            why = f"the workflow's process ended with code {self._end(0.0, SANDBOX_ENDS_S)}"
        return f"{why}\n{self.output()}".strip()

    def kill(self) -> None:
        """Kill it with all that descends from it, in a thread; does not wait."""
        burial = threading.Thread(target=self._end, args=(GRACE,), name="ajet-bury", daemon=True)
        _burials.add(burial)
        burial.start()

    def _end(self, grace: float, sandbox_ends: float = 0.0) -> int:
        """End the process, wait for it and return its exit code.

        Args:
            grace: Seconds that what the workflow started gets after it is asked to end.
            sandbox_ends: Seconds in which the sandbox around a worker that is gone ends by itself, with its exit code.
        """
        with self._burial:
            if self._started.sandboxed and sandbox_ends:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(sandbox_ends)
            if self._process.returncode is None:  # not waited for: its id is still its own
                self._have_it_close()
                end_family(self.pid, 0.0 if self._started.sandboxed else grace)
                self._control.close()
            code = self._process.wait()
            self._started.remove()
            return code

    def _have_it_close(self) -> None:
        """Have the worker close what its attempts opened, and wait until it has, for GRACE at most."""
        until = time.monotonic() + GRACE
        with suppress(OSError):
            self._control.settimeout(GRACE)
            self._control.sendall(CLOSE)
        ready = select.poll()
        ready.register(self._control.fileno(), select.POLLIN)
        process = psutil.Process(self.pid)
        with suppress(OSError, psutil.NoSuchProcess):
            while process.status() != psutil.STATUS_ZOMBIE and (left := until - time.monotonic()) > 0:
                if ready.poll(min(50.0, 1000 * left)):
                    received = self._control.recv(4096)
                    if not received or received.endswith(CLOSED):
                        return


class WorkerOutput:
    """A pipe for a worker's standard output and error, of which the last bytes are stored. Thread-safe."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._lock = threading.Lock()
        self._last = bytearray()
        self._dropped = 0
        self._is_open = True

    def begin(self) -> None:
        """Close this process' writing end, and read in a thread until every copy of it is closed."""
        os.close(self.writer)
        threading.Thread(target=self._read_until_closed, name="ajet-printed", daemon=True).start()

    def read_text(self) -> str:
        """Return the end of what was written up to now."""
        self._read_available()
        with self._lock:
            text = self._last.decode(errors="replace")
            return keep_tail(text, OUTPUT_CHARS, dropped=self._dropped, unit="bytes")

    def forget(self) -> None:
        """Drop what was written up to now."""
        self._read_available()
        with self._lock:
            self._last.clear()
            self._dropped = 0

    def _read_until_closed(self) -> None:
        ready = select.poll()
        ready.register(self._reader, select.POLLIN)
        while self._is_open:
            ready.poll()
            if self._read_available() < _PIPE_BYTES // 2:
                time.sleep(_READ_PAUSE_S)
        os.close(self._reader)

    def _read_available(self) -> int:
        """Read what is there, at most one full pipe, and return how many bytes that was."""
        taken = 0
        with self._lock:
            while self._is_open and taken < _PIPE_BYTES:
                try:
                    part = os.read(self._reader, _PIPE_BYTES)
                except BlockingIOError:
                    break
                self._is_open = bool(part)
                taken += len(part)
                self._last += part
                over = len(self._last) - _STORED_BYTES
                if over > 0:
                    del self._last[:over]
                    self._dropped += over
        return taken


def start_process(home: Home, ends: Ends) -> Started:
    """Start a worker as a process of this machine."""
    process = subprocess.Popen(
        worker_command(ends),
        stdin=subprocess.DEVNULL,
        stdout=ends.output,
        stderr=ends.output,
        pass_fds=(ends.channel, ends.control),
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, home.paths))},
    )
    return Started(process)


def worker_command(ends: Ends) -> list[str]:
    """Return the command line of a worker."""
    return program(WORKER, str(ends.channel), str(ends.control), unbuffered=True)


def lower_priority(pid: int) -> None:
    """Lower the priority of a process that was just started, and of all that it starts from now on."""
    with suppress(ProcessLookupError):  # it has ended: its output says why
        os.setpriority(os.PRIO_PROCESS, pid, min(os.getpriority(os.PRIO_PROCESS, 0) + YIELDS, 19))


def lower_session_priority(pid: int) -> None:
    """Lower the priority of all processes of its session.

    Linux may share the processor between sessions before it looks at priorities within one (`sched_autogroup_enabled`):
    a session of low priority then counts as much as any other.
    """
    group = Path(f"/proc/{pid}/autogroup")
    if not group.exists():
        return
    for _ in range(_PRIORITY_TRIES):
        try:
            group.write_text(str(YIELDS))
            return
        except BlockingIOError:
            time.sleep(_PRIORITY_PAUSE_S)
        except OSError:  # it has ended, or /proc cannot be written: it gives way within its session alone
            return


@atexit.register
def _join_burials() -> None:
    """Wait at the exit: a worker that has closed its resources stands still until it is killed by this process."""
    until = time.monotonic() + 2 * GRACE + SANDBOX_ENDS_S
    for burial in tuple(_burials):
        burial.join(max(0.0, until - time.monotonic()))
