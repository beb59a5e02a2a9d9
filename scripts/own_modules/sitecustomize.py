"""Import modules of ours from one checkout only, in every Python process that inherits this folder on PYTHONPATH.

The environment is shared by both compared versions and has one of them installed. So a name of ours that the checkout
in AJET_CHECKOUT lacks is an error, never the installed version's. `PYTHONPATH` alone would not hold that: a module
that only the installed version has would be found there.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

NAMES = ("ajet", "train", "env")
"""Top-level packages of ours, beside those of plug-ins, which begin with ajet_."""


class CheckoutFinder:
    """Finds top-level modules of ours below one checkout, and refuses them elsewhere."""

    def __init__(self, checkout: str) -> None:
        plugins = os.path.join(checkout, "plugins")
        nested = sorted(entry.path for entry in os.scandir(plugins) if entry.is_dir()) if os.path.isdir(plugins) else []
        self._folders = [checkout, plugins, *nested]
        self._checkout = checkout

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a top-level module of ours; None for any other module."""
        if "." in name or not (name in NAMES or name.startswith("ajet_")):
            return None
        spec = PathFinder.find_spec(name, self._folders)
        if spec is None:
            raise ModuleNotFoundError(f"{name} is not in the compared checkout {self._checkout}", name=name)
        return spec


if "AJET_CHECKOUT" in os.environ:
    sys.meta_path.insert(0, CheckoutFinder(os.environ["AJET_CHECKOUT"]))  # type: ignore[arg-type]
