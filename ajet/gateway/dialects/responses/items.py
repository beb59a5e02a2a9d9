"""Input items as messages of Chat Completions.

Invariant: the parts of one reply (reasoning, text, function calls) become one assistant message again, in any form and
order of items. An item that this server cannot have made, and a text model cannot take, is refused by type.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from ajet.gateway.dialects.fields import check_text, invalid_value, read_content, unsupported_value
from ajet.gateway.dialects.responses.stored import Item, StoredResponses
from ajet.gateway.dialects.responses.tools import one_name
from ajet.gateway.request import Refused

_SEALED = "ajet:"
_ROLES = ("user", "system", "developer", "assistant")


def read_input(value: Any, stored: StoredResponses) -> list[Item]:
    """Return the request's own items. Raises Refused.

    A text becomes a user's message, and references are resolved.
    """
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise invalid_value("input", "a string or a list of items")
    items: list[Item] = []
    for index, item in enumerate(value):
        location = f"input[{index}]"
        if not isinstance(item, dict):
            raise invalid_value(location, "an object")
        if item.get("type") == "item_reference" or (item.get("type") is None and "role" not in item and "id" in item):
            name = check_text(item.get("id"), f"{location}.id")
            stored_item = stored.item(name)
            if stored_item is None:
                raise Refused(f"Item with id '{name}' not found.", status=404, code="not_found", param=f"{location}.id")
            item = stored_item
        items.append(item)
    return items


def messages_of(
    earlier: Sequence[Item], own: Sequence[Item], stored: StoredResponses, images: list[str]
) -> list[dict[str, Any]]:
    """Return the items of a conversation as messages of Chat Completions. Raises Refused.

    Args:
        earlier: Items of earlier responses.
        own: Items of the request itself.
        stored: Stored responses of the session.
        images: The places of images are added to this list.
    """
    conversation = _Conversation(stored, images)
    for index, item in enumerate(earlier):
        conversation.add(item, f"previous_response_id: item {index}")
    for index, item in enumerate(own):
        conversation.add(item, f"input[{index}]")
    for message in conversation.messages:
        if message["content"] is None and not message.get("tool_calls"):  # null is allowed next to tool calls only
            message["content"] = ""
    return conversation.messages


def sealed(thought: str) -> str:
    """Return reasoning in the form of `encrypted_content`, for clients that send back only this field.

    Nothing is hidden: the response contains the same reasoning as text.
    """
    return _SEALED + base64.b64encode(thought.encode()).decode()


class _Conversation:
    """Builds messages of Chat Completions from the items of a conversation, one after the other."""

    def __init__(self, stored: StoredResponses, images: list[str]) -> None:
        self.messages: list[dict[str, Any]] = []
        self._images = images
        self._stored = stored
        self._reply: dict[str, Any] | None = None
        """The assistant message extended by the next item of the same reply."""
        self._has_call_results = False
        """True if results of the message's calls have followed."""

    def add(self, item: Item, where: str) -> None:
        """Add an item, by its type. Raises Refused for a type that this server does not support."""
        kind = item.get("type") or "message"
        if kind == "message":
            self._add_message(item, where)
        elif kind == "reasoning":
            self._add_reasoning(_read_reasoning(item, where))
        elif kind == "function_call":
            self._add_call(item, where)
        elif kind == "function_call_output":
            self._add_result(item, where)
        else:
            raise unsupported_value(f"{where}.type", f"this server does not support items of type {kind!r}.")

    def _add_message(self, item: Item, where: str) -> None:
        """Add a message. The assistant's text joins the reply of the items before it, unless that reply has text
        already.
        """
        role = item.get("role")
        if role not in _ROLES:
            raise invalid_value(f"{where}.role", "one of " + ", ".join(_ROLES))
        images = self._images if role == "user" else None
        content = read_content(item.get("content"), f"{where}.content", images)
        if content is None:
            raise invalid_value(f"{where}.content", "a string or a list of text parts")
        if role != "assistant":
            self._reply = None
            self.messages.append({"role": role, "content": content})
            return
        reply = self._open_reply(
            begin=self._reply is not None and self._has_text() and not self._reply.get("tool_calls")
        )
        reply["content"] = (reply["content"] or "") + content

    def _add_reasoning(self, thought: str) -> None:
        """Add reasoning. It begins a new reply if the present one has text or calls already."""
        reply = self._open_reply(begin=self._has_text() or self._has_calls())
        if thought:
            reply["reasoning_content"] = reply.get("reasoning_content", "") + thought

    def _add_call(self, item: Item, where: str) -> None:
        """Add a function call to the assistant message of its reply. Raises Refused."""
        name = check_text(item.get("name"), f"{where}.name")
        if item.get("namespace") is not None:
            name = one_name(check_text(item["namespace"], f"{where}.namespace"), name)
        call_id = check_text(item.get("call_id"), f"{where}.call_id")
        arguments = item.get("arguments")
        if not isinstance(arguments, str):
            raise invalid_value(f"{where}.arguments", "a string that contains JSON")
        tool_call = {"type": "function", "function": {"name": name, "arguments": arguments}, "id": call_id}
        self._open_reply(begin=False, call=call_id).setdefault("tool_calls", []).append(tool_call)

    def _add_result(self, item: Item, where: str) -> None:
        """Add the result of a function call as a tool message. Raises Refused."""
        output = read_content(item.get("output"), f"{where}.output")
        if output is None:
            raise invalid_value(f"{where}.output", "a string or a list of text parts")
        call_id = check_text(item.get("call_id"), f"{where}.call_id")
        self._has_call_results = True
        self.messages.append({"role": "tool", "content": output, "tool_call_id": call_id})

    def _open_reply(self, *, begin: bool, call: str | None = None) -> dict[str, Any]:
        """Return the assistant message that the next item extends: the present one, or a new one.

        Args:
            begin: True if the item cannot belong to the present message.
            call: Id of a function call. After results only a call known to be of the same reply extends the message:
                clients may put each result right after its call.
        """
        if self._has_call_results:
            begin = call is None or not self._is_same_reply(call)
        if begin or self._reply is None:
            self._reply = {"role": "assistant", "content": None}
            self._has_call_results = False
            self.messages.append(self._reply)
        return self._reply

    def _is_same_reply(self, call: str) -> bool:
        """Return True if this session's response with the call `call` also made a call of the present message."""
        response_id = self._stored.reply_of(call)
        message_calls = (self._reply or {}).get("tool_calls") or ()
        return response_id is not None and any(
            self._stored.reply_of(message_call["id"]) == response_id for message_call in message_calls
        )

    def _has_text(self) -> bool:
        return self._reply is not None and self._reply["content"] is not None

    def _has_calls(self) -> bool:
        return self._reply is not None and bool(self._reply.get("tool_calls"))


def _read_reasoning(item: Item, where: str) -> str:
    """Return the reasoning of an item: its text, else the text encoded by `sealed`, else its summary."""
    for name in ("content", "summary"):
        parts = item.get(name)
        if parts is not None and not (isinstance(parts, list) and all(isinstance(part, dict) for part in parts)):
            raise invalid_value(f"{where}.{name}", "a list of texts")
        texts = [part.get("text") for part in parts or ()]
        if not all(isinstance(text, str) for text in texts):
            raise invalid_value(f"{where}.{name}", "a list of texts")
        if texts and name == "content":
            return "".join(texts)
    secret = item.get("encrypted_content")
    if secret is not None:
        if not isinstance(secret, str) or not secret.startswith(_SEALED):
            raise unsupported_value(
                f"{where}.encrypted_content",
                "this server did not create the encrypted content, so it cannot decrypt it.",
            )
        try:
            return base64.b64decode(secret[len(_SEALED) :], validate=True).decode()
        except ValueError as error:  # invalid base64 or invalid UTF-8
            raise invalid_value(f"{where}.encrypted_content", "the unchanged text that this server returned") from error
    return "".join(texts)  # of the summary: the loop's last field
