"""`tools` and `tool_choice` of Responses in the shape of Chat Completions.

Invariant: clients run functions only, so functions are accepted, alone or in namespaces; hosted tools are refused by
type. The model knows a function of a namespace by one name, the client by two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet.gateway.dialects.fields import (
    check_parameters,
    check_text,
    invalid_value,
    read_boolean,
    unsupported_tool,
    unsupported_value,
)

Choice = tuple[Any, "str | None"]
"""(auto | none | required | named, the tool's name)."""
Namespaces = Mapping[str, "tuple[str, str]"]
"""Function name shown to the model -> the namespace and name in the client's request."""
_ONLY = ("defer_loading", "async", "output_schema", "allowed_callers")
"""Function fields for features that only hosted models have."""


def read_tools(value: Any) -> tuple[list[dict[str, Any]] | None, Namespaces]:
    """Return the request's tools in the form of Chat Completions (`None` for no tools), and their namespaces. Raises
    Refused.
    """
    if value is None or value == []:
        return None, {}
    if not isinstance(value, list):
        raise invalid_value("tools", "a list of tools")
    tools: list[dict[str, Any]] = []
    namespaces: dict[str, tuple[str, str]] = {}
    for index, tool in enumerate(value):
        location = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") != "namespace":
            tools.append(_read_function(tool, location))
            continue
        namespace = check_text(tool.get("name"), f"{location}.name")
        members = tool.get("tools")
        if not isinstance(members, list):
            raise invalid_value(f"{location}.tools", "a list of tools")
        description = tool.get("description") or ""
        if not isinstance(description, str):
            raise invalid_value(f"{location}.description", "a string")
        for member_index, member in enumerate(members):
            function_tool = _read_function(member, f"{location}.tools[{member_index}]")
            function = function_tool["function"]
            full_name = one_name(namespace, function["name"])
            namespaces[full_name] = (namespace, function["name"])
            descriptions = [
                text for text in (description if member_index == 0 else "", function.get("description")) if text
            ]
            function_tool["function"] = {
                **function,
                "name": full_name,
                **({"description": "\n\n".join(descriptions)} if descriptions else {}),
            }
            tools.append(function_tool)
    if namespaces and len({tool["function"]["name"] for tool in tools}) < len(tools):
        raise invalid_value("tools", "unique function names; a function in a namespace is called NAMESPACE__FUNCTION")
    return tools or None, namespaces


def one_name(namespace: str, name: str) -> str:
    """Return the model's name for a function of a namespace."""
    return f"{namespace}__{name}"


def _read_function(tool: Any, where: str) -> dict[str, Any]:
    """Return a function tool in the form of Chat Completions. Raises Refused for tools of other types."""
    if not isinstance(tool, dict):
        raise invalid_value(where, "an object")
    if tool.get("type") != "function":
        raise unsupported_tool(f"{where}.type", tool.get("type"))
    for name in _ONLY:
        if tool.get(name) and tool[name] != ["direct"]:  # the neutral value of `allowed_callers`
            raise unsupported_value(f"{where}.{name}", "this server's models do not support it; leave it out.")
    function: dict[str, Any] = {"name": check_text(tool.get("name"), f"{where}.name")}
    if tool.get("description") is not None:
        if not isinstance(tool["description"], str):
            raise invalid_value(f"{where}.description", "a string")
        function["description"] = tool["description"]
    strict = read_boolean(tool, "strict", False, where)
    check_parameters(tool.get("parameters"), f"{where}.parameters", strict=strict)
    if tool.get("parameters") is not None:
        function["parameters"] = tool["parameters"]
    if strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def read_tool_choice(body: Mapping[str, Any], tools: list[dict[str, Any]] | None) -> Choice:
    """Return the kind of tool choice ("auto", "none", "required" or "named"), and the tool's name if named. Raises
    Refused.
    """
    choice = body.get("tool_choice")
    if choice is None or choice in ("auto", "none"):
        return choice or "auto", None
    if not tools:
        raise invalid_value("tool_choice", "'tools' in the same request")
    if choice == "required":
        return "required", None
    names = [tool["function"]["name"] for tool in tools]
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function":
        return "named", _check_known(choice.get("name"), names, "tool_choice.name")
    if kind == "allowed_tools":
        return _read_allowed(choice, names)
    if isinstance(kind, str):
        raise unsupported_value(
            "tool_choice.type", f"this server has no tools of type {kind!r}, only of type 'function'."
        )
    raise invalid_value("tool_choice", "'auto', 'none', 'required' or the name of a function")


def _read_allowed(choice: Mapping[str, Any], names: list[str]) -> Choice:
    """Convert a `tool_choice` of the type `allowed_tools` to a simpler choice. Raises Refused if none is equal."""
    mode, allowed_tools = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise invalid_value("tool_choice.mode", "'auto' or 'required'")
    if not isinstance(allowed_tools, list) or not allowed_tools:
        raise invalid_value("tool_choice.tools", "a non-empty list of tools")
    allowed = set()
    for index, tool in enumerate(allowed_tools):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise unsupported_value(
                f"tool_choice.tools[{index}]", "this server supports only tools of type 'function'."
            )
        allowed.add(_check_known(tool.get("name"), names, f"tool_choice.tools[{index}].name"))
    if allowed == set(names):
        return mode, None
    if mode == "required" and len(allowed) == 1:
        return "named", allowed.pop()
    raise unsupported_value(
        "tool_choice.tools",
        "this server cannot keep the model from calling a tool that 'tools' lists; remove the tool from 'tools' "
        "instead.",
    )


def _check_known(name: Any, names: list[str], where: str) -> str:
    """Return the name of a tool that the request lists. Raises Refused."""
    if check_text(name, where) not in names:
        raise invalid_value(where, "the name of a tool that 'tools' lists")
    return name
