"""Episode: an attempt at a task, as a value. Outcome: the use of an episode in a step. Group: the episodes of a task.

Invariant: the schema is the same in memory, run directory, store, viewer and trainer. Each change raises `SCHEMA` by 1,
and readers accept older numbers. An episode is immutable once its group has finished; the use in a step is an
`Outcome`, written with the step. Failures are data: `status` and `failure` record them. Only episodes with a reward are
trained: judged after completion, or failed by the policy if the configuration assigns a reward to policy failures.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ajet.schema.call import Call, Floats, Ids, PolicySpan
from ajet.schema.errors import Boundary
from ajet.schema.process_reward import ProcessReward
from ajet.schema.task import Task
from ajet.schema.tool_use import ToolUse


# Timeline: a linear token sequence with a loss mask, from calls that extend each other exactly.
# Invariant (kept by context_tracker, tested by properties): every sampled token of an episode is in exactly one
# timeline with mask 1, however many calls repeat the token as context; `ids`, `mask`, `logprobs` and `versions`
# align.
class SampledSpan(NamedTuple):
    """The tokens [start, stop) of a timeline are the reply of the call `call`, sampled and trained here."""

    call: int
    start: int
    stop: int


@dataclass(slots=True)
class Timeline:
    """A token sequence to train on. Shapes: [T] tokens."""

    leaf: int
    """Index of the last call. Its prompt and response are the token ids of the timeline."""
    agent: str
    target: str
    ids: Ids
    mask: npt.NDArray[np.bool_]
    """[T] True where the policy sampled the token for training in this timeline."""
    logprobs: Floats
    """[T] of the sampling distribution, 0 where mask is False."""
    logprobs_unit: Floats
    """[T] at temperature 1, 0 where mask is False."""
    versions: Ids
    """[T] lowest policy step of the sampled token, -1 where mask is False."""
    spans: tuple[SampledSpan, ...]
    adapter: str | None = None
    """The only adapter used and trained by the sampled tokens, as in `Terms.adapter`."""

    @property
    def sampled(self) -> int:
        """Number of tokens that are trained in this timeline."""
        return int(np.count_nonzero(self.mask))


SCHEMA = 3

Status = Literal["completed", "failed", "aborted"]
"""How an episode ended.

completed: the workflow returned. failed: `failure` names the boundary. aborted: ajet stopped the attempt (group
deadline, interruption).
"""
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
"""Reason why sampled tokens are not trained: sampled = trained + the sum over reasons, asserted at every step."""


@dataclass(slots=True)
class Failure:
    """Where and how an episode ended early."""

    boundary: Boundary
    kind: str
    """Exception class or short code: "timeout", "abandoned", "ValueError"."""
    message: str
    retryable: bool = False
    traceback: str = ""
    own: bool = False
    """True for failures in ajet's own code (engine, judge, ajet) without user code. Averages exclude only own failures.
    """
    policy: bool = False
    """True if the agent's code failed or timed out because of the policy's text.

    `rollout.policy_failure_reward` scores policy failures.
    """


@dataclass(slots=True)
class Verdict:
    """A judge's decision. `reward` None means no score: recorded, never trained on."""

    reward: float | None
    success: bool | None = None
    reason: str = ""
    turns: tuple[float, ...] = ()
    """Rewards of turns or agents, summed in `reward`. For a judged episode the values are in `process`."""
    process: tuple[ProcessReward, ...] = ()
    """Rewards of parts of the attempt."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The judge's own numbers, such as cost and agreement of votes."""
    details: dict[str, Any] = field(default_factory=dict)
    """The judge's inputs and their sources, as JSON."""
    scorer: str = ""
    """Names of the chosen scorers ("exact+f1"), or "" without scorers."""
    parts: dict[str, float | None] = field(default_factory=dict)
    """Score of each scorer by name. None: no score."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a training step did with an episode: advantage, untrained tokens and their reasons."""

    step: int | None = None
    """Training step with the episode in its update, or None."""
    advantage: float | None = None
    """Mean over the trained tokens, or None without trained tokens."""
    untrained: Mapping[str, int] = field(default_factory=dict)
    """Untrained tokens of the timelines, by `UntrainedReason`."""
    discarded: UntrainedReason | None = None
    """Reason why the whole group is in no batch."""
    values: Floats | None = field(default=None, compare=False, repr=False)
    """[T] the critic's expected return before each trained token, in sampled order. None without a critic."""
    reference_gap: Floats | None = field(default=None, compare=False, repr=False)
    """[T] log p - log p_ref of the trained tokens by policy and reference model. None without a reference model."""


def collect_advantages(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    """Return the advantage of each trained episode by its uuid; episodes without trained tokens are left out."""
    return {uuid: outcome.advantage for uuid, outcome in outcomes.items() if outcome.advantage is not None}


NO_OUTCOME = Outcome()
"""The outcome of an episode not used by any step."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One attempt at a task, with its calls, tool uses, timelines and verdict. Immutable once its group is finished."""

    uuid: str
    task: Task
    repeat: int
    """Index of the attempt within the group."""
    step: int
    """Training step of the attempt. For validation, the preceding step."""
    split: Split
    group: str = ""
    """Name of the group, unchanged on a replay."""
    order: int = -1
    """Position of the task in the training or validation order. Negative for a client's own task."""
    run: str = ""
    """Identity of the run that owns the calls' policy versions."""
    sampler: str = ""
    """Name of the sampler, or "" for the run's own processes."""
    status: Status = "completed"
    ending: str = ""
    """Reason of an abort ("group_deadline", "interrupted"), or "" for other endings."""
    failure: Failure | None = None
    verdict: Verdict | None = None
    calls: list[Call] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Distinct messages of all calls, in order of first use. Calls refer to messages by index."""
    tools: list[list[dict[str, Any]]] = field(default_factory=list)
    tool_uses: list[ToolUse] = field(default_factory=list)
    """Uses of tools in the order of their results, as far as reported."""
    timelines: list[Timeline] = field(default_factory=list)
    untrained: Counter[str] = field(default_factory=Counter)
    """Sampled tokens in no timeline, by `UntrainedReason`."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """The workflow's own output metadata."""
    printed: str = ""
    """The workflow's standard output, if the isolation stores it."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The numbers of the workflow's `log_metrics`."""
    checks: list[str] = field(default_factory=list)
    """Abnormal-output checks that fired ("nonsense", "wrong_toolcall")."""
    attempts: int = 1
    started: float = 0.0
    ended: float = 0.0
    utc_offset: int = 0
    """Seconds of local time ahead of UTC at the place of the attempt."""

    @property
    def day(self) -> date:
        """The local date at the attempt's start, which chat templates may write into prompts."""
        return compute_day(self.started, self.utc_offset)

    @property
    def reward(self) -> float | None:
        """The reward of the verdict, or None without a verdict or without a score."""
        return self.verdict.reward if self.verdict else None

    @property
    def scored(self) -> bool:
        """True if trainable: the attempt ended without an abort and has a reward.

        A failed episode has a reward only for a policy failure under `rollout.policy_failure_reward`.
        """
        is_finished = self.status == "completed" or (self.status == "failed" and self.failure is not None)
        return is_finished and self.reward is not None

    @property
    def left_out(self) -> bool:
        """True if ajet itself failed or stopped the attempt, so that its result says nothing about the policy.

        An attempt stopped at its group's deadline is not left out.
        """
        if self.status == "aborted":
            return self.ending != "group_deadline"
        return self.failure is not None and self.failure.own

    @property
    def succeeded(self) -> bool:
        """True if the judge called the attempt a success and it was not aborted."""
        return self.status != "aborted" and self.verdict is not None and self.verdict.success is True

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that the policy sampled in all calls."""
        return sum(len(call.response_ids) for call in self.calls)

    @property
    def policy(self) -> PolicySpan | None:
        """Oldest and newest policy version that sampled tokens of the episode, or None without versions."""
        return PolicySpan.of(run for call in self.calls for run in call.versions)

    @property
    def uncounted(self) -> int:
        """Number of sampled tokens that lie in timelines: those without a reason in `untrained`."""
        return self.sampled_tokens - self.untrained.total()

    def untrained_with(self, outcome: Outcome) -> Counter[str]:
        """Return the number of untrained tokens by reason: those in no timeline, and those that `outcome` counts."""
        return +(self.untrained + Counter(outcome.untrained))  # the plus drops reasons with 0 tokens


@dataclass(slots=True)
class Group:
    """The episodes of a task for a training step.

    `order` is the position in the training order, negative for a client's task.
    """

    task: Task
    order: int
    episodes: list[Episode]

    @property
    def scored(self) -> list[Episode]:
        """Episodes with a reward; the group's baseline is computed over these."""
        return [episode for episode in self.episodes if episode.scored]


def list_episodes(groups: Iterable[Group]) -> list[Episode]:
    """Return the episodes of all groups, group by group."""
    return [episode for group in groups for episode in group.episodes]


def measure_utc_offset(at: float) -> int:
    """Return by how many seconds this process's local time is ahead of UTC at `at` (seconds since the epoch)."""
    return time.localtime(at).tm_gmtoff


def compute_day(at: float, offset: int) -> date:
    """Return the date of `at` in a time zone `offset` seconds ahead of UTC."""
    return datetime.fromtimestamp(at, timezone(timedelta(seconds=offset))).date()
