"""A streamed reply put together again: server-sent events to the body that the same request gets unstreamed.

Invariant: bytes may be cut anywhere; what came before a stream broke off is in the body, and `ended` says whether its
end came. What is no event is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ajet.schema.bounded_json import load_json
from ajet.schema.settled import is_shallow

_CHOICE_IDS = ("token_ids", "prompt_token_ids")


class Stream:
    """One reply, growing."""

    def __init__(self, dialect: str) -> None:
        self._take = {"responses": self._response, "anthropic": self._message}.get(dialect, self._chunk)
        self._rest: list[bytes] = []
        self._choices: dict[int, dict[str, Any]] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}
        self._items: dict[int, Any] = {}
        self._texts: dict[int, str] = {}
        self._whole: dict[str, Any] | None = None
        self._head: dict[str, Any] = {}
        self.ended = False
        self.problem = ""
        """What the endpoint said went wrong within the stream."""

    def feed(self, data: bytes) -> None:
        """Some more bytes."""
        self._rest.append(data)
        if b"\n" not in data:
            return
        *lines, rest = b"".join(self._rest).split(b"\n")
        self._rest = [rest]
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            said = line[5:].strip()
            if said == b"[DONE]":
                self.ended = True
                continue
            try:
                event = load_json(said)
                if isinstance(event, dict) and is_shallow(event):
                    self._event(event)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                continue  # no event of this dialect

    def body(self) -> dict[str, Any] | None:
        """The body that the stream comes to; None where nothing was said."""
        if self._whole is not None:
            return self._whole
        if self._take == self._message:
            return {**self._head, "content": self._anthropic_content()} if self._blocks else None
        if self._take == self._response:
            return {**self._head, "output": self._output()} if self._items or self._texts else None
        if not self._choices:
            return None
        return {**self._head, "choices": [self._choices[index] for index in sorted(self._choices)]}

    def _event(self, event: dict[str, Any]) -> None:
        if event.get("error") or event.get("type") == "error":
            self.problem = json.dumps(event.get("error") or event, ensure_ascii=False)
            return
        self._take(event)

    def _chunk(self, event: dict[str, Any]) -> None:
        for name in ("id", "model", "prompt_token_ids", "usage"):
            if event.get(name):
                self._head[name] = event[name]
        for told in event.get("choices") or ():
            index = _index(told, "index")
            choice = self._choices.setdefault(index, {"index": index})
            if told.get("finish_reason"):
                choice["finish_reason"], self.ended = told["finish_reason"], True
            for name in _CHOICE_IDS:
                if isinstance(told.get(name), list):
                    choice[name] = choice.get(name, []) + told[name]
            for name, values in (told.get("logprobs") or {}).items():
                if isinstance(values, list):
                    kept = choice.setdefault("logprobs", {})
                    kept[name] = kept.get(name, []) + values
            if isinstance(told.get("text"), str):
                choice["text"] = choice.get("text", "") + told["text"]
            elif isinstance(told.get("delta"), dict):
                _grow(choice.setdefault("message", {"role": "assistant"}), told["delta"])

    def _message(self, event: dict[str, Any]) -> None:
        kind, index = event.get("type"), _index(event, "index")
        if kind == "message_start":
            self._head = dict(event["message"])
        elif kind == "content_block_start":
            self._blocks[index] = dict(event["content_block"])
        elif kind == "content_block_delta":
            block, delta = self._blocks[index], event["delta"]
            for name in ("text", "thinking"):
                if isinstance(delta.get(name), str):
                    block[name] = block.get(name, "") + delta[name]
            if isinstance(delta.get("partial_json"), str):
                self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
        elif kind == "message_delta":
            self._head |= event.get("delta") or {}
            self._head["usage"] = {**(self._head.get("usage") or {}), **(event.get("usage") or {})}
        elif kind == "message_stop":
            self.ended = True

    def _anthropic_content(self) -> list[dict[str, Any]]:
        content = []
        for index in sorted(self._blocks):
            block = self._blocks[index]
            if block.get("type") == "tool_use" and self._inputs.get(index):
                block = {**block, "input": _object(self._inputs[index])}
            content.append(block)
        return content

    def _response(self, event: dict[str, Any]) -> None:
        kind, index = str(event.get("type")), _index(event, "output_index")
        if kind in ("response.completed", "response.incomplete"):
            self._whole, self.ended = event["response"], True
        elif kind == "response.failed":
            self.problem = json.dumps(event["response"].get("error"), ensure_ascii=False)
        elif kind == "response.created":
            self._head = {"id": event["response"]["id"]}
        elif kind == "response.output_item.done":
            self._items[index] = event["item"]
        elif kind == "response.output_text.delta":
            self._texts[index] = self._texts.get(index, "") + event["delta"]

    def _output(self) -> list[Any]:
        """Whole items, and of one that was cut its text."""
        cut = {
            index: {"type": "message", "role": "assistant", "content": text}
            for index, text in self._texts.items()
            if index not in self._items
        }
        return [each for _, each in sorted((self._items | cut).items())]


def _index(event: Mapping[str, Any], name: str) -> int:
    """Raises TypeError."""
    found = event.get(name, 0)
    if type(found) is not int:
        raise TypeError("a place is a whole number")
    return found


def _grow(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name in ("content", "reasoning_content", "reasoning", "refusal"):
        if isinstance(delta.get(name), str):
            message[name] = (message.get(name) or "") + delta[name]
    for call in delta.get("tool_calls") or ():
        calls = message.setdefault("tool_calls", [])
        index = call.get("index", 0)
        while len(calls) <= index < 1024:
            calls.append({"type": "function", "function": {"name": "", "arguments": ""}})
        told, function = calls[index], call.get("function") or {}
        told |= {"id": call["id"]} if call.get("id") else {}
        told["function"]["name"] += function.get("name") or ""
        told["function"]["arguments"] += function.get("arguments") or ""


def _object(text: str) -> dict[str, Any]:
    """A tool's arguments; of those that were cut off, what came, under a name of its own."""
    try:
        found = load_json(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"unfinished": text}
