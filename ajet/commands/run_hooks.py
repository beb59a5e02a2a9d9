"""Context managers of plug-ins around a run (`Plugin.run_hooks`), such as the services of the YAML.

Invariant: hooks are entered before any part of the run is loaded, and left after the run, whatever ends the run. A hook
that cannot be loaded only causes a warning, since the run may not need the hook. A UserError of a hook ends the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ajet.config.plugins import load_references

if TYPE_CHECKING:
    from ajet.config import Experiment


class RunHook(Protocol):
    """A context around each command that plays episodes, including `--dry-run`."""

    def __call__(
        self, experiment: Experiment, folder: Path, flags: Sequence[str], prefix: str
    ) -> AbstractContextManager[str]:
        """Return a context manager that yields the names of started programs, or "" for none.

        Args:
            folder: Folder for the hook's files. May not exist yet.
            flags: NAME of each `--with-NAME`, the name of a service.
            prefix: Text before the names of log files (`--prefix`).
        """
        ...


@contextmanager
def enter_run_hooks(
    experiment: Experiment, folder: Path, flags: Sequence[str] = (), prefix: str = ""
) -> Iterator[list[str]]:
    """Enter all hooks and yield the names of started programs. Raises UserError."""
    with ExitStack() as stack:
        hooks: Iterator[RunHook] = load_references("run_hooks", "run hook")
        started = [stack.enter_context(hook(experiment, folder, flags, prefix)) for hook in hooks]
        yield [each for each in started if each]
