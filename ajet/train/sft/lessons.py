"""Lessons, the training examples of `ajet sft`: given conversations as calls with exact tokens, and as episodes.

Invariants: a written reply has the context shown to the model in an episode: a turn extends the earlier turn if the
template allows, and forks otherwise. Tokens of a recorded run come from its record. In both cases the calls are marked
as not sampled (`Terms.written`), and `ajet prove` derives them a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import numpy as np

from ajet.context_tracker.timeline_making import timelines
from ajet.gateway.recorder import Recorder
from ajet.rollout.attempt import Identity
from ajet.schema.call import Call, Terms
from ajet.schema.episode import Episode, Group, Split, Verdict, measure_utc_offset
from ajet.schema.errors import TaskError, UserError
from ajet.schema.task import Task
from ajet.schema.tool_use import ToolUse
from ajet.tokens import Rendered, Renderer, TemplateRefused
from ajet.tokens.written import written_reply
from ajet.train.sft.rows import LessonRow, RowConversation

AGENT = "given"
"""Agent of a file's rows."""


@dataclass(frozen=True, slots=True)
class LessonConversation:
    """A conversation of a lesson, with the exact tokens of each call."""

    calls: list[Call]
    messages: list[dict[str, Any]]
    tools: list[list[dict[str, Any]]]
    at: float
    """Time of the conversation, or of the last change of its file, in seconds since the epoch."""
    verdict: Verdict | None = None
    tool_uses: list[ToolUse] = field(default_factory=list)
    source: str = ""
    """Recorded episode of the conversation, or "" for a conversation from a file."""
    utc_offset: int = 0
    """Offset of the conversation's day in seconds, as in `Episode`."""

    @property
    def tokens(self) -> int:
        """Number of tokens of the longest call."""
        return max(call.prefix + call.suffix_ids.size + call.response_ids.size for call in self.calls)


@dataclass(frozen=True, slots=True)
class Lesson:
    """A training example with its task: a conversation, or the chosen and the rejected conversation of a pair."""

    task: Task
    conversations: tuple[LessonConversation, ...]
    where: str

    def make_group(
        self, run: str, step: int, order: int, split: Split = "train", *, ignore_tools: bool = True
    ) -> Group:
        """Return the lesson as a group of episodes, as a training step records it.

        Args:
            order: Position of the lesson in the training order.
            ignore_tools: True if calls with different tool lists may share a timeline.
        """
        episodes = [
            _make_episode(conversation, Identity(run, split, step, self.task, order, 0, repeat), ignore_tools)
            for repeat, conversation in enumerate(self.conversations)
        ]
        return Group(self.task, order, episodes)


def make_lesson(row: LessonRow, renderer: Renderer) -> Lesson:
    """Return the lesson of a file's row. Raises TaskError if the chat template does not determine a reply's tokens."""
    on_its_day = renderer.on_day(date.fromtimestamp(row.written))
    try:
        conversations = tuple(_tokenize_conversation(talk, on_its_day, row.written) for talk in row.conversations)
    except (UserError, TemplateRefused) as problem:
        reason = problem.what if isinstance(problem, UserError) else str(problem)
        raise TaskError(
            f"ajet cannot reproduce a row's reply exactly in tokens: {reason.rstrip('.')}.",
            where=row.where,
            expected="a reply that the model's chat template renders exactly as written, token by token",
            do="remove the row, or write the reply as the model would (docs/sft.md explains the limits of chat "
            "templates)",
        ) from None
    return Lesson(row.task, conversations, row.where)


def use_record(episode: Episode) -> LessonConversation:
    """Return the conversation of a recorded episode. Its tokens were sampled by another run's policy."""
    return LessonConversation(
        [_mark_written(call) for call in episode.calls],
        episode.messages,
        episode.tools,
        episode.started,
        episode.verdict,
        episode.tool_uses,
        episode.uuid,
        episode.utc_offset,
    )


def _mark_written(call: Call) -> Call:
    """Return a call marked as written instead of sampled: without log-probabilities and policy versions."""
    zeros = np.zeros(call.response_ids.size, np.float32)
    written = replace(call.terms, written=True)
    return replace(call, logprobs=zeros, logprobs_unit=zeros, versions=(), terms=written)


def _make_episode(given: LessonConversation, identity: Identity, ignore_tools: bool) -> Episode:
    """Return a conversation as an episode whose start and end is the time of the conversation."""
    episode_timelines, untrained = timelines(given.calls, ignore_tools=ignore_tools)
    return Episode(
        identity.uuid,
        identity.task,
        identity.repeat,
        identity.step,
        identity.split,
        group=identity.group,
        order=identity.order,
        run=identity.run,
        verdict=given.verdict,
        calls=given.calls,
        messages=given.messages,
        tools=given.tools,
        tool_uses=given.tool_uses,
        timelines=episode_timelines,
        untrained=untrained,
        metadata={"learned_from": given.source} if given.source else {},
        started=given.at,
        ended=given.at,
        utc_offset=given.utc_offset,
    )


def _tokenize_conversation(talk: RowConversation, renderer: Renderer, at: float) -> LessonConversation:
    """Return a row's conversation with the exact tokens of each reply, in the context that an episode would give it.

    Args:
        talk: The conversation of the row.
        renderer: The renderer for the conversation's day.
        at: Time of the conversation, in seconds since the epoch.
    """
    recorder = Recorder()
    messages = list(talk.messages)
    tools = list(talk.tools) or None
    for index, message in enumerate(talk.messages):
        if message["role"] == "assistant":
            call, messages[index] = _record_reply(recorder, messages[:index], message, tools, renderer)
            call.trained = index in talk.learned
            call.started = call.ended = at
    captured = recorder.capture
    return LessonConversation(captured.calls, captured.messages, captured.tools, at, utc_offset=measure_utc_offset(at))


def _record_reply(
    recorder: Recorder,
    history: Sequence[dict[str, Any]],
    reply: dict[str, Any],
    tools: list[dict[str, Any]] | None,
    renderer: Renderer,
) -> tuple[Call, dict[str, Any]]:
    """Record a given reply as a call, and return the call and the message that its tokens encode.

    Args:
        history: The messages before the reply.
    """
    match = recorder.conversations.match(AGENT, history)
    messages = recorder.restore_replies(history, match.extends)
    earlier_prompt: Rendered | None = None
    prompt: Rendered | None = None
    fork = match.reason
    if match.extends is not None:
        earlier_call = recorder.capture.calls[match.extends]
        earlier_prompt = recorder.build_prompt(match.extends)
        prompt = renderer.extend(earlier_prompt, earlier_call.response_ids, earlier_call.finish, messages, tools)
        if prompt is None:
            earlier_prompt, fork = None, "template"
    if prompt is None:  # a fork, or the first reply
        prompt = renderer.render(messages, tools)
    ids, written = written_reply(renderer, prompt, messages, reply, tools)
    call = recorder.add(
        agent=AGENT,
        target=AGENT,
        trained=True,
        messages=history,
        tools=tools,
        match=match,
        prompt=prompt,
        parent=match.extends if earlier_prompt is not None else None,
        earlier_prompt=earlier_prompt,
        fork=fork,
    )
    call.response_ids = ids.astype(np.int32)
    call.logprobs = call.logprobs_unit = np.zeros(ids.size, np.float32)
    call.terms = Terms(written=True)
    for tool_call, given_call in zip(written.get("tool_calls") or (), reply.get("tool_calls") or (), strict=True):
        if given_call.get("id"):
            tool_call["id"] = given_call["id"]
    finish = "tool_calls" if written.get("tool_calls") else "stop"
    text = renderer.decode(ids, after=prompt.ids)
    recorder.settle(call, finish, message=written, reply_text=text)  # type: ignore[arg-type]
    return call, written
