"""Looks for gamed rewards while a run goes on: keeps a few words about the first and the last episodes, and says an
alarm once, when it first fires, and again at the end.

Invariant: it only looks; what it holds does not grow with the run. A resumed run reads what it needs from the record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.record.gamed import GAMED, WINDOW, Alarm, Glimpse, alarm
from ajet.schema.commands import command, run_named
from ajet.schema.episode import Episode

if TYPE_CHECKING:
    from ajet.record import RunDirectory

EVERY = 5
"""Steps between two looks."""


class GamingWatch:
    """Watches one run for signs that its reward is gamed."""

    def __init__(self, run: RunDirectory, *, upto: int) -> None:
        """`upto`: the step that the run continues from; 0: it begins."""
        self._run = run
        self._steps: dict[int, list[Glimpse]] = {}
        self._fired = False
        for step in _ends([step for step in run.episodes.whole_steps() if step <= upto]):
            self._steps[step] = _glimpses(run.episodes.read(step), step)

    def look(self, episodes: Iterable[Episode], step: int) -> None:
        """A step is recorded."""
        self._steps[step] = _glimpses(episodes, step)
        kept = _ends(sorted(self._steps))
        self._steps = {each: self._steps[each] for each in kept}
        if step % EVERY:
            return
        found = alarm(self._run.metrics.rows(), [glimpse for each in self._steps.values() for glimpse in each])
        if found is not None or self._fired:
            self._run.status.set(**{GAMED: None if found is None else as_status(found)})
        if found is not None and not self._fired:
            self._fired = True
            named = run_named(self._run.path, self._run.name)
            logger.warning("Are the rewards of this run gamed? {}", "\n".join(told(as_status(found), named)))


def as_status(found: Alarm) -> dict[str, Any]:
    """The alarm as it stands in `status.json`."""
    suspects = [{"uuid": e.uuid, "step": e.step, "task": e.task, "repeat": e.repeat} for e in found.suspects]
    return {"step": found.step, "text": found.text, "episodes": suspects}


def told(status: dict[str, Any], run: str) -> list[str]:
    """For a person: what was seen, and how to look at the episodes that show it most."""
    lines = [f"After step {status['step']} {status['text']}. Look at these:"]
    for each in status["episodes"]:
        shown = command("episodes", run, "--episode", each["uuid"])
        lines.append(f"  {shown}  (step {each['step']}, task {each['task']}, attempt {each['repeat']})")
    return lines


def _ends(steps: list[int]) -> list[int]:
    return steps if len(steps) <= 2 * WINDOW else [*steps[:WINDOW], *steps[-WINDOW:]]


def _glimpses(episodes: Iterable[Episode], step: int) -> list[Glimpse]:
    return [glimpse for episode in episodes if (glimpse := Glimpse.of(episode, step)) is not None]
