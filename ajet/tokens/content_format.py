"""The roles shown by a chat template, and the form of their content: a string or parts.

Invariant: both are found by rendering a marked conversation, once for each template, never by a model's name. A role
with its text in neither form is not shown: its messages are refused instead of lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

Message = dict[str, Any]
ContentForm = Literal["string", "parts", "hidden"]
Render = Callable[[Sequence[dict[str, Any]]], str | None]
"""Renders messages; returns `None` if the template raises."""

_MARK = "\u2b1aAJET-CONTENT\u2b1a"
CALLED = "ajet_probe"
"""Name of the tool in probe conversations."""
_CALL = {"type": "function", "id": "callabc12", "function": {"name": CALLED, "arguments": {"word": "skiff"}}}


def text_parts(text: str) -> list[dict[str, Any]]:
    """Return a text as a content of one part."""
    return [{"type": "text", "text": text}]


def probe_content_forms(render: Render) -> Mapping[str, ContentForm]:
    """Return the form in which each role's content is shown."""
    forms: dict[str, ContentForm] = {}
    for role in ("user", "assistant", "system", "tool"):
        forms[role] = _probe_role(render, role, forms)
    return forms


def probe_image_text(render: Render) -> bool:
    """Return False if the template drops text before or after an image of the same message."""
    first, last = f"{_MARK}1", f"{_MARK}2"
    content = [*text_parts(first), {"type": "image"}, *text_parts(last)]
    text = render([{"role": "user", "content": content}])
    return text is None or (first in text and last in text)


def accepts_system(render: Render, forms: Mapping[str, ContentForm]) -> bool:
    """Return False if the template raises on a system message or omits its text."""
    text = render(_build_conversation("system", forms["system"], forms))
    return text is not None and _MARK in text


def accepts_repeated_role(render: Render, forms: Mapping[str, ContentForm]) -> bool:
    """Return False if the template accepts one user message, but raises on two in a row."""
    question = _build_conversation("user", forms["user"], forms)
    return render(question) is None or render(question * 2) is not None


def probe_call(render: Render, forms: Mapping[str, ContentForm]) -> str:
    """Return a sample tool call (of the tool `CALLED`) as the chat template writes it, or "" if the template raises."""
    return render(_build_conversation("tool", forms["tool"], forms)[:-1]) or ""


def _probe_role(render: Render, role: str, known: Mapping[str, ContentForm]) -> ContentForm:
    """Return the form in which the template shows a role's content, or "hidden" if it shows neither form.

    Args:
        known: The forms of the roles probed before.
    """
    texts = {form: render(_build_conversation(role, form, known)) for form in ("string", "parts")}
    shown_forms: list[ContentForm] = [
        form for form in ("string", "parts") if (text := texts[form]) is not None and _MARK in text
    ]
    if shown_forms:
        return shown_forms[0]
    return "hidden" if texts["string"] is not None else "string"  # a raising template refuses by itself


def _build_conversation(role: str, form: ContentForm, known: Mapping[str, ContentForm]) -> list[dict[str, Any]]:
    """Return a short conversation that the template may accept, with the mark as the content of `role`.

    Args:
        form: The form of the role's content.
        known: The forms of the other roles' contents.
    """

    def message(message_role: str, text: str) -> dict[str, Any]:
        as_parts = (form if message_role == role else known.get(message_role)) == "parts"
        return {"role": message_role, "content": text_parts(text) if as_parts else text}

    if role == "user":
        return [message("user", _MARK)]
    if role == "assistant":
        return [message("user", "?"), message("assistant", _MARK), message("user", "?")]
    if role == "system":
        return [message("system", _MARK), message("user", "?")]
    calling_message = {**message("assistant", ""), "tool_calls": [_CALL]}
    return [
        message("user", "?"),
        calling_message,
        {**message("tool", _MARK), "tool_call_id": _CALL["id"], "name": CALLED},
    ]
