"""Conversations: finds the earlier call of a session that a request extends, or the reason for a fork.

A fork is a request that continues no earlier call although its agent has one, so its prompt is rendered anew.
Invariant: a request extends call k exactly if its messages are k's messages, then k's reply, then any others. Messages
are equal if role, text, tool names and arguments (as JSON) are equal. Ids of tool calls, order of keys, spaces, the
spelling of a number, text in blocks, newlines before tool calls, and reasoning left out, cut to its end or put before
the text as <think> make no difference. After a reply cut by a stop string, the same message may continue behind the
string. The cost is linear in the request's messages, whatever the number of calls: messages form a trie.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ajet.schema.call import ForkReason

Key = Hashable


def message_key(message: Mapping[str, Any]) -> Key:
    """Return the key shared by equal messages. The role `developer` counts as `system`, and reasoning is left out.

    So are newlines before tool calls: replies are shown without them, and clients put their own.
    """
    role = message["role"]
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        content = "".join(block.get("text") or str(block.get("image_url") or "") for block in content)
    calls = message.get("tool_calls")
    if not calls:
        return ("system" if role == "developer" else role, content or "")
    return (
        role,
        (content or "").rstrip("\n"),
        *[(call["function"]["name"], _normalize_arguments(call["function"])) for call in calls],
    )


def _normalize_arguments(function: Mapping[str, Any]) -> str:
    """Return the arguments of a tool call as JSON with sorted keys. Arguments that are no JSON are returned as text."""
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments)
    try:
        value = json.loads(arguments, parse_float=_parse_number, parse_int=_parse_number) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return f"text:{arguments}"
    return json.dumps(value, sort_keys=True)


def _parse_number(text: str) -> int | float:
    """Return a JSON number, the same for each spelling: JavaScript writes 1.0 as 1, 1e5 as 100000, -0.0 as 0."""
    try:
        value = float(text)
        return int(value) if value.is_integer() else value
    except OverflowError:
        return int(text)


@dataclass(slots=True)
class RepliedCall:
    """A call whose reply is known, as a candidate to be extended."""

    index: int
    agent: str
    reasoning: str
    """Reasoning of the reply. A client may drop it or keep the end: Node's openai client keeps the last streamed
    piece."""
    node: int
    """The reply's node in the trie."""


@dataclass(frozen=True, slots=True)
class Match:
    """The earlier calls that a request continues or resembles."""

    keys: tuple[Key, ...]
    extends: int | None
    """Index of the call that the request continues: the request begins with its messages and reply."""
    reason: ForkReason | None
    """Why the request extends no call. `None` if it extends a call or opens a conversation."""
    opening: int | None = None
    """The node of the request that opened the conversation. `None` if this request opens one."""


@dataclass(slots=True)
class Conversations:
    """The messages of one session's calls, as a trie. One thread at a time uses it."""

    _children: dict[tuple[int, Key], int] = field(default_factory=dict)
    """(parent node, message) -> node; node 0 is the empty conversation."""
    _keys: list[Key] = field(default_factory=lambda: [None])
    """Node -> the message of the node."""
    _parent_nodes: list[int] = field(default_factory=lambda: [0])
    """Node -> the node of the preceding message."""
    _latest_call: list[int] = field(default_factory=lambda: [-1])
    """Node -> the latest call whose prompt or reply reaches the node."""
    _with_tools: dict[tuple[int, int | None], int] = field(default_factory=dict)
    """(node, list of tools) -> the latest call with these tools whose prompt or reply reaches the node."""
    _calls_by_reply: dict[int, list[RepliedCall]] = field(default_factory=dict)
    """Node of a reply -> the calls with this reply, oldest first."""
    _calls_cut_by_stop: dict[int, dict[str, list[RepliedCall]]] = field(default_factory=dict)
    """Node of a prompt -> a reply's text with the stop string that cut it -> the calls with this reply, oldest
    first."""
    _prompt_nodes: dict[int, tuple[int, int, int | None]] = field(default_factory=dict)
    """Call -> the node of the last message, the node of the conversation's opening request, the list of tools."""
    _latest_of_agent: dict[tuple[str, int], RepliedCall] = field(default_factory=dict)
    """(agent, node) -> the agent's latest call through the node, of the conversations opened there or before."""
    _replies: dict[str, dict[Key, RepliedCall]] = field(default_factory=dict)
    """Agent -> key of a reply -> the agent's latest call with this reply."""

    def match(self, agent: str, messages: Sequence[Mapping[str, Any]]) -> Match:
        """Return the call with the longest history that `messages` extend, or why there is none.

        Of several calls, `agent`'s latest is preferred.
        """
        keys = [message_key(message) for message in messages]
        path: list[int] = []
        node = 0
        best: RepliedCall | None = None
        for position, key in enumerate(keys):
            if node in self._calls_cut_by_stop:
                best = self._choose_call(self._find_cut_calls(node, key), agent, messages[position]) or best
            child, message = self._children.get((node, key)), messages[position]
            # The client may have sent the reasoning back within the content; it must then be a known reply's.
            if child is None and (unfolded := unfold_reasoning(message)) is not None:
                message, key = unfolded, message_key(unfolded)
                child = self._children.get((node, key))
                thoughts = [call.reasoning for call in self._calls_by_reply.get(child or 0, ())]
                child = child if read_reasoning(message) in thoughts else None
                keys[position] = keys[position] if child is None else key
            if child is None:
                break
            node = child
            path.append(node)
            if node in self._calls_by_reply:
                best = self._choose_call(self._calls_by_reply[node], agent, message) or best
        if best is not None:
            return Match(tuple(keys), best.index, None, self._prompt_nodes[best.index][1])
        return self._explain_fork(agent, tuple(keys), path)

    def find_nearest(self, keys: Sequence[Key], tools: int | None = None) -> int | None:
        """Return the call whose prompt has the longest common beginning with these messages and tools.

        Of several calls the latest is returned. A call with other tools shares little: templates write tools before
        messages.

        Args:
            keys: Keys of the messages, from `message_key`.
            tools: The session's number of the list of tools. None: no tools.

        Returns:
            None if no message is shared.
        """
        node, call_with_tools = 0, None
        for key in keys:
            child = self._children.get((node, key))
            if child is None:
                break
            node = child
            call_with_tools = self._with_tools.get((node, tools), call_with_tools)
        return call_with_tools if call_with_tools is not None or not node else self._latest_call[node]

    def add_request(self, index: int, match: Match, tools: int | None = None) -> None:
        """Add the messages of call `index`.

        Args:
            match: The result of `match` for these messages.
            tools: The session's number of the list of tools. None: no tools.
        """
        node = 0
        for key in match.keys:
            node = self._add_message(node, key, index, tools)
        self._prompt_nodes[index] = (node, node if match.opening is None else match.opening, tools)

    def add_reply(self, index: int, agent: str, reply: Mapping[str, Any], stop: str | None = None) -> None:
        """Add the reply of call `index`.

        Args:
            agent: Name of the agent.
            stop: The stop string that cut the reply. Some clients append it when they quote the reply.
        """
        prompt, opening, tools = self._prompt_nodes[index]
        spellings = [reply]
        if stop is not None and (complete := append_stop(reply, stop)) is not None:
            spellings.insert(0, complete)
        for spelling in spellings:
            key = message_key(spelling)
            node = self._add_message(prompt, key, index, tools)
            call = RepliedCall(index, agent, read_reasoning(reply), node)
            self._calls_by_reply.setdefault(node, []).append(call)
            self._replies.setdefault(agent, {})[key] = call
            while node != self._parent_nodes[opening]:
                self._latest_of_agent[agent, node] = call
                node = self._parent_nodes[node]
            if spelling is not reply:
                self._calls_cut_by_stop.setdefault(prompt, {}).setdefault(spelling["content"], []).append(call)

    def _add_message(self, node: int, key: Key, index: int, tools: int | None) -> int:
        """Return the node of a message that follows `node`, and note that call `index` contains it."""
        child = self._children.get((node, key))
        if child is None:
            child = self._children[(node, key)] = len(self._keys)
            self._keys.append(key)
            self._parent_nodes.append(node)
            self._latest_call.append(index)
        self._latest_call[child] = self._with_tools[child, tools] = index
        return child

    def _find_cut_calls(self, node: int, key: Key) -> Sequence[RepliedCall]:
        """Return the calls whose reply plus stop string is the longest beginning of a message."""
        if not isinstance(key, tuple) or len(key) != 2 or key[0] != "assistant":
            return ()
        beginnings = [
            text for text in self._calls_cut_by_stop[node] if len(text) < len(key[1]) and key[1].startswith(text)
        ]
        return self._calls_cut_by_stop[node][max(beginnings, key=len)] if beginnings else ()

    def _choose_call(self, calls: Sequence[RepliedCall], agent: str, message: Mapping[str, Any]) -> RepliedCall | None:
        """Return the call that a message quotes, or None.

        Equal reasoning decides first, then the agent, then the later call.
        """
        reasoning = read_reasoning(message)
        fitting = [call for call in calls if call.reasoning.endswith(reasoning)]
        exact = [call for call in fitting if reasoning and call.reasoning == reasoning]
        of_agent = [call for call in exact or fitting if call.agent == agent]
        candidates = of_agent or exact or fitting
        return candidates[-1] if candidates else None

    def _explain_fork(self, agent: str, keys: tuple[Key, ...], path: list[int]) -> Match:
        """Return the match of a request that extends no call: a fork, or the opening of a conversation.

        The request is compared with the latest call of the conversation that shares its longest beginning, or else of
        the conversation with the last reply that it quotes. Calls of other conversations, such as titles, do not count.

        Args:
            keys: Keys of the request's messages.
            path: Nodes of those first messages that an earlier call has, too.
        """
        replies = self._replies.get(agent, {})
        quoted_call = next((replies[key] for key in reversed(keys) if key in replies), None)
        shared_node = next((node for node in reversed(path) if (agent, node) in self._latest_of_agent), None)
        if quoted_call is None and (
            shared_node is None or path[len(keys) - 1 :] == [shared_node]
        ):  # all messages are known
            return Match(keys, None, None)
        opening = None
        if shared_node is None:
            assert quoted_call is not None
            shared_node = quoted_call.node
        else:
            opening = self._prompt_nodes[self._latest_of_agent[agent, shared_node].index][1]
        node = self._latest_of_agent[agent, shared_node].node
        history_nodes: set[int] = set()
        while node:
            history_nodes.add(node)
            node = self._parent_nodes[node]
        common_count = len(history_nodes.intersection(path))
        earlier_keys = {self._keys[node] for node in history_nodes}
        first_new_key = keys[common_count] if common_count < len(keys) else None
        # A shorter history whose first new message is no reply and was not sent before: the client's summary.
        is_summary = (
            isinstance(first_new_key, tuple) and first_new_key[0] != "assistant" and first_new_key not in earlier_keys
        )
        return Match(
            keys, None, "compaction" if is_summary and len(keys) < len(history_nodes) else "client_edit", opening
        )


def append_stop(reply: Mapping[str, Any], stop: str) -> dict[str, Any] | None:
    """Return a reply with its stop string appended, as some clients do, or `None` for a reply with tool calls."""
    if reply.get("tool_calls"):
        return None
    return {**reply, "content": (reply.get("content") or "") + stop}


def unfold_reasoning(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an assistant message with its leading <think> block as reasoning, or `None` without such a block."""
    if message["role"] != "assistant":
        return None
    _, text, *_ = cast(tuple[str, ...], message_key(message))
    thought, end, answer = text.removeprefix("<think>").partition("</think>")
    if not end or not text.startswith("<think>"):
        return None
    return {**message, "content": answer.lstrip("\n"), "reasoning_content": thought}


def restore_reply(quote: Mapping[str, Any], reply: Mapping[str, Any], stop: str | None) -> dict[str, Any]:
    """Return a quoted reply as it was sampled, with its reasoning and order of keys.

    Text that the client appended behind the stop string remains.

    Args:
        quote: The reply as the client sent it back.
        reply: The reply as it was sampled.
        stop: The stop string that cut the reply.
    """
    complete = append_stop(reply, stop) if stop is not None else None
    text = message_key(unfold_reasoning(quote) or quote)[1] if complete is not None else ""  # type: ignore[index]
    if complete is None or not text.startswith(complete["content"]):
        return dict(reply)
    return {**complete, "content": text}


def matches_reasoning(copy: Mapping[str, Any], reply: Mapping[str, Any]) -> bool:
    """Return True if a client's copy of a reply has the reply's reasoning, the end of it, or none."""
    return read_reasoning(reply).endswith(read_reasoning(copy))


def read_reasoning(message: Mapping[str, Any]) -> str:
    """Return the reasoning of a message, stripped, or "" if the message has no reasoning."""
    return (message.get("reasoning_content") or message.get("reasoning") or "").strip()
