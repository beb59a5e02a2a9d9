"""The resident: a Python process in the sandbox that is started once and forks for each call.

The line is its connection to the host process. Invariants: the resident ends with all child processes when the line
closes, whatever untrusted code does, because it is the first process of its namespace, or the subreaper of its
descendants. After a call only the process of stateful calls (the session) survives. Output is read up to its limit. The
host learns why a call ended.
"""

# ruff: noqa: SIM105
from __future__ import annotations

import _signal as signal  # the module without the underscore makes enumerations, which takes a while
import os
import select
import sys
import time

TYPE_CHECKING = False  # importing `typing` takes longer than a call
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LOOK_EVERY = 0.1
"""Seconds between two measurements of a call's processes."""
PIECE = 1 << 16


def main(settings: Mapping[str, Any]) -> None:
    """Change to the sandbox's user, report readiness, send a descriptor of the working folder, and serve calls.

    If the connection is standard input and output, no descriptor can be sent: the resident process then accesses files
    itself.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if settings["uid"] is not None:
        os.setgroups([])
        os.setresgid(settings["uid"], settings["uid"], settings["uid"])
        os.setresuid(settings["uid"], settings["uid"], settings["uid"])
    os.chdir(settings["folder"])
    sys.path += settings["packages"]
    settings["environment"].setdefault("PATH", os.environ.get("PATH", os.defpath))
    if settings["line"] is None:
        from ajet_sandbox.inside.piped import PipedLine
        from ajet_sandbox.inside.usage import read_memory_limit

        piped = PipedLine()
        piped.sendall(b"!g" if 0 < read_memory_limit() <= settings["memory"] else b"!.")
        Resident(piped, settings).serve()
    os.write(settings["line"], b"!")
    import _socket  # imported after the report, while the host prepares its first call

    line = _socket.socket(fileno=settings["line"])
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    line.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, folder.to_bytes(4, "little"))])
    os.close(folder)
    Resident(line, settings).serve()


class Resident:
    """Receives the host's requests and runs them, one at a time."""

    def __init__(self, line: Any, settings: Mapping[str, Any]) -> None:
        from ajet.schema.frames import FrameReader
        from ajet_sandbox.inside import kernel

        self._line, self._settings = line, settings
        self._frames = FrameReader(settings["longest"])
        self._session: Any = None
        self.is_namespace_init = os.getpid() == 1
        kernel.prctl(kernel.SET_DUMPABLE, 0)
        if not self.is_namespace_init:
            kernel.prctl(kernel.SUBREAPER, 1)

    def serve(self) -> None:
        """Serve requests until the connection to the host closes."""
        import gc

        from ajet.schema.frames import pack_frame

        exec(compile(b"0", "<code>", "exec"), {})  # the first run sets up state that the forks then share
        gc.disable()
        gc.freeze()  # without this a collection in each fork copies all pages
        while True:
            while (frame := self._frames.take_frame()) is None:
                if not self._receive_bytes():
                    self.end_all()
            head, blobs = frame
            if head["do"] == "call":
                self._line.sendall(pack_frame(*self.run_call(head, blobs)))
            elif head["do"] in ("put", "read"):
                from ajet_sandbox.inside import piped

                self._line.sendall(pack_frame(*piped.handle_file_order(head, blobs)))

    def _receive_bytes(self) -> bool:
        """Receive bytes of the host. Return False once the host has closed the connection."""
        received = self._line.recv(PIECE)
        self._frames.feed(received)
        return bool(received)

    def end_all(self) -> None:
        """Kill all processes of the sandbox, then exit."""
        self._session = None
        self.end_calls()
        os._exit(0)

    def run_call(self, order: Mapping[str, Any], blobs: list[bytes]) -> Any:
        """Run one call, end its processes, and return its answer: (head, standard output, standard error).

        The head says why the call ended, with exit code and seconds.

        Args:
            order: the host's request: command, variables and limits.
            blobs: standard input, and the code.
        """
        stdin = os.memfd_create("stdin")
        _write_all(stdin, blobs[0])
        os.lseek(stdin, 0, os.SEEK_SET)
        out, child_out = os.pipe()
        err, child_err = os.pipe()
        ends = (stdin, child_out, child_err)
        started_at = time.monotonic()
        try:
            pid = self._start_call(order, ends, blobs)
        except OSError as error:
            ended: tuple[str, int] = ("exit", 126)
            outputs = [b"", f"no process could be started: {error.strerror}\n".encode()]
            _close_all(*ends, out, err)
        else:
            _close_all(*ends)
            running = RunningCall(self, pid, order, (out, err), started_at)
            ended, outputs = running.wait_until_over()
            _close_all(out, err)
        if order["keep"] and ended[0] != "exit":
            self._session = None
        has_session = self._session is not None
        self.end_calls()
        head = {"ended": ended[0], "code": ended[1], "kept": has_session, "seconds": time.monotonic() - started_at}
        if self._settings["line"] is None:
            from ajet_sandbox.inside import usage

            head["killed"] = usage.count_killed()
        return head, outputs[0], outputs[1]

    def _start_call(self, order: Mapping[str, Any], ends: tuple[int, int, int], blobs: list[bytes]) -> int:
        """Fork a process for the call and return its id.

        A stateful call goes to the session process instead, and the result is 0.
        """
        from ajet_sandbox.inside import call, session

        if order["keep"]:
            if self._session is None:
                self._session = session.SessionProcess(order, self._settings)
            self._session.begin(order, ends, blobs[1])
            return 0
        pid = os.fork()
        if pid == 0:
            call.run_call(order, self._settings, ends, blobs)
        return pid

    @property
    def session(self) -> Any:
        """The process of stateful calls, or None before its start."""
        return self._session

    def take_session_pid(self) -> int:
        """Forget the ended session and return its process id, which must still be reaped."""
        pid: int = self._session.pid
        self._session = None
        return pid

    @property
    def line(self) -> Any:
        """The connection to the host."""
        return self._line

    def read_frame(self) -> dict | None:
        """Receive bytes of the host during a call. Return a complete message, or None.

        Raises:
            EOFError: the host has closed the connection.
        """
        if not self._receive_bytes():
            raise EOFError
        return self.take_frame()

    def take_frame(self) -> dict | None:
        """Return the next complete message received earlier, or None."""
        frame = self._frames.take_frame()
        return frame[0] if frame is not None else None

    def list_processes(self) -> list[int]:
        """Return the ids of all processes of calls, including the session, parents before children."""
        if self.is_namespace_init:
            return [int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1"]
        pids, pending = [], [os.getpid()]
        while pending:
            children = _list_children(pending.pop())
            pids += children
            pending += children
        return pids

    def end_calls(self) -> None:
        """Kill and reap all processes except the session."""
        session_pid = self._session.pid if self._session is not None else 0
        while True:
            # Signal -1 reaches every process of the namespace except process 1, so no fork can escape it.
            if session_pid == 0 and self.is_namespace_init:
                try:
                    os.kill(-1, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            else:
                for pid in self.list_processes():
                    if pid != session_pid:
                        _kill_process(pid)
            if not self._reap_processes(session_pid):
                return

    def _reap_processes(self, session_pid: int) -> bool:
        """Reap ended child processes. Return True if processes other than the session are still ending."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                remaining = [process for process in self.list_processes() if process != session_pid]
                if remaining:
                    time.sleep(0.0005)
                return bool(remaining)


class RunningCall:
    """Waits for the end of one call, and collects its output."""

    def __init__(
        self, resident: Resident, pid: int, order: Mapping[str, Any], ends: tuple[int, int], started_at: float
    ) -> None:
        self._resident = resident
        self._pid = pid
        self._order = order
        self._ends = ends
        self._text = {end: bytearray() for end in ends}
        self._deadline = started_at + order["wall"]

    def wait_until_over(self) -> tuple[tuple[str, int], list[bytes]]:
        """Return ((reason, exit code), [standard output, standard error])."""
        ended = self._wait_for_end()
        return ended, [bytes(self._text[end]) for end in self._ends]

    def _wait_for_end(self) -> tuple[str, int]:
        """Wait until the call's process ends, is stopped or exceeds a limit. Return (cause, exit code)."""
        poll, line_fd = select.poll(), self._resident.line.fileno()
        # A stateful call has no process of its own: the session's line then reports its end.
        process_fd = os.pidfd_open(self._pid) if self._pid else self._resident.session.line.fileno()
        for fd in (*self._ends, line_fd, process_fd):
            poll.register(fd, select.POLLIN)
        must_measure = self._order["watch_memory"] or self._order["watch_disk"]
        try:
            # The order to stop may have arrived together with the call.
            if _is_stop(self._resident.take_frame()):
                return "stopped", -signal.SIGKILL
            while True:
                seconds_left = self._deadline - time.monotonic()
                if seconds_left <= 0:
                    return "time", -signal.SIGKILL
                ready = [
                    fd for fd, _ in poll.poll(1000 * (min(seconds_left, LOOK_EVERY) if must_measure else seconds_left))
                ]
                for end in self._ends:
                    if end in ready and not self._read_output(end):
                        poll.unregister(end)
                if sum(map(len, self._text.values())) > self._order["output"]:
                    self._cut_output()
                    return "output", -signal.SIGKILL
                if line_fd in ready and self._is_stopped():
                    return "stopped", -signal.SIGKILL
                if process_fd in ready:
                    self._drain_pipes()
                    return self._read_exit()
                if must_measure and (exceeded := self._find_exceeded()):
                    return exceeded, -signal.SIGKILL
        finally:
            if self._pid:
                os.close(process_fd)

    def _read_output(self, end: int) -> bool:
        """Read one chunk of an output pipe. Return False at its end."""
        chunk = os.read(end, PIECE)
        self._text[end] += chunk
        return bool(chunk)

    def _drain_pipes(self) -> None:
        """Read what the pipes hold now. Output that leftover processes write later is ignored."""
        for end in self._ends:
            os.set_blocking(end, False)
            try:
                while sum(map(len, self._text.values())) <= self._order["output"] and self._read_output(end):
                    pass
            except BlockingIOError:
                pass
        self._cut_output()

    def _cut_output(self) -> None:
        """Drop the output beyond the limit; standard output has precedence over standard error."""
        free_bytes = self._order["output"]
        for end in self._ends:
            del self._text[end][free_bytes:]
            free_bytes -= len(self._text[end])

    def _is_stopped(self) -> bool:
        """Return True if the host has ordered to stop the call. End the sandbox if the host is gone."""
        try:
            frame = self._resident.read_frame()
        except EOFError:
            self._resident.end_all()
        return _is_stop(frame)

    def _read_exit(self) -> tuple[str, int]:
        """Return (cause, exit code) of the ended call, and reap its process.

        A stateful call normally ends without its session, which reports the exit code; else the session itself has
        ended.
        """
        pid = self._pid
        if not pid:  # a stateful call
            if (code := self._resident.session.ended()) is not None:
                return "exit", code
            pid = self._resident.take_session_pid()
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return "exit", code
        return ("time" if code == -signal.SIGXCPU else "signal"), code

    def _find_exceeded(self) -> str:
        """Measure the call's processes and files. Return the exceeded limit ("memory" or "disk"), or ""."""
        from ajet_sandbox.inside import usage

        pids = self._resident.list_processes()
        has_own_network = self._resident.is_namespace_init
        if (
            self._order["watch_memory"]
            and usage.measure_memory(pids, has_own_network=has_own_network) > self._order["memory"]
        ):
            return "memory"
        if self._order["watch_disk"] and usage.measure_disk(".", self._order["disk"]) > self._order["disk"]:
            return "disk"
        return ""


def _is_stop(frame: dict | None) -> bool:
    """Return True if the message orders to stop the call."""
    return frame is not None and frame.get("do") == "stop"


def _list_children(pid: int) -> list[int]:
    """Return the process ids of a process's children, started by any of its threads."""
    pids: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as children:
                pids += map(int, children.read().split())
    except OSError:
        pass  # it has ended
    return pids


def _kill_process(pid: int) -> None:
    """Kill a process, unless it has ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass  # it has ended


def _close_all(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    """Write all bytes; a single `write` may write only a part."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
