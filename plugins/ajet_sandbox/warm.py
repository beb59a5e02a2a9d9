"""WarmSandbox: the base of every mechanism, a sandbox with a Python process that forks for each call.

That process is the resident, and the line is its connection to the host process. Invariants: the host trusts only size
and form of the resident's answers. A resident beyond its time limit is killed from outside. Closing ends the process
tree, and so does the end of the host, since the line closes.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args

from ajet.environment.family import end_tree
from ajet.schema.errors import SandboxFailure
from ajet.schema.frames import FrameError, FrameReader, pack_frame
from ajet.schema.sandbox import NO_VARIABLES, EndReason, Limits, Result
from ajet_sandbox.cgroup import ControlGroup, make_control_group
from ajet_sandbox.folder import FolderAccess, LocalFolder, ResidentFolder
from ajet_sandbox.identity import count_processes
from ajet_sandbox.interpreter import START, START_PIPED, pack_bundle

START_SECONDS = 120.0
"""Limit in seconds for the start of a resident. An early end is noticed at once, so the limit catches only hangs."""
LATE = 5.0
"""Seconds after a call's wall limit until the host gives up."""
_MAX_START_OUTPUT = 4000
"""Bytes of the output of a failed start."""


@dataclass(slots=True)
class ResidentPlan:
    """How a mechanism starts its resident: command, settings, user and descriptors."""

    argv: list[str]
    """The command up to the interpreter, without the interpreter's arguments."""
    settings: dict[str, Any]
    is_compiled: bool
    user: int | None = None
    """User id under which the process is started. None: the user of this process."""
    descriptors: list[int] = field(default_factory=list)
    """To be inherited, and closed afterwards."""
    pid_fd: int | None = None
    """Descriptor on which bubblewrap reports the resident's process."""
    is_piped: bool = False
    """True if the line is standard input and output, since no descriptor can be inherited."""
    has_site_packages: bool = False
    """True if the interpreter's own packages can be imported."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the starting program, never passed to the resident."""


class ControlGroupRefusedError(SandboxFailure):
    """The started resident process cannot be moved into its new control group."""


class WarmSandbox(ABC):
    """Implements `ajet.schema.sandbox.Sandbox` by requests to a resident process. Mechanisms subclass it.

    The resident process is a Python process inside the sandbox that forks for each call.
    """

    mechanism = ""
    is_disk_bounded: ClassVar[bool] = False
    """True if the folders have a fixed size. Otherwise their content is measured."""
    end_timeout_s: ClassVar[float] = 2.0
    """Seconds until a resident with a closed line ends by itself."""
    has_own_process_count = True
    """True if the kernel counts the sandbox's processes separately from the user's others."""

    def __init__(self, limits: Limits, environment: Mapping[str, str] = NO_VARIABLES, *, cgroups: bool = True) -> None:
        """Start the sandbox.

        Args:
            limits: limits of every call.
            environment: variables of every call, besides the necessary ones.
            cgroups: False to measure memory even if a control group could limit it.

        Raises:
            SandboxFailure: the sandbox does not start.
            ConfigError: the settings cannot be used.
        """
        self._limits = limits
        self._environment = dict(environment)
        self._request_lock, self._write_lock = threading.Lock(), threading.Lock()
        self._group: ControlGroup | None = make_control_group(limits) if cgroups else None
        self._folder: FolderAccess | None = None
        self._killed_before = 0
        self._is_closed = False
        self.lost = ""
        self.folder = ""
        self._line, resident_end = socket.socketpair()
        try:
            try:
                self._start_resident(resident_end)
            except ControlGroupRefusedError:
                # Start again without the control group; memory is then counted in another way.
                self._end_processes()
                self._line.close()
                self._remove_leftovers()
                self._drop_group()
                self._line, resident_end = socket.socketpair()
                self._start_resident(resident_end)
        except BaseException:
            self.close()
            raise
        self._is_memory_held = self._group is not None

    @abstractmethod
    def _plan_start(self, line: int) -> ResidentPlan:
        """Return how to start the resident process.

        Args:
            line: descriptor of the resident's end of the connection.
        """

    def _remove_leftovers(self) -> None:  # noqa: B027 - most mechanisms make nothing
        """Remove files that the mechanism created on the host."""

    def _drop_group(self) -> None:
        """Remove the control group, if there is one."""
        group, self._group = self._group, None
        if group is not None:
            group.remove()

    @property
    def is_memory_held(self) -> bool:
        """True if the kernel limits the memory of all processes together. Otherwise ajet measures it."""
        return self._is_memory_held

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] = NO_VARIABLES,
        limits: Limits | None = None,
    ) -> Result:
        """Run a command in the sandbox and return its result. Raises SandboxFailure if the sandbox is lost."""
        return self._run_call({"argv": list(argv), "environment": dict(environment), "keep": False}, (stdin,), limits)

    def python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] = NO_VARIABLES,
        limits: Limits | None = None,
        keep: bool = False,
    ) -> Result:
        """Run Python code in the sandbox and return its result.

        Args:
            keep: True to run it in the session process, where names of earlier calls with `keep` still exist.

        Raises:
            SandboxFailure: the sandbox is lost.
        """
        order = {"argv": [], "environment": dict(environment), "keep": keep}
        return self._run_call(order, (stdin, code.encode("utf-8", "surrogateescape")), limits)

    def put(self, path: str, content: bytes) -> None:
        """Write a file into the working folder. Raises SandboxFailure."""
        try:
            self._open_folder().put(path, content)
        except OSError as error:
            raise SandboxFailure(f"{path} could not be written: {error.strerror}", retryable=False) from error

    def read(self, path: str, longest: int) -> bytes:
        """Return the first `longest` bytes of a file. Raises FileNotFoundError, SandboxFailure."""
        try:
            return self._open_folder().read(path, longest)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SandboxFailure(f"{path} could not be read: {error.strerror}", retryable=False) from error

    def stop(self) -> None:
        """End the running call early. Does nothing without one."""
        with suppress(OSError):
            self.send_frame(pack_frame({"do": "stop"}))

    def close(self) -> None:
        """End all processes of the sandbox and remove its files. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self.lost = self.lost or "the sandbox is closed"
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._end_processes()
        self._line.close()
        if self._folder is not None:
            self._folder.close()
        self._drop_group()
        self._remove_leftovers()

    def _open_folder(self) -> FolderAccess:
        """Return the access to the working folder, received from the resident process on first use.

        Raises SandboxFailure.
        """
        if self._is_closed:
            raise SandboxFailure(self.lost, retryable=False)
        if self._folder is not None:
            return self._folder
        with self._request_lock:
            return self._receive_folder()

    def _start_resident(self, resident_end: socket.socket) -> None:
        """Start the resident process: the interpreter inside the sandbox that runs the calls.

        Its programs and settings are passed on a descriptor, or on standard input for a container.

        Args:
            resident_end: the resident process's end of the connection; closed here.

        Raises:
            SandboxFailure: the resident process does not start.
            ControlGroupRefusedError: it cannot be moved into its control group.
        """
        bundle_fd = os.memfd_create("ajet")
        output_fd = os.memfd_create("said")
        try:
            plan = self._plan_start(resident_end.fileno())
            bundle = pack_bundle(plan.settings, compiled=plan.is_compiled)
            with open(os.dup(bundle_fd), "wb") as file:
                file.write(bundle)
            os.lseek(bundle_fd, 0, os.SEEK_SET)
            flags = ["-I"] if plan.has_site_packages else ["-I", "-S"]
            try:
                self._process = subprocess.Popen(
                    [*plan.argv, *flags, "-c", START_PIPED if plan.is_piped else START % bundle_fd],
                    stdin=resident_end.fileno() if plan.is_piped else subprocess.DEVNULL,
                    stdout=resident_end.fileno() if plan.is_piped else output_fd,
                    stderr=output_fd,
                    env=plan.variables,
                    cwd="/proc" if plan.is_piped else "/",  # podman cannot leave files in /proc
                    start_new_session=True,
                    pass_fds=[resident_end.fileno(), bundle_fd, *plan.descriptors],
                    user=plan.user,
                    group=plan.user,
                    extra_groups=None if plan.user is None else [],
                )
            except OSError as error:
                if plan.pid_fd is not None:
                    os.close(plan.pid_fd)
                raise SandboxFailure(f"{plan.argv[0]} cannot be started: {error.strerror}") from error
            finally:
                for descriptor in plan.descriptors:
                    os.close(descriptor)
            resident_end.close()  # so that the end of the resident closes the connection
            if plan.is_piped:
                with suppress(OSError):  # the end of the process is reported in another way
                    self._line.sendall(len(bundle).to_bytes(4, "big") + bundle)
            self._pid = self._read_pid(plan)
            self._await_resident(plan, output_fd)
        finally:
            resident_end.close()
            os.close(bundle_fd)
            os.close(output_fd)

    def _read_pid(self, plan: ResidentPlan) -> int:
        """Return the host's process id of the resident process."""
        return self._process.pid

    def _await_resident(self, plan: ResidentPlan, output_fd: int) -> None:
        """Move the started resident process into the control group, and wait until it reports readiness.

        Args:
            output_fd: file with the resident's output, shown in the error.

        Raises:
            SandboxFailure: it ends or stays silent for START_SECONDS.
            ControlGroupRefusedError: it cannot be moved.
        """
        if self._group is not None:
            try:
                self._group.add_process(self._pid)
            except OSError as error:
                raise ControlGroupRefusedError(str(error.strerror)) from error
        self._line.settimeout(START_SECONDS)
        try:
            ready_byte = self._line.recv(1)
        except OSError:
            ready_byte = b""
        if not ready_byte:
            self._end_processes()
            output = os.pread(output_fd, _MAX_START_OUTPUT, 0).decode(errors="replace").strip()
            raise SandboxFailure(f"{self.mechanism} does not start: {output or 'it says nothing'}", retryable=False)
        self._other_processes = 0 if self.has_own_process_count else count_processes()
        self._owner = plan.settings["uid"] if plan.user is None else plan.user
        self._is_piped = plan.is_piped
        self._max_answer_bytes = 2 * self._limits.output + (1 << 20)

    def _receive_folder(self) -> FolderAccess:
        """Receive access to the working folder from the started resident process, once.

        The resident sends a descriptor, or reports that it accesses files itself. The caller holds `_request_lock`.
        """
        if self._folder is None:
            try:
                marker, descriptors, _, _ = socket.recv_fds(self._line, 1, 1)
            except OSError as error:
                raise SandboxFailure(self._mark_lost(str(error))) from error
            if not (marker if self._is_piped else descriptors):
                raise SandboxFailure(self._mark_lost("it ended while it started"))
            self._line.settimeout(None)
            if self._is_piped:  # the resident reports whether the container's memory limit is in effect
                self._is_memory_held = marker == b"g"
            self._folder = (
                ResidentFolder(self._ask_resident) if self._is_piped else LocalFolder(descriptors[0], self._owner)
            )
        return self._folder

    def _ask_resident(self, order: Mapping[str, Any], content: bytes) -> tuple[Mapping[str, Any], list[bytes]]:
        """Send a file request and return the resident process's answer and content."""
        with self._request_lock:
            if self.lost:
                raise SandboxFailure(self.lost, retryable=False)
            try:
                self.send_frame(pack_frame(dict(order), content))
                return self._receive_answer(time.monotonic() + LATE, (1 << 20) + order.get("longest", 0))
            except (OSError, FrameError) as error:
                self._end_processes()
                raise SandboxFailure(self._mark_lost(str(error)), retryable=False) from error

    def _run_call(self, order: dict[str, Any], blobs: tuple[bytes, ...], limits: Limits | None) -> Result:
        """Send a call to the resident process and return its result.

        Args:
            order: the call: command, variables, and whether it is stateful. Limits are added here.
            blobs: standard input, and the code if there is no command.
            limits: limits of this call; None for the sandbox's.

        Raises:
            SandboxFailure: the sandbox is lost.
        """
        limits = limits or self._limits
        order |= {
            "do": "call", "wall": limits.wall, "cpu": limits.cpu, "memory": limits.memory,
            "processes": limits.processes + self._other_processes, "files": limits.files, "output": limits.output,
            "file_size": limits.disk, "disk": limits.disk, "watch_disk": not self.is_disk_bounded,
        }  # fmt: skip
        with self._request_lock:
            if self.lost:
                raise SandboxFailure(self.lost, retryable=False)
            self._receive_folder()
            order["watch_memory"] = not self._is_memory_held or limits.memory < self._limits.memory
            started_at = time.monotonic()
            try:
                self.send_frame(pack_frame(order, *blobs))
                max_bytes = max(self._max_answer_bytes, 2 * limits.output + (1 << 20))
                head, texts = self._receive_answer(started_at + limits.wall + LATE, max_bytes)
            except (OSError, FrameError) as error:
                return self._handle_loss(error, time.monotonic() - started_at)
            return self._parse_result(head, texts)

    def send_frame(self, frame: bytes) -> None:
        """Send one framed message to the resident process, also while another thread waits for an answer."""
        with self._write_lock:
            self._line.sendall(frame)

    def _receive_answer(self, until: float, limit: int) -> tuple[dict[str, Any], list[bytes]]:
        """Receive one framed message of the resident process.

        Args:
            until: deadline in seconds of `time.monotonic()`.
            limit: largest number of bytes.

        Returns:
            (head, byte strings).

        Raises:
            FrameError: the message is late, malformed or too long, or the connection is closed.
        """
        frames = FrameReader(limit)
        poll = select.poll()
        poll.register(self._line.fileno(), select.POLLIN)
        while True:
            if (frame := frames.take_frame()) is not None:
                return frame
            seconds_left = until - time.monotonic()
            if seconds_left <= 0 or not poll.poll(1000 * seconds_left):
                raise FrameError("the sandbox did not answer in time")
            received = self._line.recv(1 << 16)
            if not received:
                raise FrameError("the connection to the sandbox is closed")
            frames.feed(received)

    def _parse_result(self, head: dict[str, Any], texts: list[bytes]) -> Result:
        """Check the form of the resident process's untrusted answer and return it as result. Raises SandboxFailure."""
        reported, code, seconds = head.get("ended"), head.get("code"), head.get("seconds")
        ended: EndReason | None = next((reason for reason in get_args(EndReason) if reason == reported), None)
        if ended is None or type(code) is not int or type(seconds) is not float or len(texts) != 2:
            raise SandboxFailure(self._mark_lost("its answer cannot be read"), retryable=False)
        # The kernel may kill a child of the call, whose parent then exits normally: only the count shows the reason.
        if ended in ("signal", "exit") and self._killed_for_memory(head.get("killed")):
            ended = "memory"
        return Result(texts[0], texts[1], code, ended, seconds, kept=head.get("kept") is True)

    def _killed_for_memory(self, reported: Any = None) -> bool:
        """True if the kernel has killed a process for lack of memory since the last call.

        Args:
            reported: total count of such kills by the process inside the sandbox, if the host cannot count them.
        """
        kill_count = (
            self._group.count_killed()
            if self._group is not None
            else reported
            if type(reported) is int
            else self._killed_before
        )
        previous_count, self._killed_before = self._killed_before, kill_count
        return kill_count > previous_count

    def _handle_loss(self, error: Exception, seconds: float) -> Result:
        """Return the result of a call whose resident process died or does not answer, and end the sandbox.

        Raises SandboxFailure, unless memory ran out or the sandbox was closed.
        """
        was_closed = self._is_closed
        reason = self._mark_lost(str(error))
        self._end_processes()
        if self._killed_for_memory():
            return Result(b"", b"", -9, "memory", seconds)
        if was_closed:
            return Result(b"", b"", -9, "killed", seconds)
        raise SandboxFailure(reason, retryable=False) from error

    def _mark_lost(self, reason: str) -> str:
        """Record that the sandbox cannot be used any more, and return the first recorded reason."""
        self.lost = self.lost or f"the sandbox was lost: {reason}"
        return self.lost

    def _end_processes(self) -> None:
        """Wait for the resident process to end its processes if the sandbox was closed, then kill what remains."""
        process = getattr(self, "_process", None)
        if process is None:
            return
        try:
            process.wait(self.end_timeout_s if self._is_closed else 0)
        except subprocess.TimeoutExpired:
            end_tree(process.pid)
            process.wait()
