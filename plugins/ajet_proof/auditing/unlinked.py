"""Files and rows of a run that may lack a link in its chain.

Invariant: a process writes first and links afterwards. So a live or killed process leaves at most one row, and the
episodes of the step after the last one, without a link; a run that ended normally leaves no unlinked data. A resume
links what it forgets before the removal, so a process killed in between leaves forgotten files too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class UnlinkedWindow:
    """The steps, rows and files allowed without a link."""

    outcome: str = ""
    """Outcome of the last process; empty if the process lives or was killed."""
    _last: int = 0  # the last linked step
    _reach: int = 0
    """The last linked step before an unfinished resume; otherwise `_last`."""
    _forgotten: set[str] = field(default_factory=set)
    """Files and row digests forgotten by the current resume."""

    @property
    def is_closed(self) -> bool:
        """True if the last process reported its end."""
        return bool(self.outcome)

    def begin_after(self, step: int) -> None:
        """Start the run from a checkpoint of this step."""
        self._last, self._reach = max(self._last, step), max(self._reach, step)

    def reopen(self, step: int, forgotten: Collection[str]) -> None:
        """Resume after `step`: later files and rows are removed."""
        self._reach = max(self._reach, self._last)
        self._last, self.outcome = max(step, 0), ""
        self._forgotten |= {*forgotten}

    def advance(self, step: int) -> None:
        """Record a commit of `step`."""
        self._last = self._reach = max(self._last, step)
        self.outcome = ""
        self._forgotten.clear()

    def close(self, outcome: str) -> None:
        """Record the normal end of the process."""
        self._reach, self.outcome = self._last, outcome
        self._forgotten.clear()

    def admits_step(self, step: int) -> bool:
        """True if data of this step may lack a link."""
        return not self.is_closed and self._last <= step <= self._reach + 1

    def admits_file(self, file: str, step: int) -> bool:
        """True if this episode file, or lines at its end, may lack a link."""
        return self.admits_step(step) or (not self.is_closed and file in self._forgotten)

    def admits_rows(self, rows: Sequence[str], steps: Sequence[int]) -> bool:
        """True if these rows (digests) may be the last, unlinked rows of metrics."""
        new = [step for row, step in zip(rows, steps, strict=True) if row not in self._forgotten]
        return not self.is_closed and len(new) <= 1 and all(map(self.admits_step, new))
