"""Access of the host process to files in a sandbox's working folder.

It uses a descriptor of the folder, or requests to the resident (the Python process inside). Invariant: paths that
`inside.files` refuses raise UnsafePathError, and a read never returns more than the requested length.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ajet.schema.sandbox import UnsafePathError
from ajet_sandbox.inside.files import PathEscapeError, SandboxFolder

SendOrder = Callable[[Mapping[str, Any], bytes], tuple[Mapping[str, Any], list[bytes]]]
"""Sends an order with bytes to the resident and returns the answer. Raises SandboxFailure."""


class FolderAccess(Protocol):
    """Reads and writes files in the working folder. Raises UnsafePathError, OSError, SandboxFailure."""

    def read(self, path: str, longest: int) -> bytes:
        """Return the first `longest` bytes of a file."""
        ...

    def put(self, path: str, content: bytes) -> None:
        """Write a file and missing parent folders."""
        ...

    def close(self) -> None:
        """Close the folder's descriptor. Idempotent."""
        ...


class LocalFolder:
    """A folder opened by a descriptor, closed with this object."""

    def __init__(self, number: int, owner: int | None) -> None:
        """Take over the open folder `number` (a descriptor).

        Args:
            owner: user and group id of new files; None for those of this process.
        """
        self._folder = SandboxFolder(number, owner)

    def read(self, path: str, longest: int) -> bytes:
        """Return the first `longest` bytes of a file.

        Raises UnsafePathError for a path that leads out of the folder.
        """
        try:
            return self._folder.read(path, longest)
        except PathEscapeError as error:
            raise UnsafePathError(str(error)) from error

    def put(self, path: str, content: bytes) -> None:
        """Write a file and missing parent folders. Raises UnsafePathError for a path that leads out of the folder."""
        try:
            self._folder.put(path, content)
        except PathEscapeError as error:
            raise UnsafePathError(str(error)) from error

    def close(self) -> None:
        """Close the folder's descriptor. Idempotent."""
        self._folder.close()


class ResidentFolder:
    """Accesses the folder by requests to the resident process, where no descriptor can be passed (containers)."""

    def __init__(self, send_order: SendOrder) -> None:
        self._send_order = send_order

    def read(self, path: str, longest: int) -> bytes:
        """Request the first `longest` bytes of a file from the resident process."""
        blobs = self._request_blobs({"do": "read", "path": path, "longest": longest}, b"", path)
        return b"".join(blobs)[:longest]

    def put(self, path: str, content: bytes) -> None:
        """Let the resident process write a file and missing parent folders."""
        self._request_blobs({"do": "put", "path": path}, content, path)

    def close(self) -> None:
        """Do nothing, because the sandbox's resident process owns the folder."""

    def _request_blobs(self, order: Mapping[str, Any], content: bytes, path: str) -> list[bytes]:
        """Send a file request to the resident process and return the byte strings of its answer.

        Raises:
            UnsafePathError: the path leads out of the folder.
            OSError: the file cannot be read or written. An invalid error number, since the resident is untrusted,
                becomes EIO.
        """
        head, blobs = self._send_order(order, content)
        if "unsafe" in head:
            raise UnsafePathError(str(head["unsafe"])[:1000])
        error_number = head.get("errno")
        if error_number is not None:
            error_number = error_number if type(error_number) is int else errno.EIO
            raise OSError(error_number, os.strerror(error_number), path)
        return blobs
