"""What an observed session records of requests and replies that only some servers send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ajet.gateway.remote_stream import DialectName
from ajet.schema.call import Call
from ajet.schema.episode import Episode
from ajet_observe.session import ObservedCall, ObservedSession

USER = {"role": "user", "content": "2 + 2?"}


def record(*exchanges: tuple[DialectName, dict[str, Any], Any]) -> Episode:
    """Return the episode of requests and their replies."""
    session = ObservedSession("s", 0, Path("0.jsonl"), 0.0)
    for dialect, sent, said in exchanges:
        row = ObservedCall(dialect=dialect, agent="agent", sent=sent, said=said, started=0.0)
        session.settle(row, session.begin(row))
    return session.build_episode("run")


def list_prompt(episode: Episode, call: Call) -> list[tuple[str, Any]]:
    return [(episode.messages[at]["role"], episode.messages[at]["content"]) for at in call.messages]


def build_response(name: str, text: str) -> dict[str, Any]:
    item = {"id": f"msg_{name}", "type": "message", "role": "assistant", "content": text}
    return {"id": name, "status": "completed", "output": [item]}


@pytest.mark.parametrize(
    "message",
    [
        {"content": 5},
        {"content": ["a"]},
        {"content": "", "tool_calls": [{}]},
        {"content": "a", "role": ["user"]},
        [],
        5,
    ],
)
def test_message_of_another_shape_is_no_reply(message: Any) -> None:
    episode = record(("chat", {"messages": [USER]}, {"id": "r", "choices": [{"message": message}]}))
    assert episode.status == "failed" and "choices cannot be read" in (episode.calls[0].error or "")


def test_response_continues_an_earlier_one() -> None:
    episode = record(
        ("responses", {"instructions": "Be brief.", "input": "Hi"}, build_response("1", "Hello")),
        ("responses", {"previous_response_id": "1", "input": "And?"}, build_response("2", "Yes")),
        ("responses", {"previous_response_id": "2", "input": []}, build_response("3", "No")),
        ("responses", {"input": [{"type": "item_reference", "id": "msg_1"}, USER]}, build_response("4", "4")),
        ("responses", {"previous_response_id": "unknown", "input": "Hi"}, build_response("5", "Hello")),
    )
    second = [("user", "Hi"), ("assistant", "Hello"), ("user", "And?")]
    assert [list_prompt(episode, call) for call in episode.calls[1:]] == [
        second, [*second, ("assistant", "Yes")], [("assistant", "Hello"), ("user", "2 + 2?")], [("user", "Hi")],
    ]  # fmt: skip
    assert [call.extra.get("follows_unseen", False) for call in episode.calls] == [False] * 4 + [True]
    assert not any("sent" in call.extra for call in episode.calls)


@pytest.mark.parametrize(
    ("dialect", "sent", "messages"),
    [
        ("chat", {"messages": [USER], "tools": [{"type": "web_search"}]}, [("user", "2 + 2?")]),
        ("anthropic", {"messages": [USER], "tools": [{"type": "web_search"}]}, [("user", "2 + 2?")]),
        ("responses", {"input": [USER], "tools": [{"type": "web_search"}]}, [("user", "2 + 2?")]),
        ("chat", {"messages": 5}, [("user", '{"messages": 5}')]),
        ("anthropic", {"messages": [{"role": "user", "content": [{"type": "document"}]}], "tools": 5}, None),
        ("responses", {"input": [{"type": "audio"}], "tools": 5, "previous_response_id": 5}, None),
        ("completions", {"prompt": ["a", "b"]}, [("user", '{"prompt": ["a", "b"]}')]),
    ],
)
def test_unknown_parts_are_recorded_as_sent(dialect: DialectName, sent: dict[str, Any], messages: Any) -> None:
    episode = record((dialect, sent, None))
    assert episode.calls[0].extra["sent"] == sent and episode.calls[0].tools is None
    assert messages is None or list_prompt(episode, episode.calls[0]) == messages


def test_anthropic_reply_that_the_client_began_is_parsed() -> None:
    began = [USER, {"role": "assistant", "content": "It is"}]
    episode = record(("anthropic", {"messages": began}, {"id": "m", "content": [{"type": "text", "text": " 4"}]}))
    assert list_prompt(episode, episode.calls[0]) == [("user", "2 + 2?"), ("assistant", "It is")]
    assert episode.status == "completed" and "sent" not in episode.calls[0].extra
