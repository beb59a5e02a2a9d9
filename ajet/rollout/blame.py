"""Blame: whether an episode failed by the policy's own doing, and where the time of one that took too long went.

Invariant: when in doubt it was not the policy. What an engine, a tool, a judge, an environment or the machine did never
is: not an exception of the network, of the file system or of a time limit, not time spent in a model call (how long one
takes depends on the load) or in a tool. The policy can only be blamed for an episode in which it said something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ajet.rollout import bounds
from ajet.rollout.attempt_result import AttemptResult
from ajet.schema.call import Call
from ajet.schema.episode import Failure, Verdict
from ajet.schema.errors import Boundary
from ajet.schema.tool_use import OUTSIDE, ToolError, ToolUse

REFUSALS = frozenset({"context_length_exceeded", "json_schema_not_met"})
"""What the gateway refuses because of what the policy said: the context is full, no reply kept to a strict schema."""
_OUTSIDE = (OSError, EOFError, MemoryError, asyncio.CancelledError, asyncio.TimeoutError)
_OUTSIDE_NAMES = ("Timeout", "Connection", "Connect", "Transport", "NetworkError")

_BOUNDARIES: dict[ToolError, Boundary] = {"environment": "environment", "sandbox": "sandbox"}

Culprit = Literal["start", "engine", "tool", "agent"]


def from_outside(problem: BaseException) -> bool:
    """Whether an exception of the agent's code, or one that it came from, tells of the world around the agent."""
    seen: set[int] = set()
    cause: BaseException | None = problem
    while cause is not None and id(cause) not in seen:
        names = [each.__name__ for each in type(cause).__mro__]
        if isinstance(cause, _OUTSIDE) or any(part in name for part in _OUTSIDE_NAMES for name in names):
            return True
        if isinstance(getattr(cause, "status_code", None), int):  # an HTTP client's: the gateway knows its own
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False


def by_the_policy(played: AttemptResult) -> bool:
    """Whether it failed because of what the policy said: context full, an answer that the agent's code raised at, time
    lost over it."""
    failure, capture = played.failure, played.capture
    if failure is None or failure.boundary != "agent" or capture is None:
        return False
    if not any(call.trained and len(call.response_ids) for call in capture.calls):
        return False
    refused = capture.refused in REFUSALS and failure.kind not in ("timeout", "process_died")
    return refused or failure.policy


def verdict_on_failure(played: AttemptResult, reward: float | None) -> Verdict | None:
    """What a failed episode is worth: `rollout.policy_failure_reward` where the policy is to blame, else nothing."""
    if reward is None or played.aborted or not by_the_policy(played):
        return None
    assert played.failure is not None
    return Verdict(reward, False, f"failed by the policy's own doing: {played.failure.kind}")


def lost_tool(uses: Sequence[ToolUse]) -> Failure | None:
    """A tool that failed from outside and did not answer again: whatever the agent made of that, its outcome says
    nothing about the model."""
    answered: set[str] = set()
    for use in reversed(uses):
        if use.error in OUTSIDE and use.name not in answered:
            boundary: Boundary = _BOUNDARIES.get(use.error, "tool")
            what = f"{use.name} failed ({use.error}) and did not answer after that: {use.result}"
            return Failure(boundary, f"tool_{use.error}", bounds.beginning(what), retryable=True)
        answered.add(use.name)
    return None


def time_by_place(
    calls: Sequence[Call], messages: Sequence[Mapping[str, Any]], began: float, ended: float
) -> tuple[dict[Culprit, float], Culprit]:
    """Seconds in each place, and the place at the end, by the system clock, as the record has these times: one that is
    set meanwhile counts where it was. Before the first call is the start; after a reply with tool
    calls, until its agent asks again, is the tool; what is left between calls is the agent's own code."""
    spent: dict[Culprit, float] = {"start": 0.0, "engine": 0.0, "tool": 0.0, "agent": 0.0}
    place: Culprit = "start"
    waiting: dict[str, bool] = {}
    cursor = began
    for call in sorted(calls, key=lambda call: call.started):
        start, end = max(call.started, began), min(call.ended or ended, ended)
        spent[place] += max(0.0, start - cursor)
        spent["engine"] += max(0.0, end - max(start, cursor))
        reply = messages[call.reply] if call.reply is not None else {}
        waiting[call.agent] = bool(reply.get("tool_calls"))
        cursor = max(cursor, end)
        place = "tool" if any(waiting.values()) else "agent"
    spent[place] += max(0.0, ended - cursor)
    unfinished = any(not call.is_delivered and (call.ended or ended) >= ended - 0.05 for call in calls)
    return spent, "engine" if unfinished else place


def _asked_again(calls: Sequence[Call]) -> str:
    """Why the call before the last one had failed, where the last one never ended: an engine that failed, and was asked
    again until the time was over. "" where it is otherwise."""
    *before, last = sorted(calls, key=lambda call: call.started)
    failed = before[-1].error if before and before[-1].finish == "error" else None
    return failed or "" if last.finish == "aborted" else ""


def timed_out(seconds: float | None, played: AttemptResult, *, shared_loop: bool, stood: str = "") -> Failure:
    """The failure of an attempt that took too long, blamed on where it was at the end, and else on where most of the
    time went. `shared_loop`: episodes hold each other up, so that none's time is its own. `stood`: the line that it
    had come to."""
    message = f"the workflow did not end within {seconds:g} seconds (rollout.episode_timeout)" if seconds else ""
    message += f"; it stood at {stood}" if stood else ""
    if played.capture is None or not played.capture.calls:
        return Failure("agent", "timeout", message)
    spent, at_end = time_by_place(played.capture.calls, played.capture.messages, played.started, played.ended)
    most: Culprit = max(spent, key=lambda place: spent[place])
    shares = ", ".join(f"{value:.1f} s in the {place}" for place, value in spent.items() if value >= 0.05)
    message += f"; {shares}; at the end in the {at_end}" if shares else ""
    blamed = at_end if at_end in ("engine", "tool") else most
    if blamed == "engine" and (earlier := _asked_again(played.capture.calls)):
        return Failure("engine", "timeout", f"{message}; its call before had failed: {earlier}", own=True)
    if blamed == "engine" or blamed == "tool":
        return Failure(blamed, "timeout", message)
    return Failure("agent", "timeout", message, policy=blamed == "agent" and not shared_loop)
