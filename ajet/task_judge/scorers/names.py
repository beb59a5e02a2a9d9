"""Registry of scorers: built-in ones and those registered by user code.

Invariant: a name means the user's registration, else the built-in scorer; an unknown name is one error with the known
names.
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
"""Alternative scorer names of AgentRL."""


def scorer(name: str) -> Callable[[F], F]:
    """Register the decorated function or class as a scorer, for `task_judge.scorer` and a row's `scorer`.

    A later registration replaces an earlier one of the same name. Parameter names are listed in `call.ARGUMENTS`.
    """

    def register(function: F) -> F:
        _registered[name] = function
        return function

    return register


class MCPScorerFactory:
    """AgentRL's name for `scorer`, so its scorer files register unchanged."""

    @overload
    @staticmethod
    def register_scorer(name: str) -> Callable[[F], F]: ...

    @overload
    @staticmethod
    def register_scorer(name: str, scorer_func: F) -> F: ...

    @staticmethod
    def register_scorer(name: str, scorer_func: Any = None) -> Any:
        """Return a decorator that registers a scorer; with a function as the second argument, register the function."""
        return scorer(name) if scorer_func is None else scorer(name)(scorer_func)


def list_scorers() -> list[str]:
    """Return the names of all known scorers."""
    return sorted({*find_parts("scorer"), *_registered})


def find_scorer(named: str, *, base: Path, key: str, user_references: tuple[str, ...] = ()) -> Any:
    """Return the function or class of a scorer.

    Args:
        named: Name of a scorer, or a reference such as `scorer.py->my_scorer`.
        base: Folder of relative references.
        key: Key or field that contains the name, for errors.
        user_references: references to user code that may register the scorer, imported for names that are not built in.

    Raises:
        ConfigError: the name is unknown.
        UnresolvedReferenceError: the reference names nothing.
    """
    if is_reference(named):
        return resolve_reference(named, base=base, key=key)
    plugin_part = find_part("scorer", _OLDER.get(named, named))
    if plugin_part is None:
        for reference in user_references:
            resolve_reference(reference, base=base, key="ajet.rollout.user_workflow")
    if named in _registered:
        return _registered[named]
    if plugin_part is not None:
        return load_code(plugin_part.code)
    similar_names = get_close_matches(named, list_scorers(), 1)
    raise ConfigError(
        f"There is no scorer named {named}.",
        where=key,
        expected=f"one of {', '.join(list_scorers())}, or a reference such as scorer.py->my_scorer",
        do=f"did you mean {similar_names[0]}?"
        if similar_names
        else 'register the scorer with @scorer("NAME") in the file of the workflow',
    )


def is_scorer(named: str, *, base: Path, user_references: tuple[str, ...] = ()) -> bool:
    """Return True for the name of a known scorer; False for a reference and an unknown name.

    Args:
        user_references: References to user code that may register the scorer.
    """
    if is_reference(named):
        return False
    try:
        find_scorer(named, base=base, key="", user_references=user_references)
    except (ConfigError, UnresolvedReferenceError):
        return False
    return True
