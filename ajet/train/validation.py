"""Validation: play validation tasks on the training path, without credit or update.

Invariants (DESIGN decision 14): gateway, judges and records are the same as in training; only the sampling differs.
Attempts are recorded once: a resumed run does not repeat attempts recorded by an earlier process after the same step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ajet.record.status import TO_VALIDATE
from ajet.rollout.attempt import Identity
from ajet.rollout.components import choose_repeats
from ajet.rollout.failure import refuse_if_all_failed
from ajet.schema.episode import Episode, Group, list_episodes
from ajet.schema.task import Task
from ajet.train.sink import RunSink, measure_span

if TYPE_CHECKING:
    from ajet.record import RunDirectory
    from ajet.record.held_out import Measurement
    from ajet.train.parts import RunParts


def play_validation(parts: RunParts, sink: RunSink, *, step: int) -> tuple[dict[str, float], Measurement]:
    """Play every validation task after a step, record the episodes, and return metrics and measurement.

    Greedy validation plays each task `val_kwargs.num_repeat` times. With `val_kwargs.do_sample` each task is played
    `val_pass_n` times, and pass@n and all@n are added. Raises UserError if every episode before step 1 failed.
    """
    started, run = time.monotonic(), sink.run
    tasks = list(enumerate(parts.tasks("validation")))
    repeats = choose_repeats(parts.experiment.ajet, "validation")
    earlier_episodes = _read_recorded(run, tasks, step, repeats=repeats)
    recorded = {(episode.order, episode.repeat) for episode in earlier_episodes}
    run.status.set(phase="validation", step=step, **{TO_VALIDATE: len(tasks) * repeats - len(recorded)})
    played = list(parts.rollout.play(tasks, step=step, split="validation", finished=recorded))
    groups = _merge_groups(tasks, played, earlier_episodes)
    metrics, measured = sink.commit_validation(
        groups,
        step=step,
        seconds=time.monotonic() - started + measure_span(earlier_episodes),
        recorded={episode.uuid for episode in earlier_episodes},
    )
    if step == 0:
        refuse_if_all_failed(list_episodes(groups), step)
    return metrics, measured


def _read_recorded(run: RunDirectory, tasks: Sequence[tuple[int, Task]], step: int, *, repeats: int) -> list[Episode]:
    """Return the validation attempts that an earlier process recorded after the same step.

    Attempts whose arrays are gone are left out.
    """
    if not run.episodes.path(step, "validation").with_suffix(".bin").exists():
        return []
    expected = {
        Identity(run.run_id, "validation", step, task, order, order, repeat).uuid
        for order, task in tasks
        for repeat in range(repeats)
    }
    return [episode for episode in run.episodes.read(step, "validation") if episode.uuid in expected]


def _merge_groups(
    tasks: Sequence[tuple[int, Task]], groups: Sequence[Group], earlier: Sequence[Episode]
) -> list[Group]:
    """Return one group per task, with the attempts played now and those recorded earlier."""
    group_by_order = {group.order: group for group in groups}
    for episode in earlier:
        group = group_by_order.setdefault(episode.order, Group(episode.task, episode.order, []))
        group.episodes.append(episode)
    for group in group_by_order.values():
        group.episodes.sort(key=lambda episode: episode.repeat)
    return [group_by_order[order] for order, _ in tasks if order in group_by_order] if earlier else list(groups)
