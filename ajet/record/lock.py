"""Locks: on a run directory (which process writes there), and on files that several processes would make.

The holder is the process that has the lock. Invariant: at most one live process holds a folder, and one thread of one
process a file (`alone`). The kernel keeps the lock (`flock` on `.lock`, taken by filelock) for the life of the holder
and of no other process: no program inherits its descriptor, and a forked copy closes it at once. So the lock ends with
its process, however that ends, and is seen across containers. `lock.json` names the holder. The file decides alone
where the file system has no such locks, and for a holder that another kernel's lock may hide. A process that waits for
a file logs the holder and its work after SAY_S seconds, and then every AGAIN_S.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from loguru import logger

from ajet.config.record_file import open_record_descriptor, refuse_links
from ajet.record.files import read_json, write_atomically
from ajet.record.process_identity import ProcessIdentity, boot_id
from ajet.schema.errors import UserError

UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""Errors of `flock` on a file system that has no locks."""


def open_lock(path: Path, permissions: int = 0o644) -> FileLock:
    """Create the lock file and return its lock, which is not yet taken.

    Raises:
        OSError: The file cannot be created. RecordFileError for a link or a pipe.
    """
    os.close(open_record_descriptor(path, os.O_RDWR | os.O_CREAT, permissions))
    # The soft lock of filelock outlives a killed process, so a file system without locks is an error here.
    return FileLock(path, fallback_to_soft=False, thread_local=False)


def acquire_lock(lock: FileLock, seconds: float = 0.0) -> str | None:
    """Take the lock. Return None, or the system's reason if the file system supports no locks.

    Args:
        seconds: Seconds to wait for another holder.

    Raises:
        Timeout: Another process holds the lock.
        OSError: The lock cannot be taken for another reason.
    """
    try:
        lock.acquire(timeout=seconds)
    except Timeout:  # an OSError without a number
        raise
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        return error.strerror
    _held.add(lock)
    return None


def release_lock(lock: FileLock) -> None:
    """Release the lock if this process holds it. Idempotent. In a forked copy of the process nothing happens."""
    _held.discard(lock)
    lock.release()


_held: set[FileLock] = set()
"""Locks held until the process ends; filelock releases a lock when its object is deleted."""


FILE = "lock.json"
GUARD = ".lock"


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds the lock of a folder or file, as written in the lock's file."""

    process: ProcessIdentity
    kernel: bool
    """Whether the kernel keeps the lock for it."""

    def written(self) -> str:
        """Return the process as the content of a lock's file."""
        return json.dumps({**asdict(self.process), "kernel": self.kernel}) + "\n"

    @classmethod
    def read(cls, path: Path) -> Holder | None:
        """Return the process named in a lock's file, or None without a readable file."""
        try:
            content = read_json(path)
            return cls(ProcessIdentity.recorded(content), bool(content["kernel"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return None

    def alive(self, *, unlocked: bool) -> bool:
        """Return True if the process may still write to the folder.

        Args:
            unlocked: True if this process has just got the kernel's lock of the folder.
        """
        # The kernel of the same boot would still refuse the lock if the process were alive, whatever its pid says.
        if unlocked and self.kernel and self.process.boot is not None and self.process.boot == boot_id():
            return False
        return self.process.alive()

    def __str__(self) -> str:
        return str(self.process)


class RunLock:
    """The lock of a run's folder, which at most one live process holds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._own_holder: Holder | None = None
        self._guard: FileLock | None = None

    @property
    def path(self) -> Path:
        """The file `lock.json`, which names the process that has the lock."""
        return self.folder / FILE

    def take(self) -> Holder | str | None:
        """Take the lock of the folder, which is created if it is missing.

        Returns:
            None if the lock is taken, else the live process that holds it, or a text if that process is unknown.

        Raises:
            OSError: The folder cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        refuse_links(self.folder)
        guard = open_lock(self.folder / GUARD)
        try:
            no_lock_reason = acquire_lock(guard)
        except Timeout:
            return Holder.read(self.path) or "another process"
        if no_lock_reason is not None:
            logger.warning(
                "the file system of {} does not support locks ({}): ajet recognises another run that writes "
                "there only by its process id, which does not work across machines and containers",
                self.folder,
                no_lock_reason,
            )
        self._guard = guard
        try:
            holder = Holder.read(self.path)
            if holder is not None and holder.alive(unlocked=no_lock_reason is None):
                self._let_go()
                return holder
            self._own_holder = Holder(ProcessIdentity.of(os.getpid()), no_lock_reason is None)
            write_atomically(self.path, self._own_holder.written())
        except BaseException:
            self.release()
            raise
        return None

    def moved(self, folder: Path) -> None:
        """Tell the lock that its folder was renamed to `folder`. The lock is still held."""
        self.folder = folder

    def release(self) -> None:
        """Release the lock, and remove the file that names this process as its holder. Idempotent."""
        own_holder, self._own_holder = self._own_holder, None
        if own_holder is not None and own_holder.process.pid == os.getpid() and Holder.read(self.path) == own_holder:
            try:
                self.path.unlink(missing_ok=True)
            except OSError as error:  # the kernel's lock ends anyway, and the file is void then
                logger.warning("{} could not be removed: {}", self.path, error.strerror)
        self._let_go()

    def _let_go(self) -> None:
        """Release the kernel's lock of the folder, if it is held. Idempotent."""
        if self._guard is not None:
            release_lock(self._guard)
            self._guard = None


SAY_S, AGAIN_S = 3.0, 15.0


@contextmanager
def alone(
    path: Path,
    does: str,
    *,
    say: Callable[[str], None] = logger.info,
    at_most: float | None = None,
    do: str = "give this user permission to write to the folder",
) -> Iterator[None]:
    """Run the block while no other process or thread runs such a block for this file.

    Args:
        path: The lock file, which is created with its folder.
        does: What the block does, such as "makes the model tiny", shown to waiting processes.
        say: Called with messages for the user.
        at_most: Seconds to wait. None: no limit.
        do: Advice if the file cannot be written.

    Raises:
        UserError: The file cannot be written, or the waiting time is over.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open_lock(path)
    except OSError as error:
        raise UserError(
            f"ajet cannot write to the folder {path.parent}: {error.strerror}.",
            where=str(path),
            expected="a folder that this user may write to",
            do=do,
        ) from None
    try:
        no_lock_reason = _wait_for_lock(lock, path, does, say, at_most)
        if no_lock_reason is None:
            _write_holder(path, Holder(ProcessIdentity.of(os.getpid()), True).written())
        else:
            say(
                f"the file system of {path} does not support locks ({no_lock_reason}): another process may do the same "
                "at the same time"
            )
        yield
    finally:
        if lock.is_locked:  # never in a forked copy
            _write_holder(path, "")
            release_lock(lock)


def _wait_for_lock(
    lock: FileLock, path: Path, does: str, say: Callable[[str], None], at_most: float | None
) -> str | None:
    """Take the lock, and report who holds it while waiting.

    Args:
        does: What the holder does, such as "makes the model tiny".
        say: Called with messages for the user.
        at_most: Seconds to wait. None: no limit.

    Returns:
        None, or the system's reason if the file system supports no locks.

    Raises:
        UserError: The waiting time is over.
        OSError: The lock cannot be taken.
    """
    started, report_interval = time.monotonic(), SAY_S
    while True:
        timeout = report_interval if at_most is None else min(report_interval, started + at_most - time.monotonic())
        try:
            return acquire_lock(lock, max(timeout, 0.0))
        except Timeout:
            waited = time.monotonic() - started
        recorded = Holder.read(path)
        holder = str(recorded) if recorded is not None and recorded.process.alive() else "another process"
        if at_most is not None and waited >= at_most:
            raise UserError(
                f"{_capitalize_words(holder)} {does}, and ajet has waited longer than {at_most:.0f} s for it.",
                where=str(path),
                do="stop that process, then start the same command again",
            )
        say(f"waiting for {holder}, which {does} ({waited:.0f} s so far; lock: {path})")
        report_interval = AGAIN_S


def _write_holder(path: Path, text: str) -> None:
    """Write the holder's name, or nothing, into a lock's file. Errors are ignored, because the lock holds anyway."""
    with suppress(OSError), open(open_record_descriptor(path, os.O_WRONLY | os.O_TRUNC), "w") as file:
        file.write(text)  # on a full disk the waiting processes do not see the holder's name


def _capitalize_words(words: str) -> str:
    return words[:1].upper() + words[1:]
