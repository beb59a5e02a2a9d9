"""Types of bare arguments, by every spelling of a schema that clients send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ajet.tokens.tool_calls import glm_call, xml_call

NULL = {"type": "null"}
TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
VALUES: list[tuple[Any, str, Any]] = [
    ({"enum": ["1", 2]}, "1", "1"),
    ({"enum": ["1", 2]}, "2", 2),
    ({"enum": ["1", 2]}, "3", 3),
    ({"enum": ["a", "b"]}, "5", "5"),
    ({"enum": [None, "null"]}, "null", None),
    ({"enum": ["x", ["y"]]}, '["y"]', ["y"]),
    ({"type": ["string", "integer"], "enum": ["1", "2"]}, "1", "1"),
    ({"oneOf": [{"enum": ["1"]}, {"enum": [2]}]}, "1", "1"),
    ({"oneOf": [{"enum": ["1"]}, {"enum": [2]}]}, "2", 2),
    ({"anyOf": [{"const": "auto"}, WHOLE]}, "7", 7),
    ({"anyOf": [{"const": "auto"}, WHOLE]}, "auto", "auto"),
    ({"const": "x"}, "43106", "43106"),
    ({"const": True}, "True", True),
    ({"anyOf": [TEXT, {"type": "array"}]}, "43106", "43106"),
    ({"anyOf": [TEXT, {"type": "array"}]}, '["a"]', ["a"]),
    ({"anyOf": [TEXT, {"type": "object"}]}, "[1]", "[1]"),
    ({"anyOf": [{"$ref": "#/$defs/Zip"}, {"type": "array", "items": TEXT}]}, "43106", "43106"),
    ({"anyOf": [TEXT, False]}, "43106", "43106"),
    ({"type": ["string", "integer"]}, "2.5", "2.5"),
    ({"type": ["string", "integer"]}, "2", 2),
    ({"type": ["string", "number"]}, "2.5", 2.5),
    ({"type": ["string", "null"]}, "None", None),
    ({"type": ["string", "null"]}, "true", "true"),
    ({"type": "string", "enum": ["null"]}, "null", "null"),
    (
        {"type": "object", "properties": {"zip": TEXT}},
        '{"zip": "43106", "in": {"zip": "1"}}',
        {"zip": "43106", "in": {"zip": "1"}},
    ),
    (TEXT, '"quoted"', '"quoted"'),
    (TEXT, '{"a": 1}', '{"a": 1}'),
    (WHOLE, "9" * 5_000, "9" * 5_000),
    ({"$ref": "#/$defs/a%20b"}, "43106", "43106"),
    ({"$ref": "#anchor"}, "43106", 43106),
]
TEXT_SPELLINGS: dict[str, dict[str, Any]] = {
    "type": {"type": "string"},
    "type list": {"type": ["string", "null"]},
    "ref": {"$ref": "#/$defs/Zip"},
    "ref with siblings": {"$ref": "#/$defs/Zip", "description": "a code", "default": "0"},
    "ref to a ref": {"$ref": "#/$defs/Again"},
    "ref in definitions": {"$ref": "#/definitions/Zip"},
    "escaped ref": {"$ref": "#/$defs/a~1b~0c"},
    "anyOf": {"anyOf": [{"type": "string"}, NULL]},
    "anyOf ref": {"anyOf": [{"$ref": "#/$defs/Zip"}, NULL]},
    "oneOf": {"oneOf": [{"$ref": "#/$defs/Zip"}, {"const": "x"}]},
    "allOf ref": {"allOf": [{"$ref": "#/$defs/Zip"}], "title": "Zip"},
    "allOf with limits": {"allOf": [{"type": "string"}, {"minLength": 2}]},
    "allOf narrows": {"allOf": [{"type": ["string", "integer"]}, {"type": "string"}]},
    "const": {"const": "43106"},
    "enum": {"enum": ["43106", "1"]},
    "enum with null": {"enum": ["43106", None]},
    "nullable": {"type": "string", "nullable": True},
    "cyclic": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Cycle"}]},
}
OTHER_SPELLINGS: dict[str, Any] = {
    "integer": {"type": "integer"},
    "ref to integer": {"$ref": "#/$defs/Count"},
    "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    "const": {"const": 43106},
    "any": {},
    "true": True,
    "lost ref": {"$ref": "#/$defs/Nothing"},
    "foreign ref": {"$ref": "https://example.org/schema"},
    "endless": {"$ref": "#/$defs/Endless"},
}
DEFS = {
    "Zip": {"type": "string"},
    "Again": {"$ref": "#/$defs/Zip"},
    "a/b~c": {"type": "string"},
    "Cycle": {"allOf": [{"type": "string"}, {"anyOf": [{"$ref": "#/$defs/Cycle"}, {"type": "string"}]}]},
    "Count": {"type": "integer"},
    "a b": {"type": "string"},
    "Endless": {"$ref": "#/$defs/Endless"},
}


def read(schema: Any, text: str = "43106", **more: Any) -> Any:
    """Return the argument that both bare formats read."""
    parameters = {"type": "object", "$defs": DEFS, "definitions": DEFS, "properties": {"zip": schema}, **more}
    tools = [{"type": "function", "function": {"name": "reg", "parameters": parameters}}]
    xml = xml_call(f"<function=reg>\n<parameter=zip>\n{text}\n</parameter>\n</function>", tools)
    glm = glm_call(f"reg\n<arg_key>zip</arg_key>\n<arg_value>{text}</arg_value>\n", tools)
    assert xml is not None and xml == glm
    return json.loads(xml["arguments"])["zip"]


@pytest.mark.parametrize("spelling", TEXT_SPELLINGS)
def test_text_parameters_stay_text(spelling):
    assert read(TEXT_SPELLINGS[spelling]) == "43106"


@pytest.mark.parametrize("spelling", OTHER_SPELLINGS)
def test_other_parameters_are_read_as_json(spelling):
    assert read(OTHER_SPELLINGS[spelling]) == 43106


@pytest.mark.parametrize(("schema", "text", "value"), VALUES)
def test_argument_has_the_type_that_admits_it(schema, text, value):
    found = read(schema, text)
    assert found == value and type(found) is type(value)


def test_null_is_null_only_where_it_may_be():
    assert read({"anyOf": [{"$ref": "#/$defs/Zip"}, NULL]}, "null") is None
    assert read({"$ref": "#/$defs/Zip"}, "null") == "null"


@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#/$defs/Args", "$defs": {"Args": {"properties": {"zip": {"type": "string"}}}}},
        {"allOf": [{"type": "object"}, {"properties": {"zip": {"type": "string"}}}]},
        {"additionalProperties": {"type": "string"}},
        {"oneOf": [{"properties": {"zip": {"type": "string"}}}, {"properties": {"id": {"type": "integer"}}}]},
        {"properties": {"zip": {}}, "allOf": [{"properties": {"zip": {"type": "string"}}}]},
    ],
    ids=["ref", "allOf", "additional", "oneOf", "declared twice"],
)
def test_parameters_are_found_behind_references(parameters):
    tools = [{"type": "function", "function": {"name": "reg", "parameters": parameters}}]
    called = xml_call("<function=reg>\n<parameter=zip>\n43106\n</parameter>\n</function>", tools)
    assert called is not None and json.loads(called["arguments"]) == {"zip": "43106"}


def test_lattice_of_references_ends():
    lattice = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
    assert read({"$ref": "#/$defs/a0"}, **{"$defs": lattice}) == 43106
