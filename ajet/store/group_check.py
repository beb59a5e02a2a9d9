"""Checks a closed group of a shared store before training.

A position is a task's place in the training order; a closed position has a complete group. Invariant: every backbone
can train on a checked group: numbers are finite, token ids exist, timelines match calls, and all episodes are of the
leased position's task. Any other group raises `GroupRefusedError` and is quarantined by the caller. A damaged group
never ends a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ajet.record.episode_codec import rebuild
from ajet.schema.call import Call
from ajet.schema.episode import Episode, SampledSpan, Status, Timeline, UntrainedReason, Verdict
from ajet.schema.errors import AjetError, Boundary
from ajet.store.contract import Kept, Lease

RefusalKind = Literal[
    "attempts", "task", "split", "status", "number", "token_id", "call", "timeline", "length", "policy_version"
]
"""The part of a group that is wrong, so that the group is refused."""
QUARANTINED = "quarantined"
"""First word of a stored reason, by which a refused group is recognized."""
UNREADABLE = "unreadable"
"""Kind of a group that was unreadable or changed in the store."""
LONGEST_VALUE = 60
"""Characters of a wrong value that a reason quotes."""


class GroupRefusedError(AjetError):
    """A group of episodes cannot be trained on."""

    def __init__(self, kind: RefusalKind, why: str) -> None:
        super().__init__(why)
        self.kind: RefusalKind = kind

    @property
    def reason(self) -> str:
        """The reason to store with the quarantined position. `kind_of` parses the kind of refusal from it."""
        return f"{QUARANTINED}: {self.kind}: {self}"


@dataclass(frozen=True, slots=True)
class GroupTerms:
    """What a trainer requires of a sampled group. None: any value is accepted."""

    run: str
    """Identity of the run that must have played the episodes."""
    repeats: int
    """Attempts per group (`rollout.num_repeat`)."""
    longest: int
    """Limit on the tokens of a timeline (`data.max_prompt_length` plus `max_response_length`)."""
    vocabulary: int | None = None
    """Number of token ids of the model."""
    adapters: frozenset[str] | None = None  # names of trained adapters


def kind_of(reason: str) -> str:
    """Return the kind of refusal from the stored reason of a quarantined group, or "" for any other reason."""
    first_word, _, kind_and_message = reason.partition(": ")
    return kind_and_message.partition(":")[0] if first_word == QUARANTINED else ""


def check_group(lease: Lease, task_id: str, version: int, terms: GroupTerms) -> None:
    """Check the episodes of a closed position.

    Args:
        lease: The position with its episodes.
        task_id: Id of the task at the position.
        version: newest policy version known to the trainer.
        terms: The trainer's requirements.

    Raises:
        GroupRefusedError: the group cannot be trained on. The message names attempt and sampler.
    """
    for attempt in lease.attempts:
        try:
            _check_parts(attempt.episode)
            _check_against_terms(attempt, lease.order, task_id, version, terms)
            _check_timelines(attempt.episode)
        except GroupRefusedError as refused:
            raise GroupRefusedError(refused.kind, f"{name_attempt(attempt)}: {refused}") from refused
    repeats = sorted(attempt.episode.repeat for attempt in lease.attempts)
    if repeats != list(range(terms.repeats)):
        samplers = ", ".join(
            sorted({attempt.ended_by or attempt.episode.sampler or "unknown" for attempt in lease.attempts})[:5]
        )
        mismatch = (
            f"{len(repeats)} attempts with the numbers {quote(repeats)}, expected {terms.repeats} attempts "
            "numbered from 0"
        )
        raise GroupRefusedError("attempts", f"{mismatch} (sampler {samplers or 'unknown'})")
    if len({attempt.episode.group for attempt in lease.attempts}) > 1:
        raise GroupRefusedError("task", f"the attempts belong to different groups ({name_attempt(lease.attempts[0])})")


def check_values(episode: Episode) -> None:
    """Check an episode by itself: types, finite numbers, counts. Raises GroupRefusedError."""
    _check_parts(episode)
    _check_timelines(episode)


def _check_parts(episode: Episode) -> None:
    """Check an episode's own fields, its verdict and its calls, but not its timelines."""
    _check_plain(episode)
    if episode.verdict is not None:
        _check_verdict(episode.verdict, episode.calls)
    for number, call in enumerate(episode.calls):
        _check_call(call, number)


def name_attempt(one: Kept) -> str:
    """Return the attempt's number, uuid and sampler as text, for a refusal."""
    episode = one.episode
    return f"attempt {episode.repeat} ({episode.uuid}) of sampler {one.ended_by or episode.sampler or 'unknown'}"


def quote(value: object) -> str:
    """Return the value as Python code, cut to LONGEST_VALUE characters."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _check_against_terms(attempt: Kept, order: int, task_id: str, version: int, terms: GroupTerms) -> None:
    """Check that an episode is of the leased position's task, of training and of this run, and fits the model.

    Args:
        order: The leased position.
        task_id: Id of the task at the position.
        version: Newest policy version of the trainer.
        terms: The trainer's requirements.
    """
    episode = attempt.episode
    _require_valid(
        episode.task.task_id == task_id and episode.order == order and not attempt.alone,
        "task",
        f"it belongs to task {quote(episode.task.task_id)} at position {episode.order}, but the lease is of task "
        f"{quote(task_id)} at position {order}",
    )
    _require_valid(episode.split == "train", "split", f"its split is {quote(episode.split)}, expected train")
    _require_valid(
        episode.run == terms.run, "policy_version", f"its policy versions belong to run {quote(episode.run)}"
    )
    # Each run of tokens was sampled by the policy versions `low` to `high`.
    newest = max((token_run.high for call in episode.calls for token_run in call.versions), default=version)
    _require_valid(
        newest <= version,
        "policy_version",
        f"policy version {newest} sampled it, but the trainer's newest version is {version}",
    )
    for call in episode.calls:
        _check_ids(call, terms.vocabulary)
        is_known = terms.adapters is None or call.terms.adapter is None or call.terms.adapter in terms.adapters
        _require_valid(
            is_known, "call", f"call {call.index} was sampled with the unknown adapter {quote(call.terms.adapter)}"
        )
    for timeline in episode.timelines:
        size = timeline.ids.size
        _require_valid(
            size <= terms.longest,
            "length",
            f"a timeline (the token sequence of one context) has {size} tokens, the limit is {terms.longest}",
        )


def _check_ids(call: Call, vocabulary: int | None) -> None:
    """Require that all token ids of a call's prompt suffix and response are in the vocabulary.

    Args:
        vocabulary: Number of token ids. None: unknown, so only negative ids are refused.
    """
    for ids in (call.suffix_ids, call.response_ids):
        if not ids.size:
            continue
        lowest, highest = int(ids.min()), int(ids.max())
        invalid = lowest if lowest < 0 else highest
        is_valid = lowest >= 0 and (vocabulary is None or highest < vocabulary)
        _require_valid(
            is_valid,
            "token_id",
            f"call {call.index} has the token id {invalid}, but the vocabulary has {vocabulary} tokens",
        )


def _check_plain(episode: Episode) -> None:
    """Check the episode's own fields: status, failure, metrics, times, counts and tool uses."""
    _require_valid(episode.status in get_args(Status), "status", f"its status {quote(episode.status)} is invalid")
    failure = episode.failure
    if failure is not None:
        texts = (failure.kind, failure.message, failure.traceback)
        flags = (failure.retryable, failure.own, failure.policy)
        _require_valid(
            failure.boundary in get_args(Boundary)
            and all(isinstance(text, str) for text in texts)
            and all(isinstance(flag, bool) for flag in flags),
            "status",
            f"its failure is invalid: {quote(failure)}",
        )
    _require_valid(
        episode.status != "failed" or failure is not None, "status", "its status is failed, but no failure is recorded"
    )
    _require_valid(
        all(isinstance(name, str) for name in episode.checks), "number", "the name of an output check is not a string"
    )
    _require_numbers(episode.metrics.items(), "metric")
    _require_numbers((("started", episode.started), ("ended", episode.ended)), "time")
    for reason, count in episode.untrained.items():
        _require_valid(
            reason in get_args(UntrainedReason) and _is_count(count),
            "number",
            f"the count of tokens not trained for the reason {quote(reason)} is {quote(count)}",
        )
    for use in episode.tool_uses:
        _require_valid(isinstance(use.name, str) and isinstance(use.error, str), "call", "a tool use has no name")
        _require_numbers((("started", use.started), ("ended", use.ended)), "time of a tool use")


def _check_verdict(verdict: Verdict, calls: Sequence[Call]) -> None:
    """Check that rewards, success and metrics of a verdict have valid types, and that reward spans lie in calls."""
    if verdict.reward is not None:
        _require_valid(
            _is_finite(verdict.reward), "number", f"its reward {quote(verdict.reward)} is not a finite number"
        )
    _require_valid(
        verdict.success in (None, True, False),
        "number",
        f"its success {quote(verdict.success)} is not true, false or null",
    )
    _require_valid(isinstance(verdict.scorer, str), "number", f"its scorer {quote(verdict.scorer)} is not a string")
    _require_valid(
        isinstance(verdict.metrics, dict), "number", f"its judge's metrics {quote(verdict.metrics)} are not a mapping"
    )
    _require_valid(
        isinstance(verdict.parts, dict),
        "number",
        f"the rewards of its scorers, {quote(verdict.parts)}, are not a mapping",
    )
    _require_numbers(verdict.metrics.items(), "judge's metric")
    _require_numbers(((name, score) for name, score in verdict.parts.items() if score is not None), "scorer")
    _require_valid(
        isinstance(verdict.turns, (list, tuple)),
        "number",
        f"the rewards of its turns, {quote(verdict.turns)}, are not a list",
    )
    _require_numbers(((str(turn), reward) for turn, reward in enumerate(verdict.turns)), "reward of turn")
    for process_reward in verdict.process:
        _require_valid(
            _is_finite(process_reward.reward),
            "number",
            f"a process reward is {quote(process_reward.reward)}, expected a finite number",
        )
        for span in process_reward.tokens:
            _require_valid(
                0 <= span.call < len(calls) and 0 <= span.start <= span.stop <= len(calls[span.call].response_ids),
                "call",
                f"the tokens of a process reward are outside of their call: {quote(tuple(span))}",
            )


def _check_call(call: Call, at: int) -> None:
    """Check a call's index, log-probabilities, sampling settings, times and policy versions.

    Args:
        at: The call's place in the episode, which its index must equal.
    """
    response_length = len(call.response_ids)
    _require_valid(
        call.index == at and isinstance(call.trained, bool),
        "call",
        f"call number {at} has the index {call.index!r:.20}",
    )
    sizes = {
        len(call.logprobs),
        len(call.logprobs_unit),
        response_length if call.teacher is None else len(call.teacher),
    }
    _require_valid(
        sizes == {response_length},
        "call",
        f"call {at} has {response_length} tokens, but log-probabilities of {sorted(sizes)} tokens",
    )
    _require_numbers(
        (("temperature", call.temperature), ("top_p", call.terms.top_p), ("top_k", call.terms.top_k)), f"call {at}"
    )
    _require_numbers((("started", call.started), ("ended", call.ended)), f"call {at}")
    if call.trained and not (np.isfinite(call.logprobs).all() and np.isfinite(call.logprobs_unit).all()):
        raise GroupRefusedError("number", f"a log-probability of call {at} is not finite")
    has_version = bool(call.versions) or not call.trained or not response_length
    _require_valid(has_version, "policy_version", f"no policy version is recorded for call {at}")
    # Each version run is (first token, lowest version, highest version); the runs cover the response from token 0 on.
    are_counts = all(_is_count(number) for version_run in call.versions for number in version_run)
    first_tokens = [version_run.first for version_run in call.versions]
    _require_valid(
        are_counts
        and all(version_run.low <= version_run.high for version_run in call.versions)
        and first_tokens == sorted(first_tokens)
        and first_tokens[:1] in ([], [0])
        and all(first <= response_length for first in first_tokens),
        "policy_version",
        f"the policy versions of call {at} are invalid: {quote([tuple(version_run) for version_run in call.versions])}",
    )


def _check_timelines(episode: Episode) -> None:
    """Check that each sampled token is in one timeline at most, and that all sampled tokens are counted."""
    calls = episode.calls
    is_trained = [np.zeros(len(call.response_ids), dtype=np.bool_) for call in calls]
    for number, timeline in enumerate(episode.timelines):
        _check_timeline(timeline, number, calls)
        for span in timeline.spans:
            response_slice = _reply_part(span, calls[span.call])
            _require_valid(
                not is_trained[span.call][response_slice].any(),
                "timeline",
                f"timeline {number} trains tokens that another timeline trains too",
            )
            is_trained[span.call][response_slice] = True
    counted = sum(timeline.sampled for timeline in episode.timelines) + episode.untrained.total()
    _require_valid(
        counted == episode.sampled_tokens,
        "timeline",
        f"{episode.sampled_tokens} tokens were sampled, but {counted} are counted as trained or untrained",
    )


def _check_timeline(timeline: Timeline, at: int, calls: Sequence[Call]) -> None:
    """Check that a timeline is the one built from its calls, possibly cut at the end.

    Args:
        at: number of the timeline in the episode.
        calls: All calls of the episode.
    """
    token_count = len(timeline.ids)
    sizes = {len(array) for array in (timeline.mask, timeline.logprobs, timeline.logprobs_unit, timeline.versions)}
    _require_valid(
        sizes == {token_count} and token_count > 0,
        "timeline",
        (
            f"timeline {at} has {token_count} token ids, but masks, log-probabilities or versions of "
            f"{sorted(sizes)} tokens"
        ),
    )
    _require_valid(not timeline.mask[0], "timeline", f"timeline {at} trains its first token, which no token precedes")
    for span in timeline.spans:
        is_inside = 0 <= span.call < len(calls) and 0 <= span.start < span.stop <= token_count
        _require_valid(
            is_inside, "timeline", f"timeline {at} of {token_count} tokens has the invalid span {quote(tuple(span))}"
        )
        call = calls[span.call]
        sampled = _reply_part(span, call)
        is_sampled = sampled.start >= 0 and sampled.stop <= len(call.response_ids) and call.trained
        _require_valid(
            is_sampled, "timeline", f"timeline {at} trains tokens that call {span.call} did not sample for training"
        )
    rebuilt = rebuild(calls, timeline.leaf, timeline.agent, timeline.target, timeline.spans)
    names = ("ids", "mask", "logprobs", "logprobs_unit", "versions")
    differing = [name for name in names if not _begins_with(getattr(rebuilt, name), getattr(timeline, name))]
    _require_valid(not differing, "timeline", f"timeline {at} differs from its calls in {', '.join(differing)}")


def _reply_part(span: SampledSpan, call: Call) -> slice:
    """Return the slice of the call's response tokens covered by a span of a timeline.

    In the timeline, the call's response follows `prefix` tokens of earlier calls and the call's own suffix.
    """
    begin = span.start - call.prefix - len(call.suffix_ids)
    return slice(begin, begin + span.stop - span.start)


def _begins_with(values: np.ndarray, part: np.ndarray) -> bool:
    """Return True if `part` is a prefix of `values`, bit for bit. A timeline may be cut at its end."""
    return len(part) <= len(values) and values[: len(part)].tobytes() == part.tobytes()


def _require_numbers(named: Iterable[tuple[str, object]], what: str) -> None:
    """Raise GroupRefusedError unless every value is a finite number.

    Args:
        named: (name, value) pairs.
        what: Kind of the values, for the message.
    """
    for name, value in named:
        _require_valid(_is_finite(value), "number", f"{what} {quote(name)} is {quote(value)}, expected a finite number")


def _require_valid(holds: bool, kind: RefusalKind, why: str) -> None:
    """Raise GroupRefusedError with this kind and message unless the condition holds."""
    if not holds:
        raise GroupRefusedError(kind, why)


def _is_count(value: object) -> bool:
    """Return True for an integer from 0 to 2**31 - 1. A bool is no count, although Python counts it as an int."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _is_finite(value: object) -> bool:
    """Return True for a number that stays finite as float32."""
    if not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value) and abs(value) <= float(np.finfo(np.float32).max)
    except OverflowError:  # an integer beyond the range of a float
        return False
