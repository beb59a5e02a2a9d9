"""Streamed replies of other servers, collected to the body of the same request without streaming.

Invariant: bytes may be cut anywhere, and the body contains all parts received before a stream broke off. A line that is
no event of its protocol has no effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from ajet.schema.bounded_json import load_json
from ajet.schema.settled import is_shallow

DialectName = Literal["chat", "completions", "responses", "anthropic"]
Event = Mapping[str, Any]
_ID_LISTS = ("token_ids", "prompt_token_ids")
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""Errors raised when a server's JSON does not have the shape of a reply or event."""


class StreamCollector(Protocol):
    """Collects the events of one streamed reply into the body of an unstreamed one."""

    has_ended: bool

    def add_event(self, event: Event) -> None:
        """Add an event. Raises one of MALFORMED for an event of another protocol."""

    def build_body(self) -> dict[str, Any] | None:
        """Return the body so far, or None before the first part of a reply."""


class ChunkCollector:
    """Collects chunks of Chat Completions and of Completions."""

    def __init__(self) -> None:
        self.has_ended = False
        self._common_fields: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._calls: dict[int, dict[int, dict[str, Any]]] = {}

    def add_event(self, event: Event) -> None:
        """Add a chunk: its texts, ids, logprobs and tool calls are appended to its choices. Raises one of MALFORMED."""
        self._common_fields |= {
            name: event[name] for name in ("id", "model", "prompt_token_ids", "usage") if event.get(name)
        }
        for choice_part in event.get("choices") or ():
            index = _read_index(choice_part, "index")
            choice = self._choices.setdefault(index, {"index": index})
            if choice_part.get("finish_reason"):
                choice["finish_reason"], self.has_ended = choice_part["finish_reason"], True
            for name in _ID_LISTS:
                if isinstance(choice_part.get(name), list):
                    choice[name] = choice.get(name, []) + choice_part[name]
            for name, values in (choice_part.get("logprobs") or {}).items():
                if isinstance(values, list):
                    logprobs = choice.setdefault("logprobs", {})
                    logprobs[name] = logprobs.get(name, []) + values
            if isinstance(choice_part.get("text"), str):
                choice["text"] = choice.get("text", "") + choice_part["text"]
            elif isinstance(choice_part.get("delta"), dict):
                self._add_delta(index, choice_part["delta"])

    def build_body(self) -> dict[str, Any] | None:
        """Return the body of a chat.completion or a text_completion, or None before the first choice."""
        for index, calls in self._calls.items():
            message = self._choices[index]["message"]
            message["tool_calls"] = [calls[at] for at in sorted(calls)]
            message["content"] = message["content"] or None
        if not self._choices:
            return None
        return {**self._common_fields, "choices": [self._choices[index] for index in sorted(self._choices)]}

    def _add_delta(self, index: int, delta: Event) -> None:
        """Append the texts and tool call parts of a delta to the message of a choice."""
        message = self._choices[index].setdefault("message", {"role": "assistant", "content": ""})
        for name in _TEXTS:
            if isinstance(delta.get(name), str):
                message[name] = (message.get(name) or "") + delta[name]
        for call_part in delta.get("tool_calls") or ():
            empty_call = {"type": "function", "function": {"name": "", "arguments": ""}}
            call = self._calls.setdefault(index, {}).setdefault(_read_index(call_part, "index"), empty_call)
            function_part, function = call_part.get("function") or {}, call["function"]
            if call_part.get("id"):
                call["id"] = call_part["id"]
            if function_part.get("name") and function_part["name"] != function["name"]:  # some servers repeat it
                function["name"] += function_part["name"]
            function["arguments"] += function_part.get("arguments") or ""


class MessageCollector:
    """Collects events of Anthropic's Messages."""

    def __init__(self) -> None:
        self.has_ended = False
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._partial_inputs: dict[int, str] = {}

    def add_event(self, event: Event) -> None:
        """Add an event to the message. Events of other types have no effect. Raises one of MALFORMED."""
        kind, index = event.get("type"), _read_index(event, "index")
        if kind == "message_start":
            self._message = dict(event["message"])
        elif kind == "content_block_start":
            self._blocks[index] = dict(event["content_block"])
        elif kind == "content_block_delta":
            block, delta = self._blocks[index], event["delta"]
            for name in ("text", "thinking"):
                if isinstance(delta.get(name), str):
                    block[name] = block.get(name, "") + delta[name]
            if isinstance(delta.get("partial_json"), str):
                self._partial_inputs[index] = self._partial_inputs.get(index, "") + delta["partial_json"]
        elif kind == "message_delta":
            self._message |= event.get("delta") or {}
            self._message["usage"] = {**(self._message.get("usage") or {}), **(event.get("usage") or {})}
        elif kind == "message_stop":
            self.has_ended = True

    def build_body(self) -> dict[str, Any] | None:
        """Return a message with all blocks so far, or None before the first block."""
        for index, text in self._partial_inputs.items():
            if text and self._blocks[index].get("type") == "tool_use":
                self._blocks[index]["input"] = _parse_arguments(text)
        return {**self._message, "content": [self._blocks[at] for at in sorted(self._blocks)]} if self._blocks else None


class ResponseCollector:
    """Collects events of Responses. The last event has the complete response."""

    def __init__(self) -> None:
        self.has_ended = False
        self._response: Any = None
        self._head: dict[str, Any] = {}
        self._items: dict[int, Any] = {}
        self._texts: dict[int, str] = {}

    def add_event(self, event: Event) -> None:
        """Add an event to the response. Events of other types have no effect. Raises one of MALFORMED."""
        kind, index = str(event.get("type")), _read_index(event, "output_index")
        if kind in ("response.completed", "response.incomplete"):
            self._response, self.has_ended = event["response"], True
        elif kind == "response.created":
            self._head = {"id": event["response"]["id"]}
        elif kind == "response.output_item.done":
            self._items[index] = event["item"]
        elif kind == "response.output_text.delta":
            self._texts[index] = self._texts.get(index, "") + event["delta"]

    def build_body(self) -> Any:
        """Return the server's complete response.

        If the stream broke off, the response is built from the items and texts that have arrived. None: nothing has.
        """
        cut_items = {
            index: {"type": "message", "role": "assistant", "content": text} for index, text in self._texts.items()
        }
        items = cut_items | self._items
        if self._response is None and items:
            return {**self._head, "output": [items[index] for index in sorted(items)]}
        return self._response


_COLLECTORS: Mapping[DialectName, Callable[[], StreamCollector]] = {
    "chat": ChunkCollector,
    "completions": ChunkCollector,
    "responses": ResponseCollector,
    "anthropic": MessageCollector,
}


class RemoteStream:
    """Reads and collects the bytes of one streamed reply."""

    def __init__(self, dialect: DialectName) -> None:
        self._collector = _COLLECTORS[dialect]()
        self._incomplete_line: list[bytes] = []
        self.error = ""
        """The error sent by the server within the stream."""

    @property
    def has_ended(self) -> bool:
        """True once the reply is complete."""
        return self._collector.has_ended

    def feed(self, data: bytes) -> None:
        """Parse the events in the next bytes."""
        self._incomplete_line.append(data)
        if b"\n" not in data:
            return
        *lines, incomplete_line = b"".join(self._incomplete_line).split(b"\n")
        self._incomplete_line = [incomplete_line]
        for line in lines:
            if line.startswith(b"data:"):
                self._read_data(line[5:].strip())

    def build_body(self) -> dict[str, Any] | None:
        """Return the body so far, or None before the first part of a reply."""
        return self._collector.build_body()

    def _read_data(self, data: bytes) -> None:
        """Collect the event in the data of a server-sent event. Data that is no event of the protocol has no effect."""
        if data == b"[DONE]":
            self._collector.has_ended = True
            return
        try:
            event = load_json(data)
            if not isinstance(event, dict) or not is_shallow(event):
                return
            error = event.get("error") or (event if event.get("type") == "error" else None)
            if event.get("type") == "response.failed":
                error = event["response"].get("error") or event["type"]
            if error is not None:
                self.error = json.dumps(error, ensure_ascii=False)
            else:
                self._collector.add_event(event)
        except MALFORMED:
            return


def _read_index(event: Event, name: str) -> int:
    """Return the index in an event, 0 if absent. Raises TypeError if it is no integer."""
    index = event.get(name, 0)
    if type(index) is not int:
        raise TypeError(f"{name} is not an integer")
    return index


def _parse_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a tool call. Cut arguments are returned as text under `unfinished`."""
    try:
        arguments = load_json(text)
    except ValueError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"unfinished": text}
