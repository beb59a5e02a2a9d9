"""Functions where a reference may name a class: an agent `(task, tuner)`, a judge `(task, output)`.

Invariant: a function that cannot be called with its two arguments is one UserError where the reference is resolved, not
a failure of each episode; whoever makes a class of one asks `require_callable_with` first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from ajet.schema.errors import ConfigError


def is_function(found: Any) -> TypeGuard[Callable[..., Any]]:
    """Whether what a reference named is a function, or anything else that is called as one."""
    return callable(found) and not isinstance(found, type)


def require_callable_with(function: Callable[..., Any], names: Sequence[str], *, what: str, reference: str) -> None:
    """Raises ConfigError unless `function` takes as many arguments by position as there are `names`, which are what
    they are called in the words of the error. `what`: the key that holds the `reference`."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of C, and silent on what it takes
        return
    try:
        signature.bind(*names)
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        wanted = f"({', '.join(names)})"
        raise ConfigError(
            f"{what}: {reference} is a function of {signature}, and is called with {wanted}.",
            where=_place(function) or what,
            expected=f"a function that takes these {len(names)}, by position",
            do=f"write `def {name}{wanted}:`, with `async` before it if it awaits",
        ) from None


def _place(function: Any) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
