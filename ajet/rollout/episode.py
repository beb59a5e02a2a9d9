"""Builds the complete `Episode` from an ended attempt and a verdict, and chooses the turns to train.

Invariants: sampled tokens = tokens with mask 1 over the timelines + the counted reasons, asserted for every episode.
Only a scored episode has timelines with trainable tokens. In any other episode every sampled token is counted by
reason. A number in a workflow's `log_metrics`, at any depth, is a metric. Other values, and extra fields of an output,
are recorded with the metadata. Texts of user code (metadata, errors, a judge's reason) are bounded. An attempt has
failed and trains no tokens if the user's `train_turn` raises, hangs or returns no bool.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from numbers import Real
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.config import resolve_reference
from ajet.config.functions import is_function, require_callable_with
from ajet.context_tracker import choose, cut_over_length, timelines
from ajet.environment.loop import in_thread
from ajet.record.plain_json import dumps
from ajet.record.rate_limiter import RateLimiter
from ajet.rollout.attempt import AttemptResult, Identity
from ajet.rollout.failure import bound_failure, classify_exception, keep_head, score_failure
from ajet.rollout.runtime import wait_first
from ajet.schema.call import Call
from ajet.schema.episode import Episode, Timeline, Verdict, measure_utc_offset
from ajet.schema.errors import ConfigError, JudgeFailure
from ajet.schema.task import WorkflowOutput

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment

VALUE_CHARS = 1 << 16
"""Characters of JSON stored per metadata value."""
METADATA_CHARS = 1 << 20
"""Characters of JSON stored of an episode's metadata in all."""
TRAIN_TURN_KEY = "ajet.rollout.train_turn"
warned_names = RateLimiter(interval_s=600)


class TurnSelector:
    """Calls the user's `train_turn(call, episode) -> bool` to choose the calls to train.

    The function runs in a thread for each trainable call, once the attempt has a verdict. A rejected call is context:
    the call's tokens are counted as `not_trainable`.
    """

    def __init__(self, function: Callable[[Call, Episode], object], reference: str, timeout: float | None) -> None:
        self._function = function
        self._function_name = reference
        self._timeout = timeout

    @classmethod
    def open(cls, experiment: Experiment) -> TurnSelector | None:
        """Return the selector of the experiment, or None if every turn trains.

        Raises:
            ConfigError, UnresolvedReferenceError: `rollout.train_turn` names no suitable function.
        """
        rollout = experiment.ajet.rollout
        if not rollout.train_turn:
            return None
        function: Any = resolve_reference(rollout.train_turn, base=experiment.base, key=TRAIN_TURN_KEY)
        if not is_function(function) or asyncio.iscoroutinefunction(function):
            raise ConfigError(
                f"{rollout.train_turn} is not a function without `async`.",
                where=TRAIN_TURN_KEY,
                expected="`def name(call, episode) -> bool`, without `async`",
            )
        require_callable_with(function, ("call", "episode"), key=TRAIN_TURN_KEY, reference=rollout.train_turn)
        return cls(function, rollout.train_turn, rollout.episode_timeout)

    async def choose_calls(self, episode: Episode) -> list[Call]:
        """Return the episode's calls. Calls rejected by the function are no longer trained.

        Raises:
            JudgeFailure: The function took too long or returned no bool. Exceptions of the function are raised
                unchanged.
        """
        try:
            return await asyncio.wait_for(in_thread(self._choose_all, episode), self._timeout)
        except TimeoutError:
            message = f"{self._function_name} did not return within {self._timeout} seconds"
            raise JudgeFailure(message, own=True) from None

    def _choose_all(self, episode: Episode) -> list[Call]:
        """Return the episode's calls, with an untrained copy of each step that the user's function rejects."""
        return [
            call
            if not call.is_step or self._should_train(call, episode)
            else replace(call, trained=False, turned_down=True)
            for call in episode.calls
        ]

    def _should_train(self, call: Call, episode: Episode) -> bool:
        """Return the answer of the user's function for a call. Raises JudgeFailure if the answer is no bool."""
        answer = self._function(call, episode)
        if not isinstance(answer, bool):
            raise JudgeFailure(f"{self._function_name} returned {answer!r:.200}; expected True or False")
        return answer


class EpisodeBuilder:
    """Builds the episodes of a rollout or of a server, with the choice of turns to train."""

    def __init__(self, settings: AjetConfig, turns: TurnSelector | None) -> None:
        """Store the settings and the choice of turns. Without `turns` every turn trains."""
        self._settings, self._turn_selector = settings, turns

    @classmethod
    def open(cls, experiment: Experiment) -> EpisodeBuilder:
        """Open the builder with the user's `train_turn`. Raises ConfigError and UnresolvedReferenceError."""
        return cls(experiment.ajet, TurnSelector.open(experiment))

    async def build(
        self, identity: Identity, result: AttemptResult, verdict: Verdict | None, stop_signal: asyncio.Future[str]
    ) -> Episode:
        """Build the episode of an attempt with its verdict. `stop_signal` aborts the choice of turns."""
        episode = build_episode(identity, result, verdict, self._settings)
        if self._turn_selector is None or not episode.scored or result.capture is None:
            return episode
        choosing = asyncio.ensure_future(self._turn_selector.choose_calls(episode))
        await wait_first(choosing, stop_signal)
        if not choosing.done():
            choosing.cancel()
            result.aborted = stop_signal.result()
            return build_episode(identity, result, verdict, self._settings)
        try:
            result.capture = replace(result.capture, calls=choosing.result())
        except Exception as problem:  # noqa: BLE001 - the border where a user's function fails
            result.failure = classify_exception(problem, "judge")
            # User code is classified as the agent's, but `train_turn` runs after the agent, as part of judging.
            if result.failure.boundary == "agent":
                result.failure.boundary = "judge"
        return build_episode(identity, result, verdict, self._settings)


def build_episode(identity: Identity, result: AttemptResult, verdict: Verdict | None, settings: AjetConfig) -> Episode:
    """Build the episode. Every sampled token is in a timeline or counted by reason."""
    capture, output = result.capture, result.output
    numbers: dict[str, float] = {}
    metadata: dict[str, Any] = {}
    if output:
        warn_of_near_names(output)
        numbers, other_values = _split_metrics(output.log_metrics)
        metadata = {
            **(output.model_extra or {}),
            **({"log_metrics": other_values} if other_values else {}),
            **output.metadata,
        }
    if result.aborted or result.failure:
        verdict = None
    if result.failure and not result.aborted:
        verdict = score_failure(result.failure, capture, settings.rollout.policy_failure_reward)
    if verdict is not None:
        verdict = replace(verdict, reason=keep_head(verdict.reason), details=_bound_metadata(verdict.details))
    episode = Episode(
        uuid=identity.uuid,
        task=identity.task,
        repeat=identity.repeat,
        step=identity.step,
        split=identity.split,
        group=identity.group,
        order=identity.order,
        run=identity.run,
        status="aborted" if result.aborted else "failed" if result.failure else "completed",
        ending=result.aborted or "",
        failure=bound_failure(result.failure) if result.failure else None,
        verdict=verdict,
        calls=list(capture.calls) if capture else [],
        messages=capture.messages if capture else [],
        tools=capture.tools if capture else [],
        tool_uses=list(capture.tool_uses) if capture else [],
        checks=list(capture.checks) if capture else [],
        metadata=_bound_metadata(metadata),
        metrics=numbers,
        printed=result.printed,
        attempts=result.attempts,
        started=result.started,
        ended=result.ended,
        utc_offset=measure_utc_offset(result.started),
    )
    timelines, untrained = _account_tokens(episode, settings)
    episode = replace(episode, timelines=timelines, untrained=untrained)
    sampled = sum(timeline.sampled for timeline in episode.timelines) + sum(episode.untrained.values())
    assert sampled == episode.sampled_tokens, (
        f"episode {episode.uuid}: {episode.sampled_tokens} tokens sampled, {sampled} accounted for: {episode.untrained}"
    )
    return episode


def _bound_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a workflow with bounded values.

    A value over the limit becomes the beginning of the value's JSON, or text. The key `cut` then names the value.
    """
    bounded: dict[str, Any] = {}
    cut_values: list[str] = []
    remaining = METADATA_CHARS
    for key, value in metadata.items():
        text = value if isinstance(value, str) else dumps(value)
        limit = max(0, min(VALUE_CHARS, remaining - len(str(key))))
        if len(text) <= limit:
            bounded[key] = value
        elif len(cut_values) < 100:
            cut_values.append(f"{keep_head(str(key), 100)}: {len(text)} characters")
            if limit and len(str(key)) < VALUE_CHARS:
                bounded[key] = keep_head(text, limit)
        remaining -= min(len(text), limit) + len(str(key))
    if cut_values:
        bounded["cut"] = (
            f"of {len(metadata)} metadata values these were cut to the recorded length: {'; '.join(cut_values)}"
        )
    return bounded


def _account_tokens(episode: Episode, settings: AjetConfig) -> tuple[list[Timeline], Counter[str]]:
    """Return the trainable timelines, and the number of all other sampled tokens by reason."""
    if not episode.scored:
        ignored = settings.context_tracker.timeline_merging_policy.ignore_tools
        all_timelines, untrained = timelines(episode.calls, ignore_tools=ignored)
        timeline_tokens = sum(timeline.sampled for timeline in all_timelines)
        untrained["no_score" if episode.status == "completed" else "failed"] += timeline_tokens
        # The unary plus drops reasons with a count of 0.
        return [], +untrained
    all_timelines, untrained = cut_timelines(episode.calls, settings)
    selected, too_many = choose(
        all_timelines, settings.rollout.multi_turn.max_sample_per_task, seed=settings.seed, episode=episode.uuid
    )
    return list(selected), untrained + too_many


def cut_timelines(calls: Sequence[Call], settings: AjetConfig) -> tuple[list[Timeline], Counter[str]]:
    """Return the timelines of the calls, cut to the longest trainable length, and the lost tokens' number by reason."""
    ignored = settings.context_tracker.timeline_merging_policy.ignore_tools
    cut, untrained = timelines(calls, ignore_tools=ignored)
    longest = settings.data.max_prompt_length + settings.data.max_response_length
    cut, too_long = cut_over_length(cut, longest)
    return cut, untrained + too_long


def warn_of_near_names(output: WorkflowOutput) -> None:
    """Warn of a field whose name is close to a known field's, at most once in ten minutes per name."""
    for name in output.model_extra or {}:
        similar = get_close_matches(name, WorkflowOutput.model_fields, 1, cutoff=0.8)
        if similar and warned_names.is_due(name):
            logger.warning("WorkflowOutput({}=…) is recorded but not used by ajet: did you mean {}?", name, similar[0])


def _split_metrics(metrics: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, float], dict[str, Any]]:
    """Return the finite numbers, with keys `outer/inner` for nested mappings, and all other values."""
    numbers: dict[str, float] = {}
    other_values: dict[str, Any] = {}
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            inner_numbers, inner_values = _split_metrics(value, f"{name}/")
            numbers |= inner_numbers
            other_values |= inner_values
        # A scalar of numpy or torch has a dtype and no dimensions.
        elif isinstance(value, Real) or (getattr(value, "ndim", None) == 0 and hasattr(value, "dtype")):
            number = float(value)
            (numbers if math.isfinite(number) else other_values)[name] = number
        else:
            other_values[name] = value
    return numbers, other_values
