"""AWorld comes in without a trace, whoever imports it first.

By itself its import removes every sink of loguru, adds some of its own, writes eight files into `./logs`, and where a
package is missing runs `pip install`. Invariant: after `watch` it does none of that: sinks stay
as they are, lines of AWorld's own modules are dropped, those that others write by its logger go to loguru as they are,
and a missing package is an ImportError. Who sets AWORLD_LOG_PATH gets AWorld's own files and lines as ever, and still
keeps the other sinks.

`watch` does it, by a finder that looks at two modules of AWorld's and leaves all others alone.
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
FILES = "AWORLD_LOG_PATH"
"""Environment variable of AWorld's: where its log files go."""
_LEVELS = {"warn": "WARNING", "exception": "ERROR", "fatal": "CRITICAL"}
_NAMES = ("trace", "debug", "info", "success", "warning", "error", "critical", *_LEVELS)


def install_finder() -> None:
    """Keep imports of AWorld quiet from now on. Idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in (LOGS, INSTALLER) or path is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == INSTALLER:
            super().exec_module(module)
            module.import_package = _import_package  # type: ignore[attr-defined]
            return
        with _keep_sinks():
            super().exec_module(module)
        if not os.environ.get(FILES):
            from loguru import logger

            logger.disable("aworld")
            for name, found in list(vars(module).items()):
                if isinstance(found, module.AWorldLogger):
                    setattr(module, name, _Lines(found))


@contextmanager
def _keep_sinks() -> Iterator[None]:
    """Keep the log sinks as they are, from the thread that imports, whose module it is; other threads' sinks come and
    go as ever."""
    from loguru import logger

    add, remove, own = logger.add, logger.remove, bool(os.environ.get(FILES))
    importing = threading.get_ident()

    def remove_foreign(handler_id: int | None = None) -> None:
        if handler_id is not None or threading.get_ident() != importing:
            remove(handler_id)

    def add_foreign(*args: Any, **kwargs: Any) -> int:
        return -1 if threading.get_ident() == importing else add(*args, **kwargs)

    shadow: Any = logger
    shadow.remove = remove_foreign
    if not own:
        shadow.add = add_foreign
    try:
        yield
    finally:
        del shadow.remove
        if not own:
            del shadow.add


class _Lines:
    """One of AWorld's loggers: what its own modules say is dropped, what others say by it is theirs."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _make_log_method(name: str) -> Any:
    level = _LEVELS.get(name, name.upper())

    def log_value(self: _Lines, value: Any = "", *args: Any, **kwargs: Any) -> None:
        if not sys._getframe(1).f_globals.get("__name__", "").startswith("aworld."):
            from loguru import logger

            logger.opt(depth=1).log(level, "{}", value)

    return log_value


for _name in _NAMES:
    setattr(_Lines, _name, _make_log_method(_name))


def _import_package(
    package_name: str, alias: str = "", install_name: str = "", *args: Any, **kwargs: Any
) -> ModuleType:
    """Replaces AWorld's function, which installs what is missing. Raises ImportError."""
    try:
        return importlib.import_module(package_name)
    except ImportError as problem:
        raise ImportError(
            f"AWorld wants the package {install_name or package_name}; install it, ajet lets nothing install itself"
        ) from problem
