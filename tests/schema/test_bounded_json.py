"""Documents of JSON, counted before they are built."""

import json

import pytest

from ajet.schema.bounded_json import MAX_DIGITS, MAX_NODES, TooManyNodesError, load_json, may_hold_surrogates


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32-le"])
@pytest.mark.parametrize("value", ["[{,:" * MAX_NODES, '\\"[,' * MAX_NODES, "\u2c2c\u7b22" * MAX_NODES])
def test_marks_in_strings_are_no_values(encoding, value):
    document = {"a": [value, "\\", 'x\\"'], "b": value}
    assert load_json(json.dumps(document, ensure_ascii=False).encode(encoding)) == document


@pytest.mark.parametrize(
    "document",
    [
        b"[" + b"{}," * MAX_NODES + b"{}]",
        b"[" + b'"",' * MAX_NODES + b"0]",
        b'["' + b"\\\\" * 300_001 + b'",' + b"1," * MAX_NODES + b"1]",
        b"{" + b",".join(b'"%d":1' % number for number in range(MAX_NODES)) + b"}",
        b"[" * (MAX_NODES + 1),
    ],
)
def test_too_many_values_are_refused_unbuilt(document):
    for data in (document, bytearray(document), document.decode(), document.decode().encode("utf-16")):
        with pytest.raises(TooManyNodesError):
            load_json(data, lambda given: pytest.fail("it was built"))


def test_as_many_values_as_allowed_are_read():
    assert len(load_json(b"[" + b"1," * (MAX_NODES - 2) + b"1]")) == MAX_NODES - 1


def test_integers_that_take_long_to_read_are_refused():
    assert load_json(b"[" + b"9" * MAX_DIGITS + b", 1e5]") == [10**MAX_DIGITS - 1, 1e5]
    for sign in (b"", b"-"):
        with pytest.raises(ValueError, match="digits"):
            load_json(b'{"a": [' + sign + b"9" * (MAX_DIGITS + 1) + b"]}")


@pytest.mark.parametrize(
    "text", ['["\ud83d"]', '["\ud83d"]', json.dumps("\ud83d", ensure_ascii=False), " " * 300_000 + '"\ud83d"']
)
def test_halves_of_letters_are_noticed(text):
    for encoding in ("utf-8", "utf-16"):
        assert may_hold_surrogates(text.encode(encoding, "surrogatepass"))
    assert not may_hold_surrogates("caf\u00e9 \U0001f600".encode())
