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
    """Return the functions of the request's tools, or `None` for none.

    Args:
        inert: Schemas of results are added by their names. Chat templates and servers have no place for them.
    """
    functions: list[dict[str, Any]] = []
    for index, tool in enumerate(read_list(value, "tools")):
        where = f"tools[{index}]"
        for kind, declared in read_object(tool, where).items():
            if kind != "functionDeclarations":
                raise unsupported_tool(f"{where}.{kind}", kind, "'functionDeclarations'")
            for at, each in enumerate(read_list(declared, f"{where}.{kind}")):
                place = f"{where}.{kind}[{at}]"
                function = read_object(each, place, _FUNCTION)
                inert |= {f"{place}.{name}": function[name] for name in _ABOUT_RESULTS if name in function}
                functions.append({"type": "function", "function": _read_function(function, place)})
    return functions or None


def _read_function(declared: dict[str, Any], where: str) -> dict[str, Any]:
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
    where = "toolConfig.functionCallingConfig"
    config = read_object(value, "toolConfig", ("functionCallingConfig",)).get("functionCallingConfig", {})
    calling = read_object(config, where, ("mode", "allowedFunctionNames"))
    mode = calling.get("mode", "AUTO")
    if not isinstance(mode, str) or mode not in _MODES:
        raise invalid_value(f"{where}.mode", "'AUTO', 'ANY', 'VALIDATED' or 'NONE'")
    choice: Any = _MODES[mode]
    if mode == "VALIDATED":
        for at, tool in enumerate(tools or ()):
            check_parameters(tool["function"].get("parameters"), f"tools[{at}]", strict=True)
            tool["function"]["strict"] = True
    if choice == "required" and not tools:
        raise invalid_value(f"{where}.mode", "'tools' in the same request")
    listed = read_list(calling.get("allowedFunctionNames"), f"{where}.allowedFunctionNames")
    allowed = [check_text(name, f"{where}.allowedFunctionNames") for name in listed]
    names = [tool["function"]["name"] for tool in tools or ()]
    if not allowed or set(names) == set(allowed) and (choice != "required" or len(names) > 1):
        return choice, None
    if choice == "required" and len(allowed) == 1 and allowed[0] in names:
        return "named", allowed[0]
    raise unsupported_value(
        f"{where}.allowedFunctionNames",
        "this server cannot keep the model from calling a function that 'tools' lists; remove it from 'tools' instead.",
    )
