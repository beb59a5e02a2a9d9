"""Comparisons in a judge's or an agent's code that are never true, because their sides are of different kinds.

Invariant: only what the code and a played episode show is told: each side's kind follows from a conversion, or from the
value that was there; a side whose kind is not known is compared with nothing.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ajet.commands.own_frames import OwnFrame
from ajet.config.references import resolve_reference
from ajet.config.schema.choices import is_reference

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.schema.episode import Episode

_CALLS = {"str": "text", "repr": "text", **dict.fromkeys(("int", "float", "round", "abs", "len", "sum"), "a number")}
_TEXT_METHODS = frozenset(
    ("strip", "lstrip", "rstrip", "lower", "upper", "casefold", "title", "replace", "removeprefix", "removesuffix")
)
_TEXTS = frozenset({"content", "output_text", "main_query"})
"""Attributes that are text, of a reply and of a task."""
_WHOLE = {
    "task": 'a task; its columns are in `metadata["…"]`',
    "output": 'an output; its answer is in `metadata["final_answer"]`',
}
_DEEPEST = 8


def comparison_hints(experiment: Experiment, episode: Episode) -> list[str]:
    """Return what to say of comparisons that are never true, by the values of a played episode."""
    named = (
        (experiment.ajet.task_judge.judge_protocol, "compute_reward", ("task", "output")),
        (experiment.ajet.rollout.user_workflow, "execute", ("task", "tuner")),
    )
    hints: list[str] = []
    for reference, method, roles in named:
        if isinstance(reference, str) and is_reference(reference):
            found = resolve_reference(reference, base=experiment.base)
            function = getattr(found, method, None) if isinstance(found, type) else found
            if callable(function):
                hints += _hints_of(function, isinstance(found, type), roles, episode)
    return hints


def _hints_of(function: Callable[..., Any], method: bool, roles: tuple[str, str], episode: Episode) -> list[str]:
    code = inspect.unwrap(function)
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):  # of no file, or a part of a line
        return []
    body = tree.body[0]
    if not isinstance(body, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    parameters = [each.arg for each in (*body.args.posonlyargs, *body.args.args)][method:]
    values = {"task": episode.task.metadata, "output": episode.metadata}
    sides = _Sides(dict(zip(parameters, roles, strict=False)), _assigned(body), values)
    hints = []
    for left, right, line in _comparisons(body):
        one, other = sides.kind_of(left), sides.kind_of(right)
        if one is not None and other is not None and one.kind != other.kind:
            place = OwnFrame(code.__code__.co_filename, first + line - 1, "", "").place
            hints.append(
                f"{place} compares `{ast.unparse(left)}` ({one}) with `{ast.unparse(right)}` ({other}): they are never "
                f"equal. {_explain_cure(one, other)}"
            )
    return hints


def _explain_cure(one: _Side, other: _Side) -> str:
    """Return what makes two sides comparable: a number in a box is taken out first."""
    if "\\boxed" in str(one) or "\\boxed" in str(other):
        return "Take the number out of \\boxed{…} first, then convert one, as in float(…)"
    return "Convert one, as in str(…) or float(…)"


def _comparisons(body: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, int]]:
    """Yield both sides and the line of each == and !=; those with a constant may be guards, true of other rows."""
    for node in ast.walk(body):
        if isinstance(node, ast.Compare):
            left = node.left
            for operator, right in zip(node.ops, node.comparators, strict=True):
                constant = isinstance(left, ast.Constant) or isinstance(right, ast.Constant)
                if isinstance(operator, ast.Eq | ast.NotEq) and not constant:
                    yield left, right, node.lineno
                left = right


def _assigned(body: ast.AST) -> dict[str, ast.expr]:
    """Return the value of each name that is assigned once."""
    values: dict[str, list[ast.expr | None]] = {}
    for node in ast.walk(body):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            values.setdefault(node.id, []).append(None)
    for node in ast.walk(body):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id].append(node.value)
    return {name: told[1] for name, told in values.items() if len(told) == 2 and told[1] is not None}


@dataclass(frozen=True)
class _Side:
    """One side of a comparison. `shown`: its value in the episode, if it is known."""

    kind: str
    shown: str = ""

    def __str__(self) -> str:
        return f"{self.kind}, as {self.shown}" if self.shown else self.kind


@dataclass(frozen=True)
class _Sides:
    """Finds the kind of an expression. `roles`: of parameters; `values`: the metadata of each role in the episode."""

    roles: Mapping[str, str]
    assigned: Mapping[str, ast.expr]
    values: Mapping[str, Mapping[str, Any]]

    def kind_of(self, side: ast.expr) -> _Side | None:
        """Return the kind of a side; None where it is not known."""
        side = self._resolve(side)
        if isinstance(side, ast.JoinedStr):
            return _Side("text")
        if isinstance(side, ast.Name):
            role = self.roles.get(side.id)
            return _Side(_WHOLE[role]) if role in _WHOLE else None
        if isinstance(side, ast.Attribute):
            return _Side("text") if side.attr in _TEXTS else None
        if isinstance(side, ast.Call):
            if isinstance(side.func, ast.Name):
                return _Side(_CALLS[side.func.id]) if side.func.id in _CALLS else None
            if isinstance(side.func, ast.Attribute) and side.func.attr in _TEXT_METHODS:
                return _Side("text")
        return self._kind_of_column(side)

    def _kind_of_column(self, side: ast.expr) -> _Side | None:
        """Return the kind of `task.metadata["x"]` and the like, by the value that stood there."""
        if isinstance(side, ast.Subscript):
            owner, key = side.value, side.slice
        elif (
            isinstance(side, ast.Call)
            and isinstance(side.func, ast.Attribute)
            and side.func.attr == "get"
            and side.args
        ):
            owner, key = side.func.value, side.args[0]
        else:
            return None
        owner = self._resolve(owner)
        if not (isinstance(owner, ast.Attribute) and owner.attr == "metadata" and isinstance(key, ast.Constant)):
            return None
        root: ast.expr = owner
        while isinstance(root, ast.Attribute):
            root = self._resolve(root.value)
        role = self.roles.get(root.id) if isinstance(root, ast.Name) else None
        return _kind_of_value(self.values.get(role or "", {}).get(str(key.value)))

    def _resolve(self, side: ast.expr) -> ast.expr:
        for _ in range(_DEEPEST):
            if not (isinstance(side, ast.Name) and side.id in self.assigned):
                break
            side = self.assigned[side.id]
        return side


def _kind_of_value(value: Any) -> _Side | None:
    names = {str: "text", bool: "a number", int: "a number", float: "a number", list: "a list", dict: "an object"}
    kind = names.get(type(value))
    return None if kind is None else _Side(kind, f"{value!r:.40}")
