"""Adapts Trinity's trainer to a CPU: verl imports this module in each of its processes (`VERL_USE_EXTERNAL_MODULES`).

Trinity 0.6.0 is written for verl 0.8. Invariant: two modules of Trinity are changed, each right after its import. The
first patches verl's engine with a query of CUDA's version, unnecessary in 0.9.1. The second writes keys unknown to verl
0.9.1.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import ajet_verl.cpu.platform  # noqa: F401 - registers verl's platform


class _AfterImport(importlib.abc.MetaPathFinder):
    """Import hook that runs a function on a module right after its import.

    Args:
        then: maps a module's name to the function.
    """

    def __init__(self, then: dict[str, Callable[[Any], None]]) -> None:
        self._on_import = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module that is to be changed, with a loader that changes it after its execution, else
        None."""
        change_module = self._on_import.pop(name, None)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if change_module is not None else None
        if change_module is None or spec is None or spec.loader is None:
            return None
        load_module: Any = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            """Execute the module with its own loader, then change it."""
            load_module(module)
            change_module(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _keep_verls_engine(module: Any) -> None:
    """Replace Trinity's patch of verl's engine by a function that does nothing."""
    module.patch_verl_engine = lambda: None


def _drop_unknown_keys(module: Any) -> None:
    """Make Trinity drop keys that verl's config class does not have, before it builds verl's config."""
    trinity_function = module._inject_targets

    def inject(config: Any, kind: Any, *args: Any, **kwargs: Any) -> None:
        """Drop the keys that verl's config class lacks, then call Trinity's function."""
        for key in set(config) - set(kind.__dataclass_fields__) - {"_target_"}:
            if not key.startswith("log_prob_"):  # those verl renames by itself
                del config[key]
        trinity_function(config, kind, *args, **kwargs)

    module._inject_targets = inject


sys.meta_path.insert(
    0,
    _AfterImport(
        {
            "trinity.trainer.verl.monkey_patch": _keep_verls_engine,
            "trinity.trainer.verl.config": _drop_unknown_keys,
        }
    ),
)
