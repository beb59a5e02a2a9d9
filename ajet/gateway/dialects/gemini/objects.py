"""Google's JSON objects and schemas.

Invariant: a field is known by its camelCase name and may be sent in snake_case, as Google's servers take both.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from ajet.gateway.dialects.fields import invalid_value, refuse_unknown

_UNDERSCORE = re.compile(r"(?<=[a-z0-9])_([a-z])")
_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength")
"""Schema fields of type int64, which Google's JSON writes as text."""


def read_object(value: Any, where: str, known: Collection[str] | None = None) -> dict[str, Any]:
    """Return the fields of an object that are not null, by their camelCase names. Raises Refused.

    Args:
        where: Place of the object in the request. "": the request itself.
        known: The supported fields. None: any.
    """
    if not isinstance(value, dict):
        raise invalid_value(where, "an object")
    entries = {
        _UNDERSCORE.sub(lambda match: match[1].upper(), name): field_value for name, field_value in value.items()
    }
    entries = {name: field_value for name, field_value in entries.items() if field_value is not None}
    if known is not None:
        prefix = f"{where}." if where else ""
        refuse_unknown({prefix + name: True for name in entries}, [prefix + name for name in known])
    return entries


def read_list(value: Any, where: str) -> list[Any]:
    """Return a list, empty for null. Raises Refused."""
    if not isinstance(value or [], list):
        raise invalid_value(where, "a list")
    return value or []


def convert_schema(schema: Any, where: str) -> dict[str, Any]:
    """Return a schema of Google's OpenAPI form as JSON schema: types in lower case, `nullable` as a type."""
    converted: dict[str, Any] = {}
    for name, value in read_object(schema, where).items():
        location = f"{where}.{name}"
        if name == "type" and isinstance(value, str):
            if value != "TYPE_UNSPECIFIED":
                converted[name] = value.lower()
        elif name == "properties" and isinstance(value, dict):
            converted[name] = {key: convert_schema(subschema, f"{location}.{key}") for key, subschema in value.items()}
        elif name == "items":
            converted[name] = convert_schema(value, location)
        elif name == "anyOf":
            converted[name] = [
                convert_schema(subschema, f"{location}[{index}]")
                for index, subschema in enumerate(read_list(value, location))
            ]
        elif name in _COUNTS:
            converted[name] = _read_count(value, location)
        elif name == "example":
            converted["examples"] = [value]
        elif name not in ("nullable", "propertyOrdering"):
            converted[name] = value
    if schema.get("nullable") and isinstance(converted.get("type"), str):
        converted["type"] = [converted["type"], "null"]
    return converted


def _read_count(value: Any, where: str) -> int:
    """Return an int64, which Google's JSON writes as text. Raises Refused."""
    try:
        return int(value)
    except (TypeError, ValueError):
        raise invalid_value(where, "an integer") from None
