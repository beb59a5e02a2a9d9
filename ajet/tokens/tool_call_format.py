"""Tool call format: how a model writes tool calls.

Invariant: inferred from the template and the vocabulary alone, never from a model's name, so that a fine-tuned copy is
treated as its original. What cannot be inferred is `none`, and the renderer refuses tools.
"""

from __future__ import annotations

from collections.abc import Container

from ajet.tokens.parsing import ReplyParser, Style, assemble

FORCED: dict[Style, tuple[str, str]] = {
    "hermes": ('<tool_call>\n{"name": "', 'NAME", "arguments": '),
    "xml": ("<tool_call>\n<function=", "NAME>\n"),
    "glm": ("\n<think></think>\n<tool_call>", "NAME\n"),
    "llama": ('{"name": "', 'NAME", "parameters": '),
    "harmony": ("<|channel|>commentary to=functions.", "NAME <|constrain|>json<|message|>"),
}
"""How a reply begins that can only be a call of some tool, and how it goes on to one that is named."""


def style_of(source: str, vocabulary: Container[str]) -> Style:
    """The style in which replies under this template (as it is with tools) write tool calls."""
    if "<|channel|>" in source and "<|message|>" in source:
        return "harmony"
    if "<arg_key>" in source:
        return "glm"
    if "<function=" in source:
        return "xml"
    if "<tool_call>" in source or "tools" not in source:
        return "hermes"
    llama = "<|python_tag|>" in vocabulary or "<|python_tag|>" in source or '"parameters"' in source
    return "llama" if llama else "none"


def is_written_otherwise(style: Style, name: str, text: str) -> bool:
    """Return True if the call of `name` in a template's `text` is not written in this style."""
    if name not in text or style in ("harmony", "none"):
        return False
    start = text.find("{") if style == "llama" else 0
    stop = text.rfind("}") + 1 if style == "llama" else len(text)
    parser = ReplyParser(style, tools=[])
    calls = assemble(parser.feed(text[start:stop]) + parser.close()).get("tool_calls", [])
    return not any(call["function"]["name"] == name for call in calls)
