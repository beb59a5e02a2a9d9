"""Watch for gamed rewards: compare the first and the last episodes of a run, and warn if an alarm fires.

Invariant: the watch changes no state of the run, and its memory use is bounded. A resumed run reads its past from the
record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.record.reward_hacking import GAMED, WINDOW, EpisodeSummary, GamingAlarm, detect_gaming
from ajet.schema.commands import format_command, format_run_name
from ajet.schema.episode import Episode

if TYPE_CHECKING:
    from ajet.record import RunDirectory

EVERY = 5
"""Number of steps between two checks."""


class GamingWatch:
    """Watch a run for signs of a gamed reward."""

    def __init__(self, run: RunDirectory, *, upto: int) -> None:
        """Load the recorded episodes of the run.

        Args:
            upto: the step to resume from, or 0 for a new run.
        """
        self._run = run
        self._steps: dict[int, list[EpisodeSummary]] = {}
        self._has_fired = False
        for step in _first_and_last([step for step in run.episodes.whole_steps() if step <= upto]):
            self._steps[step] = _take_glimpses(run.episodes.read(step), step)

    def look(self, episodes: Iterable[Episode], step: int) -> None:
        """Add the episodes of a recorded step. Every few steps, check the run and warn if an alarm fires."""
        self._steps[step] = _take_glimpses(episodes, step)
        watched = _first_and_last(sorted(self._steps))
        self._steps = {watched_step: self._steps[watched_step] for watched_step in watched}
        if step % EVERY:
            return
        alarm = detect_gaming(
            self._run.metrics.rows(), [glimpse for watched_step in self._steps.values() for glimpse in watched_step]
        )
        if alarm is not None or self._has_fired:
            self._run.status.set(**{GAMED: None if alarm is None else as_status(alarm)})
        if alarm is not None and not self._has_fired:
            self._has_fired = True
            run_name = format_run_name(self._run.path, self._run.name)
            logger.warning(
                "The agent may be gaming the rewards of this run: {}",
                "\n".join(describe_alarm(as_status(alarm), run_name)),
            )


def as_status(alarm: GamingAlarm) -> dict[str, Any]:
    """Return the alarm as JSON values for `status.json`."""
    suspects = [
        {"uuid": suspect.uuid, "step": suspect.step, "task": suspect.task, "repeat": suspect.repeat}
        for suspect in alarm.suspects
    ]
    return {"step": alarm.step, "text": alarm.text, "episodes": suspects}


def describe_alarm(status: dict[str, Any], run: str) -> list[str]:
    """Return lines on the alarm, with commands to show the episodes."""
    lines = [f"After step {status['step']}, {status['text']}. Check these episodes:"]
    for episode in status["episodes"]:
        command = format_command("episodes", run, "--episode", episode["uuid"])
        lines.append(f"  {command}  (step {episode['step']}, task {episode['task']}, attempt {episode['repeat']})")
    return lines


def _first_and_last(steps: list[int]) -> list[int]:
    """Return the first and the last WINDOW steps: those compared by the alarm."""
    return steps if len(steps) <= 2 * WINDOW else [*steps[:WINDOW], *steps[-WINDOW:]]


def _take_glimpses(episodes: Iterable[Episode], step: int) -> list[EpisodeSummary]:
    """Return the summaries of a step's episodes. Episodes without a summary are left out."""
    return [glimpse for episode in episodes if (glimpse := EpisodeSummary.of(episode, step)) is not None]
