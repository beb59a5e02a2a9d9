"""Backbones by their names: those that come with ajet, and those that an installed package describes.

Invariant: no backbone is known by name here. Those that come with ajet are handed in (`handed`); any other is described
by an installed package, with an entry point of the group `ajet.backbones`: a name reaches the command line, other
processes and the reader of a record, where a file of the user's would be out of place.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from ajet.config.backbones import Descriptor
from ajet.config.handed import known
from ajet.schema.errors import ConfigError

GROUP = "ajet.backbones"
"""Entry points of packages that bring a backbone: its name, and where its `Descriptor` is."""


def shipped() -> Mapping[str, Descriptor]:
    """The backbones that come with ajet, by name."""
    return known().backbones


def described(name: str) -> Descriptor:
    """The backbone of this name. Raises ConfigError where there is none, or its package is broken."""
    return shipped().get(name) or _installed(name)


def owner_of(state: Mapping[str, Any]) -> Descriptor | None:
    """The backbone in whose own form a checkpoint is: the one whose name its state has an entry of. None: it is in
    Hugging Face layout. Raises ConfigError where the package is broken."""
    from importlib import metadata  # 10 ms, which `ajet --help` has no use for

    installed = metadata.entry_points(group=GROUP).names
    name = next((name for name in (*shipped(), *sorted(installed)) if name in state), None)
    return described(name) if name is not None else None


@lru_cache(maxsize=32)
def _installed(name: str) -> Descriptor:
    from importlib import metadata

    points = metadata.entry_points(group=GROUP)
    if name not in points.names:
        names = [*shipped(), *sorted(points.names)]
        near = get_close_matches(name, names, 1)
        raise ConfigError(
            f"ajet.backbone is {name!r}.",
            expected=f"one of {', '.join(names)}, or one that an installed package brings",
            do=f"did you mean {near[0]}?" if near else "",
        )
    (point, *_) = points.select(name=name)
    try:
        found: Any = point.load()
    except Exception as problem:  # the package's code runs here, it may raise anything
        raise ConfigError(
            f"The backbone {name} cannot be loaded: {type(problem).__name__}: {problem}",
            where=f"{point.value} (entry point of {GROUP})",
            do="mend or remove the package that brings it",
        ) from problem
    if not isinstance(found, Descriptor) or found.name != name:
        raise ConfigError(
            f"The backbone {name} is described by {found!r}.",
            where=f"{point.value} (entry point of {GROUP})",
            expected=f"ajet.config.backbones.Descriptor(name={name!r}, …)",
        )
    return found
