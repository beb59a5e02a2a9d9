"""The process that keeps the state of calls that ask for it: one after the other in one namespace.

Invariant: it is user code like any other call, under the same limits; the resident believes nothing of it but a byte.
Its memory, files and processes are limited as those of the first call; its processor seconds anew for each.
"""

from __future__ import annotations

import _socket
import os
import resource

from ajet.schema.frames import FrameReader, pack_frame
from ajet_sandbox.inside import call

TYPE_CHECKING = False  # what `typing` would bring takes longer than a call
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_LINE = 20
"""The descriptor on which a session hears."""


class Session:
    """The resident's side."""

    def __init__(self, order: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.line: Any = ours
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _serve(theirs, order, settings)
        theirs.close()

    def begin(self, order: Mapping[str, Any], ends: tuple[int, int, int], code: bytes) -> None:
        """Hand it a call."""
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, b"".join(end.to_bytes(4, "little") for end in ends))]
        self.line.sendmsg([b"!"], rights)
        self.line.sendall(pack_frame({"cpu": order["cpu"], "environment": order["environment"]}, code))

    def ended(self) -> int | None:
        """The exit code of the call at hand; None where the process is gone."""
        try:
            said = self.line.recv(1)
        except OSError:
            return None
        return said[0] if said else None


def _serve(line: Any, order: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    try:
        kept = os.dup2(line.detach(), _LINE, inheritable=False)
        line = _socket.socket(fileno=kept)
        nothing = os.dup2(os.open(os.devnull, os.O_RDWR), _LINE + 1, inheritable=False)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.closerange(3, _LINE)
        os.closerange(_LINE + 2, 1 << 16)
        call.prepare(order, settings)
        while True:
            said, rights, _, _ = line.recvmsg(1, _socket.CMSG_SPACE(12))
            if not said:
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
            code = call.run(blobs[0], names, kept=True)
            for number in (0, 1, 2):
                os.dup2(nothing, number)
            line.send(bytes([code]))
    finally:
        os._exit(126)
