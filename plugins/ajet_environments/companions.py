"""Companions: programs that start before a training run and end after it (`ajet.services` in the YAML).

Invariants: a companion ends with all its child processes when the run ends, even after a kill: a supervisor process
(the keeper) ends them once the run's process is gone. Output goes to a log file in the run's folder. If a service
already answers at the companion's address, the run uses that service and never ends it. The run begins when all
companions are ready, or not at all. A companion that fails during the run is restarted up to `restarts` times.
"""

from __future__ import annotations

import os
import shlex
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from loguru import logger

from ajet.commands.supervised_process import SupervisedProcess, list_variables
from ajet.schema.errors import SandboxFailure, UserError
from ajet_environments.config import Companion, choose_services

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet_environments.confined import ServiceCell


POLL_S = 0.1
CONNECT_TIMEOUT_S = 2.0
"""Seconds for one readiness probe."""


@contextmanager
def run_companions(experiment: Experiment, folder: Path, flags: Sequence[str] = (), prefix: str = "") -> Iterator[str]:
    """Start the experiment's companion services, run the block, and end them.

    Yields:
        "NAME, NAME of ajet.services" with the services started here, or "" if none was started. A service that answered
        before is used, but neither restarted nor ended.

    Args:
        folder: output folder of the run; logs go to `folder`/services.
        flags: names NAME of the command-line flags `--with-NAME`, which select further services.
        prefix: prepended to each log file's name.

    Raises:
        UserError: a companion cannot be started, or is not ready in time.
    """
    companions = choose_services(experiment, flags, os.environ)
    with ExitStack() as stack:
        running = [
            RunningCompanion(name, settings, experiment.base, folder / "services" / f"{prefix}{name}.log")
            for name, settings in companions.items()
        ]
        for companion in running:
            companion.require_startable()
        for companion in running:  # all are started before any is awaited, so they get ready in parallel
            stack.callback(companion.close)
            companion.start()
        for companion in running:
            companion.wait_until_ready()
        # `started` is False for a service that answered already: ajet neither restarts nor ends it.
        stack.enter_context(
            RestartWatcher(
                [(companion, companion.restarts) for companion in running if companion.started]
            ).run_watcher()
        )
        names = ", ".join(companion.name for companion in running if companion.started)
        yield f"{names} of ajet.services" if names else ""


class RunningCompanion(SupervisedProcess):
    """Starts one companion process, checks its readiness, and ends it."""

    def __init__(self, name: str, companion: Companion, base: Path, log: Path) -> None:
        command = companion.command
        arguments = shlex.split(command) if isinstance(command, str) else list(command)
        super().__init__(name, arguments, (base / Path(companion.cwd or ".").expanduser()).resolve(), log)
        self._companion = companion
        self._sandbox_cell: ServiceCell | None = None
        """The sandbox of a confined companion."""
        self._searched_bytes = 0
        """Bytes of the log already searched for the ready text."""
        self.restarts, self.timeout = companion.restarts, companion.timeout

    def require_startable(self) -> None:
        """Raise UserError if the companion's folder is missing or its sandbox cannot be created."""
        from ajet_environments.confined import require_confinable

        if not self._folder.is_dir() and not self._is_answering():
            key = f"ajet.services.{self.name}.cwd"
            raise UserError(f"The folder {self._folder} of the service {self.name} does not exist.", where=key)
        require_confinable(self.name, self._companion, self._folder)

    def start(self) -> None:
        """Start the companion unless a service answers at its address already. Raises UserError."""
        self._start_process(anew=True)

    def restart(self) -> None:
        """Start the companion again after it ended, and append its output to the same log. Raises UserError."""
        self.close()
        self.keeper, self._end_report, self._searched_bytes = None, {}, self._log.stat().st_size
        self._start_process(anew=False)

    def _start_process(self, *, anew: bool) -> None:
        """Start the companion's process unless a service answers at its address already.

        Args:
            anew: True to empty the log file, False to append to it.

        Raises:
            UserError: the process or its sandbox cannot be started.
        """
        if self._is_answering():
            ready = self._companion.ready
            logger.info(
                "the service {} answers at {} already: ajet uses it and does not start another", self.name, ready
            )
            return
        self.require_startable()
        if self._companion.confined:
            self._start_in_cell(anew=anew)
        else:
            self._start_keeper(self._command, str(self._folder), list_variables(self._companion.env), anew=anew)
        self._log_start(self._command)

    def _start_in_cell(self, *, anew: bool) -> None:
        """Start the companion in a new sandbox, and remove the sandbox if the start fails."""
        self._sandbox_cell = self._make_cell()
        sandboxed_program = self._sandbox_cell.program
        # The process that starts the sandbox is its first process. Its variables can be read inside, so it gets none.
        try:
            self._start_keeper(
                sandboxed_program.argv,
                "/",
                {},
                anew=anew,
                descriptors=sandboxed_program.descriptors,
                user=sandboxed_program.user,
            )
        finally:
            # It closes this process's copies of the descriptors as well, so a failed start needs it too.
            self._sandbox_cell.start_forwarding()
            if self.keeper is None:
                self._end_cell()

    def _make_cell(self) -> ServiceCell:
        """Prepare the sandbox of a confined companion. Raises UserError if that fails."""
        from ajet_environments.confined import ServiceCell

        try:
            return ServiceCell(self._companion, self._command, self._folder)
        except (OSError, SandboxFailure) as problem:
            raise UserError(
                f"The service {self.name} cannot run in its sandbox: {problem}.",
                where=f"ajet.services.{self.name}",
                do="check that no other program uses its port, and that TMPDIR is a folder with a short path",
            ) from problem

    def wait_until_ready(self) -> None:
        """Block until the companion is ready. Return at once if this run did not start it.

        Raises:
            UserError: the companion ends first, cannot get its port, or is not ready within its `timeout`.
        """
        if self.keeper is None:
            return
        deadline = time.monotonic() + self._companion.timeout
        while not self.is_ready():
            if self.is_over():
                raise self._make_error(f"The service {self.name} ended before it was ready{self._read_end()}.")
            if self._sandbox_cell is not None and self._sandbox_cell.port_problem:
                raise self._make_error(
                    f"The service {self.name} cannot get its port: {self._sandbox_cell.port_problem}."
                )
            if time.monotonic() > deadline:
                raise self._make_error(
                    f"The service {self.name} was not ready within {self._companion.timeout:g} s.",
                    expected=f"{self._companion.ready} {'to answer' if self._has_ready_address else 'to be printed'}",
                )
            time.sleep(POLL_S)
        if self.is_over():  # its process has ended, so another process answers at the address
            raise self._make_error(f"The service {self.name} ended before it was ready{self._read_end()}.")

    def close(self) -> None:
        """End the companion and all its child processes. Idempotent."""
        super().close()
        self._end_cell()

    def _end_cell(self) -> None:
        if self._sandbox_cell is not None:
            self._sandbox_cell.close()
            self._sandbox_cell = None

    def _is_answering(self) -> bool:
        return self._has_ready_address and not find_connection_problem(str(self._companion.ready))

    @property
    def _has_ready_address(self) -> bool:
        return _is_address(self._companion.ready)

    def is_ready(self) -> bool:
        """Return True if the companion answers at its address or has printed its ready text.

        Only the part of the log not searched by an earlier call is read. A companion without `ready` is ready at once.
        """
        ready = self._companion.ready
        if not ready:
            return True
        if self._sandbox_cell is not None and not self._sandbox_cell.is_open:
            return False  # another run's service may answer at the address
        if self._has_ready_address:
            return self._is_answering()
        ready_text = ready.encode()
        with self._log.open("rb") as log:
            log.seek(self._searched_bytes)
            new_output = log.read()
        # The last bytes are searched again, because the text may be cut at the end of this read.
        self._searched_bytes = max(self._searched_bytes, self._searched_bytes + len(new_output) - len(ready_text) + 1)
        return ready_text in new_output


def _is_address(ready: str | None) -> bool:
    return ready is not None and ready.startswith(("http://", "https://", "tcp://"))


def find_connection_problem(address: str, seconds: float = CONNECT_TIMEOUT_S) -> str:
    """Connect to an address and return why no service answers there, or "" if one does.

    Args:
        address: tcp://HOST:PORT, which is only connected to, or http(s)://…, where any status below 500 is an answer.
        seconds: timeout of the connection.
    """
    try:
        target = urlsplit(address)
        if target.scheme == "tcp":
            socket.create_connection((target.hostname, target.port), seconds).close()
            return ""
        # No proxy is used, because a companion is on this machine or has its own address.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(address, timeout=seconds).close()
    except urllib.error.HTTPError as answer:
        return f"it answers {answer.code}" if answer.code >= 500 else ""
    except (OSError, ValueError) as problem:
        return str(getattr(problem, "reason", problem))
    return ""


# Restarts of companions that end during a run, each later than the one before.
# Invariant: nothing is started once the run is over. A companion with exit code 0, or with too many failures in a
# row, stays ended, and a log line says so.
_RESTART_POLL_S = 0.5
STEADY_S = 60.0
"""Seconds of readiness after which the count of failures starts again at 0."""
LONGEST_S = 60.0
"""Longest delay before a restart; the first is one second, each further one twice as long."""


class RestartWatcher:
    """Restarts companions that end during the run.

    Args of the constructor: pairs of a companion and its largest number of restarts in a row.
    """

    def __init__(self, running: Sequence[tuple[RunningCompanion, int]]) -> None:
        self._processes = [WatchedProcess(companion, max_restarts) for companion, max_restarts in running]
        self._is_over = threading.Event()

    @contextmanager
    def run_watcher(self) -> Iterator[None]:
        """Poll the companions in a daemon thread while the block runs."""
        thread = threading.Thread(target=self._watch_processes, name="ajet-restarts", daemon=True)
        if self._processes:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            if self._processes:
                thread.join()

    def _watch_processes(self) -> None:
        """Check all companions every _RESTART_POLL_S seconds until the run is over."""
        while not self._is_over.wait(_RESTART_POLL_S):
            for process in self._processes:
                if not self._is_over.is_set():  # the check of the process before may have taken long
                    process.check_process(time.monotonic())


class WatchedProcess:
    """Decides when one companion is restarted, and when ajet stops restarting it."""

    def __init__(self, companion: RunningCompanion, limit: int) -> None:
        self._companion, self._max_restarts = companion, limit
        self._restarts, self._started_at = 0, time.monotonic()
        self._restart_at: float | None = None
        """Time of the next restart; None while the process runs."""
        self._ready_since: float | None = self._started_at
        """Time of the first readiness; None until then."""
        self._is_late = self._has_given_up = False

    def check_process(self, now: float) -> None:
        """Update the restart state of the companion, and restart it when its delay has passed.

        Args:
            now: seconds of `time.monotonic()`.
        """
        if self._has_given_up:
            return
        try:
            self._update_state(now)
        except UserError as problem:
            self._give_up(f"cannot be started again: {problem.what}")
        except OSError as problem:  # no free process or descriptor, a full disk, or a deleted log
            self._give_up(f"cannot be supervised any more: {problem}")

    def _update_state(self, now: float) -> None:
        """Advance the restart state: waiting for a restart, getting ready, or ready.

        The companion is restarted once its delay has passed. A restarted companion that is not ready within its timeout
        is ended, so that the next call handles it like a failure.
        """
        if self._restart_at is not None:
            if now >= self._restart_at:
                self._restart_at = None
                self._started_at = now
                self._ready_since = None
                self._is_late = False
                self._companion.restart()
        elif self._companion.is_over():
            self._handle_end(now)
        elif self._ready_since is None and not self._is_late:
            if self._companion.is_ready():
                self._ready_since = now
                logger.info("the service {} is ready again", self._companion.name)
            elif now - self._started_at > self._companion.timeout:
                self._is_late = True
                logger.warning("the service {} was not ready in time, so ajet stops it", self._companion.name)
                self._companion.close()

    def _handle_end(self, now: float) -> None:
        """Decide what follows the end of the companion: nothing after success, a later restart, or giving up.

        The delay doubles with each restart in a row. The count starts again after STEADY_S seconds of readiness.
        """
        if self._ready_since is not None and now - self._ready_since > STEADY_S:
            self._restarts = 0
        if self._companion.has_succeeded() and not self._is_late:
            self._has_given_up = True  # the service has finished its work, so it is not restarted
            logger.info("the service {} has ended", self._companion.name)
        elif self._restarts == self._max_restarts:
            self._give_up(
                f"ended{self._companion.describe_exit()}, and is not started again (restarts: {self._max_restarts})"
            )
        else:
            delay = min(2.0**self._restarts, LONGEST_S)
            self._restarts += 1
            self._restart_at = now + delay
            attempt = f"{self._restarts} of {self._max_restarts}"
            message = f"the service {self._companion.name} ended{self._companion.describe_exit()}"
            logger.warning("{}; ajet starts it again in {:g} s ({})", message, delay, attempt)

    def _give_up(self, reason: str) -> None:
        """Stop restarting the companion, and log the reason as an error."""
        self._has_given_up = True
        logger.error("the service {} {}: episodes that need it fail from now on", self._companion.name, reason)
