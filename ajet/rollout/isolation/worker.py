"""The other side of `process`: a program that runs one attempt after the other.

Invariant: it holds no key but those of the attempt at hand, asks for them over its pipe, and kills its own process
group when the process that started it is gone. Started as `python -m ajet.rollout.isolation.worker CONNECTION LIFE`.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
from collections.abc import Collection
from multiprocessing.connection import Connection
from typing import Any

from ajet.config import resolve_reference
from ajet.rollout.attempt import is_plain, perform, perform_plain
from ajet.rollout.failure import EpisodeFailed, Stage, classify, failed
from ajet.rollout.isolation.process import Home
from ajet.rollout.isolation.thread import DaemonThreads
from ajet.schema.endpoint import Endpoint
from ajet.schema.episode import Failure
from ajet.schema.task import WorkflowTask


class FarEndpoints:
    """The schema's `Endpoints`, answered by the process that holds the session."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str | None], Endpoint] = {}

    def __call__(self, agent_name: str, target_tag: str, debug_model: str | None) -> Endpoint:
        """Ask once, then remember."""
        asked = (agent_name, target_tag, debug_model)
        with self._lock:
            if asked not in self._known:
                self._known[asked] = self.ask("endpoint", asked)
            return self._known[asked]

    def ask(self, kind: str, value: Any) -> Any:
        """One question, one answer. Raises EpisodeFailed."""
        self._connection.send((kind, value))
        good, answer = self._connection.recv()
        if good == "ok":
            return answer
        raise EpisodeFailed(answer) if isinstance(answer, Failure) else failed("endpoint", answer, boundary="ajet")


class FarAttempt:
    """What `perform` needs of an Attempt, on this side."""

    def __init__(self, workflow_class: type[Any], task: WorkflowTask, config: Any, endpoints: FarEndpoints) -> None:
        self.workflow_class, self.task, self.config = workflow_class, task, config
        self.stage: Stage = "construct"
        self._endpoints = endpoints

    def open(self, trainable: Collection[str] | None) -> FarEndpoints:
        """Have the session opened."""
        self.stage = "open"
        self._endpoints.ask("open", list(trainable) if trainable else None)
        self.stage = "execute"
        return self._endpoints


async def _perform(attempt: FarAttempt) -> Any:
    asyncio.get_running_loop().set_default_executor(DaemonThreads())
    return await perform(attempt)


def _outcome(home: Home, connection: Connection, task: WorkflowTask, config: Any) -> tuple[str, Any]:
    attempt: FarAttempt | None = None
    try:
        workflow_class = resolve_reference(home.reference, base=home.base, what="ajet.rollout.user_workflow")
        attempt = FarAttempt(workflow_class, task, config, FarEndpoints(connection))
        return "output", perform_plain(attempt) if is_plain(attempt) else asyncio.run(_perform(attempt))
    except BaseException as problem:  # noqa: BLE001 - the border where user code runs
        return "failed", classify(problem, attempt.stage if attempt else "construct")


def main() -> None:
    """Serve until the pipe closes."""
    connection = Connection(int(sys.argv[1]))
    threading.Thread(target=_die_with_parent, args=(int(sys.argv[2]),), daemon=True).start()
    home: Home = connection.recv()
    while True:
        try:
            task, config = connection.recv()
        except EOFError:
            return
        outcome = _outcome(home, connection, task, config)
        sys.stdout.flush()
        try:
            message = pickle.dumps(outcome)
        except (pickle.PicklingError, TypeError, AttributeError) as problem:
            message = pickle.dumps(
                ("failed", failed("wrong_type", f"the output cannot leave its process: {problem}").failure)
            )
        connection.send_bytes(message)


def _die_with_parent(life: int) -> None:
    os.read(life, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
