"""A lock on a file: what several processes want made is made by one of them, while the others wait and find it done.

Invariant: one thread of one process holds it at a time. The kernel ends it with that process, however that ends: it is
on a descriptor of that process alone (`own_descriptor`). Nobody waits in silence: who waits is
told for whom and for what after SAY_S, and then every AGAIN_S. What the file says names the holder, and decides
nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loguru import logger

from ajet.record.lock import UNSUPPORTED, Holder, OwnDescriptor, locked, unlocked
from ajet.record.process_identity import ProcessIdentity
from ajet.schema.errors import UserError

SAY_S, AGAIN_S = 3.0, 15.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.2


@contextmanager
def alone(
    path: Path,
    does: str,
    *,
    say: Callable[[str], None] = logger.info,
    at_most: float | None = None,
    do: str = "make its folder writable",
) -> Iterator[None]:
    """While nobody else is in such a block for this file, which is made with its folder.

    `does`: what the block does, as "makes the model tiny", for those who wait. `say` is told what there is to say.
    `at_most`: seconds to wait; None: as long as it takes. `do`: the way out where the file cannot be written. Raises
    UserError there, and where the time is over."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _FileLock(path)
    except OSError as error:
        raise UserError(
            f"{path.parent} cannot be written: {error.strerror}.",
            where=str(path),
            expected="a folder that this user may write to",
            do=do,
        ) from None
    try:
        lock.take(does, say, at_most)
        yield
    finally:
        lock.release()


class _FileLock:
    """A lock that a block of `alone` waits for, or holds."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path, self._mine = path, False
        self._file = OwnDescriptor(path, os.O_RDWR | os.O_CREAT)

    def take(self, does: str, say: Callable[[str], None], at_most: float | None) -> None:
        """Raises UserError, OSError."""
        began, pause = time.monotonic(), _FIRST_PAUSE_S
        told = began + SAY_S
        while not self._taken(say):
            now = time.monotonic()
            if at_most is not None and now - began > at_most:
                raise UserError(
                    f"{_capital(self._holder())} {does}, and was waited for longer than {at_most:.0f} s.",
                    where=str(self._path),
                    do="end it, and start again",
                )
            if now >= told:
                say(f"waiting for {self._holder()}, which {does} ({now - began:.0f} s so far; lock: {self._path})")
                told = now + AGAIN_S
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _taken(self, say: Callable[[str], None]) -> bool:
        try:
            locked(self._file)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            say(f"the file system of {self._path} has no locks ({error.strerror}): another process may do the same")
            return True
        self._mine = True
        with suppress(OSError):  # a full disk: nobody is told who holds it
            self._write(Holder(ProcessIdentity.of(os.getpid()), True).written())
        return True

    def _write(self, text: str) -> None:
        if (number := self._file.number) is not None:
            os.ftruncate(number, 0)
            os.pwrite(number, text.encode(), 0)

    def _holder(self) -> str:
        """The holder, in words."""
        found = Holder.read(self._path)
        return str(found) if found is not None and found.process.alive() else "another process"

    def release(self) -> None:
        """Give it back, if it was taken. Nothing happens in a forked copy."""
        if self._mine:
            with suppress(OSError):
                self._write("")
            unlocked(self._file)
        self._file.close()


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
