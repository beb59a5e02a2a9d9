"""Maps process rewards (rewards for parts of an attempt) to the sampled tokens of the parts.

Invariant: a part's reward has at least one sampled token of a trained call, or the attempt gets no verdict. A missing
part is an error of the scorer and is never ignored. A list of rewards has one reward per call or one per agent. Of a
list of any other length only the sum is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from loguru import logger

from ajet.rollout.failure import keep_head
from ajet.schema.call import Call, Ids
from ajet.schema.episode import Verdict
from ajet.schema.errors import JudgeFailure
from ajet.schema.process_reward import ProcessReward, ReplySpan
from ajet.schema.tool_use import ToolUse
from ajet.tokens import span_of_text

if TYPE_CHECKING:
    from ajet.gateway import Capture

Decode = Callable[[Ids], str]
T = TypeVar("T")
MAX_PARTS = 4096
"""Maximum number of part rewards of one attempt."""


def locate_rewards(verdict: Verdict, capture: Capture | None, decode: Decode | None) -> Verdict:
    """Return the verdict, with the token spans of each process reward.

    Args:
        decode: Turns sampled ids into text. None: the attempt is not trained.

    Raises:
        JudgeFailure: The attempt does not have the part.
    """
    if decode is None:  # not trained: parts have no tokens
        return replace(verdict, turns=())
    calls = [call for call in capture.calls if call.is_step] if capture else []
    uses = capture.tool_uses if capture else []
    process_rewards = [*_split_list(verdict.turns, calls), *verdict.process]
    messages = capture.messages if capture else []
    if len(process_rewards) > MAX_PARTS:
        raise JudgeFailure(
            f"the judge returned {len(process_rewards)} process rewards for one attempt; the limit is {MAX_PARTS}"
        )
    all_calls = capture.calls if capture else []
    rewards = [
        _locate_part(process_reward, calls, all_calls, uses, messages, decode) for process_reward in process_rewards
    ]
    return replace(verdict, turns=(), process=tuple(rewards))


def _split_list(rewards: Sequence[float], calls: Sequence[Call]) -> list[ProcessReward]:
    """Return process rewards for a list with one reward per call or per agent, [] for another length."""
    agents = list(dict.fromkeys(call.target for call in calls))
    if len(rewards) == len(calls):
        return [ProcessReward(reward=reward, step=step) for step, reward in enumerate(rewards)]
    if len(rewards) == len(agents):
        return [ProcessReward(reward=reward, agent=agent) for agent, reward in zip(agents, rewards, strict=True)]
    if rewards:
        logger.warning(
            (
                "the judge returned a list of {} rewards for {} model calls of {} agents: ajet uses only the sum of "
                "the list. Return one reward per call or one per agent"
            ), len(rewards), len(calls),
            len(agents),
        )  # fmt: skip
    return []


def _locate_part(
    part: ProcessReward,
    calls: Sequence[Call],
    all_calls: Sequence[Call],
    uses: Sequence[ToolUse],
    messages: Sequence[dict[str, object]],
    decode: Decode,
) -> ProcessReward:
    """Return the process reward with the token spans of its part (agent, tool use, text or call).

    Args:
        calls: Trained calls.
        all_calls: All calls of the attempt.
        messages: Messages of the attempt, to which calls refer by index.
    """
    if part.agent:
        spans = [_make_reply_span(call) for call in calls if call.target == part.agent]
        if not spans:
            targets = ", ".join(dict.fromkeys(call.target for call in calls)) or "none"
            raise JudgeFailure(
                f"the judge returned a process reward for the agent {part.agent}; the attempt's trained agents "
                f"are: {targets}"
            )
    elif part.tool_use is not None:
        use = _get_part(uses, part.tool_use, "tool use")
        part = part.model_copy(update={"name": part.name or use.name})
        spans = [_make_reply_span(_find_requesting_call(use, calls, all_calls, messages))]
    elif part.text:
        spans = [_find_text(part, calls, decode)]
        part = part.model_copy(update={"text": keep_head(part.text)})
    else:
        assert part.step is not None
        spans = [_make_reply_span(_get_part(calls, part.step, "call"))]
    return part.model_copy(update={"tokens": tuple(spans)})


def _get_part(parts: Sequence[T], number: int, kind: str) -> T:
    """Return the numbered part of the attempt. Raises JudgeFailure, naming the `kind`, if there are fewer parts."""
    if not 0 <= number < len(parts):
        raise JudgeFailure(
            f"the judge returned a process reward for {kind} number {number} (counted from 0), but the attempt "
            f"has {len(parts)}"
        )
    return parts[number]


def _make_reply_span(call: Call) -> ReplySpan:
    """Return the span of all sampled tokens of a call's reply."""
    return ReplySpan(call.index, 0, int(call.response_ids.size))


def _find_requesting_call(
    use: ToolUse, calls: Sequence[Call], all_calls: Sequence[Call], messages: Sequence[dict[str, object]]
) -> Call:
    """Return the call whose reply requested a tool use.

    The call is found by the use's id. Without one it is the last call before the use.
    """
    for call in all_calls if use.call_id else ():
        requested = messages[call.reply].get("tool_calls") if call.reply is not None else None
        if isinstance(requested, list) and any(tool_call.get("id") == use.call_id for tool_call in requested):
            if not call.trained:
                raise JudgeFailure(
                    f"the judge returned a process reward for a use of the tool {use.name}, which an untrained "
                    "agent requested"
                )
            return call
    earlier_calls = [call for call in calls if call.ended <= use.started]
    if not earlier_calls:
        raise JudgeFailure(
            f"the judge returned a process reward for a use of the tool {use.name}, which no trained call requested"
        )
    return earlier_calls[-1]


def _find_text(part: ProcessReward, calls: Sequence[Call], decode: Decode) -> ReplySpan:
    """Return the first place of the text in the trained replies, or in the reply of `part.step`. Raises JudgeFailure
    without one.
    """
    for call in calls if part.step is None else [_get_part(calls, part.step, "call")]:
        if (span := span_of_text(decode, call.response_ids, part.text)) is not None:
            return ReplySpan(call.index, *span)
    mismatch = "no reply contains" if part.step is None else f"the reply of call {part.step} does not contain"
    raise JudgeFailure(f"the judge returned a process reward for the text {part.text[:80]!r}, which {mismatch}")
