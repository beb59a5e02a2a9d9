"""MessageWriter: a reply as Anthropic's server-sent events.

Invariant: message_start, ping, then the blocks in sequence (start, deltas, stop), message_delta, message_stop; the
deltas add up to the blocks of the complete reply.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ajet.gateway.dialects.anthropic.errors import error_body
from ajet.gateway.dialects.anthropic.reply import (
    ThinkingDisplay,
    build_stop,
    build_usage,
    text_block,
    thinking_block,
    tool_block,
)
from ajet.gateway.reply import Reply, ReplyChunk
from ajet.gateway.request import Refused


class MessageWriter:
    """Writes the events of one reply."""

    def __init__(self, message_id: str, model: str, thinking: ThinkingDisplay, signature: str, room: int) -> None:
        self._id = message_id
        self._model = model
        self._thinking_display = thinking
        self._signature, self._context_room = signature, room
        self._has_begun = False
        self._open_block_type: str | None = None
        """The type of the open block."""
        self._blocks = 0
        self._calls: dict[int, int] = {}
        """Index of a tool call -> index of its block."""

    def begin_reply(self, choice: int) -> bytes:
        """Return no event: `message_start` states the prompt's tokens, which are known from the first chunk on."""
        return b""

    def write_chunk(self, choice: int, chunk: ReplyChunk) -> bytes:
        """Return the events of the next part of the reply, after `message_start` if it is the first."""
        events = [self._begin_message(chunk.prompt_tokens)]
        for delta in chunk.deltas:
            if delta.get("reasoning_content"):
                events.append(self._write_thinking(delta["reasoning_content"]))
            if delta.get("content"):
                events.append(self._write_text(delta["content"]))
            events += [self._write_call(call) for call in delta.get("tool_calls") or ()]
        return b"".join(events)

    def end_reply(self, choice: int, reply: Reply) -> bytes:
        """Return the events of the reply's end: the end of its last block, its stop reason and its usage."""
        events = [self._begin_message(reply.prompt_tokens), self._stop_block()]
        usage = build_usage(reply.prompt_tokens, reply.completion_tokens)
        events.append(_encode_event("message_delta", delta=build_stop(reply, self._context_room), usage=usage))
        return b"".join(events)

    def close(self, replies: Sequence[Reply]) -> bytes:
        return _encode_event("message_stop")

    def fail(self, refused: Refused) -> bytes:
        return _encode_event("error", error=error_body(refused)["error"])

    def _begin_message(self, prompt_tokens: int | None) -> bytes:
        """Return the events `message_start` and `ping`, or b"" if they were written before."""
        if self._has_begun:
            return b""
        self._has_begun = True
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "usage": build_usage(prompt_tokens, 0),
        }
        return _encode_event("message_start", message=message) + _encode_event("ping")

    def _write_thinking(self, thought: str) -> bytes:
        """Return the events of more thinking: none if it is hidden, only an empty block if its text is omitted."""
        if self._thinking_display == "hidden":
            return b""
        events = b"" if self._open_block_type == "thinking" else self._start_block(thinking_block(""))
        if self._thinking_display == "shown":
            events += self._write_delta(self._blocks - 1, "thinking_delta", thinking=thought)
        return events

    def _write_text(self, text: str) -> bytes:
        events = b"" if self._open_block_type == "text" else self._start_block(text_block(""))
        return events + self._write_delta(self._blocks - 1, "text_delta", text=text)

    def _write_call(self, call: dict[str, Any]) -> bytes:
        """Return the events of a tool call's next part. The first part of a call opens its block."""
        function = call.get("function") or {}
        index = call.get("index", 0)
        events = b""
        if index not in self._calls:
            events = self._start_block(tool_block(call.get("id") or f"call_{index}", function.get("name") or ""))
            self._calls[index] = self._blocks - 1
        if function.get("arguments"):
            events += self._write_delta(self._calls[index], "input_json_delta", partial_json=function["arguments"])
        return events

    def _start_block(self, block: dict[str, Any]) -> bytes:
        """Return the events that close the open block and start `block`."""
        events = self._stop_block()
        self._open_block_type = block["type"]
        self._blocks += 1
        return events + _encode_event("content_block_start", index=self._blocks - 1, content_block=block)

    def _stop_block(self) -> bytes:
        """Return the events that close the open block, if there is one. A block of thinking ends with its signature."""
        if self._open_block_type is None:
            return b""
        index = self._blocks - 1
        signature_event = b""
        if self._open_block_type == "thinking":
            signature_event = self._write_delta(index, "signature_delta", signature=self._signature)
        self._open_block_type = None
        return signature_event + _encode_event("content_block_stop", index=index)

    def _write_delta(self, index: int, kind: str, **values: str) -> bytes:
        return _encode_event("content_block_delta", index=index, delta={"type": kind, **values})


def _encode_event(kind: str, **values: Any) -> bytes:
    data = json.dumps({"type": kind, **values}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()
