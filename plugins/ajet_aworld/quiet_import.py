"""Keeps AWorld's import from changing the process, by loaders of its own for two of its modules.

By default its import removes all loguru sinks, adds its own, writes eight files into `./logs`, and runs `pip install`
for a missing package. Invariant: once `packages.install_finders` ran, sinks stay, log lines of AWorld's modules are
dropped, lines of other modules through AWorld's logger go to loguru unchanged, and a missing package is an ImportError.
With AWORLD_LOG_PATH AWorld's files and lines appear as usual, and the other sinks stay.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

LOGS = "aworld.logs.util"
INSTALLER = "aworld.utils.import_package"
CHANGING_MODULES = (LOGS, INSTALLER)
FILES = "AWORLD_LOG_PATH"
"""AWorld's environment variable: the folder of its log files."""
_LEVELS = {"warn": "WARNING", "exception": "ERROR", "fatal": "CRITICAL"}
_NAMES = ("trace", "debug", "info", "success", "warning", "error", "critical", *_LEVELS)


def find_quiet_spec(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    """Return the spec of one of the `CHANGING_MODULES`, with a loader that keeps its import quiet."""
    spec = PathFinder.find_spec(name, path, target)
    if spec is not None and type(spec.loader) is SourceFileLoader:
        spec.loader = _Loader(spec.loader.name, spec.loader.path)
    return spec


class _Loader(SourceFileLoader):
    """Loader of the two modules whose import changes the process: it undoes or replaces the changes."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, then replace its installer of packages, or its loggers unless AWorld shall write its log
        files."""
        if module.__name__ == INSTALLER:
            super().exec_module(module)
            module.import_package = _import_package  # type: ignore[attr-defined]
            return
        with _keep_sinks():
            super().exec_module(module)
        if not os.environ.get(FILES):
            from loguru import logger

            logger.disable("aworld")
            for name, value in list(vars(module).items()):
                if isinstance(value, module.AWorldLogger):
                    setattr(module, name, _Lines(value))


@contextmanager
def _keep_sinks() -> Iterator[None]:
    """Undo changes of loguru's sinks by this thread's import. Changes by other threads take effect."""
    from loguru import logger

    add_sink, remove_sink, writes_files = logger.add, logger.remove, bool(os.environ.get(FILES))
    import_thread = threading.get_ident()

    def remove_foreign(handler_id: int | None = None) -> None:
        """Remove a sink, but ignore the import's request to remove all sinks."""
        if handler_id is not None or threading.get_ident() != import_thread:
            remove_sink(handler_id)

    def add_foreign(*args: Any, **kwargs: Any) -> int:
        """Add a sink, but ignore a sink that the import adds."""
        return -1 if threading.get_ident() == import_thread else add_sink(*args, **kwargs)

    shadow: Any = logger
    shadow.remove = remove_foreign
    if not writes_files:
        shadow.add = add_foreign
    try:
        yield
    finally:
        del shadow.remove
        if not writes_files:
            del shadow.add


class _Lines:
    """Replaces one of AWorld's loggers: drops lines of AWorld's modules and logs those of others."""

    def __init__(self, original: Any) -> None:
        """Wrap one of AWorld's loggers."""
        self._original_stream = original

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of AWorld's logger."""
        return getattr(self._original_stream, name)


def _make_log_method(name: str) -> Any:
    """Return a method that logs a value with the level of this name, unless a module of AWorld called it."""
    level = _LEVELS.get(name, name.upper())

    def log_value(self: _Lines, value: Any = "", *args: Any, **kwargs: Any) -> None:
        """Log a value through loguru under the caller's module, unless the caller is a module of AWorld."""
        if not sys._getframe(1).f_globals.get("__name__", "").startswith("aworld."):
            from loguru import logger

            logger.opt(depth=1).log(level, "{}", value)

    return log_value


for _name in _NAMES:
    setattr(_Lines, _name, _make_log_method(_name))


def _import_package(
    package_name: str, alias: str = "", install_name: str = "", *args: Any, **kwargs: Any
) -> ModuleType:
    """Import a package in place of AWorld's function, which would install a missing one. Raises ImportError instead."""
    try:
        return importlib.import_module(package_name)
    except ImportError as error:
        raise ImportError(
            f"AWorld needs the package {install_name or package_name}: install it yourself, because ajet lets no "
            "package install others"
        ) from error
