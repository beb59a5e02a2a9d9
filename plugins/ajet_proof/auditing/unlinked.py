"""What may be on the disk of a run without a link in its chain.

Invariant: a link follows what it commits. So a live or killed process leaves at most one row, and the episodes of the
step after the last one, without a link; a run that ended by itself leaves nothing. What a resume forgets is linked as
forgotten before it is removed, so a process that was killed in between leaves that, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class UnlinkedWindow:
    """The steps, rows and files that no link has to know."""

    outcome: str = ""
    """How the last process ended that loaded the run; empty where it lives, or was killed."""
    _last: int = 0
    """The last step that a link knows."""
    _reach: int = 0
    """The last step before the resume that was not followed by a link; else `_last`."""
    _forgotten: set[str] = field(default_factory=set)
    """Files, and digests of rows, that this resume has forgotten."""

    @property
    def is_closed(self) -> bool:
        """Whether the last process that loaded the run said that it ended."""
        return bool(self.outcome)

    def begin_after(self, step: int) -> None:
        """The run goes on from a checkpoint of this step."""
        self._last, self._reach = max(self._last, step), max(self._reach, step)

    def reopen(self, step: int, forgotten: Collection[str]) -> None:
        """A process goes on after `step` and removes what was recorded of later ones."""
        self._reach = max(self._reach, self._last)
        self._last, self.outcome = max(step, 0), ""
        self._forgotten |= {*forgotten}

    def advance(self, step: int) -> None:
        """Something of `step` was committed."""
        self._last = self._reach = max(self._last, step)
        self.outcome = ""
        self._forgotten.clear()

    def close(self, outcome: str) -> None:
        """The process ended by itself."""
        self._reach, self.outcome = self._last, outcome
        self._forgotten.clear()

    def admits_step(self, step: int) -> bool:
        """True if something of this step may have no link."""
        return not self.is_closed and self._last <= step <= self._reach + 1

    def admits_file(self, file: str, step: int) -> bool:
        """True if this episode file, or lines at its end, may have no link."""
        return self.admits_step(step) or (not self.is_closed and file in self._forgotten)

    def admits_rows(self, rows: Sequence[str], steps: Sequence[int]) -> bool:
        """True if these may be the last rows of metrics. `rows`: their digests."""
        new = [step for row, step in zip(rows, steps, strict=True) if row not in self._forgotten]
        return not self.is_closed and len(new) <= 1 and all(map(self.admits_step, new))
