"""Recorder: the calls of one episode, and the token ids and texts that later requests continue.

Invariant: a call is added when its request arrives and settled (its end recorded) exactly once, with all ids sampled by
then. Prompts are chains: ids and text of a call are a beginning of its parent's plus its own suffix. Memory therefore
grows with the number of distinct tokens. Only the gateway's thread uses the recorder.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ajet.context_tracker.matching import Conversations, Match, restore_reply
from ajet.context_tracker.texts import RawPrompts
from ajet.gateway.reply import Reply
from ajet.gateway.request import Refused, build_ended_error
from ajet.schema.call import Call, FinishReason, Floats, ForkReason, Ids, RoutedExperts
from ajet.schema.tool_use import ToolUse
from ajet.tokens import Rendered

CLIENT_LEFT = "the client left"
"""The error of a call that ended because its client left."""
_NO_IDS: Ids = np.empty(0, dtype=np.int32)
_NO_FLOATS: Floats = np.empty(0, dtype=np.float32)


@dataclass(slots=True)
class Capture:
    """The record of an episode, handed over at the end of its session."""

    calls: list[Call] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[list[dict[str, Any]]] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    """Checks that fired, in order, without duplicates."""
    terminated: str | None = None
    """The check that ended the episode early."""
    refused: str | None = None
    """The error code of the last request; `None` if the request was answered."""
    unanswered: str = ""
    """The error message of the last request; "" if the request was answered."""
    refusals: list[tuple[str | None, str]] = field(default_factory=list)
    """The first distinct refusals as (code, message)."""
    tool_uses: list[ToolUse] = field(default_factory=list)
    """Uses of tools, shortened to the stored size."""
    may_engine_recover: bool = True
    """False if the engine's last failure rules out further attempts."""


@dataclass(slots=True)
class StoredCall:
    """Data of a call that later requests need, besides the record itself.

    It lives as long as the episode, not as the request.
    """

    messages: int
    """Number of messages of the prompt; 0 for a raw prompt."""
    extends: int | None
    """The call whose messages the prompt continues, even if the ids fork."""
    text_prefix: int
    """Number of characters shared with the parent's prompt and reply."""
    text: str
    """The rest of the prompt's text."""
    raw: tuple[tuple[int, str], ...] = ()
    forced: str = ""
    respelled: tuple[Any, ...] = ()
    """Values of `Rendered`'s fields of the same names, like `raw` and `forced`."""
    reply_text: str = ""
    message: dict[str, Any] | None = None
    stopped: str | None = None
    """The stop string that cut the reply. The client's text lacks it, unless the client puts it back."""
    is_settled: bool = False


class Recorder:
    """The growing record of the calls of one episode."""

    def __init__(self) -> None:
        self.capture = Capture()
        self.conversations = Conversations()
        self.is_closed = False
        """True once the episode has ended."""
        self.admission_lock = asyncio.Lock()
        """Held from a request's arrival until its call is recorded, to record calls in order of arrival.

        A long prompt takes a while."""
        self.settled_at = -math.inf
        """Time of the latest end of a call, by the monotonic clock."""
        self.texts = RawPrompts()
        """Texts of the calls with raw prompts, which are not part of `conversations`."""
        self.stored: list[StoredCall] = []
        self._messages: dict[Hashable, int] = {}
        self._tools: dict[str, int] = {}

    def refuse_ended(self) -> None:
        """Raise Refused if the episode has ended."""
        if self.is_closed:
            raise build_ended_error()
        if self.capture.terminated is not None:
            raise Refused(
                f"the output check {self.capture.terminated!r} (rollout.abnormal_output) ended this episode",
                status=410,
                code="episode_terminated",
            )

    def build_prompt(self, index: int) -> Rendered:
        """Return the complete prompt of a call, rebuilt from its ancestors."""
        stored = self.stored[index]
        text, ids = self._join_prompt(index)
        return Rendered(text, ids, stored.messages, stored.raw, stored.forced, stored.respelled)

    def restore_replies(self, messages: Sequence[dict[str, Any]], extends: int | None) -> list[dict[str, Any]]:
        """Return the request's messages, with each quoted reply as the model gave it: its reasoning, its order of keys.

        Args:
            extends: Index of the call that the messages extend. None: they quote no reply.
        """
        restored = list(messages)
        while extends is not None:
            stored = self.stored[extends]
            if stored.stopped is not None and stored.message is not None:
                restored[stored.messages] = restore_reply(restored[stored.messages], stored.message, stored.stopped)
            elif stored.message is not None:
                restored[stored.messages] = dict(stored.message)
            extends = stored.extends
        return restored

    def add(
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
        earlier_prompt: Rendered | None = None,
        fork: ForkReason | None = None,
        temperature: float = 1.0,
    ) -> Call:
        """Add a call whose request has arrived. Raises Refused if the episode has ended.

        Args:
            trained: True if the agent's target is trained.
            match: The earlier calls that the messages continue or resemble.
            prompt: None for a chat engine, whose ids are unknown.
            parent: The call of `earlier_prompt`, or the call with a beginning shared by a raw prompt.
            earlier_prompt: The prompt of `parent` if the call extends it verbatim. Otherwise the call shares its common
                beginning with the parent. For messages, the parent is then the call with the longest common beginning
                of tools and messages.
            fork: Why the call extends no earlier call, although its agent has one.
        """
        self.refuse_ended()
        calls = self.capture.calls
        index = len(calls)
        tool_list = self._add_tools(tools) if tools else None
        if messages and earlier_prompt is None:
            parent = self.conversations.find_nearest(match.keys, tool_list)
        shared_ids, shared_chars, text = 0, 0, ""
        suffix_ids = _NO_IDS
        if prompt is None:
            parent = None
        elif parent is not None and earlier_prompt is not None:
            shared_ids = len(earlier_prompt.ids) + len(calls[parent].response_ids)
            shared_chars = len(earlier_prompt.text) + len(self.stored[parent].reply_text)
        elif parent is not None:
            parent, shared_ids, shared_chars = self._find_shared(prompt, parent)
        if prompt is not None:
            suffix_ids, text = prompt.ids[shared_ids:].copy(), prompt.text[shared_chars:]
        call = Call(
            index=index,
            agent=agent,
            target=target,
            trained=trained,
            parent=parent,
            prefix=shared_ids,
            suffix_ids=suffix_ids,
            response_ids=_NO_IDS,
            logprobs=_NO_FLOATS,
            logprobs_unit=_NO_FLOATS,
            versions=(),
            finish="aborted",
            messages=self._add_messages(messages),
            tools=tool_list,
            reply=None,
            fork=fork,
            temperature=temperature,
            started=time.time(),
        )
        stored = StoredCall(len(messages), match.extends, shared_chars, text)
        if prompt is not None:
            stored.raw = prompt.raw
            stored.forced = prompt.forced
            stored.respelled = prompt.respelled
        calls.append(call)
        self.stored.append(stored)
        if messages:
            self.conversations.add_request(index, match, tool_list)
        elif prompt is not None:
            self.texts.add_request(index, prompt.text)
        return call

    def settle(
        self,
        call: Call,
        finish: FinishReason,
        *,
        reply: Reply | None = None,
        count: int | None = None,
        message: dict[str, Any] | None = None,
        reply_text: str = "",
        stopped: str | None = None,
        error: str | None = None,
    ) -> bool:
        """Record the end of a call, once. Return False if its end was recorded before.

        Args:
            finish: The finish reason to record.
            reply: The reply whose sampled tokens are stored. None for a chat engine's.
            count: Number of sampled tokens that belong to the reply. None for all.
            message: The reply. None if the call failed or was aborted.
            reply_text: The text of the ids, special tokens included.
            stopped: The stop string that cut the reply.
            error: Why the call failed or was aborted.
        """
        stored = self.stored[call.index]
        if stored.is_settled:
            return False
        stored.is_settled = True
        if reply is not None:
            count = len(reply.ids) if count is None else count
            call.response_ids = np.array(reply.ids[:count], dtype=np.int32)
            call.logprobs = np.array(reply.logprobs[:count], dtype=np.float32)
            call.logprobs_unit = np.array(reply.unit_logprobs[:count], dtype=np.float32)
            call.versions = tuple([run for run in reply.versions if run.first < count])
            if reply.routed_experts is not None:
                call.routed_experts = self._take_experts(call, reply.routed_experts)
        call.finish = finish
        call.error = error
        call.ended = time.time()
        self.settled_at = time.monotonic()
        if message is not None:
            stored.message = message
            stored.reply_text = reply_text
            stored.stopped = stopped
            (call.reply,) = self._add_messages((message,))
            if stored.messages:
                self.conversations.add_reply(call.index, call.agent, message, stopped)
            else:
                text, _ = self._join_prompt(call.index)
                self.texts.add_reply(call.index, call.agent, text + message["content"])
        return True

    def reopen(self, call: Call) -> None:
        """Undo the recorded end of an aborted call, because its client came back and sampling continues."""
        self.stored[call.index].is_settled, call.error = False, None

    def is_settled(self, call: Call) -> bool:
        """True if the end of the call is recorded."""
        return self.stored[call.index].is_settled

    def mark_lost(self, call: Call, finish: FinishReason, error: str) -> None:
        """Record that no client received the reply of a call, unless a later request continues the reply.

        Args:
            finish: The finish reason to record.
            error: The reason why no client received it.
        """
        if not call.is_delivered and call.error != CLIENT_LEFT:
            return
        if not any(self._is_continued(later, call) for later in self.capture.calls[call.index + 1 :]):
            call.finish, call.error = finish, error

    def add_checks(self, call: Call, names: Sequence[str]) -> None:
        """Record the names of the abnormal-output checks that fired on the reply of a call."""
        call.checks = tuple(names)
        self.capture.checks += [name for name in names if name not in self.capture.checks]

    def find_tools(self, tools: Sequence[dict[str, Any]] | None) -> int | None:
        """Return the index of a list of tools in the record. -1 for an unknown list, None for no tools."""
        return None if not tools else self._tools.get(json.dumps(tools), -1)

    def _is_continued(self, later: Call, call: Call) -> bool:
        """Return True if the prompt of `later` continues the reply of `call`: by its messages, or by its ids for raw
        prompts.
        """
        stored = self.stored[later.index]
        prompt_length = call.prefix + len(call.suffix_ids)
        is_raw_continuation = later.prefix - prompt_length >= max(
            1, len(call.response_ids) - 1
        )  # clients do not see the end token of the reply
        is_raw_continuation = is_raw_continuation and not stored.messages and later.parent == call.index
        return stored.extends == call.index or is_raw_continuation

    def _take_experts(self, call: Call, experts: npt.NDArray[np.integer[Any]]) -> RoutedExperts:
        """Return the routed experts of the call's own tokens.

        The engine returns those of the whole prompt, of which the parent call has the first part already.
        """
        parent = None if call.parent is None else self.capture.calls[call.parent]
        # A call's last token is never an input of the engine, so the parent has no experts for it.
        first_position = call.prefix - 1 if parent is not None and parent.routed_experts is not None else 0
        stop = call.prefix + len(call.suffix_ids) + len(call.response_ids) - 1
        return RoutedExperts(first_position, experts[first_position:stop].copy())

    def _find_shared(self, prompt: Rendered, parent: int) -> tuple[int | None, int, int]:
        """Return the call with which a prompt shares its first tokens, as (parent, shared ids, shared characters).

        Args:
            parent: Index of a call that probably shares them.
        """
        text, ids = self._join_prompt(parent)
        prefix = common_start(prompt.ids, np.concatenate([ids, self.capture.calls[parent].response_ids]))
        if prefix == 0:
            return None, 0, 0
        shared = _common_text(prompt.text, text + self.stored[parent].reply_text)
        # Several calls can begin with these ids. The oldest becomes the parent, so a chain of parents is as long as its
        # conversation and not as long as the session.
        while prefix <= self.capture.calls[parent].prefix:
            older = self.capture.calls[parent].parent
            assert older is not None, f"call {parent} shares tokens with no other"
            parent, shared = older, min(shared, self.stored[parent].text_prefix)
        return parent, prefix, shared

    def _join_prompt(self, index: int) -> tuple[str, Ids]:
        """Return the text and the ids [P] of a call's prompt: the ancestors' beginnings, then the own suffix."""
        call, stored = self.capture.calls[index], self.stored[index]
        texts, ids = [stored.text], [call.suffix_ids]
        characters, tokens = stored.text_prefix, call.prefix  # still to be taken from ancestors
        while (parent := call.parent) is not None and (characters or tokens):
            call, stored = self.capture.calls[parent], self.stored[parent]
            if characters > stored.text_prefix:
                texts.append((stored.text + stored.reply_text)[: characters - stored.text_prefix])
                characters = stored.text_prefix
            if (shared := tokens - call.prefix) > 0:
                suffix_length = len(call.suffix_ids)
                ids += [call.response_ids[: max(0, shared - suffix_length)], call.suffix_ids[:shared]]
                tokens = call.prefix
        return "".join(reversed(texts)), np.concatenate(ids[::-1]).astype(np.int32, copy=False)

    def _add_messages(self, messages: Sequence[dict[str, Any]]) -> tuple[int, ...]:
        """Store messages without duplicates. Return their indexes."""
        index_by_key, indexes = self._messages, []
        for message in messages:
            values = tuple(message.values())
            key: Hashable = (*message, *values)
            for value in values:
                if not isinstance(value, str):
                    key = json.dumps(message)  # templates show calls in the order of their keys
                    break
            index = index_by_key.get(key)
            if index is None:
                index = index_by_key[key] = len(self.capture.messages)
                self.capture.messages.append(message)
            indexes.append(index)
        return tuple(indexes)

    def _add_tools(self, tools: Sequence[dict[str, Any]]) -> int:
        """Store a list of tools unless it is stored already. Return its index."""
        key = json.dumps(tools)  # the order of keys matters: templates show tools in this order
        index = self._tools.get(key)
        if index is None:
            index = self._tools[key] = len(self.capture.tools)
            self.capture.tools.append(list(tools))
        return index


def common_start(a: Ids, b: Ids) -> int:
    """Return the length of the common beginning of two id arrays."""
    size = min(len(a), len(b))
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if len(different) else size


def _common_text(a: str, b: str) -> int:
    """Return the length of the common beginning of two texts, by binary search."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # the first `low` characters are equal, the first `high` are not
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
