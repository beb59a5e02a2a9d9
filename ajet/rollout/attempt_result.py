"""Attempt result: what an attempt leaves behind, until it is an episode."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ajet.schema.episode import Failure
from ajet.schema.task import WorkflowOutput, WorkflowTask

if TYPE_CHECKING:
    from ajet.gateway import Capture


@dataclass(slots=True)
class AttemptResult:
    """What the last attempt at an episode left behind; exactly one of output, failure and aborted says how it ended,
    but for a check that ended it (then `capture.terminated` does)."""

    output: WorkflowOutput | None = None
    failure: Failure | None = None
    aborted: str | None = None
    """Why ajet stopped it."""
    capture: Capture | None = None
    started: float = 0.0
    ended: float = 0.0
    since: float = field(default_factory=time.monotonic)
    """By this process's monotonic clock, when it was begun: how long it has is not the system clock's to say."""
    attempts: int = 1
    task: WorkflowTask | None = None
    """As the workflow had it; None where no workflow was begun."""
    printed: str = ""
    """What the workflow wrote to its standard output, where the isolation keeps it."""

    @classmethod
    def of(cls, outcome: WorkflowOutput | Failure) -> AttemptResult:
        """The result of an attempt that somebody else made."""
        return cls(output=outcome) if isinstance(outcome, WorkflowOutput) else cls(failure=outcome)
