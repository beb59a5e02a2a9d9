"""Complete replies of other servers, parsed: messages, finish reasons, and token ids if the server sends them.

Invariant: a choice has ids only if the server sent the ids of prompt and reply; no text is encoded here. The problem
with an invalid body is described by its content (a page, an empty body, half a reply, an error, another service's
JSON), not by the parser's error.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from ajet.context_tracker.matching import message_key
from ajet.gateway.dialects.anthropic.messages import read_messages
from ajet.gateway.dialects.responses.items import messages_of
from ajet.gateway.dialects.responses.stored import StoredResponses
from ajet.gateway.remote_stream import MALFORMED, DialectName
from ajet.gateway.request import Refused
from ajet.schema.call import FinishReason

_NAMES: Mapping[DialectName, str] = {
    "chat": "Chat Completions", "completions": "Completions", "responses": "Responses", "anthropic": "Messages"
}  # fmt: skip
_REPLY_FIELDS: Mapping[DialectName, str] = {
    "chat": "choices", "completions": "choices", "responses": "output", "anthropic": "content"
}  # fmt: skip
"""Dialect -> field of the response body that has the reply."""
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "tool_calls": "tool_calls"}
_ANTHROPIC_FINISH: dict[str, FinishReason] = {"max_tokens": "length", "tool_use": "tool_calls"}
_SHOWN_CHARS = 120
_PAGE_CHARS = 4096
"""Characters searched for the beginning and the title of an HTML page."""
_PAGE = re.compile(r"\s*(<\?xml[^>]*>\s*)?(<!--[^>]*-->\s*)?<(!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_TITLE = re.compile(r"<(title|h1)[^>]*>(.*?)</\1>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class RemoteChoice:
    """One choice of a reply."""

    message: dict[str, Any]
    finish: FinishReason
    prompt_ids: Sequence[int] = ()
    reply_ids: Sequence[int] = ()
    """Both lists of ids are empty if the server did not send both."""
    logprobs: Sequence[float] = ()
    """One logprob for each of `reply_ids`; empty if the server did not send logprobs."""


@dataclass(frozen=True, slots=True)
class RemoteReply:
    """The parsed reply of another server, or a description of what is wrong with its body."""

    id: str = ""
    choices: Sequence[RemoteChoice] = ()
    usage: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    """Why the body could not be parsed as a reply."""


def parse_reply(dialect: DialectName, body: Any) -> RemoteReply:
    """Parse the reply in a complete body, or in a body collected from a stream.

    Args:
        body: JSON; {"text": …} for a body that is no JSON; `None` for an empty body.
    """
    try:
        reply_id = body["id"] if isinstance(body.get("id"), str) else ""
        usage = body.get("usage") if isinstance(body.get("usage"), dict) else {}
        if choices := _PARSERS[dialect](body):
            return RemoteReply(reply_id, choices, usage)
    except (Refused, *MALFORMED):
        reply_id, usage = "", {}
    problem = f"the endpoint's answer is not a reply of {_NAMES[dialect]} but {describe_body(dialect, body)}"
    return RemoteReply(reply_id, (), usage, problem)


def parse_chat_choice(choice: Mapping[str, Any]) -> tuple[dict[str, Any], FinishReason]:
    """Return the message and finish reason of a choice of Chat Completions. Raises one of MALFORMED."""
    message = {name: value for name, value in choice["message"].items() if value is not None}
    message.setdefault("role", "assistant")
    message.setdefault("content", None if message.get("tool_calls") else "")
    hash(message_key(message))  # raises for a message that later requests could not be matched with
    return message, _FINISH.get(str(choice.get("finish_reason")), "stop")


def open_reasoning(items: Sequence[Any]) -> list[Any]:
    """Return items of Responses without encrypted reasoning, which only the server that made it can read."""
    return [
        {name: value for name, value in item.items() if name != "encrypted_content"}
        if isinstance(item, dict) and item.get("type") == "reasoning"
        else item
        for item in items
    ]


def describe_body(dialect: DialectName, body: Any) -> str:
    """Describe a body that is no reply, for an error message.

    Args:
        body: JSON; {"text": …} for a body that is no JSON; `None` for an empty body.
    """
    if body is None:
        return "an empty body"
    text = body.get("text") if isinstance(body, Mapping) and len(body) == 1 else None
    if isinstance(text, str):
        return _describe_text(text)
    if not isinstance(body, Mapping):
        return f"JSON that is not an object: {_shorten_value(body)}"
    if error := body.get("error"):
        return f"an error: {_shorten_value((error.get('message') if isinstance(error, Mapping) else None) or error)}"
    name = _REPLY_FIELDS[dialect]
    if name in body:
        return f"JSON whose field {name} cannot be read: {_shorten_value(body[name])}"
    return f"JSON without the field {name}: {_shorten_value(body)}"


def _parse_chat(body: Mapping[str, Any]) -> list[RemoteChoice]:
    """Return the choices of a Chat Completions body. Raises one of MALFORMED."""
    choices = []
    for choice in body["choices"]:
        message, finish = parse_chat_choice(choice)
        if message.get("tool_calls") and not message["content"]:
            message["content"] = None  # OpenAI's form
        thought = message.pop("reasoning", None)
        if isinstance(thought, str):
            message.setdefault("reasoning_content", thought)
        content = (choice.get("logprobs") or {}).get("content") or ()
        choices.append(_build_choice(body, choice, message, finish, [part["logprob"] for part in content]))
    return choices


def _parse_completions(body: Mapping[str, Any]) -> list[RemoteChoice]:
    """Return the choices of a Completions body, each text as an assistant message. Raises one of MALFORMED."""
    choices = []
    for choice in body["choices"]:
        finish: FinishReason = "length" if choice.get("finish_reason") == "length" else "stop"
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or ()
        message = {"role": "assistant", "content": str(choice["text"])}
        choices.append(_build_choice(body, choice, message, finish, logprobs))
    return choices


def _build_choice(
    body: Mapping[str, Any],
    choice: Mapping[str, Any],
    message: dict[str, Any],
    finish: FinishReason,
    logprobs: Sequence[Any],
) -> RemoteChoice:
    """Return a choice with the token ids and logprobs that vLLM sends on request, or without them if they are
    incomplete.
    """
    prompt, reply = body.get("prompt_token_ids") or choice.get("prompt_token_ids"), choice.get("token_ids")
    if not _are_ids(prompt) or not _are_ids(reply):
        return RemoteChoice(message, finish)
    are_known = len(logprobs) == len(reply) and all(isinstance(logprob, (int, float)) for logprob in logprobs)
    return RemoteChoice(message, finish, prompt, reply, [float(logprob) for logprob in logprobs] if are_known else ())


def _are_ids(value: Any) -> TypeGuard[list[int]]:
    """Return True for a non-empty list of token ids that fit into 32 bits."""
    return isinstance(value, list) and bool(value) and all(type(item) is int and 0 <= item < 1 << 31 for item in value)


def _parse_response(body: Mapping[str, Any]) -> list[RemoteChoice]:
    """Return the reply of a Responses body as one choice, its output items merged into one message.

    Raises Refused or one of MALFORMED.
    """
    messages = messages_of([], open_reasoning(body["output"]), StoredResponses(), [])
    content = "".join(item_message["content"] or "" for item_message in messages)
    calls = [call for item_message in messages for call in item_message.get("tool_calls") or ()]
    thought = "".join(item_message.get("reasoning_content", "") for item_message in messages)
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    is_cut = body.get("status") == "incomplete"
    return [RemoteChoice(message, "length" if is_cut else "tool_calls" if calls else "stop")]


def _parse_message(body: Mapping[str, Any]) -> list[RemoteChoice]:
    """Return the reply of a Messages body as one choice. Raises Refused or one of MALFORMED."""
    [message] = read_messages([{"role": "assistant", "content": body["content"]}], [])
    return [RemoteChoice(message, _ANTHROPIC_FINISH.get(str(body.get("stop_reason")), "stop"))]


_PARSERS = {
    "chat": _parse_chat, "completions": _parse_completions, "responses": _parse_response, "anthropic": _parse_message
}  # fmt: skip


def _describe_text(text: str) -> str:
    """Describe a body that is no JSON: empty, an HTML page, cut JSON, or other text."""
    if not text.strip():
        return "an empty body"
    if _PAGE.match(text[:_PAGE_CHARS]):
        title = _TITLE.search(text[:_PAGE_CHARS])
        name = " ".join(html.unescape(re.sub("<[^>]*>", "", title[2])).split()) if title else ""
        return f"an HTML page ({_shorten_value(name)})" if name else "an HTML page"
    if text.lstrip().startswith(("{", "[")) and _is_cut_json(text):
        return f"JSON that ends after {len(text)} character{'' if len(text) == 1 else 's'} and is incomplete"
    return f"text: {_shorten_value(text)}"


def _is_cut_json(text: str) -> bool:
    """Return True if the text is the beginning of a JSON document, so the body was cut off."""
    try:
        json.loads(text)
    except json.JSONDecodeError as problem:
        return problem.pos >= len(text.rstrip()) - 1 or "Unterminated" in problem.msg
    except RecursionError:
        return False
    return False


def _shorten_value(value: Any) -> str:
    """Return a value as one line, cut after 120 characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}…"
