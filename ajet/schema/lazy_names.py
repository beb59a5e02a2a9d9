"""Load names of a package at first use, so that a run imports only the needed modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def load_lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of `package`, for names imported only for type checkers.

    Args:
        package: The package's name.
        modules: A module of the package, and its names separated by commas; `NAME:OTHER` is exported as OTHER.
    """
    places = {
        each.rpartition(":")[2]: (module, each) for module, names in modules.items() for each in names.split(", ")
    }

    def load_name(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, defined_as = places[name]
        return getattr(import_module(f"{package}.{module}"), defined_as.partition(":")[0])

    return load_name
