"""The session: one process that runs stateful calls in turn, with shared global names.

Invariant: the session is untrusted like any call, under the same limits. The resident trusts only its exit byte. The
limits of the first call hold for memory, files and processes. CPU seconds are limited anew for each call.
"""

from __future__ import annotations

import _socket
import os
import resource

from ajet.schema.frames import FrameReader, pack_frame
from ajet_sandbox.inside import call

TYPE_CHECKING = False  # importing `typing` takes longer than a call
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_LINE = 20
"""The session's file descriptor for its line."""


class SessionProcess:
    """The resident process's connection to the session process."""

    def __init__(self, order: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Fork the session process, and keep the resident process's end of their connection.

        Args:
            order: the first stateful call, whose limits hold for all calls.
            settings: settings of the sandbox.
        """
        own_end, child_end = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.line: Any = own_end
        self.pid = os.fork()
        if self.pid == 0:
            own_end.close()
            _serve_calls(child_end, order, settings)
        child_end.close()

    def begin(self, order: Mapping[str, Any], ends: tuple[int, int, int], code: bytes) -> None:
        """Send one stateful call to the session.

        Args:
            order: the host's request with its limits.
            ends: descriptors of standard input, output and error.
            code: Python source.
        """
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, b"".join(end.to_bytes(4, "little") for end in ends))]
        self.line.sendmsg([b"!"], rights)
        self.line.sendall(pack_frame({"cpu": order["cpu"], "environment": order["environment"]}, code))

    def ended(self) -> int | None:
        """Wait for the end of the current call and return its exit code; None if the process is gone."""
        try:
            reply = self.line.recv(1)
        except OSError:
            return None
        return reply[0] if reply else None


def _serve_calls(line: Any, order: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Run stateful calls in this forked process until the line closes. Never returns.

    Each call arrives as three descriptors (standard input, output, error) and a message with code and limits. The
    answer is one byte, the exit code.

    Args:
        line: the session's end of its connection to the resident process.
        order: the first call's request, whose limits hold for all calls.
        settings: settings of the sandbox.
    """
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    try:
        line_fd = os.dup2(line.detach(), _LINE, inheritable=False)
        line = _socket.socket(fileno=line_fd)
        null_fd = os.dup2(os.open(os.devnull, os.O_RDWR), _LINE + 1, inheritable=False)
        for target_fd in (0, 1, 2):
            os.dup2(null_fd, target_fd)
        os.closerange(3, _LINE)
        os.closerange(_LINE + 2, 1 << 16)
        call.prepare_process(order, settings)
        while True:
            marker, rights, _, _ = line.recvmsg(1, _socket.CMSG_SPACE(12))
            if not marker:
                os._exit(0)
            data = rights[0][2]
            for target_fd in range(3):
                descriptor = int.from_bytes(data[4 * target_fd : 4 * target_fd + 4], "little")
                os.dup2(descriptor, target_fd)
                os.close(descriptor)
            frames = FrameReader(1 << 30)
            while (frame := frames.take_frame()) is None:
                frames.feed(line.recv(1 << 16))
            head, blobs = frame
            used = resource.getrusage(resource.RUSAGE_SELF)
            # RLIMIT_CPU counts from the start of the process, so the time used by earlier calls is added.
            cpu_limit = int(used.ru_utime + used.ru_stime) + head["cpu"] + 1
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit, resource.RLIM_INFINITY))
            os.environ.clear()
            os.environ.update({**settings["environment"], **head["environment"]})
            code = call.run_code(blobs[0], names, keeps_threads=True)
            for target_fd in (0, 1, 2):
                os.dup2(null_fd, target_fd)
            line.send(bytes([code]))
    finally:
        os._exit(126)
