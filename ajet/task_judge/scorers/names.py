"""Scorers by name: those that come with ajet, and those that the user's code registers.

Invariant: a name means what the user registered under it, else what comes with ajet; what is neither is one error that
lists the known ones.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, overload

from ajet.config.plugin import load_code
from ajet.config.plugins import find_part, find_parts
from ajet.config.references import resolve_reference
from ajet.config.schema.choices import is_reference
from ajet.schema.errors import ConfigError, UnresolvedReferenceError

F = TypeVar("F", bound=Callable[..., Any])
_registered: dict[str, Callable[..., Any]] = {}
_OLDER = {"asearcher": "agentcpm"}
"""AgentRL's other name of one."""


def scorer(name: str) -> Callable[[F], F]:
    """Register the decorated function (or class) under a name, for `task_judge.scorer` and a row's `scorer`. A later
    one of the same name takes its place. What its parameters may be called says `call.ARGUMENTS`."""

    def keep(function: F) -> F:
        _registered[name] = function
        return function

    return keep


class MCPScorerFactory:
    """AgentRL's name for the same."""

    @overload
    @staticmethod
    def register_scorer(name: str) -> Callable[[F], F]: ...

    @overload
    @staticmethod
    def register_scorer(name: str, scorer_func: F) -> F: ...

    @staticmethod
    def register_scorer(name: str, scorer_func: Any = None) -> Any:
        """`@MCPScorerFactory.register_scorer(name)`, or with the function as the second argument."""
        return scorer(name) if scorer_func is None else scorer(name)(scorer_func)


def list_scorers() -> list[str]:
    """The names of all scorers that are known."""
    return sorted({*find_parts("scorer"), *_registered})


def find_scorer(named: str, *, base: Path, what: str, others: tuple[str, ...] = ()) -> Any:
    """What a name or a reference means; `what`: the key or field that holds it. `others`: references to code of the
    user's that may register it, imported for a name that does not come with ajet. Raises ConfigError,
    UnresolvedReferenceError."""
    if is_reference(named):
        return resolve_reference(named, base=base, what=what)
    part = find_part("scorer", _OLDER.get(named, named))
    if part is None:
        for reference in others:
            resolve_reference(reference, base=base, what="ajet.rollout.user_workflow")
    if named in _registered:
        return _registered[named]
    if part is not None:
        return load_code(part.code)
    near = get_close_matches(named, list_scorers(), 1)
    raise ConfigError(
        f"There is no scorer {named}.",
        where=what,
        expected=f"one of {', '.join(list_scorers())}, or a reference such as scorer.py->my_scorer",
        do=f"did you mean {near[0]}?" if near else 'register it with @scorer("NAME") in the file of the workflow',
    )


def is_scorer(named: str, *, base: Path, others: tuple[str, ...] = ()) -> bool:
    """Whether it is the name of one; a reference is none."""
    if is_reference(named):
        return False
    try:
        find_scorer(named, base=base, what="", others=others)
    except (ConfigError, UnresolvedReferenceError):
        return False
    return True
