"""Validation: the validation tasks played on the same path as training, without credit or update.

Invariants (DESIGN decision 14): gateway, judges and records are those of training; only the sampling differs. Whoever
played the groups, a validation ends in `conclude_validation`. An attempt is recorded once: where the checkpoint that a
run goes on from lacks a validation that was recorded after its step, what is recorded is not played again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from loguru import logger

from ajet.record.held_out import MOST_LEFT_OUT, Measurement
from ajet.record.status import TO_VALIDATE
from ajet.rollout.attempt import Identity
from ajet.rollout.components import split_repeats
from ajet.rollout.failure import refuse_if_all_failed
from ajet.schema.episode import Episode, Group, episodes_of
from ajet.schema.task import Task
from ajet.train.accounting import episode_metrics, interval_metrics, measurement_of, pass_metrics
from ajet.train.step import OnStep

if TYPE_CHECKING:
    from ajet.record import RunDirectory
    from ajet.train.parts import Parts


def play_validation(
    parts: Parts, run: RunDirectory, *, step: int, on_step: OnStep, total: int
) -> tuple[dict[str, float], Measurement]:
    """Play every validation task after a step, record the episodes, and return their metrics and what they measured.

    Greedy validation plays each task `val_kwargs.num_repeat` times; with `val_kwargs.do_sample` each is played
    `val_pass_n` times and pass@n and all@n are added. Raises UserError if every episode before step 1 failed.
    """
    began = time.monotonic()
    tasks = list(enumerate(parts.tasks("validation")))
    repeats = split_repeats(parts.experiment.ajet, "validation")
    earlier = _recorded(run, tasks, step, repeats=repeats)
    over = {(episode.order, episode.repeat) for episode in earlier}
    run.status.set(phase="validation", step=step, **{TO_VALIDATE: len(tasks) * repeats - len(over)})
    groups = _whole(tasks, list(parts.rollout.play(tasks, step=step, split="validation", over=over)), earlier)
    metrics, measured = conclude_validation(
        groups,
        run,
        step=step,
        seconds=time.monotonic() - began + _took(earlier),
        on_step=on_step,
        total=total,
        recorded={episode.uuid for episode in earlier},
    )
    if step == 0:
        refuse_if_all_failed(episodes_of(groups), step)
    return metrics, measured


def _recorded(run: RunDirectory, tasks: Sequence[tuple[int, Task]], step: int, *, repeats: int) -> list[Episode]:
    """The attempts at these tasks that an earlier process recorded after the step. None where their arrays are gone."""
    if not run.episodes.path(step, "validation").with_suffix(".bin").exists():
        return []
    wanted = {
        Identity(run.run_id, "validation", step, task, order, order, repeat).uuid
        for order, task in tasks
        for repeat in range(repeats)
    }
    return [episode for episode in run.episodes.read(step, "validation") if episode.uuid in wanted]


def _whole(tasks: Sequence[tuple[int, Task]], played: Sequence[Group], earlier: Sequence[Episode]) -> list[Group]:
    """The groups with the attempts that were recorded before, by task."""
    found = {group.order: group for group in played}
    for episode in earlier:
        group = found.setdefault(episode.order, Group(episode.task, episode.order, []))
        group.episodes.append(episode)
    for group in found.values():
        group.episodes.sort(key=lambda episode: episode.repeat)
    return [found[order] for order, _ in tasks if order in found] if earlier else list(played)


def _took(episodes: Sequence[Episode]) -> float:
    """Seconds from when the first of them began until the last had ended."""
    return max((each.ended for each in episodes), default=0.0) - min((each.started for each in episodes), default=0.0)


def conclude_validation(
    groups: Sequence[Group],
    run: RunDirectory,
    *,
    step: int,
    seconds: float,
    on_step: OnStep,
    total: int,
    recorded: Collection[str] = (),
) -> tuple[dict[str, float], Measurement]:
    """Its metrics (validation/…), and what the checkpoint of `step` is compared by, once both are recorded and shown.
    One group a task. `recorded`: the uuids of attempts that an earlier process recorded. Says it where ajet itself
    failed at so much of it that no checkpoint is picked by it."""
    new = [episode for episode in episodes_of(groups) if episode.uuid not in recorded]
    if new:
        run.episodes.write(step, "validation", new)
    judge = run.metrics.judge
    if recorded and run.judge_change == step:
        judge += " and the one before"  # an earlier process was interrupted in this validation
    metrics, measured = validation_metrics(groups), replace(measurement_of(groups), judge=judge)
    metrics["seconds/validation"] = seconds
    if measured.left_out > MOST_LEFT_OUT:
        logger.warning(
            "{:.1%} of this validation's attempts are left out (engine, judge, environment or ajet failed): above "
            "{:.0%} no checkpoint is picked by it as the best",
            measured.left_out,
            MOST_LEFT_OUT,
        )
    on_step(step, total, metrics)
    if failed := [episode.failure for episode in episodes_of(groups) if episode.failure and not episode.scored]:
        often, count = Counter((each.boundary, each.kind, each.message) for each in failed).most_common(1)[0]
        logger.warning("{} of {} held-out episodes failed at the {}: {}: {}", count, len(episodes_of(groups)), *often)
    if new or not any(row["step"] == step and "validation/tasks" in row for row in run.metrics.rows()):
        run.metrics.log(step, metrics, **({"judge": judge} if judge else {}))
    return metrics, measured


def conclude_held_out(
    episodes: Sequence[Episode], run: RunDirectory, *, step: int, on_step: OnStep, total: int
) -> None:
    """Conclude what clients played by themselves since the step before, if anything; no checkpoint is compared by it,
    since updates went on meanwhile."""
    if episodes:
        took = _took(episodes)
        conclude_validation(groups_by_task(episodes), run, step=step, seconds=took, on_step=on_step, total=total)


def groups_by_task(episodes: Sequence[Episode]) -> list[Group]:
    """Attempts that came one by one, at whatever tasks: a group each, in the order in which they came."""
    found: list[Group] = []
    for episode in episodes:
        group = next((each for each in found if each.task == episode.task), None)
        if group is None:
            group = Group(episode.task, len(found), [])
            found.append(group)
        group.episodes.append(replace(episode, repeat=len(group.episodes)))
    return found


def validation_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The numbers of a validation, one group a task."""
    metrics = episode_metrics(episodes_of(groups), "validation") | pass_metrics(groups, "validation")
    metrics |= interval_metrics(groups, "validation")
    metrics["validation/tasks"] = len(groups)
    return metrics
