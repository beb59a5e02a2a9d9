"""Backbones by their names: those that ship with ajet, and those that a plug-in of another distribution brings.

Invariant: no backbone is known by name here. A backbone is a name rather than a file because it reaches the command
line, other processes and the reader of a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from ajet.config.backbones import Descriptor
from ajet.config.plugin import Part, load_code
from ajet.config.plugins import describe_broken, find_all_parts, find_part, find_parts
from ajet.schema.errors import ConfigError


@lru_cache(maxsize=1)
def shipped() -> Mapping[str, Descriptor]:
    """The backbones that come with ajet, by name."""
    return {name: _load(name, part) for name, part in find_parts("backbone").items()}


def described(name: str) -> Descriptor:
    """The backbone of this name. Raises ConfigError where there is none, or its package is broken."""
    part = find_part("backbone", name)
    if part is None:
        names = [*find_all_parts("backbone")]
        near = get_close_matches(name, names, 1)
        broken = f". {reason}" if (reason := describe_broken()) else ""
        raise ConfigError(
            f"ajet.backbone is {name!r}.",
            expected=f"one of {', '.join(names)}, or one that an installed package brings{broken}",
            do=f"did you mean {near[0]}?" if near else "",
        )
    return _load(name, part)


def owner_of(state: Mapping[str, Any]) -> Descriptor | None:
    """The backbone in whose own form a checkpoint is: the one whose name its state has an entry of. None: it is in
    Hugging Face layout. Raises ConfigError where the package is broken."""
    name = next((name for name in find_parts("backbone") if name in state), None)
    if name is None:
        name = next((name for name in find_all_parts("backbone") if name in state), None)
    return described(name) if name is not None else None


def _load(name: str, part: Part) -> Descriptor:
    try:
        found: Any = load_code(part.code)
    except Exception as problem:  # the package's code runs here, it may raise anything
        raise ConfigError(
            f"The backbone {name} cannot be loaded: {type(problem).__name__}: {problem}",
            where=part.code,
            do="mend or remove the package that brings it",
        ) from problem
    if not isinstance(found, Descriptor) or found.name != name:
        raise ConfigError(
            f"The backbone {name} is described by {found!r}.",
            where=part.code,
            expected=f"ajet.config.backbones.Descriptor(name={name!r}, …)",
        )
    return found
