"""Checks that the services of a run answer, before any costly start.

Invariant: all services are requested in parallel, for `WITHIN_S` at most. A service without an answer by then is down.
One UserError states for each such service what failed, where, what was expected and what to do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ajet.client.proxies import explain_problem
from ajet.config.plugin import load_code
from ajet.config.plugins import list_references, load_references
from ajet.config.services import RequiredService
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment


WITHIN_S = 10.0
REQUEST_TIMEOUT_S = 8.0
"""Seconds for one service to answer."""


def list_services(experiment: Experiment) -> list[RequiredService]:
    """Return all services of the experiment, each once."""
    services: list[RequiredService] = []
    for source in list_references("services"):
        list_of_plugin: Callable[[Experiment], Iterable[RequiredService]] = load_code(source)
        services += [
            each
            for each in list_of_plugin(experiment)
            if (each.name, each.address) not in {(f.name, f.address) for f in services}
        ]
    return services


def require_services(experiment: Experiment) -> list[RequiredService]:
    """Check the experiment's services, and return the services. Raises UserError if a service is down."""
    return require_answers(list_services(experiment))


def require_answers(services: list[RequiredService]) -> list[RequiredService]:
    """Check the given services, and return the services. Raises UserError if a service is down."""
    failed = [(service, problem) for service, problem in check_services(services) if problem]
    if failed:
        raise _explain_down(failed)
    return services


def check_services(services: list[RequiredService], within: float = WITHIN_S) -> list[tuple[RequiredService, str]]:
    """Return each service with its problem, or an empty string."""
    answers: list[str | None] = [None] * len(services)

    def ask(index: int, service: RequiredService) -> None:
        try:
            answers[index] = service.find_problem(min(REQUEST_TIMEOUT_S, within))
        except Exception as problem:  # noqa: BLE001 - an exception is the result of its own check only
            reason = explain_problem(problem) or f"{type(problem).__name__}: {problem}"
            answers[index] = f"the request failed: {reason}"

    threads = [
        threading.Thread(target=ask, args=(index, service), name="ajet-ask", daemon=True)
        for index, service in enumerate(services)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + within
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = f"no answer within {within:g} s"
    return [(service, late if answer is None else answer) for service, answer in zip(services, answers, strict=True)]


def _explain_down(wrong: list[tuple[RequiredService, str]]) -> UserError:
    (first, reason), *others = wrong
    if not others:
        message = f"The {first.name} at {first.address} cannot be reached: {reason}"
        return UserError(message, where=first.key, expected=first.expected, do=first.do)
    rows = [
        f"the {each.name} at {each.address}: {reason}\n      where    {each.key}\n      expected {each.expected}\n"
        f"      do       {each.do}"
        for each, reason in wrong
    ]
    return UserError(
        f"{len(wrong)} services cannot be reached:\n    " + "\n    ".join(rows), do="start them, or correct these keys"
    )


# Context managers of plug-ins around a run (`Plugin.run_hooks`), such as the services of the YAML.
# Invariant: hooks are entered before any part of the run is loaded, and left after the run, whatever ends the run.
# A hook that cannot be loaded only causes a warning, since the run may not need the hook. A UserError of a hook
# ends the run.
class RunHook(Protocol):
    """A context that plug-ins put around each command that runs episodes, including `--dry-run`."""

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
