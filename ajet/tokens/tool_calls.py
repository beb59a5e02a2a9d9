"""Parsers of a tool call's text to its name and arguments, one for each format.

Invariant: a call has a name and arguments in the form of a JSON object, returned as JSON text; any other text gives
`None`. Arguments without quotes (GLM, Qwen's XML) are typed by the tool's schema: "5" stays a string if the schema has
a string.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import unquote

from ajet.tokens.call_end import CLOSE, GLM, OPEN, XML, ArgumentScanner, BareSyntax

Tools = Sequence[Mapping[str, Any]]
Function = dict[str, str]
"""{name, arguments as JSON text}: the function of a tool call."""

_PLAIN = {"True": True, "False": False, "None": None}
"""Constants as a Jinja template writes them."""


def json_call(text: str, tools: Tools = ()) -> Function | None:
    """Parse a call of Hermes and Qwen: {"name": …, "arguments": {…}}. Any other text gives `None`."""
    return checked(decoded(text.strip()), ("arguments",))


def harmony_call(name: str, text: str) -> Function | None:
    """Parse a call of gpt-oss, whose name is in the header. `None` if the text is no JSON object of arguments."""
    return checked({"name": name, "arguments": decoded(text)}, ("arguments",))


def glm_call(text: str, tools: Tools = ()) -> Function | None:
    """Parse a call of GLM: the name, then <arg_key>…</arg_key> and <arg_value>…</arg_value> in turn.

    Any other text gives `None`.
    """
    head, pairs, tail = _split_arguments(text, GLM)
    return None if tail.strip() else _build_typed_call(head.strip(), pairs, tools)


def xml_call(text: str, tools: Tools = ()) -> Function | None:
    """Parse a call of Qwen3.5 and Qwen3-Coder: <function=name>, <parameter=key>, the value on separate lines.

    Any other text gives `None`.
    """
    head, pairs, tail = _split_arguments(text.strip(), XML)
    if not pairs:  # a call without arguments: all text is in `head`
        head, bracket, tail = head.partition(">")
        head += bracket
    if not head.startswith("<function=") or not head.rstrip().endswith(">") or tail.strip() != "</function>":
        return None
    name = head.rstrip().removeprefix("<function=").removesuffix(">")
    return _build_typed_call(name, [(key, value.removesuffix("\n")) for key, value in pairs], tools)


def llama_calls(text: str) -> list[Function] | None:
    """Parse calls of Llama 3, {"name": …, "parameters": {…}}, joined by semicolons. Any other text gives `None`."""
    functions: list[Function] = []
    position = 0
    while position < len(text):
        try:
            value, position = _JSON.raw_decode(text, position)
        except (ValueError, RecursionError):
            return None
        function = checked(value, ("parameters", "arguments"))
        if function is None:
            return None
        functions.append(function)
        remaining_text = text[position:].lstrip("; \n")
        position = len(text) - len(remaining_text)
    return functions or None


def decoded(text: str) -> Any:
    """Return the JSON value of a text, or None for null and for invalid JSON."""
    try:
        return _JSON.decode(text)
    except (ValueError, RecursionError):
        return None


def checked(value: Any, keys: tuple[str, ...]) -> Function | None:
    """Return the call in a JSON value, or None for any other value.

    Args:
        keys: The keys under one of which the call has its arguments.
    """
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
    """Return a call whose arguments are typed by the tool's schema, or None for an invalid name.

    Args:
        found: (name, text) of each argument.
    """
    if not name or any(mark in name for mark in "<> \n"):
        return None
    matching = [tool["function"] for tool in tools if tool["function"].get("name") == name]
    parameters = (matching[0].get("parameters") or {}) if matching else {}
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
    # If only text is admitted, a text in quotes is meant with its quotes.
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


# The JSON types admitted by a tool's schema for a parameter.
# Formats with unquoted arguments (GLM, Qwen's XML) need the types: "43106" stays text if the schema requires text.
# Invariant: a schema of any size or shape is read in bounded time, cyclic references included.
MOST_PARTS = 500
"""Limit on the subschemas read for one parameter; beyond the limit any type is admitted."""

Types = frozenset[str] | None
"""JSON Schema's names of types, with "number" for "integer"; `None` admits any type."""


def parameter_schema(parameters: Mapping[str, Any], name: str) -> Any:
    """Return the schema of a parameter, in whichever way the tool declares it. `None` if undeclared.

    Args:
        parameters: The tool's `parameters`: a JSON schema of an object.
    """
    conjuncts = list(_iterate_conjuncts(parameters, parameters))
    # All schemas that declare the parameter must hold, unless they are alternatives of one another.
    if declared := _list_properties(conjuncts, name):
        return declared[0] if len(declared) == 1 else {"allOf": declared}
    alternatives = [subschema for part in conjuncts for subschema in _list_alternatives(part)]
    declared = [
        subschema for part in alternatives for subschema in _list_properties(_iterate_conjuncts(part, parameters), name)
    ]
    if declared:
        return {"anyOf": declared}
    return next((part["additionalProperties"] for part in conjuncts if "additionalProperties" in part), None)


def admitted_types(schema: Any, parameters: Mapping[str, Any], values: Sequence[Any] = ()) -> Types:
    """Return the types admitted by the schema of a parameter.

    Args:
        schema: The parameter's schema.
        parameters: The tool's `parameters`, in which references are resolved.
        values: Possible readings of the argument. `enum` and `const` admit the types of listed readings; if the schema
            admits no reading, the types of all listed values.
    """
    types = _TypeReader(parameters, values, is_strict=True).read(schema)
    return types if types or types is None else _TypeReader(parameters, values, is_strict=False).read(schema)


def type_of_value(value: Any) -> str:
    """Return the JSON type of a value, "number" for an integer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else "object" if isinstance(value, Mapping) else "array"


def _list_properties(parts: Iterable[Mapping[str, Any]], name: str) -> list[Any]:
    """Return every schema declared by the parts for a property."""
    property_tables = [part["properties"] for part in parts if isinstance(part.get("properties"), Mapping)]
    return [properties[name] for properties in property_tables if name in properties]


def _list_alternatives(part: Mapping[str, Any]) -> list[Any]:
    """Return the subschemas of `anyOf` and `oneOf` of a schema."""
    return [subschema for key in ("anyOf", "oneOf") if isinstance(part.get(key), list) for subschema in part[key]]


def _iterate_conjuncts(schema: Any, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the schema and all schemas that must hold with it: targets of `$ref`, members of `allOf`."""
    pending, visited = [schema], 0
    while pending and visited < MOST_PARTS:
        part, visited = pending.pop(0), visited + 1
        if isinstance(part, Mapping):
            yield part
            if "$ref" in part:
                pending.append(_resolve_local_ref(part["$ref"], root))
            if isinstance(part.get("allOf"), list):
                pending += part["allOf"]


def _resolve_local_ref(reference: Any, root: Mapping[str, Any]) -> Any:
    """Return the target of a reference within the schema (`#/$defs/Zip`), or None without a target."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    target: Any = root
    for step in unquote(reference[1:]).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list):
            target = target[int(step)] if step.isdecimal() and int(step) < len(target) else None
        else:
            target = target.get(step) if isinstance(target, Mapping) else None
    return target


class _TypeReader:
    """Reads the types of one schema. A cyclic reference admits any type."""

    def __init__(self, root: Mapping[str, Any], values: Sequence[Any], *, is_strict: bool) -> None:
        self._root = root
        self._example_values = values
        self._is_strict = is_strict
        self._parts_left = MOST_PARTS
        self._open_references: set[str] = set()

    def read(self, schema: Any) -> Types:
        """Return the JSON types that a schema admits, or None for any type."""
        self._parts_left -= 1
        if schema is False:
            return frozenset()
        if not isinstance(schema, Mapping) or self._parts_left < 0:
            return None
        types = _intersect_types(self._read_declared(schema), self._read_referenced(schema))
        if isinstance(schema.get("allOf"), list):
            for part in schema["allOf"]:
                types = _intersect_types(types, self.read(part))
        for name in ("anyOf", "oneOf"):
            if isinstance(schema.get(name), list) and schema[name]:
                types = _intersect_types(types, _unite_types([self.read(part) for part in schema[name]]))
        return types | {"null"} if types is not None and schema.get("nullable") is True else types

    def _read_declared(self, schema: Mapping[str, Any]) -> Types:
        """Return the types that `type`, `enum` and `const` of a schema allow, or None if they allow any."""
        kinds = schema.get("type")
        if isinstance(kinds, str):
            kinds = [kinds]
        types: Types = None
        if isinstance(kinds, list) and kinds:
            types = frozenset(name for kind in kinds if isinstance(kind, str) for name in self._name_types(kind))
        allowed = [schema["const"]] if "const" in schema else schema.get("enum")
        return _intersect_types(
            types, self._read_enumerated(allowed) if isinstance(allowed, list) and allowed else None
        )

    def _name_types(self, kind: str) -> list[str]:
        """Return the name of a type in a list, with "number" for "integer".

        The list is empty for "integer" if a reading of the argument has a fraction.
        """
        if kind != "integer":
            return [kind]
        is_fraction = any(isinstance(value, float) and not value.is_integer() for value in self._example_values)
        return [] if is_fraction else ["number"]

    def _read_enumerated(self, listed: Sequence[Any]) -> Types:
        """Return the types of the argument's readings that are listed in `enum` or `const`.

        If the reader is not strict: the types of all listed values.
        """
        listed_json = {_canonical_json(listed_value) for listed_value in listed}
        listed_readings = [value for value in self._example_values if _canonical_json(value) in listed_json]
        return frozenset(map(type_of_value, listed_readings if self._is_strict else listed))

    def _read_referenced(self, schema: Mapping[str, Any]) -> Types:
        """Return the types of the target of `$ref`. None (any type) without a reference, and for a cyclic one."""
        reference = schema.get("$ref")
        if not isinstance(reference, str) or reference in self._open_references:
            return None
        self._open_references.add(reference)
        types = self.read(_resolve_local_ref(reference, self._root))
        self._open_references.discard(reference)
        return types


def _intersect_types(one: Types, other: Types) -> Types:
    """Return the types in both sets. None stands for all types."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _unite_types(members: list[Types]) -> Types:
    """Return the types in any of the sets. None stands for all types."""
    united: frozenset[str] = frozenset()
    for types in members:
        if types is None:
            return None
        united |= types
    return united


def _canonical_json(value: Any) -> str:
    """Return a JSON text that is the same for equal values: true differs from 1, 1.0 does not."""
    is_integral = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if is_integral else value, sort_keys=True)
