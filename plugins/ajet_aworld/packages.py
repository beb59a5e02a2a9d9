"""The packages `train` and `env`, imported by AWorld's pages.

Invariant: after `install_finders` they are found if no other package has the name, and before the `train` of AWorld's
wheel, which remains importable below. A user's own `train` or `env`, installed or not, has priority; modules missing in
it are found here (a single file `train.py` has no modules below it: it hides ajet's). sys.path is unchanged; `ajet
aworld path` is for programs not started by ajet.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from ajet.config.scope import strip_scope
from ajet_aworld.quiet_import import CHANGING_MODULES, find_quiet_spec

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = ("site-packages", "dist-packages")
_NAMES = ("train", "env")


def find_folder() -> Path:
    """Return the folder of the packages: in this package in a wheel, the root of the repository in a checkout."""
    wheel_folder = _PACKAGE / "names"
    return wheel_folder if wheel_folder.is_dir() else _PACKAGE.parents[1]


def install_finders() -> None:
    """Make AWorld's names importable, and its import quiet. Idempotent.

    ajet calls it in each process before user code is imported, and so does a script's import of `train` or of
    `ajet_aworld.agent_loop`. `import ajet` alone changes nothing.
    """
    if not any(isinstance(finder, _FirstFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FirstFinder())
        sys.meta_path.append(_LastFinder())


class _FirstFinder:
    """Import finder before all others: ajet's `train` instead of the one in AWorld's wheel, and quiet modules."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a module that AWorld's wheel must not provide, or must be imported quietly, else None."""
        if name in CHANGING_MODULES:
            return find_quiet_spec(name, path, target)
        if name != "train" or path is not None:
            return None
        spec = PathFinder.find_spec(name)
        if spec is None or spec.origin is None:
            return None
        folder = Path(spec.origin).parent.parent
        # A `train` next to the package `aworld` in site-packages is the wheel's, not the user's.
        is_aworlds = folder.name in _INSTALLED and (folder / "aworld").is_dir()
        return PathFinder.find_spec(name, [str(find_folder())]) if is_aworlds else None


class _LastFinder:
    """Import finder after all others: finds ajet's `train` and `env` if no other package has the name.

    It also finds modules that a user's package of the name lacks.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of ajet's `train` or `env`, or of a module in them that a user's package lacks, else None."""
        if path is None:
            return PathFinder.find_spec(name, [str(find_folder())]) if name in _NAMES else None
        parent_name, _, _ = strip_scope(name).rpartition(".")
        if parent_name.partition(".")[0] not in _NAMES:
            return None
        return PathFinder.find_spec(name, [str(find_folder().joinpath(*parent_name.split(".")))], target)


def load_hidden(module: ModuleType, name: str) -> Any:
    """Return an attribute of the AWorld file that ajet's module of the same name hides.

    AWorld's file is loaded under another name at the first call.

    Args:
        module: ajet's module, such as `train.adapter`.
        name: name of the attribute.

    Raises:
        AttributeError: no hidden file exists, or it lacks the attribute.
    """
    package, _, file_stem = module.__name__.rpartition(".")
    for package_folder in sys.modules[package].__path__:
        file = Path(package_folder) / f"{file_stem}.py"
        if file.is_file() and str(file) != module.__file__:
            module_name = f"{package}._{file_stem}_of_aworld"
            if module_name not in sys.modules:
                spec = spec_from_loader(module_name, SourceFileLoader(module_name, str(file)))
                assert spec is not None and spec.loader is not None
                sys.modules[module_name] = hidden_module = module_from_spec(spec)
                spec.loader.exec_module(hidden_module)
            return getattr(sys.modules[module_name], name)
    raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
