"""Scopes: the import namespace of a folder of user code, in which files import modules next to them.

Invariant: in a file of folder F, `import helpers` means F/helpers.py at load time and inside later calls. A file of
another folder gets its own. `sys.path` and the imports of libraries stay unchanged. A folder is a package named by its
real path. The modules live below that package, and their `__import__` searches the package first. A file that the
ordinary import finds is imported ordinarily, so no file is loaded twice. `ajet` always means the running ajet.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

PREFIX = "_ajet_scope_"
_fallbacks: dict[str, tuple[str, ...]] = {}
"""Package name of a scope -> package names of further scopes to search."""
_names: dict[tuple[str, str], str | None] = {}
"""(package, name as written) -> full name: the cache of `_find_own_name`."""


def make_scope(folder: Path, *, fallbacks: Sequence[Path] = ()) -> str:
    """Return the name of the package that stands for a folder of user code. The first call creates the package.

    Args:
        fallbacks: Folders in which imports of its files are looked up afterwards.
    """
    folder = folder.resolve()
    package = PREFIX + hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    if package not in sys.modules:
        if not any(isinstance(finder, _ScopeFinder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _ScopeFinder())
        module = ModuleType(package, f"Modules of {folder}.")
        module.__path__ = [str(folder)]
        sys.modules[package] = module
    fallback_packages = tuple(make_scope(fallback) for fallback in fallbacks if fallback.resolve() != folder)
    known_fallbacks = _fallbacks.get(package, ())
    if new_fallbacks := [fallback for fallback in fallback_packages if fallback not in known_fallbacks]:
        _fallbacks[package] = (*known_fallbacks, *new_fallbacks)
        _names.clear()
    return package


def import_in(package: str, dotted: str) -> ModuleType:
    """Import a dotted name as a file of the scope `package` would. Raises the errors of the imported code."""
    scoped_name = _find_own_name(package, dotted)
    return importlib.import_module(scoped_name if scoped_name is not None else dotted)


def strip_scope(name: str) -> str:
    """Return a module's name as the user knows it, without the package that stands for its folder."""
    return name.partition(".")[2] if name.startswith(PREFIX) else name


class _ScopeFinder:
    """Import finder for modules of user folders. Their own imports search their folder first."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a module in a scope, with a loader that replaces its `__import__`, else None."""
        if not name.startswith(PREFIX) or path is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _ScopeLoader(spec.loader.name, spec.loader.path)
        return spec


class _ScopeLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        """Run the module with an `__import__` that searches the module's folder first."""
        package = module.__name__.partition(".")[0]
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _make_import_function(package)}
        super().exec_module(module)


def _make_import_function(package: str) -> Any:
    """Return an `__import__` for files of a scope: it looks into their folder first, then imports as usual."""

    def scoped_import(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Import as the built-in `__import__` does, but a module of the scope's folder first."""
        scoped_name = _find_own_name(package, name) if level == 0 else None
        if scoped_name is None:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if fromlist:
            return builtins.__import__(scoped_name, globals, locals, fromlist, 0)
        importlib.import_module(scoped_name)
        # `import a.b` binds the name `a`, so the module `a` of the folder is returned.
        depth = scoped_name.count(".") - name.count(".")
        return sys.modules[".".join(scoped_name.split(".")[: depth + 1])]

    return scoped_import


def _find_own_name(package: str, dotted: str) -> str | None:
    """Return the full name of a module in the scope's folder, or None if the ordinary import applies. Cached."""
    if (package, dotted) not in _names:
        _names[package, dotted] = _look_up_own_name(package, dotted)
    return _names[package, dotted]


def _look_up_own_name(package: str, dotted: str) -> str | None:
    """Return the name under which `dotted` is imported from the user's own folder, or None to import it as usual."""
    top, _, submodule = dotted.partition(".")
    if top in sys.builtin_module_names or top == "ajet":  # a clone of AgentJet has a package of that name
        return None
    ordinary = _find_ordinary_spec(top)
    for candidate in (package, *_fallbacks.get(package, ())):
        spec = PathFinder.find_spec(f"{candidate}.{top}", sys.modules[candidate].__path__)
        if spec is None:
            continue
        if spec.loader is not None:  # a module or a package with an __init__.py
            is_ordinary = (
                ordinary is not None and ordinary.origin is not None and _is_same_file(ordinary.origin, spec.origin)
            )
            return None if is_ordinary else f"{candidate}.{dotted}"
        if ordinary is None:
            return f"{candidate}.{dotted}"
        # A library wins over a folder without __init__.py. Another such folder wins only if it is the same folder.
        scoped_locations = [str(Path(location).resolve()) for location in spec.submodule_search_locations or ()]
        ordinary_locations = [str(Path(location).resolve()) for location in ordinary.submodule_search_locations or ()]
        if ordinary.loader is None and not set(scoped_locations) & set(ordinary_locations):
            part = submodule.partition(".")[0]
            if any(Path(location, part + end).exists() for location in scoped_locations for end in ("", ".py")):
                return f"{candidate}.{dotted}"
    return None


def _is_same_file(one: str, other: str | None) -> bool:
    """Return True if both paths lead to the same file."""
    return other is not None and Path(one).resolve() == Path(other).resolve()


def _find_ordinary_spec(top: str) -> ModuleSpec | None:
    """Return the spec that an ordinary import of a top-level name finds, or None."""
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # __main__ and the like have no spec
        return None
