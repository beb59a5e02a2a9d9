"""Context managers that plug-ins put around a run (`Plugin.run_hooks`), such as the services of its YAML.

Invariant: hooks are entered before anything of the run is loaded, and left after it, whatever ends it. One that cannot
be loaded is named in a warning, since the run may not need it; one that raises a UserError ends the run.
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
    """What a plug-in puts around each command that plays episodes, `--dry-run` included."""

    def __call__(
        self, experiment: Experiment, folder: Path, flags: Sequence[str], prefix: str
    ) -> AbstractContextManager[str]:
        """Return the context manager, which yields what it started, in words: "" for nothing.

        Args:
            folder: where its files go; it may not exist yet.
            flags: NAME of each `--with-NAME`, the name of a service.
            prefix: text before the names of its log files (`--prefix`).
        """
        ...


@contextmanager
def enter_run_hooks(
    experiment: Experiment, folder: Path, flags: Sequence[str] = (), prefix: str = ""
) -> Iterator[list[str]]:
    """Enter all hooks and yield what they started, in words. Raises UserError."""
    with ExitStack() as stack:
        hooks: Iterator[RunHook] = load_references("run_hooks", "run hook")
        started = [stack.enter_context(hook(experiment, folder, flags, prefix)) for hook in hooks]
        yield [each for each in started if each]
