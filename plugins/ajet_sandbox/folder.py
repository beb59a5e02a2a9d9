"""Files of a sandbox's working folder, as the host sees them: by a descriptor that the resident sent, or by asking it.

Invariant: what `inside.files` refuses is an UnsafePath here, and no file is longer than was asked for, whoever read it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ajet.schema.sandbox import UnsafePath
from ajet_sandbox.inside.files import PathEscapeError, SandboxFolder

SendOrder = Callable[[Mapping[str, Any], bytes], tuple[Mapping[str, Any], list[bytes]]]
"""An order for the resident, with bytes; its answer. Raises SandboxFailure."""


class FolderAccess(Protocol):
    """Raises UnsafePath, OSError, SandboxFailure."""

    def read(self, path: str, longest: int) -> bytes:
        """See the contract."""
        ...

    def put(self, path: str, content: bytes) -> None:
        """See the contract."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...


class LocalFolder:
    """A folder held by a descriptor, which it closes."""

    def __init__(self, number: int, owner: int | None) -> None:
        """`owner`: the user and group that new files are given to, where that is somebody else."""
        self._folder = SandboxFolder(number, owner)

    def read(self, path: str, longest: int) -> bytes:
        """See `Files`."""
        try:
            return self._folder.read(path, longest)
        except PathEscapeError as error:
            raise UnsafePath(str(error)) from error

    def put(self, path: str, content: bytes) -> None:
        """See `Files`."""
        try:
            self._folder.put(path, content)
        except PathEscapeError as error:
            raise UnsafePath(str(error)) from error

    def close(self) -> None:
        """See `Files`."""
        self._folder.close()


class ResidentFolder:
    """A folder that is asked of the resident, where no descriptor comes out."""

    def __init__(self, send_order: SendOrder) -> None:
        self._send_order = send_order

    def read(self, path: str, longest: int) -> bytes:
        """See `Files`."""
        found = self._request_blobs({"do": "read", "path": path, "longest": longest}, b"", path)
        return b"".join(found)[:longest]

    def put(self, path: str, content: bytes) -> None:
        """See `Files`."""
        self._request_blobs({"do": "put", "path": path}, content, path)

    def close(self) -> None:
        """See `Files`."""

    def _request_blobs(self, order: Mapping[str, Any], content: bytes, path: str) -> list[bytes]:
        head, blobs = self._send_order(order, content)
        if "unsafe" in head:
            raise UnsafePath(str(head["unsafe"])[:1000])
        number = head.get("errno")
        if number is not None:
            number = number if type(number) is int else errno.EIO
            raise OSError(number, os.strerror(number), path)
        return blobs
