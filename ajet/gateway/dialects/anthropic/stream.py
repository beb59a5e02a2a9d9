"""EventWriter: a reply as Anthropic's server-sent events.

Invariant: message_start, ping, then the blocks one after the other (start, deltas, stop), message_delta, message_stop;
the deltas add up to the blocks of the whole reply.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ajet.gateway.dialects.anthropic.errors import error_body
from ajet.gateway.dialects.anthropic.reply import (
    Shown,
    stop_of,
    text_block,
    thinking_block,
    tool_block,
    usage_of,
)
from ajet.gateway.turn import Piece, Refused, Turn


class EventWriter:
    """See Writer; of one reply."""

    def __init__(self, message_id: str, model: str, thinking: Shown, signature: str, room: int) -> None:
        self._id, self._model, self._thinking = message_id, model, thinking
        self._signature, self._room = signature, room
        self._begun = False
        self._open: str | None = None
        """The type of the block that is open."""
        self._blocks = 0
        self._calls: dict[int, int] = {}
        """A call's index -> its block's."""

    def start(self, choice: int) -> bytes:
        return b""

    def piece(self, choice: int, piece: Piece) -> bytes:
        events = [self._begin(piece.prompt_tokens)]
        for delta in piece.deltas:
            if delta.get("reasoning_content"):
                events.append(self._think(delta["reasoning_content"]))
            if delta.get("content"):
                events.append(self._say(delta["content"]))
            events += [self._call(call) for call in delta.get("tool_calls") or ()]
        return b"".join(events)

    def end(self, choice: int, turn: Turn) -> bytes:
        events = [self._begin(turn.prompt_tokens), self._stop_block()]
        usage = usage_of(turn.prompt_tokens, turn.completion_tokens)
        events.append(_event("message_delta", delta=stop_of(turn, self._room), usage=usage))
        return b"".join(events)

    def close(self, turns: Sequence[Turn]) -> bytes:
        return _event("message_stop")

    def error(self, refused: Refused) -> bytes:
        return _event("error", error=error_body(refused)["error"])

    def _begin(self, prompt_tokens: int | None) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "usage": usage_of(prompt_tokens, 0),
        }
        return _event("message_start", message=message) + _event("ping")

    def _think(self, thought: str) -> bytes:
        if self._thinking == "hidden":
            return b""
        events = b"" if self._open == "thinking" else self._start_block(thinking_block(""))
        if self._thinking == "shown":
            events += self._delta(self._blocks - 1, "thinking_delta", thinking=thought)
        return events

    def _say(self, said: str) -> bytes:
        events = b"" if self._open == "text" else self._start_block(text_block(""))
        return events + self._delta(self._blocks - 1, "text_delta", text=said)

    def _call(self, call: dict[str, Any]) -> bytes:
        function = call.get("function") or {}
        index = call.get("index", 0)
        events = b""
        if index not in self._calls:
            events = self._start_block(tool_block(call.get("id") or f"call_{index}", function.get("name") or ""))
            self._calls[index] = self._blocks - 1
        if function.get("arguments"):
            events += self._delta(self._calls[index], "input_json_delta", partial_json=function["arguments"])
        return events

    def _start_block(self, block: dict[str, Any]) -> bytes:
        events = self._stop_block()
        self._open = block["type"]
        self._blocks += 1
        return events + _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _stop_block(self) -> bytes:
        if self._open is None:
            return b""
        index = self._blocks - 1
        signed = b""
        if self._open == "thinking":
            signed = self._delta(index, "signature_delta", signature=self._signature)
        self._open = None
        return signed + _event("content_block_stop", index=index)

    def _delta(self, index: int, kind: str, **told: str) -> bytes:
        return _event("content_block_delta", index=index, delta={"type": kind, **told})


def _event(kind: str, **told: Any) -> bytes:
    data = json.dumps({"type": kind, **told}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()
