"""Matching: which earlier call of the session does a request extend, or else why not.

Invariant: a request extends call k exactly when its messages are k's messages, then k's reply, then anything; equal
means role, text, tool names and arguments as JSON (DESIGN decision 2). Ids of tool calls, key order, spaces, how a
number is spelled, text given as blocks, and reasoning left out or cut to its end make no difference. After a reply that
a stop string cut, and the string, "anything" may begin within the same message. Cost: linear in the request's messages,
whatever the number of calls (a trie over interned messages).
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet.schema.call import ForkReason

Key = Hashable


def message_key(message: Mapping[str, Any]) -> Key:
    """What makes two messages the same for matching. `developer` is `system`; reasoning is no part of it."""
    role = message["role"]
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        content = "".join(block.get("text") or str(block.get("image_url") or "") for block in content)
    calls = message.get("tool_calls")
    if not calls:
        return ("system" if role == "developer" else role, content or "")
    return (role, content or "", *[(call["function"]["name"], _canonical(call["function"])) for call in calls])


def _canonical(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments)
    try:
        value = json.loads(arguments, parse_float=_number, parse_int=_number) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return f"text:{arguments}"
    return json.dumps(value, sort_keys=True)


def _number(text: str) -> int | float:
    """The number that a client may spell otherwise: JSON's interoperable numbers are doubles, and JavaScript writes
    1.0 as 1, 1e5 as 100000, -0.0 as 0."""
    try:
        value = float(text)
        return int(value) if value.is_integer() else value
    except OverflowError:
        return int(text)


@dataclass(slots=True)
class _Told:
    """A call whose reply is known."""

    index: int
    agent: str
    thought: str
    """Its reasoning. A quote may leave it out, or keep its end: Node's openai client keeps of streamed reasoning only
    the last piece."""
    node: int
    """Of its reply: the trie's way there is what was said."""
    root: int
    """Messages of the request that opened its conversation."""


@dataclass(frozen=True, slots=True)
class Match:
    """The earlier calls that a request continues or resembles."""

    keys: tuple[Key, ...]
    extends: int | None
    """The call whose messages and reply begin the request."""
    reason: ForkReason | None
    """Why it extends none; None where it extends or opens a conversation."""


@dataclass(slots=True)
class Conversations:
    """The calls of one session, by what was said. One thread at a time."""

    _nodes: dict[tuple[int, Key], int] = field(default_factory=dict)
    """(parent node, message) -> node; node 0 is the empty conversation."""
    _keys: list[Key] = field(default_factory=lambda: [None])
    """Node -> its message."""
    _before: list[int] = field(default_factory=lambda: [0])
    """Node -> the node of the message before it."""
    _through: list[int] = field(default_factory=lambda: [-1])
    """Node -> the latest call whose prompt or reply reaches it."""
    _with_tools: dict[tuple[int, int | None], int] = field(default_factory=dict)
    """(node, list of tools) -> the latest call with these tools whose prompt or reply reaches the node."""
    _ends: dict[int, list[_Told]] = field(default_factory=dict)
    """Node of a reply -> the calls that gave it there, oldest first."""
    _cut: dict[int, dict[str, list[_Told]]] = field(default_factory=dict)
    """Node of a prompt -> text up to and with a stop string -> the calls that it cut there, oldest first."""
    _prompts: dict[int, tuple[int, int, int | None]] = field(default_factory=dict)
    """Call -> the node of its last message, how many messages opened its conversation, its list of tools."""
    _latest: dict[str, _Told] = field(default_factory=dict)
    _replies: dict[str, set[Key]] = field(default_factory=dict)

    def match(self, agent: str, messages: Sequence[Mapping[str, Any]]) -> Match:
        """Which call do `messages` extend? The one with the longest history; ties go to `agent`'s latest."""
        keys = tuple([message_key(message) for message in messages])
        path: list[int] = []
        node = 0
        best: _Told | None = None
        for at, key in enumerate(keys):
            if node in self._cut:
                best = self._choose(self._begun(node, key), agent, messages[at]) or best
            step = self._nodes.get((node, key))
            if step is None:
                break
            node = step
            path.append(node)
            if node in self._ends:
                best = self._choose(self._ends[node], agent, messages[at]) or best
        if best is not None:
            return Match(keys, best.index, None)
        return Match(keys, None, self._reason(agent, keys, path))

    def nearest(self, keys: Sequence[Key], tools: int | None = None) -> int | None:
        """The call whose prompt begins most like one with these messages and tools; the latest of several. None: no
        call. Templates write tools before messages, so that a call with other tools shares little with it."""
        node, same = 0, None
        for key in keys:
            step = self._nodes.get((node, key))
            if step is None:
                break
            node = step
            same = self._with_tools.get((node, tools), same)
        return same if same is not None or not node else self._through[node]

    def asked(self, index: int, match: Match, tools: int | None = None) -> None:
        """Call `index` was made with the messages of `match` and the session's list of tools of this number."""
        node = 0
        for key in match.keys:
            node = self._reach(node, key, index, tools)
        root = len(match.keys) if match.extends is None else self._prompts[match.extends][1]
        self._prompts[index] = (node, root, tools)

    def told(self, index: int, agent: str, reply: Mapping[str, Any], stop: str | None = None) -> None:
        """Call `index` was answered with this message, which the string `stop` cut."""
        whole = with_stop(reply, stop)
        if whole is not None:
            told = self._enter(index, agent, whole)
            self._cut.setdefault(self._prompts[index][0], {}).setdefault(whole["content"], []).append(told)
        self._enter(index, agent, reply)

    def _enter(self, index: int, agent: str, reply: Mapping[str, Any]) -> _Told:
        prompt, root, tools = self._prompts[index]
        key = message_key(reply)
        node = self._reach(prompt, key, index, tools)
        told = _Told(index, agent, _thought(reply), node, root)
        self._ends.setdefault(node, []).append(told)
        self._latest[agent] = told
        self._replies.setdefault(agent, set()).add(key)
        return told

    def _begun(self, node: int, key: Key) -> Sequence[_Told]:
        """The calls whose reply, cut by a stop string that is put back, is the longest beginning of a message here."""
        if not isinstance(key, tuple) or len(key) != 2 or key[0] != "assistant":
            return ()
        begun = [text for text in self._cut[node] if len(text) < len(key[1]) and key[1].startswith(text)]
        return self._cut[node][max(begun, key=len)] if begun else ()

    def _reach(self, node: int, key: Key, index: int, tools: int | None) -> int:
        step = self._nodes.get((node, key))
        if step is None:
            step = self._nodes[(node, key)] = len(self._keys)
            self._keys.append(key)
            self._before.append(node)
            self._through.append(index)
        self._through[step] = self._with_tools[step, tools] = index
        return step

    def _way(self, node: int) -> list[int]:
        """The nodes from the first message to this one."""
        way: list[int] = []
        while node:
            way.append(node)
            node = self._before[node]
        return way[::-1]

    def _choose(self, ending: Sequence[_Told], agent: str, message: Mapping[str, Any]) -> _Told | None:
        thought = _thought(message)
        fitting = [told for told in ending if told.thought.endswith(thought)]
        exact = [told for told in fitting if thought and told.thought == thought]
        own = [told for told in exact or fitting if told.agent == agent]
        chosen = own or exact or fitting
        return chosen[-1] if chosen else None

    def _reason(self, agent: str, keys: Sequence[Key], path: Sequence[int]) -> ForkReason | None:
        latest = self._latest.get(agent)
        if latest is None:
            return None
        history = self._way(latest.node)
        common = 0
        for ours, theirs in zip(path, history, strict=False):
            if ours != theirs:
                break
            common += 1
        quotes = not self._replies[agent].isdisjoint(keys)
        if not quotes and (common < latest.root or common == len(keys)):
            return None
        said = {self._keys[node] for node in history}
        put = keys[common] if common < len(keys) else None
        summary = isinstance(put, tuple) and put[0] != "assistant" and put not in said
        return "compaction" if summary and len(keys) < len(history) else "client_edit"


def with_stop(reply: Mapping[str, Any], stop: str | None) -> dict[str, Any] | None:
    """A reply that a stop string cut, as a client says it that puts the string back: its text is that of the tokens.
    None for any other."""
    if stop is None or reply.get("tool_calls"):
        return None
    return {**reply, "content": (reply.get("content") or "") + stop}


def as_given(quote: Mapping[str, Any], reply: Mapping[str, Any], stop: str | None) -> dict[str, Any]:
    """A request's quote of a reply, which `stop` cut, as the model gave it: its reasoning, its order of keys. Text that
    a client put after the stop string stays."""
    whole = with_stop(reply, stop)
    text = message_key(quote)[1] if whole is not None else ""  # type: ignore[index]
    if whole is None or not text.startswith(whole["content"]):
        return dict(reply)
    return {**whole, "content": text}


def fits_thought(quoted: Mapping[str, Any], reply: Mapping[str, Any]) -> bool:
    """Whether a quoted reply's reasoning can be that of `reply`: the same, its end, or none."""
    return _thought(reply).endswith(_thought(quoted))


def _thought(message: Mapping[str, Any]) -> str:
    return (message.get("reasoning_content") or message.get("reasoning") or "").strip()
