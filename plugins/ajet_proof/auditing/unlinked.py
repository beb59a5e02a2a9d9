"""Decides which files and metrics rows of a run may be absent from its chain ("unlinked").

The chain is a file of linked digests. Invariant: a process first writes data and then adds their digests. So a live or
killed process leaves at most one row, and the episodes of the step after the last one, unlinked. A run that ended
normally leaves no unlinked data. A resume discards later steps, and notes this in the chain before it removes their
files, so a process killed in between leaves such files, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class UnlinkedWindow:
    """Follows a chain and knows which steps, rows and files may be absent from it at its end."""

    outcome: str = ""
    """How the last process ended, such as "finished"; "" if the process lives or was killed."""
    _last_step: int = 0  # the last step in the chain
    _last_possible_step: int = 0
    """The last step in the chain before a resume that has not recorded a step yet; otherwise `_last_step`."""
    _discarded: set[str] = field(default_factory=set)
    """Files and row digests discarded by this resume."""

    @property
    def is_closed(self) -> bool:
        """True if the last process reported its end."""
        return bool(self.outcome)

    def begin_after(self, step: int) -> None:
        """Note that the run started from a checkpoint of this step."""
        self._last_step, self._last_possible_step = max(self._last_step, step), max(self._last_possible_step, step)

    def reopen(self, step: int, forgotten: Collection[str]) -> None:
        """Note a resume, which removes the files and rows of later steps.

        Args:
            step: step of the resumed checkpoint.
            forgotten: the episode files and row digests of later steps.
        """
        self._last_possible_step = max(self._last_possible_step, self._last_step)
        self._last_step, self.outcome = max(step, 0), ""
        self._discarded |= {*forgotten}

    def advance(self, step: int) -> None:
        """Note that the chain has the data of this step, so that no resume is pending any more."""
        self._last_step = self._last_possible_step = max(self._last_step, step)
        self.outcome = ""
        self._discarded.clear()

    def close(self, outcome: str) -> None:
        """Note that the process ended normally.

        Args:
            outcome: how it ended, such as "finished".
        """
        self._last_possible_step, self.outcome = self._last_step, outcome
        self._discarded.clear()

    def admits_step(self, step: int) -> bool:
        """True if data of this step may be absent from the chain."""
        return not self.is_closed and self._last_step <= step <= self._last_possible_step + 1

    def admits_file(self, file: str, step: int) -> bool:
        """True if an episode file, or lines at its end, may be absent from the chain."""
        return self.admits_step(step) or (not self.is_closed and file in self._discarded)

    def admits_rows(self, rows: Sequence[str], steps: Sequence[int]) -> bool:
        """True if the last rows of metrics.jsonl may be absent from the chain.

        Args:
            rows: digests of the rows that the chain does not list.
            steps: their steps.
        """
        # Rows discarded by a resume may still be in the file, if the process was killed before their removal.
        new_steps = [step for digest, step in zip(rows, steps, strict=True) if digest not in self._discarded]
        return not self.is_closed and len(new_steps) <= 1 and all(map(self.admits_step, new_steps))
