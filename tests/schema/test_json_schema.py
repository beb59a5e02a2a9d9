"""Checks of JSON schemas that would not end."""

import json
from collections.abc import Callable

import pytest

from ajet.schema.json_schema import find_reply_problem, find_schema_problem, find_value_problem
from tests.support.hostile_requests import lattice

CHAIN = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}", "$dynamicRef": f"#/$defs/a{i + 1}"} for i in range(26)}
OWN_DIALECT = {**lattice(26), "$schema": "https://json-schema.org/draft/2020-12/schema"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "reply"),
    [
        (lattice(26), "{}"),
        ({"$defs": {"a": OWN_DIALECT["$defs"], **OWN_DIALECT["$defs"]}, "$ref": "#/$defs/a0"}, "{}"),
        ({"unevaluatedProperties": False, "$ref": "#/$defs/a0", "$defs": {**CHAIN, "a26": {}}}, "{}"),
        ({"anyOf": [{"properties": {"a": {"type": "string"}}}] * 500}, json.dumps({"a": ["x" * 100] * 3000})),
        ({"items": {"items": {"enum": [*range(5000)]}}}, json.dumps([[4999] * 100] * 10)),
    ],
)
def test_check_beyond_its_budget_is_a_problem(schema, reply):
    assert find_reply_problem(reply, schema) is not None


@pytest.mark.slow
@pytest.mark.parametrize("parts", [{"allOf": [{}] * 60_000}, {"allOf": [{"enum": [1]}] * 10_000}])
def test_schema_of_too_many_parts_is_refused(parts):
    assert find_schema_problem(parts) is not None


def test_own_dialect_in_a_part_keeps_the_bounds():
    part = {"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": "^(a+)+$"}
    assert find_reply_problem(json.dumps({"a": "a" * 40 + "!"}), {"properties": {"a": part}}) is not None


@pytest.mark.parametrize(
    ("items", "unique"),
    [([{"x": n} for n in range(20_000)], True), ([1, True, [1], [True], "1"], True), ([{"a": 1}, {"a": 1.0}], False)],
)
def test_unique_items_are_compared_by_value(items, unique):
    assert (find_reply_problem(json.dumps(items), {"uniqueItems": True}) is None) == unique


def test_reply_of_many_rows_is_admitted():
    row = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20)}, "required": ["p0"]}
    rows = [{f"p{n}": "x" for n in range(20)}] * 2000
    assert find_reply_problem(json.dumps(rows), {"type": "array", "items": row}) is None


@pytest.mark.slow
def test_schema_of_thousands_of_properties_is_held_to():
    names = [f"p{n}" for n in range(2500)]
    shared = {"anyOf": [{"type": "string", "maxLength": 9}, {"type": "null"}], "description": "as servers have it"}
    schema = {"type": "object", "properties": {n: {"$ref": "#/$defs/a"} for n in names}, "required": names}
    schema |= {"$defs": {"a": shared}, "additionalProperties": False}
    assert find_schema_problem(schema) is None
    assert find_reply_problem(json.dumps(dict.fromkeys(names, "x")), schema) is None
    assert "p7" in (find_reply_problem(json.dumps({**dict.fromkeys(names), "p7": 7}), schema) or "")


@pytest.mark.parametrize(
    "schema", [["a"], "a", 1, {"type": "no type"}, {"patternProperties": {"^a": {}}}, {"$ref": "x"}]
)
def test_values_pass_by_schemas_that_cannot_be_checked(schema):
    assert find_schema_problem(schema) is not None and find_value_problem({"a": 1}, schema) is None


def test_values_are_held_to_schemas():
    assert find_value_problem({"a": 1}, {"properties": {"a": {"type": "integer"}}}) is None
    assert "$.a" in (find_value_problem({"a": "1"}, {"properties": {"a": {"type": "integer"}}}) or "")
    assert find_value_problem({}, lattice(26)) is not None


def nest(schema: dict, wrap: Callable[[dict], dict], levels: int) -> dict:
    for _ in range(levels):
        schema = wrap(schema)
    return schema


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: {"anyOf": [inner]},
        lambda inner: {"type": "object", "properties": {"a": inner}, "required": ["a"], "additionalProperties": False},
    ],
)
def test_deep_schemas_are_refused_before_the_stack_ends(wrap: Callable[[dict], dict]) -> None:
    """The stack ended in Rust, with a PanicException that no handler of errors catches."""
    assert find_schema_problem(nest({"type": "string"}, wrap, 20)) is None
    for levels in range(40, 120, 5):
        assert find_schema_problem(nest({"type": "string"}, wrap, levels)) == "nested too deeply"


def test_deep_values_and_references_are_refused() -> None:
    itself = {"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"$ref": "#"}}]}
    for levels in (20, 100, 150, 300):
        value = json.dumps(nest({}, lambda inner: {"a": inner}, levels))
        assert find_reply_problem(value, itself) == (None if levels == 20 else "nested too deeply")
    chain = {f"a{at}": {"$ref": f"#/$defs/a{at + 1}"} for at in range(300)} | {"a300": {}}
    assert find_reply_problem("1", {"$defs": chain, "$ref": "#/$defs/a0"}) == "nested too deeply"
