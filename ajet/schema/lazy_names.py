"""Load names of a package at first use, so that a run imports only the needed modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def load_lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for `package` which imports a submodule when one of its names is first used.

    Args:
        package: The package's name.
        modules: Names by submodule, separated by commas; `NAME:OTHER` is exported as OTHER.
    """
    locations = {
        entry.rpartition(":")[2]: (module, entry) for module, names in modules.items() for entry in names.split(", ")
    }

    def load_name(name: str) -> Any:
        if name not in locations:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, defined_as = locations[name]
        return getattr(import_module(f"{package}.{module}"), defined_as.partition(":")[0])

    return load_name
