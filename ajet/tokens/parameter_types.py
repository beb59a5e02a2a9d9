"""The JSON types admitted by a tool's schema for a parameter.

Formats with unquoted arguments (GLM, Qwen's XML) need the types: "43106" stays text if the schema requires text.
Invariant: a schema of any size or shape is read in bounded time, cyclic references included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

MOST_PARTS = 500
"""Limit on the subschemas read for one parameter; beyond the limit any type is admitted."""

Types = frozenset[str] | None
"""JSON Schema's names of types, with "number" for "integer"; `None` admits any type."""


def parameter_schema(parameters: Mapping[str, Any], name: str) -> Any:
    """Return the schema of a parameter, in whichever way the tool declares it; `None` if undeclared.

    Args:
        parameters: The tool's `parameters`: a JSON schema of an object.
    """
    conjuncts = list(_iterate_conjuncts(parameters, parameters))
    if declared := _list_properties(conjuncts, name):
        return declared[0] if len(declared) == 1 else {"allOf": declared}
    alternatives = [each for part in conjuncts for each in _list_alternatives(part)]
    declared = [each for part in alternatives for each in _list_properties(_iterate_conjuncts(part, parameters), name)]
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
    listed = [part["properties"] for part in parts if isinstance(part.get("properties"), Mapping)]
    return [properties[name] for properties in listed if name in properties]


def _list_alternatives(part: Mapping[str, Any]) -> list[Any]:
    return [each for key in ("anyOf", "oneOf") if isinstance(part.get(key), list) for each in part[key]]


def _iterate_conjuncts(schema: Any, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the schema and all schemas that must hold with it: targets of `$ref`, members of `allOf`."""
    waiting, seen = [schema], 0
    while waiting and seen < MOST_PARTS:
        part, seen = waiting.pop(0), seen + 1
        if isinstance(part, Mapping):
            yield part
            if "$ref" in part:
                waiting.append(_resolve_local_ref(part["$ref"], root))
            if isinstance(part.get("allOf"), list):
                waiting += part["allOf"]


def _resolve_local_ref(reference: Any, root: Mapping[str, Any]) -> Any:
    """Return the target of a reference within the schema (`#/$defs/Zip`); `None` without a target."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found: Any = root
    for step in unquote(reference[1:]).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(step)] if step.isdecimal() and int(step) < len(found) else None
        else:
            found = found.get(step) if isinstance(found, Mapping) else None
    return found


class _TypeReader:
    """Reads the types of one schema. A cyclic reference admits any type."""

    def __init__(self, root: Mapping[str, Any], values: Sequence[Any], *, is_strict: bool) -> None:
        self._root = root
        self._values = values
        self._is_strict = is_strict
        self._left = MOST_PARTS
        self._following: set[str] = set()

    def read(self, schema: Any) -> Types:
        """Return the JSON types that a schema admits, or None for any type."""
        self._left -= 1
        if schema is False:
            return frozenset()
        if not isinstance(schema, Mapping) or self._left < 0:
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
        kinds = schema.get("type")
        if isinstance(kinds, str):
            kinds = [kinds]
        types: Types = None
        if isinstance(kinds, list) and kinds:
            types = frozenset(name for kind in kinds if isinstance(kind, str) for name in self._name_types(kind))
        listed = [schema["const"]] if "const" in schema else schema.get("enum")
        return _intersect_types(types, self._read_enumerated(listed) if isinstance(listed, list) and listed else None)

    def _name_types(self, kind: str) -> list[str]:
        if kind != "integer":
            return [kind]
        is_fraction = any(isinstance(value, float) and not value.is_integer() for value in self._values)
        return [] if is_fraction else ["number"]

    def _read_enumerated(self, listed: Sequence[Any]) -> Types:
        spelled = {_canonical_json(each) for each in listed}
        held = [value for value in self._values if _canonical_json(value) in spelled]
        return frozenset(map(type_of_value, held if self._is_strict else listed))

    def _read_referenced(self, schema: Mapping[str, Any]) -> Types:
        reference = schema.get("$ref")
        if not isinstance(reference, str) or reference in self._following:
            return None
        self._following.add(reference)
        types = self.read(_resolve_local_ref(reference, self._root))
        self._following.discard(reference)
        return types


def _intersect_types(one: Types, other: Types) -> Types:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _unite_types(members: list[Types]) -> Types:
    found: frozenset[str] = frozenset()
    for types in members:
        if types is None:
            return None
        found |= types
    return found


def _canonical_json(value: Any) -> str:
    """Return a JSON text that is the same for equal values: true differs from 1, 1.0 does not."""
    is_integral = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if is_integral else value, sort_keys=True)
