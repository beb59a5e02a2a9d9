"""JSON schemas: whether one can be held to, and whether what a model wrote (a reply, a tool's arguments) keeps to it.

Invariant: nothing is fetched, and no schema can hold its reader up: references stay inside the schema, patterns get a
bounded time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

_PATTERN_SECONDS = 0.1
NAMED = ("properties", "$defs", "definitions", "dependentSchemas")
DATA = ("const", "enum", "default", "examples", "required", "type")


def problem_of_schema(schema: Mapping[str, Any]) -> str | None:
    """Why replies cannot be held to `schema`; None if they can."""
    try:
        return _checked(json.dumps(schema, sort_keys=True))[1]
    except RecursionError:
        return "it is nested too deeply"
    except ValueError as error:  # an `$id` that is no address
        return str(error)


def problem_of_reply(text: str, schema: Mapping[str, Any]) -> str | None:
    """Why `text` is not JSON that `schema` admits; None if it is. An empty schema admits any JSON object."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
        if not schema:
            return None if isinstance(value, dict) else "it is no JSON object"
        validator, problem = _checked(json.dumps(schema, sort_keys=True))
        if problem is not None:
            return problem
        error = next(validator.iter_errors(value), None)
    except ValueError as error:
        return f"it is not JSON: {error}"
    except RecursionError:
        return "it is nested too deeply"
    except TimeoutError:
        return "one of the schema's patterns takes too long on it"
    return None if error is None else f"{error.json_path}: {error.message[:200]}"


@lru_cache(maxsize=256)
def _checked(text: str) -> tuple[Any, str | None]:
    from jsonschema import SchemaError, validators
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    schema = json.loads(text)
    if not isinstance(schema.get("$schema", ""), str):
        return None, "`$schema` is no text"
    kind = validators.validator_for(schema, default=validators.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        return None, f"{error.json_path}: {error.message[:200]}"
    registry: Any = Registry()
    resolver = registry.resolver_with_root(DRAFT202012.create_resource(schema))
    for part in _parts(schema):
        for name in ("$ref", "$dynamicRef"):
            if name in part:
                if not str(part[name]).startswith("#"):
                    return None, f"the reference {part[name]!r} leads out of it"
                try:
                    resolver.lookup(part[name])
                except (Unresolvable, TypeError):  # TypeError: it leads through a value that is no schema
                    return None, f"the reference {part[name]!r} leads nowhere"
        if part.get("patternProperties"):
            return None, "'patternProperties' is not supported"
    return validators.extend(kind, {"pattern": _pattern})(schema, registry=registry), None


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The schema and all schemas in it."""
    if isinstance(schema, list):
        for each in schema:
            yield from _parts(each)
    elif isinstance(schema, dict):
        yield schema
        for name, value in schema.items():
            if name in NAMED and isinstance(value, dict):  # anything else is no schema, which is told elsewhere
                yield from _parts(list(value.values()))
            elif name not in DATA:
                yield from _parts(value)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    import regex
    from jsonschema import ValidationError

    try:
        matches = not isinstance(instance, str) or regex.search(pattern, instance, timeout=_PATTERN_SECONDS)
    except regex.error as error:  # what one kind of regular expressions allows and another does not
        yield ValidationError(f"{pattern!r} cannot be matched: {error}")
        return
    if not matches:
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
