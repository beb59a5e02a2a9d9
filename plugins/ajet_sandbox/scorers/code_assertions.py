"""Splits off assertions with a constant, such as `assert add(1, 2) == 3` and `self.assertEqual(add(1, 2), 3)`.

Invariant: the constant never enters the interpreter of the model's program. The test reports the computed value, and
the comparison runs on the host, on plain values. A program can then neither read the expected value nor return an
object that equals everything.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ajet.schema.fenced import has_huge_number, parse_python

REPORT = "__ajet_report__"
"""Name of the reporting function in a rewritten test."""
DEFINE_REPORT = """\
def _plain(value):
    if value is None or isinstance(value, (bool, str, float)):
        return value
    if isinstance(value, int):
        return {"int": hex(value)}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (list, tuple, set, frozenset)):
        kind = "list" if isinstance(value, list) else "tuple" if isinstance(value, tuple) else "set"
        return {kind: [_plain(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[_plain(key), _plain(each)] for key, each in value.items()]}
    if hasattr(value, "item"):
        return _plain(value.item())
    if hasattr(value, "isdisjoint"):
        return {"set": [_plain(each) for each in value]}
    if hasattr(value, "as_integer_ratio"):
        return {"ratio": [hex(each) for each in value.as_integer_ratio()]}
    return {}
"""
"""Defines how the sandbox writes a value as JSON. `{}` stands for an object that equals no constant."""
_CONSTANT_CALLS: dict[str, Callable[[Any], Any]] = {
    "set": set, "frozenset": frozenset, "tuple": tuple, "list": list, "sorted": sorted,
}  # fmt: skip
_OPERATORS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConstantAssertion:
    """One assertion of a test that compares a computed value with a constant."""

    compare: Callable[[Any, Any], bool]
    wanted: Any
    is_always_run: bool
    """True if a test run to the end must report the value."""


def split_assertions(code: str) -> tuple[str, list[ConstantAssertion]]:
    """Replace assertions with a constant by reports of the computed value.

    Returns:
        The new test code, which reports (index, value), and the replaced assertions in order of their index.
    """
    tree = None if has_huge_number(code) else parse_python(code)
    if tree is None:
        return code, []
    splitter = _AssertionSplitter()
    rewritten = splitter.visit(ast.parse(code))
    return (ast.unparse(rewritten), splitter.assertions) if splitter.assertions else (code, [])


def find_failed(assertions: list[ConstantAssertion], reports: Iterable[Any]) -> str:
    """Return the source of the first failed assertion, or "" if all hold.

    Args:
        assertions: the assertions of the test.
        reports: `[index, value]` of each executed assertion, as written by the sandbox.
    """
    missing = {index for index, assertion in enumerate(assertions) if assertion.is_always_run}
    for report in reports:
        index, value = _read_report(report)
        if not 0 <= index < len(assertions) or not assertions[index].compare(value, assertions[index].wanted):
            return "AssertionError"
        missing.discard(index)
    return "an assertion was not run" if missing else ""


class _AssertionSplitter(ast.NodeTransformer):
    """Replaces assertions with a constant, except where their failure is expected or caught."""

    def __init__(self) -> None:
        self.assertions: list[ConstantAssertion] = []
        self._always: set[int] = set()

    def visit_Module(self, node: ast.Module) -> ast.AST:
        """Mark the top-level statements as always run, then visit all."""
        self._mark_always_run(node.body)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Visit a function. The statements of a test function without early end always run."""
        if node.decorator_list:
            return node  # a decorator may skip the test, or expect its failure
        may_end_early = any(isinstance(child, ast.Return) for child in ast.walk(node)) or "skip" in ast.unparse(node)
        if (node.name == "check" or node.name.startswith("test")) and not may_end_early:
            self._mark_always_run(node.body)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Visit a class, except one with a decorator, which may skip its tests."""
        return node if node.decorator_list else self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> ast.AST:
        """Visit a `try` statement, except one whose handlers may catch a failed assertion."""
        return node if node.handlers else self.generic_visit(node)

    def visit_With(self, node: ast.With) -> ast.AST:
        """Visit a `with` statement, except one that expects an exception, such as `pytest.raises`."""
        is_failure_expected = any("raises" in ast.unparse(item).lower() for item in node.items)
        return node if is_failure_expected else self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Replace `assert a == b` (or !=, is, is not) if one side is a constant."""
        test = node.test
        if not isinstance(test, ast.Compare) or len(test.ops) != 1 or type(test.ops[0]) not in _OPERATORS:
            return node
        return self._replace_assertion(node, _OPERATORS[type(test.ops[0])], test.left, test.comparators[0])

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Replace `self.assertEqual(a, b)` if one argument is a constant."""
        call = node.value
        is_equal = isinstance(call, ast.Call) and ast.unparse(call.func) == "self.assertEqual"
        if not isinstance(call, ast.Call) or not is_equal or len(call.args) < 2:
            return node
        return self._replace_assertion(node, operator.eq, call.args[0], call.args[1])

    def _mark_always_run(self, body: list[ast.stmt]) -> None:
        """Record that the statements are run whenever the test runs to its end."""
        self._always |= {id(statement) for statement in body}

    def _replace_assertion(
        self, node: ast.stmt, compare: Callable[[Any, Any], bool], left: ast.expr, right: ast.expr
    ) -> ast.stmt:
        """Return a statement that reports the computed side of an assertion, and record the comparison with the
        constant side.

        Unless exactly one of the sides `left` and `right` is a constant, the assertion is returned unchanged.
        """
        computed, constants = left, _read_constant(right)
        if not constants:
            computed, constants = right, _read_constant(left)
        if not constants or _read_constant(computed):
            return node
        index = ast.Constant(len(self.assertions))
        self.assertions.append(ConstantAssertion(compare, constants[0], id(node) in self._always))
        report = ast.Call(ast.Name(REPORT, ast.Load()), [index, computed], [])
        return ast.copy_location(ast.Expr(report), node)


def _read_constant(node: ast.expr) -> list[Any]:
    """Return [value] of a constant expression, or [] for any other expression."""
    try:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1 and not node.keywords:
            make = _CONSTANT_CALLS.get(node.func.id)
            return [make(ast.literal_eval(node.args[0]))] if make else []
        return [ast.literal_eval(node)]
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return []


def _read_report(report: Any) -> tuple[int, Any]:
    """Return (index, value) of a report. A malformed report, since the program is untrusted, gives index -1."""
    try:
        index, value = report
        return int(index), _read_plain(value)
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
        return -1, None


def _read_plain(value: Any) -> Any:
    """Decode a value that `_plain` in the sandbox encoded for JSON."""
    if not isinstance(value, dict):
        return value
    if not value:  # a value that JSON cannot represent: equal to no constant
        return object()
    ((kind, encoded),) = value.items()
    if kind == "int":
        return int(encoded, 16)
    if kind == "bytes":
        return bytes.fromhex(encoded)
    if kind == "complex":
        return complex(*encoded)
    if kind == "ratio":
        return Fraction(*(int(item, 16) for item in encoded))
    if kind == "dict":
        return {_read_plain(key): _read_plain(item) for key, item in encoded}
    make: Callable[[Any], Any] = {"list": list, "tuple": tuple, "set": set}[kind]
    return make(_read_plain(item) for item in encoded)
