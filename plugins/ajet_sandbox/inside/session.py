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
    """The resident's connection to the session process."""

    def __init__(self, order: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.line: Any = ours
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _serve_calls(theirs, order, settings)
        theirs.close()

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
        """Return the exit code of the current call, or None if the process is gone."""
        try:
            reply = self.line.recv(1)
        except OSError:
            return None
        return reply[0] if reply else None


def _serve_calls(line: Any, order: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    try:
        line_fd = os.dup2(line.detach(), _LINE, inheritable=False)
        line = _socket.socket(fileno=line_fd)
        nothing = os.dup2(os.open(os.devnull, os.O_RDWR), _LINE + 1, inheritable=False)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.closerange(3, _LINE)
        os.closerange(_LINE + 2, 1 << 16)
        call.prepare_process(order, settings)
        while True:
            word, rights, _, _ = line.recvmsg(1, _socket.CMSG_SPACE(12))
            if not word:
                os._exit(0)
            data = rights[0][2]
            for number in range(3):
                end = int.from_bytes(data[4 * number : 4 * number + 4], "little")
                os.dup2(end, number)
                os.close(end)
            frames = FrameReader(1 << 30)
            while (frame := frames.take_frame()) is None:
                frames.feed(line.recv(1 << 16))
            head, blobs = frame
            used = resource.getrusage(resource.RUSAGE_SELF)
            most = int(used.ru_utime + used.ru_stime) + head["cpu"] + 1
            resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
            os.environ.clear()
            os.environ.update({**settings["environment"], **head["environment"]})
            code = call.run_code(blobs[0], names, keeps_threads=True)
            for number in (0, 1, 2):
                os.dup2(nothing, number)
            line.send(bytes([code]))
    finally:
        os._exit(126)
