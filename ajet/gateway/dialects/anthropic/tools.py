"""`tools` and `tool_choice` of Messages in the shape of Chat Completions.

Invariant: only tools with a schema from the client are accepted; features without meaning for a text model are refused
by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet.gateway.dialects.chat import read_tools as read_chat_tools
from ajet.gateway.dialects.fields import check_text, invalid_value, read_boolean, unsupported_value
from ajet.gateway.request import Refused

Choice = tuple[Any, str | None, bool]
"""(auto | none | required | named, the tool's name, whether several calls may be made at once)."""


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """Return the request's tools; `None` for no tools."""
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise invalid_value("tools", "a list of tools")
    tools = [_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(value)]
    try:
        return read_chat_tools(tools)
    except Refused as refused:
        where = (refused.param or "").replace(".function.parameters", ".input_schema").replace(".function.", ".")
        message = refused.message.replace(refused.param or "\0", where)
        raise Refused(message, status=refused.status, code=refused.code, param=where) from None


def _read_tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise invalid_value(where, "an object")
    kind = tool.get("type")
    if kind is not None and kind != "custom":
        raise unsupported_value(
            f"{where}.type",
            "this server supports only tools that the client defines by an 'input_schema' (type 'custom').",
        )
    if read_boolean(tool, "defer_loading", False, where):
        raise unsupported_value(f"{where}.defer_loading", "this server has no tool search; leave the field out.")
    if tool.get("allowed_callers") not in (None, [], ["direct"]):
        raise unsupported_value(
            f"{where}.allowed_callers", "this server supports 'direct' only: the model itself calls the tools."
        )
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise invalid_value(f"{where}.input_schema", "a JSON schema (an object)")
    examples = tool.get("input_examples") or []
    if not isinstance(examples, list) or not all(isinstance(example, dict) for example in examples):
        raise invalid_value(f"{where}.input_examples", "a list of objects")
    function: dict[str, Any] = {"name": tool.get("name")}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    function["parameters"] = {**schema, "examples": examples} if examples else schema
    if read_boolean(tool, "strict", False, where):
        function["strict"] = True
    return {"type": "function", "function": function}


def read_tool_choice(body: Mapping[str, Any], tools: list[dict[str, Any]] | None) -> Choice:
    """Return the request's choice among its tools."""
    choice = body.get("tool_choice")
    if choice is None:
        return "auto", None, True
    if not isinstance(choice, dict) or choice.get("type") not in ("auto", "any", "tool", "none"):
        raise invalid_value("tool_choice.type", "'auto', 'any', 'tool' or 'none'")
    several = not read_boolean(choice, "disable_parallel_tool_use", False, "tool_choice")
    kind = choice["type"]
    if kind in ("auto", "none"):
        return kind, None, several or not tools
    if not tools:
        raise invalid_value("tool_choice", "'tools' in the same request")
    if kind == "any":
        return "required", None, several
    name = check_text(choice.get("name"), "tool_choice.name")
    if all(tool["function"]["name"] != name for tool in tools):
        raise invalid_value("tool_choice.name", "the name of a tool that 'tools' lists")
    return "named", name, several
