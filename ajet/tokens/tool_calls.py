"""Tool calls: the text that stands for one -> its name and arguments, for each way in which models write them.

Invariant: None for whatever is no call; what is one has a name and arguments that are a JSON object, spelled as JSON
text. Ways that write arguments bare (GLM, Qwen's XML) are typed by the tool's schema, so that "5" stays a string where
a string is asked for.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ajet.tokens.call_end import holds_next_call
from ajet.tokens.parameter_types import admitted_types, parameter_schema

Tools = Sequence[Mapping[str, Any]]
Function = dict[str, str]
"""{name, arguments as JSON text}"""

_PLAIN = {"True": True, "False": False, "None": None}
"""How a Jinja template spells them."""


def json_call(text: str, tools: Tools = ()) -> Function | None:
    """Hermes and Qwen: {"name": …, "arguments": {…}}."""
    return checked(decoded(text.strip()), ("arguments",))


def harmony_call(name: str, text: str) -> Function | None:
    """gpt-oss: the name is in the header, the text is the arguments."""
    return checked({"name": name, "arguments": decoded(text)}, ("arguments",))


def glm_call(text: str, tools: Tools = ()) -> Function | None:
    """GLM: name, then <arg_key>…</arg_key> and <arg_value>…</arg_value> in turn."""
    name, _, _ = text.partition("<arg_key>")
    found = _pairs(text[len(name) :], "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    return None if found is None else _typed_call(name.strip(), found, tools)


def xml_call(text: str, tools: Tools = ()) -> Function | None:
    """Qwen3.5 and Qwen3-Coder: <function=name>, <parameter=key>, the value on lines of its own."""
    head, opened, body = text.strip().partition(">")
    if not head.startswith("<function=") or not opened or not body.endswith("</function>"):
        return None
    found = _pairs(body.removesuffix("</function>"), "<parameter=", ">", "", "</parameter>")
    if found is None:
        return None
    return _typed_call(
        head.removeprefix("<function="),
        [(key, value.removeprefix("\n").removesuffix("\n")) for key, value in found],
        tools,
    )


def llama_calls(text: str) -> list[Function] | None:
    """Llama 3: {"name": …, "parameters": {…}}, several joined by `;`. None unless that is all there is."""
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
    """The JSON value that a text spells; None where it spells none (or null)."""
    try:
        return _JSON.decode(text)
    except (ValueError, RecursionError):
        return None


def checked(value: Any, keys: tuple[str, ...]) -> Function | None:
    """A decoded call whose arguments are under one of `keys`."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = next((value[key] for key in keys if key in value), None)
    if not isinstance(arguments, dict) or set(value) - {"name", "id", "type", *keys}:
        return None
    try:
        spelled = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        spelled.encode(), value["name"].encode()
    except ValueError:  # a lone surrogate, or a number beyond the largest: no client could send it back
        return None
    return {"name": value["name"], "arguments": spelled}


def _pairs(text: str, before: str, between: str, value: str, after: str) -> list[tuple[str, str]] | None:
    """Return the (key, value) that fill `text`; None if anything else is in it.

    A value ends at `after` with the next pair or the text's end behind it, so that it may hold `after` itself.
    """
    found: dict[str, str] = {}
    rest = text.strip()
    ends = re.compile(rf"{re.escape(after)}(?=\s*(?:{re.escape(before)}|\Z))")
    while rest:
        if not rest.startswith(before):
            return None
        key, closed, rest = rest[len(before) :].partition(between)
        rest = rest.lstrip() if value else rest
        end = ends.search(rest)
        if not closed or not rest.startswith(value) or end is None or key in found:
            return None
        found[key], rest = rest[len(value) : end.start()], rest[end.end() :].lstrip()
        if holds_next_call(found[key]):
            return None
    return list(found.items())


def _typed_call(name: str, found: Sequence[tuple[str, str]], tools: Tools) -> Function | None:
    if not name or any(mark in name for mark in "<> \n"):
        return None
    known = [tool["function"] for tool in tools if tool["function"].get("name") == name]
    parameters = (known[0].get("parameters") or {}) if known else {}
    arguments = {key: _typed(text, parameter_schema(parameters, key), parameters) for key, text in found}
    return checked({"name": name, "arguments": arguments}, ("arguments",))


def _typed(text: str, schema: Any, parameters: Mapping[str, Any]) -> Any:
    types = admitted_types(schema, parameters)
    if types is not None and "string" in types and types <= {"string", "null"}:
        return None if "null" in types and text in ("null", "None") else text
    try:
        return _JSON.decode(text)
    except (ValueError, RecursionError):
        return _PLAIN.get(text, text)


def no_constant(name: str) -> NoReturn:
    """For `json`: NaN and Infinity are none. Raises ValueError."""
    raise ValueError(f"{name} is not JSON")


def finite(text: str) -> float:
    """For `json`: a number that JSON can spell again. Raises ValueError."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is beyond the largest number")
    return value


_JSON = json.JSONDecoder(parse_constant=no_constant, parse_float=finite)
