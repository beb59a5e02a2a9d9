"""The JSON types that a tool's schema admits for a parameter.

Formats that write arguments without quotes (GLM, Qwen's XML) need them: "43106" stays text where the schema asks for
text. Invariant: a schema of any size or shape is read in bounded time, cyclic references included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MOST_PARTS = 500
"""Subschemas that are looked at for one parameter; whatever is left then admits any type."""

Types = frozenset[str] | None
"""JSON Schema's names of types, "integer" as "number"; None: any."""


def parameter_schema(parameters: Mapping[str, Any], name: str) -> Any:
    """Return the schema of a parameter, declared directly, by `$ref` or within `allOf`; None if it has none.

    Args:
        parameters: The tool's `parameters`: a JSON schema of an object.
    """
    additional = None
    for part in _conjuncts(parameters, parameters):
        properties = part.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            return properties[name]
        additional = part.get("additionalProperties", additional)
    return additional


def admitted_types(schema: Any, parameters: Mapping[str, Any]) -> Types:
    """Return the types that the schema of a parameter admits."""
    return _TypeReader(parameters).read(schema)


def _conjuncts(schema: Any, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schema and all that must hold beside it: targets of `$ref`, members of `allOf`."""
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
    """Return what a reference within the schema (`#/$defs/Zip`) points to; None if that is nothing."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for step in reference[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(step)] if step.isdecimal() and int(step) < len(found) else None
        else:
            found = found.get(step) if isinstance(found, Mapping) else None
    return found


class _TypeReader:
    """Reads the types of one schema. A reference that is being followed already admits any type."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = MOST_PARTS
        self._following: set[str] = set()

    def read(self, schema: Any) -> Types:
        self._left -= 1
        if not isinstance(schema, Mapping) or self._left < 0:
            return None
        types = _intersect(self._declared(schema), self._referenced(schema))
        if isinstance(schema.get("allOf"), list):
            for part in schema["allOf"]:
                types = _intersect(types, self.read(part))
        for name in ("anyOf", "oneOf"):
            if isinstance(schema.get(name), list) and schema[name]:
                types = _intersect(types, _union([self.read(part) for part in schema[name]]))
        return types | {"null"} if types is not None and schema.get("nullable") is True else types

    def _declared(self, schema: Mapping[str, Any]) -> Types:
        kind = schema.get("type")
        if isinstance(kind, str):
            return frozenset([_name_of(kind)])
        if isinstance(kind, list) and kind:
            return frozenset(_name_of(each) for each in kind if isinstance(each, str))
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        return frozenset(map(_type_of_value, values)) if isinstance(values, list) and values else None

    def _referenced(self, schema: Mapping[str, Any]) -> Types:
        reference = schema.get("$ref")
        if not isinstance(reference, str) or reference in self._following:
            return None
        self._following.add(reference)
        types = self.read(_resolve_local_ref(reference, self._root))
        self._following.discard(reference)
        return types


def _intersect(one: Types, other: Types) -> Types:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _union(members: list[Types]) -> Types:
    found: frozenset[str] = frozenset()
    for types in members:
        if types is None:
            return None
        found |= types
    return found


def _name_of(kind: str) -> str:
    return "number" if kind == "integer" else kind


def _type_of_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else "object" if isinstance(value, Mapping) else "array"
