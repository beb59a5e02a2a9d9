"""The resident's connection over standard input and output, for containers, whose engine passes only bytes.

Invariant: no call inherits the two descriptors. They are duplicated and replaced by `/dev/null`.
"""

from __future__ import annotations

import os

from ajet.schema.frames import send_all
from ajet_sandbox.inside.files import PathEscapeError, SandboxFolder

TYPE_CHECKING = False  # importing `typing` takes longer than a call
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class PipedLine:
    """The connection to the host, with the socket methods that the resident process uses."""

    def __init__(self) -> None:
        self._input_fd, self._output_fd = os.dup(0), os.dup(1)
        null_fd = os.open(os.devnull, os.O_RDWR)
        for standard_fd in (0, 1):
            os.dup2(null_fd, standard_fd)
        os.close(null_fd)

    def fileno(self) -> int:
        """Return the descriptor for polling."""
        return self._input_fd

    def recv(self, limit: int) -> bytes:
        """Read bytes; b"" once the host is gone."""
        return os.read(self._input_fd, limit)

    def sendall(self, frame: bytes) -> None:
        """Send a frame to the host."""
        send_all(self._output_fd, frame)


def handle_file_order(order: Mapping[str, Any], blobs: list[bytes]) -> tuple[Any, ...]:
    """Read or write a file of the working folder, as the host requests.

    Returns:
        The answer as (head, content…): the head is {} on success, else it has `unsafe` or `errno`.
    """
    folder = SandboxFolder(os.open(".", os.O_RDONLY | os.O_DIRECTORY), None)
    try:
        if order["do"] == "read":
            return {}, folder.read(order["path"], order["longest"])
        folder.put(order["path"], blobs[0])
        return ({},)
    except PathEscapeError as error:
        return ({"unsafe": str(error)},)
    except OSError as error:
        return ({"errno": error.errno},)
    finally:
        folder.close()
