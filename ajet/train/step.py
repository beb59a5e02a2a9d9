"""One training step: the groups that it takes, what its update returned, and how it is recorded.

Invariant: every training, whichever process had its optimizer, ends a step in `conclude`: each sampled token was
trained or is counted under a reason, the plug-ins' observers have seen the step, and episodes with their outcomes are
on the disk before the row of metrics that counts them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ajet.algorithm.staleness import staleness_metrics
from ajet.backbone.decoupled.closed_groups import Reuse
from ajet.schema.episode import NO_OUTCOME, episodes_of
from ajet.train.accounting import check_tokens, episode_metrics
from ajet.train.format_log import log_formats

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.record import RunDirectory
    from ajet.schema.episode import Episode, Group, Outcome, UntrainedReason
    from ajet.store import Lease
    from ajet.train.gaming import GamingWatch
    from ajet.train.step_observers import StepObservers

OnStep = Callable[[int, int, dict[str, float]], None]
"""Called with (step, total steps, metrics)."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A step as its optimizer leaves it."""

    step: int
    version: int
    """The policy version that it was trained from."""
    groups: Sequence[Group]
    """Those that its numbers are over."""
    outcomes: Mapping[str, Outcome]
    """Of all its episodes, by uuid."""
    tokens: Mapping[str, int]
    """Tokens that were trained, by uuid."""
    numbers: Mapping[str, float]
    """What credit, update and clock say."""
    tasks: Sequence[int]
    """Orders of the groups that the batch was made of and that no batch was before."""
    again: Sequence[int] = ()
    """Orders of the others, which an earlier step trained on, too."""
    aside: Sequence[Group] = ()
    """Recorded only."""
    discarded: Sequence[int] = ()
    """Orders of the groups that no batch takes."""
    waiting: Sequence[int] = ()
    """Orders of tasks that were begun and are in no step yet."""
    given_up: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """By order, those that samplers failed at until they were given out no more, and why each attempt failed, as far as
    no step of this process said so."""
    dead: int = 0
    """How many there are in all."""
    quarantined: Mapping[str, int] = field(default_factory=dict)
    """Those of them that could not be trained on, by the kind of the refusal."""

    def newest(self, episode: Episode) -> int:
        """The latest policy version that can have sampled it: what no update used may have ended after this one."""
        trained = self.outcomes.get(episode.uuid, NO_OUTCOME).step is not None
        return self.version if trained else self.version + 1


UnusedGroups = Mapping["UntrainedReason", Sequence["Group"]]
"""Groups that no batch takes, by reason."""


@dataclass(frozen=True, slots=True)
class StepGroups:
    """What a source brings for one step."""

    began: float
    """Start of the step, by the monotonic clock in seconds."""
    groups: Sequence[Group]
    """Groups that the step trains on, by order."""
    unused: UnusedGroups = field(default_factory=dict)
    """Groups that are only recorded."""
    unfinished: Sequence[Lease] = ()
    """Leases to be given out again."""
    single: Sequence[Episode] = ()
    """Episodes of no group, which are only recorded."""
    held_out: Sequence[Episode] = ()
    """Attempts of clients at held-out tasks: a validation that is recorded with the step."""
    by_samplers: bool = False
    """SamplerPool in other processes played the groups."""
    reuse: Reuse = field(default_factory=Reuse)
    """Which groups were trained on before, and which may be again."""
    given_up: Mapping[int, Sequence[str]] = field(default_factory=dict)
    dead: int = 0
    """Number of all positions that were given up; `given_up` has those of this step with their reasons."""
    quarantined: Mapping[str, int] = field(default_factory=dict)
    """Number of groups that could not be trained on, by kind."""
    ended: float = field(default_factory=time.monotonic)
    """End of the rollout, by the monotonic clock in seconds."""


@dataclass(frozen=True, slots=True)
class StepUpdate:
    """What the update of one step returned."""

    version: int
    """Policy version that the step was trained from."""
    metrics: Mapping[str, float]
    fresh_gap: float | None = None
    """Mean gap in nats per token between the trainer's and the samplers' log-probabilities; None: not measured."""


def conclude(
    trained: Trained,
    settings: AjetConfig,
    run: RunDirectory,
    *,
    observers: StepObservers,
    gaming: GamingWatch,
    on_step: OnStep,
    total: int,
) -> dict[str, float]:
    """The step's metrics, once it is recorded. `total`: the last step. Raises AssertionError where a sampled token is
    neither trained nor counted, UserError where the record cannot be written."""
    step, outcomes = trained.step, trained.outcomes
    episodes, others = episodes_of(trained.groups), episodes_of(trained.aside)
    log_formats(episodes, settings.context_tracker)
    check_tokens([*episodes, *others], outcomes, trained.tokens)
    metrics = episode_metrics(episodes, "train", outcomes)
    taken = [each for each in episodes if outcomes.get(each.uuid, NO_OUTCOME).discarded is None]
    metrics |= staleness_metrics(taken, trained.version)
    metrics |= observers.metrics(episodes, step, trained.newest)
    metrics["train/trained_tokens"] = sum(trained.tokens.values())
    metrics |= trained.numbers
    run.episodes.write(step, "train", [*episodes, *others], outcomes)
    on_step(step, total, metrics)
    more: dict[str, Any] = {"waiting": sorted(trained.waiting)} if trained.waiting else {}
    if trained.again:
        more["again"] = sorted(trained.again)
        metrics |= _retrained(trained)
        algorithm = settings.trainer_common.algorithm
        more["bounds"] = {name: getattr(algorithm, name) for name in ("max_trained_count", "retrained_interval")}
    if trained.given_up:
        more["given_up"] = {str(order): list(why) for order, why in sorted(trained.given_up.items())}
    if trained.dead:
        metrics["train/given_up"] = trained.dead
    if trained.quarantined:
        metrics["train/quarantined"] = sum(trained.quarantined.values())
        metrics |= {f"train/quarantined/{kind}": count for kind, count in sorted(trained.quarantined.items())}
    run.metrics.log(step, metrics, tasks=list(trained.tasks), discarded=list(trained.discarded), **more)
    gaming.look(episodes, step)
    return metrics


def _retrained(trained: Trained) -> dict[str, float]:
    """The part of the step's numbers that an earlier step has counted, too."""
    before = {*trained.again}
    counted = episode_metrics(episodes_of(each for each in trained.groups if each.order in before), "train", {})
    metrics: dict[str, float] = {
        "train/retrained": len(trained.again),
        "train/retrained_failed": counted["train/failed"],
        "train/retrained_forks": counted["train/forks"],
    }
    return {name: number for name, number in metrics.items() if number}
