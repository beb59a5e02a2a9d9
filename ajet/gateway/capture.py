"""Capture: what an episode's calls said, each token and each message once.

Invariant: a call is entered when it is asked, in order of arrival, and settled exactly once, with the ids that were
sampled by then. Prompts are chains: ids and text of a call are a beginning of its parent's plus its own suffix, so
memory grows with distinct tokens. One thread at a time (the gateway's).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ajet.context_tracker.matching import Conversations, Match, as_given
from ajet.context_tracker.texts import Texts
from ajet.schema.call import Call, FinishReason, Floats, ForkReason, Ids, VersionRun, full_ids
from ajet.schema.tool_use import ToolUse
from ajet.tokens import Rendered

CLIENT_LEFT = "the client left"
"""The error of a call that ended because nobody waited for its reply."""
_NO_IDS: Ids = np.empty(0, dtype=np.int32)
_NO_FLOATS: Floats = np.empty(0, dtype=np.float32)


@dataclass(slots=True)
class Capture:
    """The calls of an episode, as its session hands them over at its end."""

    calls: list[Call] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[list[dict[str, Any]]] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    """Checks that fired, in order, each once."""
    terminated: str | None = None
    """The check that ended the episode early."""
    refused: str | None = None
    """The code with which the last request was refused; None where it was answered."""
    unanswered: str = ""
    """The words with which the last request was refused; "" where it was answered."""
    refusals: list[tuple[str | None, str]] = field(default_factory=list)
    """(code, message) of the first different refusals."""
    tool_uses: list[ToolUse] = field(default_factory=list)
    """As they are kept."""
    may_engine_recover: bool = True
    """False if the engine's last failure was one that no further attempt can mend."""


@dataclass(slots=True)
class Entry:
    """A call while its episode lives: the call, and its part of the text."""

    call: Call
    count: int
    """Messages of its prompt; 0: a raw prompt."""
    extends: int | None
    """The call that its messages continue, whether or not its ids do."""
    text_prefix: int
    """Characters shared with the parent's prompt and reply."""
    text: str
    """The prompt's own text after them."""
    raw: tuple[tuple[int, str], ...]
    forced: str
    respelled: tuple[tuple[int, int, str], ...] = ()
    reply_text: str = ""
    message: dict[str, Any] | None = None
    stopped: str | None = None
    """The stop string that cut the reply: the client's text is not that of the tokens, unless it puts it back."""
    settled: bool = False


class Recorder:
    """The calls of one episode, growing."""

    def __init__(self) -> None:
        self.capture = Capture()
        self.conversations = Conversations()
        self.settled_at = -math.inf
        """By the monotonic clock: when a call ended last."""
        self.texts = Texts()
        """Of the calls with raw prompts, which are no part of `conversations`."""
        self.entries: list[Entry] = []
        self._messages: dict[Hashable, int] = {}
        self._tools: dict[str, int] = {}

    def prompt(self, index: int) -> Rendered:
        """The whole prompt of a call, rebuilt from its ancestors."""
        entry = self.entries[index]
        reply = self.capture.calls[index].response_ids
        whole = full_ids(self.capture.calls, index)
        ids = whole[: len(whole) - len(reply)]
        return Rendered(self._text(index), ids, entry.count, entry.raw, entry.forced, entry.respelled)

    def spoken(self, messages: Sequence[dict[str, Any]], extends: int | None) -> list[dict[str, Any]]:
        """`messages` with each reply that they quote as the model gave it (its reasoning, its order of keys)."""
        told = list(messages)
        while extends is not None:
            entry = self.entries[extends]
            if entry.message is not None:
                told[entry.count] = as_given(told[entry.count], entry.message, entry.stopped)
            extends = entry.extends
        return told

    def enter(
        self,
        *,
        agent: str,
        target: str,
        trained: bool,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        match: Match,
        prompt: Rendered | None,
        parent: int | None = None,
        before: Rendered | None = None,
        fork: ForkReason | None = None,
        temperature: float = 1.0,
    ) -> Entry:
        """A call is asked. `prompt` None: a chat engine's, without ids. `before`: the prompt of `parent`, where this
        one extends it verbatim; otherwise the call shares with its parent what they happen to have in common: a raw
        prompt with `parent`, messages with the call that has the longest beginning of the same tools and messages."""
        calls = self.capture.calls
        tool_list = self._tool_list(tools)
        if messages and before is None:
            parent = self.conversations.nearest(match.keys, tool_list)
        prefix, shared, text = 0, 0, ""
        suffix = _NO_IDS
        if prompt is None:
            parent = None
        elif parent is not None and before is not None:
            prefix = len(before.ids) + len(calls[parent].response_ids)
            shared = len(before.text) + len(self.entries[parent].reply_text)
        elif parent is not None:
            prefix = common_start(prompt.ids, full_ids(calls, parent))
            if prefix == 0:
                parent = None
            else:
                shared = _common_text(prompt.text, self._text(parent) + self.entries[parent].reply_text)
                parent, shared = self._owner(parent, prefix, shared)
        if prompt is not None:
            suffix, text = prompt.ids[prefix:].copy(), prompt.text[shared:]
        call = Call(
            index=len(calls),
            agent=agent,
            target=target,
            trained=trained,
            parent=parent,
            prefix=prefix,
            suffix_ids=suffix,
            response_ids=_NO_IDS,
            logprobs=_NO_FLOATS,
            logprobs_unit=_NO_FLOATS,
            versions=(),
            finish="aborted",
            messages=tuple([self._message(message) for message in messages]),
            tools=tool_list,
            reply=None,
            fork=fork,
            temperature=temperature,
            started=time.time(),
        )
        entry = Entry(
            call,
            len(messages),
            match.extends,
            shared,
            text,
            prompt.raw if prompt is not None else (),
            prompt.forced if prompt is not None else "",
            prompt.respelled if prompt is not None else (),
        )
        calls.append(call)
        self.entries.append(entry)
        if entry.count:
            self.conversations.asked(call.index, match, tool_list)
        elif prompt is not None:
            self.texts.asked(call.index, prompt.text)
        return entry

    def settle(
        self,
        entry: Entry,
        finish: FinishReason,
        *,
        message: dict[str, Any] | None = None,
        reply_text: str = "",
        stopped: str | None = None,
        error: str | None = None,
    ) -> None:
        """A call has ended; its ids are in it. `message` None: it failed or was aborted. `stopped`: the stop string
        that cut it. Later settlings are void."""
        if entry.settled:
            return
        entry.settled = True
        call = entry.call
        call.finish, call.error, call.ended = finish, error, time.time()
        self.settled_at = time.monotonic()
        if message is not None:
            entry.message, entry.reply_text, entry.stopped = message, reply_text, stopped
            call.reply = self._message(message)
            if entry.count:
                self.conversations.told(call.index, call.agent, message, stopped)
            else:
                self.texts.told(call.index, call.agent, self._text(call.index) + message["content"])

    def mark_lost(self, entry: Entry, finish: FinishReason, error: str) -> None:
        """Record that no client received the reply of a call. One that a later request went on from was received."""
        call = entry.call
        if not call.is_delivered and call.error != CLIENT_LEFT:
            return
        if not any(self._goes_on_from(later, call) for later in self.entries[call.index + 1 :]):
            call.finish, call.error = finish, error

    def check(self, names: Sequence[str], call: Call) -> None:
        """Checks fired on a call."""
        call.checks = tuple(names)
        self.capture.checks += [name for name in names if name not in self.capture.checks]

    def tool_index(self, tools: Sequence[dict[str, Any]] | None) -> int | None:
        """The index of these tools if an earlier call had them; -1 if none had."""
        return None if not tools else self._tools.get(json.dumps(tools), -1)

    def _goes_on_from(self, later: Entry, call: Call) -> bool:
        """True if the later call repeats the reply of `call` as it was given."""
        own = call.prefix + len(call.suffix_ids)
        raw = later.call.prefix - own >= max(1, len(call.response_ids) - 1)  # the token that ended it is not shown
        raw = raw and not later.count and later.call.parent == call.index
        return later.extends == call.index or raw

    def _owner(self, parent: int, prefix: int, shared: int) -> tuple[int, int]:
        """The oldest call whose `prefix` first tokens these are, and the characters shared with it: so that chains
        are as long as conversations are, not as sessions."""
        while prefix <= self.capture.calls[parent].prefix:
            older = self.capture.calls[parent].parent
            assert older is not None, f"call {parent} shares tokens with nobody"
            parent, shared = older, min(shared, self.entries[parent].text_prefix)
        return parent, shared

    def _text(self, index: int | None) -> str:
        parts: list[str] = []
        need: int | None = None
        while index is not None:
            entry = self.entries[index]
            own = entry.text if need is None else entry.text + entry.reply_text
            if need is None:
                parts.append(own)
                need = entry.text_prefix
            elif need > entry.text_prefix:
                parts.append(own[: need - entry.text_prefix])
                need = entry.text_prefix
            index = entry.call.parent if need else None
        return "".join(reversed(parts))

    def _message(self, message: dict[str, Any]) -> int:
        key = _message_key(message)
        index = self._messages.get(key)
        if index is None:
            index = self._messages[key] = len(self.capture.messages)
            self.capture.messages.append(message)
        return index

    def _tool_list(self, tools: Sequence[dict[str, Any]] | None) -> int | None:
        if not tools:
            return None
        key = json.dumps(tools)  # the order of keys is part of it: templates show tools in their order
        index = self._tools.get(key)
        if index is None:
            index = self._tools[key] = len(self.capture.tools)
            self.capture.tools.append(list(tools))
        return index


class Sampled:
    """The tokens of one reply as they come in."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.logprobs_unit: list[float] = []
        self.top: list[list[tuple[int, float]]] = []
        self.versions: list[VersionRun] = []
        self._low = self._high = -1
        """Of the last of them."""

    def add(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float],
        logprobs_unit: Sequence[float],
        version: int,
        newest: int | None = None,
    ) -> None:
        """Add one chunk of the engine's."""
        high = version if newest is None else newest
        if (version != self._low or high != self._high or not self.versions) and ids:
            self._low, self._high = version, high
            self.versions.append(VersionRun(len(self.ids), version, high))
        self.ids += ids
        self.logprobs += logprobs
        self.logprobs_unit += logprobs_unit

    def write(self, call: Call, kept: int | None = None) -> None:
        """Put the first `kept` tokens (None: all) into the call."""
        count = len(self.ids) if kept is None else kept
        call.response_ids = np.array(self.ids[:count], dtype=np.int32)
        call.logprobs = np.array(self.logprobs[:count], dtype=np.float32)
        call.logprobs_unit = np.array(self.logprobs_unit[:count], dtype=np.float32)
        call.versions = tuple([run for run in self.versions if run.first < count])


def _message_key(message: Mapping[str, Any]) -> Hashable:
    values = tuple(message.values())
    if all(isinstance(value, str) for value in values):
        return (*message, *values)
    return json.dumps(message)  # templates show calls in the order of their keys


def common_start(a: Ids, b: Ids) -> int:
    """The number of ids that both begin with."""
    size = min(len(a), len(b))
    apart = np.flatnonzero(a[:size] != b[:size])
    return int(apart[0]) if len(apart) else size


def _common_text(a: str, b: str) -> int:
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
