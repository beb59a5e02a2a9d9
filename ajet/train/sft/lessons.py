"""Lessons: what is given to learn from, as calls with exact tokens, and as the episodes that a step records.

Invariants: a written reply stands in the context in which the model would be shown it, as an episode's would: a turn
goes on from the one before where the template allows that, and forks where it does not. Of a recorded run the tokens
are those of its record. Either way the calls say that nobody sampled them (`Terms.written`), and `ajet prove` derives
them a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import numpy as np

from ajet.context_tracker.timeline_making import timelines
from ajet.gateway.recorder import Capture, Recorder
from ajet.rollout.attempt import Identity
from ajet.schema.call import Call, Ids, Terms
from ajet.schema.episode import Episode, Group, Split, Verdict, utc_offset
from ajet.schema.errors import TaskError, UserError
from ajet.schema.task import Task
from ajet.schema.tool_use import ToolUse
from ajet.tokens import Rendered, Renderer, TemplateRefused
from ajet.tokens.written import written_reply
from ajet.train.sft.rows import Row, Talk

AGENT = "given"
"""Who speaks in a file's rows."""


@dataclass(frozen=True, slots=True)
class Given:
    """One conversation, tokenized."""

    calls: list[Call]
    messages: list[dict[str, Any]]
    tools: list[list[dict[str, Any]]]
    at: float
    """Seconds since the epoch: when it was said, or its file written."""
    verdict: Verdict | None = None
    tool_uses: list[ToolUse] = field(default_factory=list)
    source: str = ""
    """The episode that it is of; "" of none."""
    utc_offset: int = 0
    """Of its day; see `Episode`."""

    @property
    def tokens(self) -> int:
        """The tokens of its longest call."""
        return max(call.prefix + call.suffix_ids.size + call.response_ids.size for call in self.calls)


@dataclass(frozen=True, slots=True)
class Lesson:
    """One place of the training order: a conversation, or the chosen and the rejected one of a pair."""

    task: Task
    given: tuple[Given, ...]
    where: str

    def group(self, run: str, step: int, order: int, split: Split = "train", *, ignore_tools: bool = True) -> Group:
        """The group that a step records of the lesson."""
        episodes = [
            _episode(each, Identity(run, split, step, self.task, order, 0, repeat), ignore_tools)
            for repeat, each in enumerate(self.given)
        ]
        return Group(self.task, order, episodes)


def lesson_of(row: Row, words: Renderer) -> Lesson:
    """A file's row. Raises TaskError where the model's template leaves open which tokens a reply has."""
    on_its_day = words.on_day(date.fromtimestamp(row.written))
    try:
        given = tuple(_given(talk, on_its_day, row.written) for talk in row.talks)
    except (UserError, TemplateRefused) as problem:
        what = problem.what if isinstance(problem, UserError) else str(problem)
        raise TaskError(
            f"A row cannot be learned exactly: {what.rstrip('.')}.",
            where=row.where,
            expected="replies that the model's chat template shows as they are written, token by token",
            do="leave the row out, or write the reply as the model would: docs/sft.md says what templates leave open",
        ) from None
    return Lesson(row.task, given, row.where)


def of_record(episode: Episode) -> Given:
    """A recorded episode, whose tokens another run's policy sampled."""
    calls = [_unsampled(call) for call in episode.calls]
    return Given(
        calls,
        episode.messages,
        episode.tools,
        episode.started,
        episode.verdict,
        episode.tool_uses,
        episode.uuid,
        episode.utc_offset,
    )


def _unsampled(call: Call) -> Call:
    zeros = np.zeros(call.response_ids.size, np.float32)
    written = replace(call.terms, written=True)
    return replace(call, logprobs=zeros, logprobs_unit=zeros, versions=(), terms=written)


def _episode(given: Given, identity: Identity, ignore_tools: bool) -> Episode:
    lines, untrained = timelines(given.calls, ignore_tools=ignore_tools)
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
        timelines=lines,
        untrained=untrained,
        metadata={"learned_from": given.source} if given.source else {},
        started=given.at,
        ended=given.at,
        utc_offset=given.utc_offset,
    )


def _given(talk: Talk, words: Renderer, at: float) -> Given:
    recorder = Recorder()
    messages = list(talk.messages)
    tools = list(talk.tools) or None
    for index, message in enumerate(talk.messages):
        if message["role"] == "assistant":
            messages[index] = _enter(recorder, messages[:index], message, tools, words, index in talk.learned, at)
    captured: Capture = recorder.capture
    return Given(captured.calls, captured.messages, captured.tools, at, utc_offset=utc_offset(at))


def _enter(
    recorder: Recorder,
    history: Sequence[dict[str, Any]],
    reply: dict[str, Any],
    tools: list[dict[str, Any]] | None,
    words: Renderer,
    learned: bool,
    at: float,
) -> dict[str, Any]:
    """Record one reply as a call; answers the message that its tokens say."""
    match = recorder.conversations.match(AGENT, history)
    told = recorder.restore_replies(history, match.extends)
    before: Rendered | None = None
    prompt: Rendered | None = None
    fork = match.reason
    if match.extends is not None:
        earlier = recorder.capture.calls[match.extends]
        before = recorder.build_prompt(match.extends)
        prompt = words.extend(before, earlier.response_ids, earlier.finish, told, tools)
        if prompt is None:
            before, fork = None, "template"
    if prompt is None:
        prompt = words.render(told, tools)
    ids, said = written_reply(words, prompt, told, reply, tools)
    call = recorder.add(
        agent=AGENT,
        target=AGENT,
        trained=learned,
        messages=history,
        tools=tools,
        match=match,
        prompt=prompt,
        parent=match.extends if before is not None else None,
        before=before,
        fork=fork,
    )
    _write(call, ids)
    for tool_call, original in zip(said.get("tool_calls") or (), reply.get("tool_calls") or (), strict=True):
        if original.get("id"):
            tool_call["id"] = original["id"]
    finish = "tool_calls" if said.get("tool_calls") else "stop"
    recorder.settle(call, finish, message=said, reply_text=words.decode(ids, after=prompt.ids))  # type: ignore[arg-type]
    call.started = call.ended = at
    return said


def _write(call: Call, ids: Ids) -> None:
    call.response_ids = ids.astype(np.int32)
    call.logprobs = call.logprobs_unit = np.zeros(ids.size, np.float32)
    call.terms = Terms(written=True)
