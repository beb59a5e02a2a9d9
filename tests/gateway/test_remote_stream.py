"""Streamed replies of other servers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ajet.gateway.remote_stream import RemoteStream


def collect_chunks(*deltas: dict[str, Any]) -> dict[str, Any]:
    """Return the message that deltas of Chat Completions make."""
    stream = RemoteStream("chat")
    for delta in deltas:
        stream.feed(b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n")
    body = stream.build_body()
    assert body is not None
    message: dict[str, Any] = body["choices"][0]["message"]
    return message


@pytest.mark.parametrize("names", [["add"], ["add", "add"], ["a", "dd"], ["add", ""], ["add", None]])
def test_name_of_a_tool_call_is_joined_once(names: list[str | None]) -> None:
    parts = [{"index": 0, "function": {"name": name, "arguments": "1"}} for name in names]
    [call] = collect_chunks(*({"tool_calls": [part]} for part in parts))["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": "1" * len(names)}


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_bytes_may_be_cut_anywhere(cut: int) -> None:
    events = b'data: {"choices":[{"delta":{"content":"\xc3\xa9"},"finish_reason":"stop"}]}\r\n\r\ndata: [DONE]\r\n\r\n'
    stream = RemoteStream("chat")
    stream.feed(events[:cut])
    stream.feed(events[cut:])
    body = stream.build_body()
    assert body is not None and body["choices"][0]["message"]["content"] == "é" and stream.has_ended
