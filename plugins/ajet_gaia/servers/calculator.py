"""Arithmetic: evaluates an expression by walking its syntax tree.

Invariants: no text is evaluated as Python, and a node other than arithmetic is refused. So is a power, a factorial or a
text with a value large enough to fill memory.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from .settings import Settings
from .tool import Function, ToolError

LONGEST = 2000
"""Maximum characters of an expression."""
MAX_BITS = 20_000
"""Maximum bits of an integer."""

BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau, "inf": math.inf}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(math, name)
    for name in (
        *("sqrt", "cbrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
        *("sinh", "cosh", "tanh", "degrees", "radians", "floor", "ceil", "trunc", "gcd", "lcm", "hypot", "fabs"),
    )
    if hasattr(math, name)  # cbrt exists since Python 3.11
}
COUNTS = ("factorial", "comb", "perm")
FUNCTIONS |= {"abs": abs, "round": round, "min": min, "max": max, "sum": lambda *values: sum(values)}


def tools(settings: Settings) -> list[Function]:
    return [calculate]


def calculate(
    expression: Annotated[str, Field(description="for instance 2 * (3 + 4) ** 2 / sqrt(16)")],
) -> str:
    """Value of an arithmetic expression: + - * / // % **, brackets, pi, e, sqrt, log, sin, factorial, comb, min, max
    and the like."""
    if len(expression) > LONGEST:
        raise ToolError(f"the expression has more than {LONGEST} characters")
    try:
        return str(_evaluate_node(ast.parse(expression.strip(), mode="eval").body))
    except SyntaxError as error:
        raise ToolError(f"no expression: {error.msg}") from None
    except RecursionError:
        raise ToolError("too many brackets") from None
    except (ArithmeticError, ValueError, TypeError) as error:
        raise ToolError(f"{type(error).__name__}: {error}") from None


def _evaluate_node(node: ast.expr) -> Any:
    """Return the value of a node of the syntax tree. Raises ToolError for anything but arithmetic."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.BinOp):
        left_value, right_value = _evaluate_node(node.left), _evaluate_node(node.right)
        if isinstance(node.op, ast.Pow):
            return _compute_power(left_value, right_value)
        if type(node.op) in BINARY:
            return _check_size(BINARY[type(node.op)](left_value, right_value))
    if isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
        return UNARY[type(node.op)](_evaluate_node(node.operand))
    if isinstance(node, ast.Name) and node.id in CONSTANTS:
        return CONSTANTS[node.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _call_function(node.func.id, [_evaluate_node(argument) for argument in node.args])
    raise ToolError(f"{ast.unparse(node)[:60]} is no arithmetic; known functions: {', '.join(sorted(FUNCTIONS))}")


def _call_function(name: str, values: Sequence[Any]) -> Any:
    """Call one of the known functions. Raises ToolError if it is unknown, or its value would be too large."""
    if name == "pow" and len(values) == 2:
        return _compute_power(*values)
    if name in COUNTS:
        if any(value > 2000 for value in values):
            raise ToolError(f"{name} of a number above 2000")
        return getattr(math, name)(*values)
    if name not in FUNCTIONS:
        raise ToolError(
            f"there is no function {name}; there are: {', '.join(sorted(FUNCTIONS))}, factorial, comb, perm"
        )
    return _check_size(FUNCTIONS[name](*values))


def _compute_power(base: Any, exponent: Any) -> Any:
    """Return base ** exponent. Raises ToolError for a result that is complex or too large.

    The size is estimated before the computation, which could otherwise fill memory.
    """
    is_integer = isinstance(base, int) and isinstance(exponent, int) and exponent > 0
    if is_integer and base.bit_length() * exponent > MAX_BITS:
        raise ToolError("the power is too large")
    value = base**exponent
    if isinstance(value, complex):
        raise ToolError("the power is no real number")
    return value


def _check_size(value: Any) -> Any:
    """Return the value. Raises ToolError for an integer of more than MAX_BITS bits."""
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ToolError("the number is too large")
    return value
