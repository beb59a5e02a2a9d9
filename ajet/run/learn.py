"""`learn`: the second half of a step, wherever its groups were played.

Invariant: what an update takes and what it leaves is told to the store, the task order and the record together. A first
interrupt does not come between; a second one does, and then nothing is saved of it (`Training.torn`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ajet.algorithm import discarded
from ajet.backbone.decoupled.closed_groups import Reuse
from ajet.backbone.runner import Interrupts, Trained
from ajet.record.learned import is_idle
from ajet.run.step import conclude
from ajet.run.training import Training
from ajet.run.validation import conclude_held_out
from ajet.schema.episode import advantages_of, episodes_of
from ajet.store import is_shared

if TYPE_CHECKING:
    from ajet.schema.batch import TrainingBatch
    from ajet.schema.episode import Episode, Group, Outcome, UntrainedReason
    from ajet.store import Lease, Store

Unused = Mapping["UntrainedReason", Sequence["Group"]]
"""Groups that no batch takes, by the reason."""


def learn(
    training: Training,
    groups: Sequence[Group],
    interrupts: Interrupts,
    *,
    began: float,
    unused: Unused | None = None,
    unfinished: Sequence[Lease] = (),
    alone: Sequence[Episode] = (),
    held_out: Sequence[Episode] = (),
    given_up: Mapping[int, Sequence[str]] | None = None,
    dead: int = 0,
    reuse: Reuse | None = None,
) -> float | None:
    """The second half of a step: episodes -> credit -> update -> record. `began`: the step's start, monotonic;
    `unused` groups, and episodes of no group, are recorded only; those `held_out` are a validation, recorded with the
    step; `unfinished` are to be leased again; `given_up`, `dead`: see `Trained`, None: the store is asked. `reuse`: of
    groups that samplers elsewhere played, which were trained on before, and which may be again. Answers
    `Update.fresh_gap`."""
    parts, run, store = training.parts, training.run, training.store
    step = training.step + 1
    played = time.monotonic()
    if given_up is None:  # whoever plays elsewhere has asked
        given_up, dead = training.given_up.newly(training.tasks), training.given_up.count
    unused, elsewhere, reuse = unused or {}, reuse is not None, reuse or Reuse()
    left = [group for each in unused.values() for group in each]
    run.status.set(phase="update", step=step)
    with interrupts.held():
        version = parts.backbone.version
        batch, numbers, fresh_gap = _updated(training, groups, step, elsewhere=elsewhere)
        outcomes = dict(batch.outcomes)
        for reason, each in unused.items():
            outcomes |= discarded(each, reason)
        training.torn = True
        used = [*(group.order for group in groups), *(each.order for each in (*alone, *held_out))]
        _use(store, used, step, reuse.staying(groups, outcomes), outcomes)
        if reuse.worn:
            store.discard(reuse.worn, step, "stale")
        for reason, each in unused.items():
            store.discard([group.order for group in each], step, reason)
        store.give_back(unfinished)
        waiting = store.begun()
        if training.tasks is not None:
            training.tasks.learned([*groups, *left], waiting)
        trained = Trained(
            step,
            version,
            groups,
            outcomes,
            batch.trained_by_episode,
            numbers | _seconds(began, played),
            tasks=[group.order for group in groups if group.order not in reuse.before],
            again=[group.order for group in groups if group.order in reuse.before],
            aside=left,
            discarded=[group.order for group in left],
            waiting=waiting,
            given_up=given_up,
            dead=dead,
        )
        if alone:
            run.episodes.write(step, "debug", alone)
        metrics = conclude(
            trained,
            parts.experiment.ajet,
            run,
            proof=training.proof,
            gaming=training.gaming,
            on_step=training.on_step,
            total=training.total_steps,
        )
        conclude_held_out(held_out, run, step=step, on_step=training.on_step, total=training.total_steps)
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
        numbers |= training.proof.recomputed(episodes_of(groups), step, backbone)
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
