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
    missing = {number for number, each in enumerate(assertions) if each.is_always_run}
    for report in reports:
        number, value = _read_report(report)
        if not 0 <= number < len(assertions) or not assertions[number].compare(value, assertions[number].wanted):
            return "AssertionError"
        missing.discard(number)
    return "an assertion was not run" if missing else ""


class _AssertionSplitter(ast.NodeTransformer):
    """Replaces assertions with a constant, except where their failure is expected or caught."""

    def __init__(self) -> None:
        self.assertions: list[ConstantAssertion] = []
        self._always: set[int] = set()

    def visit_Module(self, node: ast.Module) -> ast.AST:
        self._mark_always_run(node.body)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.decorator_list:
            return node  # it may be skipped, or expected to fail
        may_end_early = any(isinstance(each, ast.Return) for each in ast.walk(node)) or "skip" in ast.unparse(node)
        if (node.name == "check" or node.name.startswith("test")) and not may_end_early:
            self._mark_always_run(node.body)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node if node.decorator_list else self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> ast.AST:
        return node if node.handlers else self.generic_visit(node)

    def visit_With(self, node: ast.With) -> ast.AST:
        is_failure_expected = any("raises" in ast.unparse(item).lower() for item in node.items)
        return node if is_failure_expected else self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        test = node.test
        if not isinstance(test, ast.Compare) or len(test.ops) != 1 or type(test.ops[0]) not in _OPERATORS:
            return node
        return self._replace_assertion(node, _OPERATORS[type(test.ops[0])], test.left, test.comparators[0])

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        is_equal = isinstance(call, ast.Call) and ast.unparse(call.func) == "self.assertEqual"
        if not isinstance(call, ast.Call) or not is_equal or len(call.args) < 2:
            return node
        return self._replace_assertion(node, operator.eq, call.args[0], call.args[1])

    def _mark_always_run(self, body: list[ast.stmt]) -> None:
        self._always |= {id(statement) for statement in body}

    def _replace_assertion(
        self, node: ast.stmt, compare: Callable[[Any, Any], bool], one: ast.expr, other: ast.expr
    ) -> ast.stmt:
        stated, constants = one, _read_constant(other)
        if not constants:
            stated, constants = other, _read_constant(one)
        if not constants or _read_constant(stated):
            return node
        number = ast.Constant(len(self.assertions))
        self.assertions.append(ConstantAssertion(compare, constants[0], id(node) in self._always))
        report = ast.Call(ast.Name(REPORT, ast.Load()), [number, stated], [])
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
    try:
        number, value = report
        return int(number), _read_plain(value)
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
        return -1, None


def _read_plain(value: Any) -> Any:
    """Decode a value that `_plain` in the sandbox encoded for JSON."""
    if not isinstance(value, dict):
        return value
    if not value:
        return object()
    ((kind, inside),) = value.items()
    if kind == "int":
        return int(inside, 16)
    if kind == "bytes":
        return bytes.fromhex(inside)
    if kind == "complex":
        return complex(*inside)
    if kind == "ratio":
        return Fraction(*(int(each, 16) for each in inside))
    if kind == "dict":
        return {_read_plain(key): _read_plain(each) for key, each in inside}
    make: Callable[[Any], Any] = {"list": list, "tuple": tuple, "set": set}[kind]
    return make(_read_plain(each) for each in inside)
