"""Check JSON schemas, and a model's replies and tool arguments against schemas.

Invariant: no reference is fetched, and no schema can block its reader. References stay inside the schema, patterns have
a timeout, and each applied keyword is charged to a budget. Exponentially many paths therefore end after about a second.
A check may take a second, or two seconds for a large schema, so event loops run checks in a thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from ajet.schema.errors import AjetError

MAX_SCHEMA_CHARS = 256 << 10
"""Limit on the characters of a schema as JSON."""
MAX_CHECK_COST = 400_000
"""Budget of a check. A charge takes about a microsecond."""
MAX_SCHEMA_COST = 2_000_000
"""Charges for checking a schema: about 350 per subschema, so 5,000 properties pass."""
MAX_NESTED_KEYWORDS = 200
"""Keywords applied within one another, about five for each level of a schema and one or two for a value's.

jsonschema's maps are written in Rust and panic where Python's stack ends.
"""
_REFERENCE_COST = 20
"""Charges for a reference, slower than other keywords. An anchor is searched in the complete schema and costs more per
part.
"""
_ANCHOR_PART_COST = 5
_CHARS_PER_ERROR_COST = 100
"""Characters of an error message, which spells the value, per additional charge."""
_PATTERN_SECONDS = 0.1
NAMED_SUBSCHEMAS = ("properties", "$defs", "definitions", "dependentSchemas")
DATA_KEYWORDS = ("const", "enum", "default", "examples", "required", "type")


class _BudgetExceededError(AjetError):
    """A check against a JSON schema used up its budget, so it would take too long."""


class _CheckBudget:
    """The remaining cost that one check against a schema may have, and the current nesting depth of its keywords."""

    def __init__(self, limit: int = MAX_CHECK_COST) -> None:
        self._checks_left = limit
        self.nested_keywords = 0

    def charge(self, cost: int) -> None:
        """Subtract a cost from the remaining charges. Raise _BudgetExceededError below zero."""
        self._checks_left -= cost
        if self._checks_left < 0:
            raise _BudgetExceededError


_BUDGET: ContextVar[_CheckBudget] = ContextVar("budget of a JSON schema check")
_Keyword = Callable[[Any, Any, Any, Any], Any]
"""A keyword of jsonschema: (validator, value of the keyword, instance, schema) -> errors."""


def find_schema_problem(schema: Mapping[str, Any]) -> str | None:
    """Return why replies and arguments cannot be checked against `schema`, or None if they can."""
    try:
        return _load_validator(json.dumps(schema, sort_keys=True))[1]
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:  # the schema has an `$id` that is no address
        return str(error)


def find_value_problem(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Return why a value, for example a tool's arguments, violates `schema`, or None if it is valid.

    Returns None as well if the schema itself cannot be checked.
    """
    return None if find_schema_problem(schema) is not None else find_reply_problem(json.dumps(value), schema)


def find_reply_problem(text: str, schema: Mapping[str, Any]) -> str | None:
    """Return why `text` is not JSON admitted by `schema`, or None if valid. An empty schema admits any JSON object."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        if not schema:
            return None if isinstance(value, dict) else "it is not a JSON object"
        validator, problem = _load_validator(json.dumps(schema, sort_keys=True))
        if problem is not None:
            return problem
        _BUDGET.set(_CheckBudget())
        error = next(validator.iter_errors(value), None)
    except ValueError as error:
        return f"it is not JSON: {error}"
    except RecursionError:
        return "nested too deeply"
    except _BudgetExceededError:
        return f"checking it against the schema takes more than {MAX_CHECK_COST:,} steps"
    except TimeoutError:
        return "one of the schema's patterns takes too long to match"
    return None if error is None else f"{error.json_path}: {error.message[:200]}"


@lru_cache(maxsize=256)
def _load_validator(text: str) -> tuple[Any, str | None]:
    """Return (validator, None), or (None, the reason) for a schema that is invalid or too expensive to check."""
    from jsonschema import validators
    from referencing import Registry

    if len(text) > MAX_SCHEMA_CHARS:
        return None, f"the schema is longer than {MAX_SCHEMA_CHARS >> 10} KiB"
    schema = json.loads(text)
    if not isinstance(schema, dict):
        return None, "the schema is not an object"
    if not isinstance(schema.get("$schema", ""), str):
        return None, "`$schema` is not a string"
    validator_class = validators.validator_for(schema, default=validators.Draft202012Validator)
    subschemas = list(_walk_schemas(schema))
    budget = _CheckBudget(MAX_SCHEMA_COST)
    _BUDGET.set(budget)
    try:
        meta_validator = _charging_validator(validator_class, 0)(
            validator_class.META_SCHEMA, format_checker=validator_class.FORMAT_CHECKER
        )
        error = next(meta_validator.iter_errors(schema), None)
        if error is not None:
            return None, f"{error.json_path}: {error.message[:200]}"
        problem = _find_part_problem(schema, subschemas, budget)
    except _BudgetExceededError:
        return None, "the schema takes too long to check"
    if problem is not None:
        return None, problem
    return _charging_validator(validator_class, len(subschemas))(schema, registry=Registry()), None


def _find_part_problem(schema: Any, parts: Sequence[Mapping[str, Any]], budget: _CheckBudget) -> str | None:
    """Return why one of a schema's subschemas is not supported, or None. Raises _BudgetExceededError.

    Args:
        schema: The complete schema, inside of which references must stay.
        parts: The schema and all its subschemas.
        budget: Is charged for each reference.
    """
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    registry: Any = Registry()
    resolver = registry.resolver_with_root(DRAFT202012.create_resource(schema))
    for part in parts:
        for name in ("$ref", "$dynamicRef"):
            if name in part:
                budget.charge(_estimate_reference_cost(part[name], len(parts)))
                if not str(part[name]).startswith("#"):
                    return f"the reference {part[name]!r} leads out of the schema"
                try:
                    resolver.lookup(part[name])
                except (Unresolvable, TypeError):  # TypeError: it leads through a value that is no schema
                    return f"the reference {part[name]!r} does not exist in the schema"
        if part.get("patternProperties"):
            return "'patternProperties' is not supported"
    return None


def _charging_validator(kind: Any, parts: int) -> Any:
    """Return a subclass of jsonschema's validator class `kind` whose keywords are charged to the budget of the check.

    `pattern` gets a timeout and `uniqueItems` takes linear time. `parts`: the schema's number of subschemas.
    """
    import attrs
    from jsonschema import validators

    keywords: dict[str, _Keyword] = {**kind.VALIDATORS, "pattern": _check_pattern, "uniqueItems": _check_unique_items}
    extended: Any = validators.extend(
        kind, {name: _charge_keyword(name, keyword, parts) for name, keyword in keywords.items()}
    )
    # jsonschema's own `evolve` changes to a class without our keywords if a subschema has `$schema`.
    extended.evolve = attrs.evolve
    return extended


def _charge_keyword(name: str, keyword: _Keyword, parts: int) -> _Keyword:
    """Wrap a keyword's check so that it spends the budget of the running check, and raises when none is left.

    A hostile schema could otherwise keep the validator busy for hours.
    """
    is_reference = name in ("$ref", "$dynamicRef")

    def apply(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        """Yield the keyword's errors for `instance`, after charging the check's budget."""
        budget = _BUDGET.get()
        cost = _estimate_reference_cost(value, parts) if is_reference else 1
        for walked_value in (value, instance):  # a keyword may visit all entries of its value and of the instance
            if isinstance(walked_value, (list, dict)):
                cost += len(walked_value)
        budget.charge(cost)
        if budget.nested_keywords == MAX_NESTED_KEYWORDS:
            raise RecursionError  # earlier than jsonschema's Rust code, which would panic
        budget.nested_keywords += 1
        try:
            for error in keyword(validator, value, instance, schema) or ():
                budget.charge(1 + len(error.message) // _CHARS_PER_ERROR_COST)
                yield error
        finally:
            budget.nested_keywords -= 1

    return apply


def _estimate_reference_cost(reference: Any, parts: int) -> int:
    """Return the cost of following a `$ref` in a schema of `parts` subschemas.

    An anchor costs more than a pointer (`#/...`), because the library searches all subschemas for it.
    """
    is_pointer = not isinstance(reference, str) or reference == "#" or reference.startswith("#/")
    return _REFERENCE_COST + (0 if is_pointer else parts * _ANCHOR_PART_COST)


def _check_unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Yield an error if a list has equal items. Takes linear time; jsonschema itself compares every pair."""
    from jsonschema import ValidationError

    if wanted and isinstance(instance, list) and len({_make_hashable(item) for item in instance}) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _make_hashable(value: Any) -> Any:
    """Return a hashable key which two JSON values share if they are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict):
        return frozenset((name, _make_hashable(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(_make_hashable(item) for item in value)
    return (bool, value) if isinstance(value, bool) else value


def _walk_schemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the schema and all its subschemas, depth first."""
    if isinstance(schema, list):
        for subschema in schema:
            yield from _walk_schemas(subschema)
    elif isinstance(schema, dict):
        yield schema
        for name, value in schema.items():
            if name in NAMED_SUBSCHEMAS and isinstance(
                value, dict
            ):  # other values are invalid, and the check against the meta-schema reports them
                yield from _walk_schemas(list(value.values()))
            elif name not in DATA_KEYWORDS:
                yield from _walk_schemas(value)


def _check_pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    """Yield an error unless a string matches a keyword's `pattern`. Raises TimeoutError for a slow pattern."""
    import regex
    from jsonschema import ValidationError

    try:
        # Patterns apply to strings only.
        matches = not isinstance(instance, str) or regex.search(pattern, instance, timeout=_PATTERN_SECONDS)
    except regex.error as error:  # dialects of regular expressions differ
        yield ValidationError(f"{pattern!r} cannot be matched: {error}")
        return
    if not matches:
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _refuse_constant(name: str) -> Any:
    """Raise ValueError: Python's parser would accept NaN and Infinity, which are not JSON."""
    raise ValueError(f"{name} is not JSON")
