"""`tools` and `toolConfig` of Gemini in the shape of Chat Completions.

Invariant: clients run functions only; tools that Google's servers run are refused by name.
"""

from __future__ import annotations

from typing import Any

from ajet.gateway.dialects.fields import (
    check_parameters,
    check_text,
    invalid_value,
    unsupported_tool,
    unsupported_value,
)
from ajet.gateway.dialects.gemini.objects import convert_schema, read_list, read_object
from ajet.schema.call import ToolChoice

_ABOUT_RESULTS = ("response", "responseJsonSchema")
_FUNCTION = ("name", "description", "parameters", "parametersJsonSchema", "behavior", *_ABOUT_RESULTS)
_MODES = {"MODE_UNSPECIFIED": "auto", "AUTO": "auto", "NONE": "none", "ANY": "required", "VALIDATED": "auto"}


def read_tools(value: Any, inert: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the functions of the request's tools in the form of Chat Completions, or `None` for none. Raises Refused.

    Args:
        inert: Schemas of results are added by their names. Chat templates and servers have no place for them.
    """
    functions: list[dict[str, Any]] = []
    for index, tool in enumerate(read_list(value, "tools")):
        tool_location = f"tools[{index}]"
        for kind, declared in read_object(tool, tool_location).items():
            if kind != "functionDeclarations":
                raise unsupported_tool(f"{tool_location}.{kind}", kind, "'functionDeclarations'")
            for number, declaration in enumerate(read_list(declared, f"{tool_location}.{kind}")):
                location = f"{tool_location}.{kind}[{number}]"
                function = read_object(declaration, location, _FUNCTION)
                inert |= {f"{location}.{name}": function[name] for name in _ABOUT_RESULTS if name in function}
                functions.append({"type": "function", "function": _read_function(function, location)})
    return functions or None


def _read_function(declared: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the `function` of a tool in the form of Chat Completions. Raises Refused.

    Args:
        declared: The checked `functionDeclaration`.
        where: Its place in the request.
    """
    if declared.get("behavior", "BLOCKING") not in ("BLOCKING", "UNSPECIFIED"):
        raise unsupported_value(f"{where}.behavior", "this server supports 'BLOCKING' only.")
    function: dict[str, Any] = {"name": check_text(declared.get("name"), f"{where}.name")}
    if declared.get("description"):
        function["description"] = check_text(declared["description"], f"{where}.description")
    parameters = declared.get("parametersJsonSchema")
    if "parameters" in declared:
        if parameters is not None:
            raise invalid_value(where, "either 'parameters' or 'parametersJsonSchema'")
        parameters = convert_schema(declared["parameters"], f"{where}.parameters")
    if parameters is not None:
        check_parameters(parameters, f"{where}.parameters", strict=False)
        function["parameters"] = parameters
    return function


def read_tool_choice(value: Any, tools: list[dict[str, Any]] | None) -> tuple[ToolChoice, str | None]:
    """Return the kind of choice, and the tool's name if named. Mode VALIDATED makes the tools strict."""
    location = "toolConfig.functionCallingConfig"
    config = read_object(value, "toolConfig", ("functionCallingConfig",)).get("functionCallingConfig", {})
    calling = read_object(config, location, ("mode", "allowedFunctionNames"))
    mode = calling.get("mode", "AUTO")
    if not isinstance(mode, str) or mode not in _MODES:
        raise invalid_value(f"{location}.mode", "'AUTO', 'ANY', 'VALIDATED' or 'NONE'")
    choice: Any = _MODES[mode]
    if mode == "VALIDATED":
        for index, tool in enumerate(tools or ()):
            check_parameters(tool["function"].get("parameters"), f"tools[{index}]", strict=True)
            tool["function"]["strict"] = True
    if choice == "required" and not tools:
        raise invalid_value(f"{location}.mode", "'tools' in the same request")
    allowed_names = read_list(calling.get("allowedFunctionNames"), f"{location}.allowedFunctionNames")
    allowed = [check_text(name, f"{location}.allowedFunctionNames") for name in allowed_names]
    names = [tool["function"]["name"] for tool in tools or ()]
    # A list of all functions restricts nothing. A single function that must be called is named below.
    if not allowed or set(names) == set(allowed) and (choice != "required" or len(names) > 1):
        return choice, None
    if choice == "required" and len(allowed) == 1 and allowed[0] in names:
        return "named", allowed[0]
    raise unsupported_value(
        f"{location}.allowedFunctionNames",
        "this server cannot keep the model from calling a function that 'tools' lists; remove it from 'tools' instead.",
    )
