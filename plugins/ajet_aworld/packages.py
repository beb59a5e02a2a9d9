"""The packages `train` and `env`, by whose names AWorld's pages import what is in this room.

Invariant: after `watch` they are found where nothing else has the name, and before the `train` of AWorld's wheel, which
stays importable below ours. A `train` or `env` of a user's own, installed or not, is theirs; what such a package does
not have is found here (a single file `train.py` has nothing below it: it hides ours). The path is left as it is;
`ajet aworld path` is for programs that ajet does not start.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from ajet.config.scope import spelled

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = ("site-packages", "dist-packages")
_NAMES = ("train", "env")


def find_folder() -> Path:
    """The folder of the names: in this package in a wheel, the root of the repository in a checkout."""
    inside = _PACKAGE / "names"
    return inside if inside.is_dir() else _PACKAGE.parents[1]


def install_finders() -> None:
    """Resolve AWorld's names from now on. Idempotent."""
    if not any(isinstance(finder, _FirstFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FirstFinder())
        sys.meta_path.append(_LastFinder())


class _FirstFinder:
    """Asked first: for `train`, where the ordinary one is that of AWorld's wheel."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "train" or path is not None:
            return None
        found = PathFinder.find_spec(name)
        if found is None or found.origin is None:
            return None
        place = Path(found.origin).parent.parent
        theirs = place.name in _INSTALLED and (place / "aworld").is_dir()
        return PathFinder.find_spec(name, [str(find_folder())]) if theirs else None


class _LastFinder:
    """Asked last: for a name that nobody has, and for what a package of a user's own with that name does not have."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if path is None:
            return PathFinder.find_spec(name, [str(find_folder())]) if name in _NAMES else None
        parent, _, _ = spelled(name).rpartition(".")
        if parent.partition(".")[0] not in _NAMES:
            return None
        return PathFinder.find_spec(name, [str(find_folder().joinpath(*parent.split(".")))], target)


def load_hidden(module: ModuleType, name: str) -> Any:
    """The attribute `name` of AWorld's own file of the module's name. Raises AttributeError."""
    package, _, stem = module.__name__.rpartition(".")
    for place in sys.modules[package].__path__:
        file = Path(place) / f"{stem}.py"
        if file.is_file() and str(file) != module.__file__:
            own = f"{package}._{stem}_of_aworld"
            if own not in sys.modules:
                spec = spec_from_loader(own, SourceFileLoader(own, str(file)))
                assert spec is not None and spec.loader is not None
                sys.modules[own] = made = module_from_spec(spec)
                spec.loader.exec_module(made)
            return getattr(sys.modules[own], name)
    raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
