"""Locks on files: of a run directory (which process writes here), and for what one of several processes makes.

Invariant: at most one live process holds a folder, one thread of one process a file (`alone`). The kernel keeps the
lock (`flock` on `.lock`) for the life of the holder and of no other process: it is on a descriptor that no program
inherits and that a forked copy closes at once. So it ends with its process, however that ends, and is seen across
containers. `lock.json` says who the holder is; it decides alone where the file system has no such locks, and for a
holder that another kernel's lock may hide. Whoever waits for a file is told for whom and for what after SAY_S seconds,
and then every AGAIN_S.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from loguru import logger

from ajet.config.record_file import open_record_descriptor, refuse_links
from ajet.record.bounded_json import read_json
from ajet.record.files import write_atomically
from ajet.record.process_identity import ProcessIdentity, boot_id
from ajet.schema.errors import UserError

UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""What `locked` meets on a file system that has no locks."""


class OwnDescriptor:
    """A descriptor of this process alone: a lock on it ends with this process, however it ends.

    No program inherits it, and a forked copy of this process closes it at once.
    """

    def __init__(self, path: Path, flags: int, mode: int = 0o644) -> None:
        """Raises OSError."""
        self._number: int | None = open_record_descriptor(path, flags, mode)
        _open.add(self)

    @property
    def number(self) -> int | None:
        """The descriptor; None: it was closed, or is the parent's."""
        return self._number

    def close(self) -> None:
        """Idempotent."""
        _open.discard(self)
        number, self._number = self._number, None
        if number is not None:
            os.close(number)


def locked(file: OwnDescriptor) -> None:
    """Take the kernel's lock on it. Raises BlockingIOError where another holds it; OSError."""
    assert file.number is not None
    fcntl.flock(file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)


def unlocked(file: OwnDescriptor) -> None:
    """Give it back, for a copy, too, that a fork outside of Python may have made."""
    if file.number is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file.number, fcntl.LOCK_UN)


_open: set[OwnDescriptor] = set()


def _close_all() -> None:
    for each in tuple(_open):
        each.close()


os.register_at_fork(after_in_child=_close_all)


FILE = "lock.json"
GUARD = ".lock"


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a folder."""

    process: ProcessIdentity
    kernel: bool
    """Whether the kernel keeps the lock for it."""

    def written(self) -> str:
        """The holder as `lock.json` has it."""
        return json.dumps({**asdict(self.process), "kernel": self.kernel}) + "\n"

    @classmethod
    def read(cls, path: Path) -> Holder | None:
        """The holder in a `lock.json`; None without a readable one."""
        try:
            content = read_json(path)
            return cls(ProcessIdentity.recorded(content), bool(content["kernel"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return None

    def alive(self, *, unlocked: bool) -> bool:
        """Whether it may still write; `unlocked`: the kernel has just given us the lock of its folder."""
        if unlocked and self.kernel and self.process.boot is not None and self.process.boot == boot_id():
            return False
        return self.process.alive()

    def __str__(self) -> str:
        return str(self.process)


class RunLock:
    """The lock of one folder. `take` answers None on success, else who holds it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mine: Holder | None = None
        self._guard: OwnDescriptor | None = None

    @property
    def path(self) -> Path:
        """The file that names the holder."""
        return self.folder / FILE

    def take(self) -> Holder | str | None:
        """Take the lock, or answer its live holder (in words, where nothing names it). The folder is made when it is
        missing. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        refuse_links(self.folder)
        guard = OwnDescriptor(self.folder / GUARD, os.O_RDWR | os.O_CREAT)
        try:
            kernel = _locked(guard, self.folder)
        except BlockingIOError:
            guard.close()
            return Holder.read(self.path) or "another process"
        except OSError:
            guard.close()
            raise
        self._guard = guard
        try:
            holder = Holder.read(self.path)
            if holder is not None and holder.alive(unlocked=kernel):
                self._let_go()
                return holder
            self._mine = Holder(ProcessIdentity.of(os.getpid()), kernel)
            write_atomically(self.path, self._mine.written())
        except BaseException:
            self.release()
            raise
        return None

    def moved(self, folder: Path) -> None:
        """The folder has another name by now; the lock is on it all the same."""
        self.folder = folder

    def release(self) -> None:
        """Give the lock back if it is still ours. Idempotent."""
        mine, self._mine = self._mine, None
        if mine is not None and mine.process.pid == os.getpid() and Holder.read(self.path) == mine:
            try:
                self.path.unlink(missing_ok=True)
            except OSError as error:  # the kernel's lock ends all the same, and with it what the file says
                logger.warning("{} could not be removed: {}", self.path, error.strerror)
        self._let_go()

    def _let_go(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            unlocked(guard)
            guard.close()


def _locked(guard: OwnDescriptor, folder: Path) -> bool:
    """Take the kernel's lock; False where the file system has none. Raises BlockingIOError when it is held."""
    try:
        locked(guard)
        return True
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        logger.warning(
            "the file system of {} has no locks ({}): whether another run writes there is told by process ids alone, "
            "which processes on other machines and in other containers do not share",
            folder,
            error.strerror,
        )
        return False


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
