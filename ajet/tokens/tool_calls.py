"""Parsers of a tool call's text to its name and arguments, one for each format.

Invariant: a call has a name and arguments in the form of a JSON object, returned as JSON text; any other text gives
`None`. Arguments without quotes (GLM, Qwen's XML) are typed by the tool's schema: "5" stays a string if the schema has
a string.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ajet.tokens.call_end import CLOSE, GLM, OPEN, XML, ArgumentScanner, BareSyntax
from ajet.tokens.parameter_types import admitted_types, parameter_schema, type_of_value

Tools = Sequence[Mapping[str, Any]]
Function = dict[str, str]
"""{name, arguments as JSON text}: the function of a tool call."""

_PLAIN = {"True": True, "False": False, "None": None}
"""Constants as a Jinja template writes them."""


def json_call(text: str, tools: Tools = ()) -> Function | None:
    """Parse a call of Hermes and Qwen: {"name": …, "arguments": {…}}."""
    return checked(decoded(text.strip()), ("arguments",))


def harmony_call(name: str, text: str) -> Function | None:
    """Parse a call of gpt-oss: the name is in the header, the text is the arguments."""
    return checked({"name": name, "arguments": decoded(text)}, ("arguments",))


def glm_call(text: str, tools: Tools = ()) -> Function | None:
    """Parse a call of GLM: the name, then <arg_key>…</arg_key> and <arg_value>…</arg_value> in turn."""
    head, pairs, tail = _split_arguments(text, GLM)
    return None if tail.strip() else _build_typed_call(head.strip(), pairs, tools)


def xml_call(text: str, tools: Tools = ()) -> Function | None:
    """Parse a call of Qwen3.5 and Qwen3-Coder: <function=name>, <parameter=key>, the value on separate lines."""
    head, pairs, tail = _split_arguments(text.strip(), XML)
    if not pairs:
        head, opened, tail = head.partition(">")
        head += opened
    if not head.startswith("<function=") or not head.rstrip().endswith(">") or tail.strip() != "</function>":
        return None
    name = head.rstrip().removeprefix("<function=").removesuffix(">")
    return _build_typed_call(name, [(key, value.removesuffix("\n")) for key, value in pairs], tools)


def llama_calls(text: str) -> list[Function] | None:
    """Parse calls of Llama 3: {"name": …, "parameters": {…}}, several joined by `;`. Any other text gives `None`."""
    functions: list[Function] = []
    at = 0
    while at < len(text):
        try:
            value, at = _JSON.raw_decode(text, at)
        except (ValueError, RecursionError):
            return None
        function = checked(value, ("parameters", "arguments"))
        if function is None:
            return None
        functions.append(function)
        rest = text[at:].lstrip("; \n")
        at = len(text) - len(rest)
    return functions or None


def decoded(text: str) -> Any:
    """Parse JSON; `None` for null and for invalid JSON."""
    try:
        return _JSON.decode(text)
    except (ValueError, RecursionError):
        return None


def checked(value: Any, keys: tuple[str, ...]) -> Function | None:
    """Return the call in a JSON value, with its arguments under one of `keys`; `None` for any other value."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = next((value[key] for key in keys if key in value), None)
    if not isinstance(arguments, dict) or set(value) - {"name", "id", "type", *keys}:
        return None
    try:
        spelled = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        spelled.encode(), value["name"].encode()
    except ValueError:  # a lone surrogate or an infinite number: no client could send the call back
        return None
    return {"name": value["name"], "arguments": spelled}


def _split_arguments(text: str, syntax: BareSyntax) -> tuple[str, list[tuple[str, str]], str]:
    """Return the text before the arguments, the (name, value) of each, and the text behind them.

    All text counts as behind them if text lies between two arguments, the last does not end, or a name is repeated.
    """
    scanner = ArgumentScanner(syntax)
    is_complete = scanner.find(f"{OPEN}{text}{CLOSE}") == len(OPEN) + len(text)
    names = {name for name, _ in scanner.pairs}
    if not is_complete or len(names) < len(scanner.pairs) or any(gap.strip() for gap in scanner.between[1:-1]):
        return "", [], text
    tail = scanner.between[-1] if scanner.pairs else ""
    return scanner.between[0], scanner.pairs, tail


def _build_typed_call(name: str, found: Sequence[tuple[str, str]], tools: Tools) -> Function | None:
    if not name or any(mark in name for mark in "<> \n"):
        return None
    known = [tool["function"] for tool in tools if tool["function"].get("name") == name]
    parameters = (known[0].get("parameters") or {}) if known else {}
    arguments = {key: _convert_argument(text, parameter_schema(parameters, key), parameters) for key, text in found}
    return checked({"name": name, "arguments": arguments}, ("arguments",))


def _convert_argument(text: str, schema: Any, parameters: Mapping[str, Any]) -> Any:
    """Return the value of an argument without quotes: JSON, or the text if the schema admits only text."""
    try:
        value = _JSON.decode(text)
    except (ValueError, RecursionError):
        value = _PLAIN.get(text, text)
    types = admitted_types(schema, parameters, [value, text])
    if types is None or "string" not in types:
        return value
    is_admitted = type_of_value(value) in types and (not isinstance(value, str) or types - {"string", "null"})
    return value if is_admitted else text


def no_constant(name: str) -> NoReturn:
    """Raise ValueError: NaN and Infinity are not JSON. For a decoder's `parse_constant`."""
    raise ValueError(f"{name} is not JSON")


def finite(text: str) -> float:
    """Return a finite number, for a decoder's `parse_float`. Raises ValueError."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is beyond the largest number")
    return value


_JSON = json.JSONDecoder(parse_constant=no_constant, parse_float=finite)
