"""What many attempts print in one process, told apart by the context that it is printed in.

Invariants: to print waits for nobody, since an object that is thrown away may print anywhere; no more is held of an
attempt than the bound that is kept of it, however much it prints and however slowly that is told; what no attempt
printed goes where it went. A thread that user code starts by itself has no context, and is nobody's.
"""

from __future__ import annotations

import io
import os
from collections import deque
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol, TextIO

from ajet.rollout import bounds

CHATTY = 8 * bounds.PRINTED
"""Characters after which what an attempt prints is told by the bound's length, no longer line by line."""


class Tail:
    """The end of what an attempt printed that nobody has told yet. Thread-safe, without a lock."""

    def __init__(self) -> None:
        self._parts: deque[str] = deque()
        self._held = self._cut = self._taken = 0

    def add(self, text: str) -> bool:
        """Answers whether it is to be told now."""
        self._parts.append(text)
        held = self._held = self._held + len(text)
        if held > 2 * bounds.PRINTED:
            self._parts.appendleft(self._drained())
        return held >= bounds.PRINTED or ("\n" in text and self._taken < CHATTY)

    def take(self) -> tuple[str, int]:
        """The text kept, and the number of characters before it that are lost."""
        text = self._drained()
        cut, self._cut, self._held = self._cut, 0, 0
        self._taken += len(text) + cut
        return text, cut

    def _drained(self) -> str:
        parts = []
        with suppress(IndexError):
            while True:
                parts.append(self._parts.popleft())
        whole = "".join(parts)
        kept = whole[-bounds.PRINTED :]
        self._cut += len(whole) - len(kept)
        self._held = len(kept)
        return kept


class Speaker(Protocol):
    """An attempt that may print."""

    owner: int
    """The process in which it does; one that was forked from it prints where that one did."""

    def prints(self, text: str) -> None:
        """Pass on what an attempt printed."""
        ...


speaks: ContextVar[Speaker | None] = ContextVar("ajet_speaks", default=None)
"""Whose code runs here."""


class Prints(io.TextIOBase):
    """Standard output or error: what an attempt writes is told in its name, the rest goes where it went."""

    def __init__(self, real: TextIO) -> None:
        self._real = real
        self.buffer = _Bytes(self)

    def write(self, text: Any) -> int:
        """See TextIOBase."""
        if not isinstance(text, str):  # who wrote it is told so, and not whoever would put it together with the rest
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        attempt = speaks.get()
        if attempt is None or os.getpid() != attempt.owner:
            return self._real.write(text)
        attempt.prints(text)
        return len(text)

    def flush(self) -> None:
        """See TextIOBase."""
        self._real.flush()

    def fileno(self) -> int:
        """The descriptor of the real stream."""
        return self._real.fileno()

    def isatty(self) -> bool:
        """False: it is a pipe."""
        return False

    def writable(self) -> bool:
        """True, always."""
        return True

    def close(self) -> None:
        """Does nothing: the stream is everybody's, and stays open."""

    def reconfigure(self, **_: Any) -> None:
        """See TextIOWrapper: what is told is text, in no encoding."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the real stream."""
        return self._real.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """The error handling of the real stream."""
        return self._real.errors


class _Bytes(io.BufferedIOBase):
    """For those who write bytes."""

    def __init__(self, prints: Prints) -> None:
        self._prints = prints

    def write(self, given: Any) -> int:
        """See BufferedIOBase."""
        found = bytes(given)
        self._prints.write(found.decode("utf-8", "replace"))
        return len(found)

    def flush(self) -> None:
        """See BufferedIOBase."""
        self._prints.flush()

    def writable(self) -> bool:
        """True, always."""
        return True
