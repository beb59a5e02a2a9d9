"""A cache of converted or downloaded models, one folder per entry, shared by several processes.

Invariant: an entry is absent or complete. The process that makes an entry holds its lock (`ajet.record.lock`), works in
a temporary folder next to it, and renames the folder at the end.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ajet.config.locations import find_cache_root
from ajet.record.console import console
from ajet.record.files import explain_write_errors
from ajet.record.lock import alone
from ajet.record.progress import Progress as ShownProgress
from ajet.record.progress import ProgressBar

Progress = Callable[[str, int, int], None]
"""Called with (current work, units done, total units); total is 0 if unknown."""


def find_entry(name: str) -> Path | None:
    """Return the folder `name` of the cache, if present."""
    target = find_cache_root() / name
    return target if target.is_dir() else None


def open_entry(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder `name` of the cache. If it is absent, `make` fills an empty folder first.

    Raises:
        UserError: the cache is not writable.
    """
    target = find_cache_root() / name
    if target.is_dir():
        return target
    with explain_write_errors(
        "a cached copy of a model",
        target.parent,
        intact="no incomplete copy remains",
        room="the model's size, twice during the conversion",
        other_folder=", or set the variable AJET_CACHE to another folder",
    ):
        return _fill_entry(target, make)


def _fill_entry(target: Path, make: Callable[[Path], None]) -> Path:
    """Create a cache entry under its lock, unless another process was faster, and return its folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with alone(target.with_name(target.name + ".lock"), f"makes {target}", do="set AJET_CACHE to another folder"):
        if target.is_dir():
            return target
        # The lock is held, so these folders are of processes that ended before they were complete.
        for abandoned in target.parent.glob(f"{target.name}.making-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        temporary_folder = Path(tempfile.mkdtemp(prefix=f"{target.name}.making-", dir=target.parent))
        try:
            make(temporary_folder)
            temporary_folder.chmod(0o755)
            temporary_folder.rename(target)
        finally:
            shutil.rmtree(temporary_folder, ignore_errors=True)
    return target


EVERY_S = 3.0
"""Seconds between two plain lines about the same work."""


class ProgressLines:
    """Shows the progress of a download or conversion: a bar on a terminal, else occasional lines."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._title, self._printed_at = "", 0.0
        self._bar: ProgressBar | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show the progress of some work. A plain line about the same work follows after EVERY_S seconds at the
        earliest.

        Args:
            what: the current work.
            done: bytes done.
            total: bytes in all; 0 if unknown.
        """
        if self._stream.isatty() and total and console.is_terminal:
            self._draw_bar(what, done, total)
            return
        if self._bar is not None:
            self._bar.progress.close()
            self._bar = None
        now = time.monotonic()
        if what == self._title and now - self._printed_at < EVERY_S:
            return
        self._title, self._printed_at = what, now
        share = f" {done / total:.0%}" if total and done else ""
        print(f"{what}{share}", file=self._stream, flush=True)

    def _draw_bar(self, what: str, done: int, total: int) -> None:
        """Draw the bar in megabytes, and remove it when the work is done."""
        if self._bar is None or what != self._title:
            self._title = what
            bars = ShownProgress()
            bars.__enter__()
            self._bar = bars.bar(what, total >> 20, "MB")
        self._bar.advance((done >> 20) - self._bar.done)
        if done >= total:
            self._bar.progress.close()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence messages and progress bars of transformers within the block, then restore its settings."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
