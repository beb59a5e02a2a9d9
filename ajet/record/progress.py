"""Progress of a loop: bars on a terminal, plain lines otherwise.

Invariant: log files and pipes get few, complete lines without control characters.
"""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from ajet.record.console import console as shared_console
from ajet.record.live_screen import begin

LINE_EVERY_S = 15.0
"""Minimum seconds between two plain lines; the last line is exempt."""


class Progress:
    """A set of progress bars, used as a context manager. A file or pipe gets plain lines at intervals instead."""

    def __init__(self, console: Console | None = None, *, line_every_s: float = LINE_EVERY_S) -> None:
        """Args:
        console: Where to show the bars. None: the shared console.
        line_every_s: Seconds between two plain lines where nothing can be redrawn.
        """
        self.console = console or shared_console
        self.line_every_s = line_every_s
        self._rich_progress: RichProgress | None = None
        if self.console.is_terminal:
            self._rich_progress = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TextColumn("{task.fields[unit]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", style="dim"),
                console=self.console,
                transient=True,
            )

    def bar(self, title: str, total: int | None, unit: str = "", *, done: int = 0) -> ProgressBar:
        """Add a bar and return it.

        Args:
            total: The count at the end. None: unknown.
            unit: What is counted, printed behind the count.
            done: The count at the beginning.
        """
        return ProgressBar(self, title, total, unit, done)

    def __enter__(self) -> Progress:
        if self._rich_progress is not None:
            begin(self._rich_progress.start, self._rich_progress.stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove all bars from the screen. Idempotent."""
        if self._rich_progress is not None:
            self._rich_progress.stop()


class ProgressBar:
    """One bar that counts towards a total, added by `Progress.bar`."""

    def __init__(self, progress: Progress, title: str, total: int | None, unit: str, done: int) -> None:
        self.progress = progress
        self.title = title
        self.total = total
        self.unit = unit
        self.done = done
        self._note = ""
        self._began_at = self._shown_at = time.monotonic()
        self._lines = 0
        self._id: TaskID | None = None
        if progress._rich_progress is not None:
            self._id = progress._rich_progress.add_task(title, total=total, completed=done, unit=unit, note="")

    def advance(self, count: int = 1, note: str | None = None) -> None:
        """Add `count` to the bar, and show `note` beside it until the next note."""
        self.done += count
        self._note = self._note if note is None else note
        bars = self.progress._rich_progress
        if bars is not None and self._id is not None:
            bars.update(self._id, completed=self.done, note=self._note)
        elif time.monotonic() - self._shown_at >= self.progress.line_every_s:
            self._print_line()

    def close(self) -> None:
        """Remove the bar. A file or pipe gets a last line if it got any line before."""
        bars = self.progress._rich_progress
        if bars is not None and self._id is not None:
            bars.remove_task(self._id)
            self._id = None
        elif self._lines:
            self._print_line()
            self._lines = 0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _print_line(self) -> None:
        """Print the count, the unit and the time since the start as one plain line."""
        self._shown_at = time.monotonic()
        self._lines += 1
        count = str(self.done) if self.total is None else f"{self.done}/{self.total}"
        words = [f"{self.title}: {count}", self.unit, f"after {self._shown_at - self._began_at:.0f} s"]
        text = " ".join(word for word in words if word) + (f", {self._note}" if self._note else "")
        self.progress.console.print(text, markup=False, soft_wrap=True)
