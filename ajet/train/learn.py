"""`learn`: the second half of a step, wherever its groups were played.

Invariant: what an update takes and what it leaves is told to the store, the task order and the record together. A first
interrupt does not come between; a second one does, and then nothing is saved of it (`Training.torn`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ajet.algorithm import discarded
from ajet.backbone.decoupled.closed_groups import Reuse
from ajet.backbone.runner import Interrupts, Trained
from ajet.record.learned import is_idle
from ajet.schema.episode import advantages_of, episodes_of
from ajet.store import is_shared
from ajet.train.session import Training
from ajet.train.step import conclude
from ajet.train.validation import conclude_held_out

if TYPE_CHECKING:
    from ajet.schema.batch import TrainingBatch
    from ajet.schema.episode import Episode, Group, Outcome, UntrainedReason
    from ajet.store import Lease, Store

Unused = Mapping["UntrainedReason", Sequence["Group"]]
"""Groups that no batch takes, by the reason."""


@dataclass(frozen=True, slots=True)
class FirstHalf:
    """What came of the first half of a step."""

    began: float
    """When the step did, by the monotonic clock."""
    groups: Sequence[Group]
    """What is trained on."""
    unused: Unused = field(default_factory=dict)
    """Recorded only."""
    unfinished: Sequence[Lease] = ()
    """To be leased again."""
    alone: Sequence[Episode] = ()
    """Of no group: recorded only."""
    held_out: Sequence[Episode] = ()
    """A validation, recorded with the step."""
    elsewhere: Elsewhere | None = None
    """Of samplers elsewhere; None: this process played."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What is known of samplers elsewhere and what they played."""

    reuse: Reuse
    """Which groups were trained on before, and which may be again."""
    given_up: Mapping[int, Sequence[str]]
    dead: int
    """Both: see `Trained`."""
    quarantined: Mapping[str, int] = field(default_factory=dict)
    """Groups that could not be trained on, by kind."""


def learn(training: Training, played: FirstHalf, interrupts: Interrupts) -> float | None:
    """The second half of a step: episodes -> credit -> update -> record. Answers `Update.fresh_gap`."""
    parts, run, store = training.parts, training.run, training.store
    step, now = training.step + 1, time.monotonic()
    groups, unused, elsewhere = played.groups, played.unused, played.elsewhere
    if elsewhere is None:  # who plays elsewhere has asked
        elsewhere = Elsewhere(Reuse(), training.given_up.newly(training.tasks), training.given_up.count)
    reuse = elsewhere.reuse
    left = [group for each in unused.values() for group in each]
    run.status.set(phase="update", step=step)
    with interrupts.held():
        version = parts.backbone.version
        batch, numbers, fresh_gap = _updated(training, groups, step, elsewhere=played.elsewhere is not None)
        outcomes = dict(batch.outcomes)
        for reason, each in unused.items():
            outcomes |= discarded(each, reason)
        training.torn = True
        used = [*(group.order for group in groups), *(each.order for each in (*played.alone, *played.held_out))]
        _use(store, used, step, reuse.staying(groups, outcomes), outcomes)
        if reuse.worn:
            store.discard(reuse.worn, step, "stale")
        for reason, each in unused.items():
            store.discard([group.order for group in each], step, reason)
        store.give_back(played.unfinished)
        waiting = store.begun()
        if training.tasks is not None:
            training.tasks.learned([*groups, *left], waiting)
        trained = Trained(
            step,
            version,
            groups,
            outcomes,
            batch.trained_by_episode,
            numbers | _seconds(played.began, now),
            tasks=[group.order for group in groups if group.order not in reuse.before],
            again=[group.order for group in groups if group.order in reuse.before],
            aside=left,
            discarded=[group.order for group in left],
            waiting=waiting,
            given_up=elsewhere.given_up,
            dead=elsewhere.dead,
            quarantined=elsewhere.quarantined,
        )
        if played.alone:
            run.episodes.write(step, "debug", played.alone)
        metrics = conclude(
            trained,
            parts.experiment.ajet,
            run,
            observers=training.observers,
            gaming=training.gaming,
            on_step=training.on_step,
            total=training.total_steps,
        )
        conclude_held_out(played.held_out, run, step=step, on_step=training.on_step, total=training.total_steps)
        training.idle = training.idle + 1 if is_idle(metrics) else 0
        training.step, training.torn = step, False
    return fresh_gap


def _updated(
    training: Training, groups: Sequence[Group], step: int, *, elsewhere: bool
) -> tuple[TrainingBatch, dict[str, float], float | None]:
    """The groups' batch, once it is trained on; its numbers, the new version among them, and `Update.fresh_gap`.
    `elsewhere`: samplers elsewhere played."""
    backbone, settings = training.parts.backbone, training.parts.experiment.ajet
    batch = training.batch(groups, step)
    numbers = dict(batch.metrics)
    if settings.rollout.truncates or not batch.samples:
        numbers |= training.observers.recomputed(episodes_of(groups), step, backbone)
    fresh_gap = None
    if batch.samples:
        updated = training.update(batch)
        numbers = updated.metrics | numbers
        fresh_gap = updated.fresh_gap
    if elsewhere and fresh_gap is not None:
        numbers["sampler_gap"] = fresh_gap
    return batch, numbers | {"version": backbone.version}, fresh_gap


def _use(
    store: Store, orders: Sequence[int], step: int, again: Collection[int], outcomes: Mapping[str, Outcome]
) -> None:
    if is_shared(store):
        store.use(orders, step, again=again, advantages=advantages_of(outcomes))
    else:
        store.use(orders, step)


def _seconds(began: float, played: float) -> dict[str, float]:
    now = time.monotonic()
    return {"seconds/rollout": played - began, "seconds/update": now - played, "seconds/step": now - began}
