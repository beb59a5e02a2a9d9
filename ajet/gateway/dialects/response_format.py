"""Response formats: JSON objects and JSON schemas that a reply must keep to.

Invariant: what is asked for here reaches the session as a schema, and a chat engine as OpenAI's `response_format`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet.gateway.dialects.fields import boolean, text, unsupported, wrong
from ajet.schema.json_schema import problem_of_schema


def read_response_format(value: Any) -> Mapping[str, Any] | None:
    """The schema of Chat Completions' `response_format`; {}: any JSON object; None: any text."""
    return _read(value, "response_format", nested=True)


def read_text_format(value: Any) -> Mapping[str, Any] | None:
    """The schema of Responses' `text.format`, likewise."""
    return _read(value, "text.format", nested=False)


def as_response_format(value: Mapping[str, Any]) -> dict[str, Any]:
    """Responses' `text.format` as Chat Completions' `response_format`."""
    if value["type"] != "json_schema":
        return dict(value)
    return {"type": "json_schema", "json_schema": {name: value[name] for name in value if name != "type"}}


def _read(value: Any, where: str, *, nested: bool) -> Mapping[str, Any] | None:
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {}
    if kind != "json_schema":
        raise unsupported(f"{where}.type" if isinstance(value, dict) else where, "text, json_object, json_schema only.")
    if nested:
        where = f"{where}.json_schema"
        value = value.get("json_schema")
        if not isinstance(value, dict):
            raise wrong(where, "an object")
    text(value.get("name"), f"{where}.name")
    boolean(value, "strict", False, where)
    if not isinstance(value.get("description") or "", str):
        raise wrong(f"{where}.description", "a string")
    schema = value.get("schema")
    return {} if nested and schema is None else read_schema(schema, f"{where}.schema")


def read_schema(schema: Any, where: str) -> Mapping[str, Any]:
    """A schema that replies, or the arguments of a strict tool, can be held to."""
    if not isinstance(schema, dict):
        raise wrong(where, "a JSON schema (an object)")
    problem = problem_of_schema(schema)
    if problem is not None:
        raise unsupported(where, f"no reply can be held to it: {problem}.")
    return schema
