"""A reply of another's endpoint, read: messages, why each ended, and token ids where the endpoint gives them.

Invariant: a reply is exact only where the endpoint said which ids the prompt and the reply have; nothing is encoded
here. A reply that cannot be read is no reply, and says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from ajet.gateway.chat_relay import read_answer
from ajet.gateway.dialects.anthropic.messages import read_messages as read_anthropic
from ajet.gateway.observing.no_reply import no_reply
from ajet.gateway.observing.requests import assistant_message
from ajet.gateway.request import Refused
from ajet.schema.call import FinishReason
from ajet.schema.errors import EngineFailure

_ANTHROPIC_ENDS: dict[str, FinishReason] = {"max_tokens": "length", "tool_use": "tool_calls"}
_UNREADABLE = (
    Refused,
    EngineFailure,
    LookupError,
    TypeError,
    ValueError,
    OverflowError,
    AttributeError,
    RecursionError,
)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens, as the endpoint counts them."""

    prompt: Sequence[int]
    reply: Sequence[int]
    logprobs: Sequence[float] = ()
    """Empty where it gave none."""


@dataclass(frozen=True, slots=True)
class Said:
    """One choice of a reply."""

    message: dict[str, Any]
    finish: FinishReason
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An endpoint's whole answer: its choices, its id, its tokens."""

    id: str
    choices: Sequence[Said] = ()
    usage: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    """Why it is none."""


def read_reply(dialect: str, body: Any) -> Answer:
    """The answer in a whole body, as it came or put together from a stream; None: nothing came. Never fails."""
    try:
        name = body["id"] if isinstance(body.get("id"), str) else ""
        usage = body.get("usage") if isinstance(body.get("usage"), dict) else {}
        choices = _READERS[dialect](body)
        return Answer(name, choices, usage, problem="" if choices else no_reply(dialect, body))
    except _UNREADABLE:
        return Answer("", problem=no_reply(dialect, body))


def _chat(body: Mapping[str, Any]) -> list[Said]:
    found = []
    for choice in body["choices"]:
        message, finish, _ = read_answer({"choices": [choice]})
        if message.get("tool_calls") and not message["content"]:
            message["content"] = None  # as it is unstreamed
        thought = message.pop("reasoning", None)
        if isinstance(thought, str):
            message.setdefault("reasoning_content", thought)
        shown = (choice.get("logprobs") or {}).get("content") or ()
        found.append(Said(message, finish, _tokens(body, choice, [each["logprob"] for each in shown])))
    return found


def _completions(body: Mapping[str, Any]) -> list[Said]:
    found = []
    for choice in body["choices"]:
        finish: FinishReason = "length" if choice.get("finish_reason") == "length" else "stop"
        shown = (choice.get("logprobs") or {}).get("token_logprobs") or ()
        message = {"role": "assistant", "content": str(choice["text"])}
        found.append(Said(message, finish, _tokens(body, choice, shown)))
    return found


def _tokens(body: Mapping[str, Any], choice: Mapping[str, Any], logprobs: Sequence[Any]) -> Tokens | None:
    prompt = body.get("prompt_token_ids") or choice.get("prompt_token_ids")
    reply = choice.get("token_ids")
    if not _ids(prompt) or not _ids(reply):
        return None
    known = len(logprobs) == len(reply) and all(isinstance(each, (int, float)) for each in logprobs)
    return Tokens(prompt, reply, [float(each) for each in logprobs] if known else ())


def _ids(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(type(each) is int and 0 <= each < 1 << 31 for each in value)


def _responses(body: Mapping[str, Any]) -> list[Said]:
    message = assistant_message(body["output"])
    cut = body.get("status") == "incomplete"
    return [Said(message, "length" if cut else "tool_calls" if message.get("tool_calls") else "stop")]


def _anthropic(body: Mapping[str, Any]) -> list[Said]:
    [message] = read_anthropic([{"role": "assistant", "content": body["content"]}], [])
    return [Said(message, _ANTHROPIC_ENDS.get(str(body.get("stop_reason")), "stop"))]


_READERS = {"chat": _chat, "completions": _completions, "responses": _responses, "anthropic": _anthropic}
