"""Functions in place of classes in references: an agent `(task, tuner)`, a judge `(task, output)`.

Invariant: a function with unsuitable parameters raises a single UserError at resolution, instead of failing each
episode. Code wrapping a function in a class calls `require_callable_with` first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from ajet.schema.errors import ConfigError

_ROLES = {
    **dict.fromkeys(("task", "workflow_task"), "task"),
    **dict.fromkeys(("tuner", "ajet_tuner", "model_tuner"), "tuner"),
    **dict.fromkeys(("output", "workflow_output"), "output"),
}
"""The role implied by a parameter name."""


def is_function(value: Any) -> TypeGuard[Callable[..., Any]]:
    """Return True for a function or any other callable except classes."""
    return callable(value) and not isinstance(value, type)


def require_callable_with(function: Callable[..., Any], names: Sequence[str], *, key: str, reference: str) -> None:
    """Raise ConfigError unless the function of a reference accepts the arguments `names` by position.

    Args:
        names: The arguments as spelled in the error.
        key: The configuration key with the reference.
        reference: The reference, for the message.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function written in C may have no signature
        return
    try:
        signature.bind(*names)
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        arguments = f"({', '.join(names)})"
        raise ConfigError(
            f"{key}: ajet calls {reference} with the arguments {arguments}, but its signature is {signature}.",
            where=locate_function(function) or key,
            expected=f"a function with {len(names)} positional parameters",
            do=f"write `def {name}{arguments}:`, or `async def` if the function awaits",
        ) from None
    if set(names) <= set(_ROLES):
        require_order(function, names, key=key, reference=reference)


def require_order(
    function: Callable[..., Any], names: Sequence[str], *, key: str, reference: str, method: bool = False
) -> None:
    """Raise ConfigError if the parameter names of a function show that its author had the opposite order in mind.

    Args:
        names: The two arguments, such as ("task", "tuner").
        key: The configuration key with the reference.
        reference: The reference, for the message.
        method: True if the first parameter is `self`.
    """
    parameters = _list_parameters(function).values()
    positional_names = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    argument_names = positional_names[method : method + 2]
    (first, second), roles = [_ROLES[name] for name in names], [_ROLES.get(name) for name in argument_names]
    if len(argument_names) < 2 or (roles[0] != second and roles[1] != first):
        return
    receiver = "self, " if method else ""
    raise ConfigError(
        f"{key}: ajet calls {reference} with the arguments ({', '.join(names)}), but its parameters are "
        f"({', '.join(argument_names)}).",
        where=locate_function(function) or key,
        expected=f"the parameters in the order ({', '.join(names)})",
        do=f"write `def {getattr(function, '__name__', 'agent')}({receiver}{', '.join(reversed(argument_names))}):`",
    )


def _list_parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function by name, or none if it has no signature."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function written in C may have no signature
        return {}


def locate_function(function: Any) -> str:
    """Return file:line of a function's definition, or "" if it was not defined in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
