"""Messages and tools of Chat Completions, checked and brought to one shape.

Invariant: what leaves here has text contents as strings (null only beside tool calls), tool calls with a name and
arguments as JSON text; audio is refused, not dropped. A user's message with images has a list of parts, and says where.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ajet.gateway.dialects.fields import boolean, text, unsupported, wrong
from ajet.gateway.dialects.images import BLOCKS, image_part
from ajet.gateway.dialects.response_format import read_schema

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def read_messages(value: Any, images: list[str]) -> list[dict[str, Any]]:
    """The request's messages; the places of images are added to `images`."""
    if not isinstance(value, list) or not value:
        raise wrong("messages", "a non-empty list of messages")
    return [_message(message, f"messages[{index}]", images) for index, message in enumerate(value)]


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """The request's tools; None without any."""
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise wrong("tools", "a list of tools")
    for index, tool in enumerate(value):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise wrong(where, "an object")
        if tool.get("type") != "function":
            raise unsupported(f"{where}.type", "only tools of type 'function' are known.")
        function = tool.get("function")
        if not isinstance(function, dict):
            raise wrong(f"{where}.function", "an object")
        text(function.get("name"), f"{where}.function.name")
        if not isinstance(function.get("description") or "", str):
            raise wrong(f"{where}.function.description", "a string")
        strict = boolean(function, "strict", False, f"{where}.function")
        check_parameters(function.get("parameters"), f"{where}.function.parameters", strict=strict)
    return value


def check_parameters(schema: Any, where: str, *, strict: bool) -> None:
    """Refuse what cannot be the schema of a function's arguments; `strict`: what none can be held to, too."""
    if schema is None:
        return
    if not isinstance(schema, dict):
        raise wrong(where, "a JSON schema (an object)")
    if schema.get("type", "object") != "object":
        raise wrong(f"{where}.type", "'object'")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict) or not all(isinstance(value, (dict, bool)) for value in properties.values()):
        raise wrong(f"{where}.properties", "an object of schemas")
    required = schema.get("required") or []
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise wrong(f"{where}.required", "a list of names")
    if strict:
        read_schema(schema, where)


def _message(message: Any, where: str, images: list[str]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise wrong(where, "an object")
    role = message.get("role")
    if role not in _ROLES:
        raise wrong(f"{where}.role", "one of " + ", ".join(_ROLES))
    calls = message.get("tool_calls") if role == "assistant" else None
    read: dict[str, Any] = {"role": role}
    content: Any = read_content(message.get("content"), f"{where}.content", images if role == "user" else None)
    if role == "assistant":
        legacy = message.get("function_call")
        if legacy:
            raise unsupported(f"{where}.function_call", "use tool_calls.")
        read["content"] = content if content or not calls else None
        if read["content"] is None and not calls:
            read["content"] = ""
        thought = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thought, str):
            read["reasoning_content"] = thought
        if calls:
            read["tool_calls"] = _calls(calls, f"{where}.tool_calls")
    elif content is None:
        raise wrong(f"{where}.content", "a string or a list of text blocks")
    else:
        read["content"] = content
    for name in ("name", "tool_call_id"):
        if message.get(name) is not None:
            read[name] = text(message[name], f"{where}.{name}")
    return read


def read_content(content: Any, where: str, images: list[str] | None = None) -> Any:
    """A message's content as one text; None where it is null. With `images` given, blocks of images are taken, their
    places are added to it, and the content is then a list of parts."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(where, "a string or a list of text blocks")
    parts: list[Any] = []
    pictures = False
    for index, block in enumerate(content):
        if isinstance(block, str):
            parts.append(block)
            continue
        if not isinstance(block, dict):
            raise wrong(f"{where}[{index}]", "a text block")
        kind = block.get("type")
        if kind in BLOCKS and images is not None:
            images.append(f"{where}[{index}].type")
            parts.append(image_part(block, f"{where}[{index}]"))
            pictures = True
            continue
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise unsupported(f"{where}[{index}].type", f"this is a text model, it cannot take {kind!r} blocks.")
        value = block.get("refusal" if kind == "refusal" else "text")
        if not isinstance(value, str):
            raise wrong(f"{where}[{index}].text", "a string")
        parts.append(value)
    return as_parts(parts) if pictures else "".join(parts)


def as_parts(parts: list[Any]) -> list[dict[str, Any]]:
    """Texts and parts as parts."""
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise wrong(where, "a list of tool calls")
    read: list[dict[str, Any]] = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise wrong(f"{where}[{index}].function", "an object")
        name = text(function.get("name"), f"{where}[{index}].function.name")
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        if not isinstance(arguments or "", str):
            raise wrong(f"{where}[{index}].function.arguments", "a string of JSON")
        told: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments or ""}}
        if call.get("id") is not None:
            told["id"] = text(call["id"], f"{where}[{index}].id")
        read.append(told)
    return read


def read_tool_choice(body: Mapping[str, Any], tools: list[dict[str, Any]] | None) -> tuple[Any, str | None]:
    """(auto | none | required | named, the tool's name)."""
    choice = body.get("tool_choice")
    if choice is None or choice == "auto":
        return "auto", None
    if choice == "none":
        return "none", None
    if not tools:
        raise wrong("tool_choice", "'tools' beside it")
    if choice in ("required", "any"):
        return "required", None
    function = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(function, dict):
        raise wrong("tool_choice", "'auto', 'none', 'required' or a function")
    name = text(function.get("name"), "tool_choice.function.name")
    if all(tool["function"]["name"] != name for tool in tools):
        raise wrong("tool_choice.function.name", "the name of one of the tools")
    return "named", name
