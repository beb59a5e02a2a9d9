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
    """Return the external services that the experiment needs, each once, by the plug-ins' lists."""
    services: list[RequiredService] = []
    for source in list_references("services"):
        list_required: Callable[[Experiment], Iterable[RequiredService]] = load_code(source)
        services += [
            service
            for service in list_required(experiment)
            if (service.name, service.address) not in {(listed.name, listed.address) for listed in services}
        ]
    return services


def require_services(experiment: Experiment) -> list[RequiredService]:
    """Check the services that the experiment needs, and return them. Raises UserError if one does not answer."""
    return require_answers(list_services(experiment))


def require_answers(services: list[RequiredService]) -> list[RequiredService]:
    """Check these services, and return them. Raises UserError if one does not answer."""
    failed = [(service, problem) for service, problem in check_services(services) if problem]
    if failed:
        raise _explain_down(failed)
    return services


def check_services(services: list[RequiredService], within: float = WITHIN_S) -> list[tuple[RequiredService, str]]:
    """Return each service with its problem, or with "" if it works.

    Args:
        within: Seconds for all services, which are checked in parallel.
    """
    answers: list[str | None] = [None] * len(services)

    def check_service(index: int, service: RequiredService) -> None:
        try:
            answers[index] = service.find_problem(min(REQUEST_TIMEOUT_S, within))
        except Exception as error:  # noqa: BLE001 - an exception is the result of its own check only
            reason = explain_problem(error) or f"{type(error).__name__}: {error}"
            answers[index] = f"the request failed: {reason}"

    threads = [
        threading.Thread(target=check_service, args=(index, service), name="ajet-ask", daemon=True)
        for index, service in enumerate(services)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + within
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late_text = f"no answer within {within:g} s"
    return [
        (service, late_text if answer is None else answer) for service, answer in zip(services, answers, strict=True)
    ]


def _explain_down(wrong: list[tuple[RequiredService, str]]) -> UserError:
    """Return the error for services that do not answer: where, what was expected and what to do for each.

    Args:
        wrong: Each service with its problem.
    """
    (first, reason), *others = wrong
    if not others:
        message = f"The {first.name} at {first.address} cannot be reached: {reason}"
        return UserError(message, where=first.key, expected=first.expected, do=first.do)
    rows = [
        f"the {service.name} at {service.address}: {reason}\n      where    {service.key}\n"
        f"      expected {service.expected}\n      do       {service.do}"
        for service, reason in wrong
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
    """Within the block, keep the plug-ins' hooks around a run open. Yield the names of programs they started.

    Raises:
        UserError: A hook failed, as for a service that does not start.
    """
    with ExitStack() as stack:
        hooks: Iterator[RunHook] = load_references("run_hooks", "run hook")
        started = [stack.enter_context(hook(experiment, folder, flags, prefix)) for hook in hooks]
        yield [names for names in started if names]
