"""`systemInstruction` and `contents` of Gemini in the shape of Chat Completions.

Invariant: a part that this server cannot give to the model is refused by name, not dropped. Signatures of thoughts are
ignored: replies are recognised by their content.
"""

from __future__ import annotations

import json
from typing import Any

from ajet.gateway.dialects.fields import build_parts, check_text, invalid_value, unsupported_value
from ajet.gateway.dialects.gemini.objects import read_list, read_object

_CONTENT = ("role", "parts")
_KINDS = ("text", "functionCall", "functionResponse", "inlineData")
_PART = (*_KINDS, "thought", "thoughtSignature")
_BASE64 = str.maketrans("-_", "+/")
"""Google's clients may write bytes in the alphabet for URLs."""


def read_system(value: Any) -> list[dict[str, Any]]:
    """Return `systemInstruction` as a message in a list, or an empty list if it is absent or empty."""
    if value is None:
        return []
    texts: list[str] = []
    parts = read_object(value, "systemInstruction", _CONTENT).get("parts")
    for kind, part, where in _list_parts(parts, "systemInstruction.parts"):
        if kind != "text":
            raise invalid_value(where, "'text'")
        texts.append(part["text"])
    text = "".join(texts)
    return [{"role": "system", "content": text}] if text else []


def read_contents(value: Any, images: list[str]) -> list[dict[str, Any]]:
    """Return the request's messages.

    Args:
        images: The places of images are added to this list.
    """
    if not isinstance(value, list) or not value:
        raise invalid_value("contents", "a non-empty list of contents")
    conversation = _Conversation(images)
    for index, content in enumerate(value):
        location = f"contents[{index}]"
        entry = read_object(content, location, _CONTENT)
        role = entry.get("role", "user")
        if role == "model":
            conversation.add_reply(entry.get("parts"), f"{location}.parts")
        elif role in ("user", "function"):
            conversation.add_request(entry.get("parts"), f"{location}.parts")
        else:
            raise invalid_value(f"{location}.role", "'user' or 'model'")
    return conversation.messages


class _Conversation:
    """Builds messages of Chat Completions from Gemini's contents, one after the other."""

    def __init__(self, images: list[str]) -> None:
        self.messages: list[dict[str, Any]] = []
        self._images = images
        self._calls = 0
        self._unanswered_calls: list[tuple[str, str]] = []
        """(name, id) of the calls without a response."""

    def add_reply(self, parts: Any, where: str) -> None:
        """Add a content of the model to the present assistant message, or begin one. Raises Refused.

        Some clients send each event of a stream as a content of its own.
        """
        reply = self.messages[-1] if self.messages else {}
        if reply.get("role") != "assistant":
            reply = {"role": "assistant", "content": ""}
            self.messages.append(reply)
        for kind, part, location in _list_parts(parts, where):
            if kind == "text":
                field_name = "reasoning_content" if part.get("thought") else "content"
                reply[field_name] = (reply.get(field_name) or "") + part["text"]
            elif kind == "functionCall":
                reply.setdefault("tool_calls", []).append(self._read_call(part[kind], f"{location}.{kind}"))
            else:
                raise invalid_value(location, "'text' or 'functionCall' in a content of the role 'model'")
        if reply.get("tool_calls"):
            reply["content"] = reply["content"] or None

    def add_request(self, parts: Any, where: str) -> None:
        """Add a content of the user: one message for each function response, one for the text and images between two
        responses.
        """
        pending_parts: list[Any] = []
        message_count = len(self.messages)
        for kind, part, location in _list_parts(parts, where):
            if kind == "text":
                pending_parts.append(part["text"])
            elif kind == "inlineData":
                self._images.append(f"{location}.{kind}")
                pending_parts.append(_read_image(part[kind], f"{location}.{kind}"))
            elif kind == "functionResponse":
                self._add_user(pending_parts)
                self.messages.append(self._read_response(part[kind], f"{location}.{kind}"))
            else:
                raise invalid_value(
                    location, "'text', 'inlineData' or 'functionResponse' in a content of the role 'user'"
                )
        if pending_parts or len(self.messages) == message_count:
            self._add_user(pending_parts or [""])

    def _add_user(self, parts: list[Any]) -> None:
        """Append text and images as one user message and clear the list. Does nothing for an empty list."""
        if parts:
            has_images = any(not isinstance(part, str) for part in parts)
            content = build_parts(parts) if has_images else "".join(parts)
            self.messages.append({"role": "user", "content": content})
            parts.clear()

    def _read_call(self, value: Any, where: str) -> dict[str, Any]:
        """Return a function call as a tool call, and note that it is unanswered. Raises Refused.

        A call without an id gets its number in the conversation.
        """
        call = read_object(value, where, ("id", "name", "args"))
        name = check_text(call.get("name"), f"{where}.name")
        if not isinstance(call.get("args", {}), dict):
            raise invalid_value(f"{where}.args", "an object")
        call_id = check_text(call.get("id", f"call_{self._calls}"), f"{where}.id")
        self._calls += 1
        self._unanswered_calls.append((name, call_id))
        arguments = json.dumps(call.get("args", {}), ensure_ascii=False)
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _read_response(self, value: Any, where: str) -> dict[str, Any]:
        """Return a function's response as a tool message. Without an id it answers the first open call of its name."""
        response = read_object(value, where, ("id", "name", "response", "parts"))
        if response.get("parts"):
            raise unsupported_value(f"{where}.parts", "this server supports 'response' only.")
        name = check_text(response.get("name"), f"{where}.name")
        matching = [
            call for call in self._unanswered_calls if response.get("id", call[1]) == call[1] and call[0] == name
        ]
        call_id = check_text(response.get("id", matching[0][1] if matching else name), f"{where}.id")
        self._unanswered_calls = [call for call in self._unanswered_calls if call not in matching[:1]]
        if not isinstance(response.get("response", {}), dict):
            raise invalid_value(f"{where}.response", "an object")
        return {"role": "tool", "tool_call_id": call_id, "content": _read_output(response.get("response", {}))}


def _read_output(response: dict[str, Any]) -> str:
    """Return a function's response as text. Its only key may be `output` or `error`; any other object becomes JSON."""
    output: Any = response
    prefix = ""
    if response.keys() == {"output"}:
        output = response["output"]
    elif response.keys() == {"error"}:
        output, prefix = response["error"], "Error: "
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return text if text.lower().startswith("error") else prefix + text


def _list_parts(parts: Any, where: str) -> list[tuple[str, dict[str, Any], str]]:
    """Return each part as (kind, part, place). A part without content, such as a signature, is left out."""
    listed_parts = []
    for index, value in enumerate(read_list(parts, where)):
        location = f"{where}[{index}]"
        part = read_object(value, location, _PART)
        kinds = [kind for kind in _KINDS if kind in part]
        if len(kinds) > 1:
            raise invalid_value(location, "one of " + ", ".join(_KINDS))
        if kinds == ["text"] and not isinstance(part["text"], str):
            raise invalid_value(f"{location}.text", "a string")
        listed_parts += [(kind, part, location) for kind in kinds]
    return listed_parts


def _read_image(value: Any, where: str) -> dict[str, Any]:
    """Return an image as a part of type `image_url`."""
    blob = read_object(value, where, ("mimeType", "data", "displayName"))
    kind, data = blob.get("mimeType"), blob.get("data")
    if not isinstance(kind, str) or not isinstance(data, str):
        raise invalid_value(where, "a mimeType such as image/png, and data")
    if not kind.startswith("image/"):
        raise unsupported_value(f"{where}.mimeType", f"this server takes text and images only, not {kind!r}.")
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data.translate(_BASE64)}"}}
