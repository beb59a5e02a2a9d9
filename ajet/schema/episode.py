"""Episode: one attempt at one task, as a value. Outcome: what became of it. Group: the episodes of one task.

Invariant: ONE schema, in memory, in the run directory, in a store, in the viewer, in the trainer; `SCHEMA` grows by
one when it changes, and readers accept older numbers. An episode does not change once its group has closed; what a
step did with it is its `Outcome`, written with the step. A failure is data: `status` says what happened, `failure`
names the boundary, and only an episode with a reward may be trained on: one that completed and was judged, or failed by
the policy's own doing where the configuration says what that is worth.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from typing import Any, Literal

from ajet.schema.call import Call, Floats, PolicySpan
from ajet.schema.errors import Boundary
from ajet.schema.process_reward import ProcessReward
from ajet.schema.task import Task
from ajet.schema.timeline import Timeline
from ajet.schema.tool_use import ToolUse

SCHEMA = 3

Status = Literal["completed", "failed", "aborted"]
"""completed: the workflow returned; failed: `failure` says at which boundary it ended; aborted: ajet stopped it
(deadline of its group, interruption)."""
Split = Literal["train", "validation", "debug"]
UntrainedReason = Literal[
    "failed",
    "no_score",
    "aborted_call",
    "over_length",
    "max_sample_per_task",
    "zero_variance",
    "balanced",
    "oversampled",
    "stale",
    "not_trainable",
]
"""Why sampled tokens are not trained: sampled = trained + the sum over these, asserted at every step."""


@dataclass(slots=True)
class Failure:
    """The place and the manner in which an episode ended early."""

    boundary: Boundary
    kind: str
    """Exception class or short code: "timeout", "abandoned", "ValueError"."""
    message: str
    retryable: bool = False
    traceback: str = ""
    own: bool = False
    """It arose in ajet's own code (engine, judge, ajet), and in nothing that the user wrote: what is measured over all
    attempts leaves such a one out, and no other."""
    policy: bool = False
    """The agent's code raised at, or lost its time over, what the policy said: with `rollout.policy_failure_reward`
    such an episode has a verdict."""


@dataclass(slots=True)
class Verdict:
    """A judge's decision. `reward` None means *no score*: recorded, never trained on."""

    reward: float | None
    success: bool | None = None
    reason: str = ""
    turns: tuple[float, ...] = ()
    """The rewards of the turns, or of the agents, that `reward` sums up; of a judged episode they are in `process`."""
    process: tuple[ProcessReward, ...] = ()
    """What parts of the attempt are worth by themselves."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers of the judge's own: what it took, how far its votes agreed."""
    details: dict[str, Any] = field(default_factory=dict)
    """What it was told and by whom, as JSON."""
    scorer: str = ""
    """Which scorers were chosen for it, by name ("exact+f1"); "" where no scorer was asked."""
    parts: dict[str, float | None] = field(default_factory=dict)
    """What each of them gave, by name; None: no score."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The use that a training step made of an episode."""

    step: int | None = None
    """The training step whose update it was part of; None: of none."""
    advantage: float | None = None
    """Mean over its trained tokens; None where nothing of it was trained."""
    untrained: Mapping[str, int] = field(default_factory=dict)
    """Tokens of its timelines that were not trained, by `UntrainedReason`."""
    discarded: UntrainedReason | None = None
    """Why its whole group is in no batch."""
    values: Floats | None = field(default=None, compare=False, repr=False)
    """[T] what the critic expected before each of its trained tokens, in sampled order; None: there was none."""
    reference_gap: Floats | None = field(default=None, compare=False, repr=False)
    """[T] log p - log p_ref of the same tokens by policy and reference model, as the step's credit read it; None: it
    asked no reference model."""


def collect_advantages(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    """The advantage of each episode of which something was trained, by uuid."""
    return {uuid: each.advantage for uuid, each in outcomes.items() if each.advantage is not None}


NO_OUTCOME = Outcome()
"""Of an episode that no step has taken."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One attempt at one task."""

    uuid: str
    task: Task
    repeat: int
    """Index within the group."""
    step: int
    """Training step it was played for (validation: the step after which)."""
    split: Split
    group: str = ""
    """Name of its group; the same where it is played again."""
    order: int = -1
    """The task's position in the training order, or in its validation; negative: in none, its client brought it."""
    run: str = ""
    """Identity of the run whose policy versions the calls carry."""
    sampler: str = ""
    """Name of the sampler that played it; "" where the run's own processes did."""
    status: Status = "completed"
    ending: str = ""
    """Why ajet ended it: the reason of an abort ("group_deadline", "interrupted"); "" where it ended by itself."""
    failure: Failure | None = None
    verdict: Verdict | None = None
    calls: list[Call] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Distinct messages of all calls, in order of first use; calls refer to them by index."""
    tools: list[list[dict[str, Any]]] = field(default_factory=list)
    tool_uses: list[ToolUse] = field(default_factory=list)
    """What it did with tools, in the order in which they answered, as far as its code or an adapter says so."""
    timelines: list[Timeline] = field(default_factory=list)
    untrained: Counter[str] = field(default_factory=Counter)
    """Sampled tokens that are in none of its timelines, by `UntrainedReason`."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """The workflow's own output metadata, and nothing else."""
    printed: str = ""
    """What the workflow wrote to its standard output, where the isolation keeps it."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The numbers of the workflow's `log_metrics`."""
    checks: list[str] = field(default_factory=list)
    """Abnormal-output checks that fired ("nonsense", "wrong_toolcall")."""
    attempts: int = 1
    started: float = 0.0
    ended: float = 0.0
    utc_offset: int = 0
    """Seconds that local time was ahead of UTC where it was played."""

    @property
    def day(self) -> date:
        """The one that a template wrote into its prompts, if any did."""
        return compute_day(self.started, self.utc_offset)

    @property
    def reward(self) -> float | None:
        """The verdict's reward; None without a verdict or a score."""
        return self.verdict.reward if self.verdict else None

    @property
    def scored(self) -> bool:
        """True when it may be trained on: it ended by itself and has a reward. A failed one has a reward only where the
        policy failed and `rollout.policy_failure_reward` says what that is worth."""
        ended = self.status == "completed" or (self.status == "failed" and self.failure is not None)
        return ended and self.reward is not None

    @property
    def left_out(self) -> bool:
        """True when it says nothing about the policy, since ajet failed at it or stopped it. An attempt that took
        longer than its group waited does count."""
        if self.status == "aborted":
            return self.ending != "group_deadline"
        return self.failure is not None and self.failure.own

    @property
    def succeeded(self) -> bool:
        """True when a verdict says so: a failure, no score and no word about success are none."""
        return self.status != "aborted" and self.verdict is not None and self.verdict.success is True

    @property
    def sampled_tokens(self) -> int:
        """Tokens the policy (or a debug model's token engine) sampled in all calls."""
        return sum(len(call.response_ids) for call in self.calls)

    @property
    def policy(self) -> PolicySpan | None:
        """The policy versions that sampled it; None where no call has one."""
        return PolicySpan.of(run for call in self.calls for run in call.versions)

    @property
    def uncounted(self) -> int:
        """Sampled tokens that have no reason yet: those of its timelines."""
        return self.sampled_tokens - self.untrained.total()

    def untrained_with(self, outcome: Outcome) -> Counter[str]:
        """The number of sampled tokens that were not trained, by reason."""
        return +(self.untrained + Counter(outcome.untrained))


@dataclass(slots=True)
class Group:
    """The episodes of one task, played for one step. `order` is the task's position in the training order, negative for
    one that a client brought."""

    task: Task
    order: int
    episodes: list[Episode]

    @property
    def scored(self) -> list[Episode]:
        """The episodes that may enter a baseline."""
        return [episode for episode in self.episodes if episode.scored]


def list_episodes(groups: Iterable[Group]) -> list[Episode]:
    """The episodes of all groups, group by group."""
    return [episode for group in groups for episode in group.episodes]


def measure_utc_offset(at: float) -> int:
    """Seconds by which this process's local time was ahead of UTC at `at`, in seconds since the epoch."""
    return time.localtime(at).tm_gmtoff


def compute_day(at: float, offset: int) -> date:
    """The day of `at` where local time was `offset` seconds ahead of UTC."""
    return datetime.fromtimestamp(at, timezone(timedelta(seconds=offset))).date()
