"""Runs verl or Trinity on Ray: connects, starts the backbone's main process, handles its notices, and ends.

Invariants: the first Ctrl-C ends the run after its present step with a checkpoint, and immediately a step waiting for
remote groups. SIGTERM lets such a step wait for groups in flight, within `trainer_common.grace`. Taken notices are
recorded before an interrupt is handled. No started process outlives the run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.schema.errors import ConfigError, RunFailed
from ajet_ray.cluster.leftovers import RunLeftovers
from ajet_ray.cluster.logs import find_last_line
from ajet_ray.cluster.ray_cluster import ADDRESS, RayNeeds, connect_to_ray
from ajet_ray.cluster.ray_errors import read_last_line
from ajet_ray.mailbox import PhaseNotice, open_mailbox

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record import RunDirectory
    from ajet.train.interrupts import Interrupts
    from ajet.train.runner import LaunchOptions
    from ajet_ray.record import RayRecord
    from ajet_ray.tickets import LaunchTickets

LISTEN_S = 1.0
"""Seconds to wait for a notice."""
START_S = 60.0
"""Seconds between two log lines about a slow start."""
CHECK_S = 10.0
"""Seconds between two records of the processes' shared-memory segments if the trainer enters no new phase: loading
takes minutes, and a killed run must leave no segment."""


def find_address(options: LaunchOptions) -> str | None:
    """Return the address of the Ray cluster to join, or None to start a cluster.

    Raises:
        ConfigError: --with-ray-cluster was passed, but RAY_ADDRESS is not set.
    """
    address = os.environ.get(ADDRESS)
    if "ray-cluster" in options.flags and not address:
        raise ConfigError(
            "--with-ray-cluster joins a Ray cluster, but RAY_ADDRESS names none.",
            where=ADDRESS,
            expected="the address of the cluster's head, such as 10.0.0.1:6379, or auto on one of its nodes",
            do="use --with-ray to start a cluster on this machine; `ajet cluster render` writes a job that "
            "starts one on several machines (MASTER_ADDR and MASTER_PORT are not read)",
        )
    return None if "ray" in options.flags else address


def run_on_ray(
    whose: str,
    actor: type[Any],
    argument: Any,
    needs: RayNeeds,
    record: RayRecord,
    tickets: LaunchTickets,
    *,
    experiment: Experiment,
    run: RunDirectory,
    address: str | None,
    environment: Mapping[str, str],
    interrupts: Interrupts,
) -> bool:
    """Run `actor().run(argument)` in a Ray process until it ends, and handle its notices meanwhile.

    Args:
        whose: "verl" or "Trinity", for log lines and errors.
        actor: class of the backbone's main process.
        record: writes the run's folder from the notices.
        tickets: assigns tasks to the trainer's claims on groups.
        address: address of an existing cluster, or None to start one.
        environment: environment variables of the run's processes.

    Returns:
        True if the process was asked to end early.

    Raises:
        KeyboardInterrupt: the run was interrupted, and has saved a checkpoint.
        RunFailed: the process raised an error.
        UserError: the cluster cannot be joined or lacks resources.
    """
    import ray

    from ajet_ray.cluster.logs import collect_logs

    started = time.monotonic()
    with (
        closing(RunLeftovers()) as leftovers,
        connect_to_ray(
            needs,
            address=address,
            folder=experiment.base,
            environment=environment,
            temporary=leftovers.folder,
            on_wait=lambda found, wanted: logger.info(
                "waiting for the Ray cluster: {} of {} GPUs are there", found, wanted
            ),
        ),
        collect_logs(run.path / "logs", run.redact),
    ):
        logger.info(
            "the Ray cluster is ready after {:.0f} s; the processes of {} start", time.monotonic() - started, whose
        )
        mailbox = open_mailbox()
        if record.tools.tools is not None:  # a resumed run keeps the tools of its first attempt
            mailbox.pin.remote(record.tools.tools)
        process: Any = ray.remote(num_cpus=1)(actor).remote()
        grace = experiment.ajet.trainer_common.grace
        done = process.run.remote(argument)  # a reference to the result, ready once the process has ended
        listener = RunListener(whose, mailbox, done, record, tickets, run.path / "logs", interrupts, leftovers, grace)
        return listener.listen_until_end()


class RunListener:
    """Takes notices from the mailbox, records them, and answers with grants of tasks, in the run's own process."""

    def __init__(
        self,
        whose: str,
        mailbox: Any,
        done: Any,
        record: RayRecord,
        tickets: LaunchTickets,
        logs: Path,
        interrupts: Interrupts,
        leftovers: RunLeftovers,
        grace: float,
    ) -> None:
        """Prepare to handle the notices of a run's processes.

        Args:
            whose: "verl" or "Trinity", for log lines and errors.
            done: Ray's reference to the result of the main process, ready once the process has ended.
            logs: folder of the processes' logs.
            grace: seconds after SIGTERM for which a step may wait for remote groups.
        """
        self._whose = whose
        self._mailbox = mailbox
        self._done = done
        self._logs = logs
        self._record, self._tickets = record, tickets
        self._interrupts = interrupts
        self._leftovers = leftovers
        self._grace = grace
        self._checked_at = self._logged_at = self._started_at = time.monotonic()
        self._has_begun = False
        """True once a notice shows that the loading phase is over."""
        self._is_wait_logged = False
        """True once the wait of the present step was logged."""
        self._pending_take: Any = None
        """Ray's reference to a request for notices that an interrupt left unanswered."""
        self._unrecorded_notices: list[Any] = []
        """Notices that were received but not written to the record yet."""
        self._is_recording = False
        """True during the recording of the first notice."""

    def listen_until_end(self) -> bool:
        """Handle notices until the process has ended, and ask it to stop after an interrupt.

        An interrupt while a notice is being recorded ends the run immediately, because the record on disk may lack
        parts that the next checkpoint would count.

        Returns:
            True if the process was asked to end early.

        Raises:
            KeyboardInterrupt: the run was interrupted.
            RunFailed: the process raised an error.
        """
        import ray

        try:
            return self.listen()
        except KeyboardInterrupt:
            if self._is_recording:
                logger.warning("interrupted while the results of a step were recorded: the run resumes as after a kill")
                raise
            self._interrupts.forget_raised()  # it is handled here, so `defer` shall not raise it again
            logger.warning("interrupted: the run ends after the current step, with a checkpoint")
            ray.get(self._mailbox.ask_to_stop.remote())
            self.listen(stopping=True)
            raise

    def listen(self, *, stopping: bool = False) -> bool:
        """Record notices and grant tasks to the trainer's requests until its process has ended and no notice is left.

        A first interrupt is delayed until taken notices are recorded.

        Args:
            stopping: True if the process was asked to end. The last step then waits only for groups in flight, and
                only within the grace period.

        Returns:
            True if the process was asked to end early.

        Raises:
            RunFailed: the process raised an error.
        """
        import ray

        mailbox, was_interrupted = self._mailbox, stopping  # `stopping` may become True without an interrupt
        while True:
            with self._interrupts.defer():
                if grants := self._tickets.list_grants():
                    mailbox.know.remote(grants, self._tickets.list_open())
                if self._record.is_exhausted and not stopping:
                    stopping = True
                    logger.warning("the run had no training signal for too long: it ends after the current step")
                    ray.get(mailbox.ask_to_stop.remote())
                is_finished, _ = ray.wait([self._done], timeout=0)
                notices = self._take_notices(0.0 if is_finished else LISTEN_S)
                # An interrupt during a recording leaves `_is_recording` True and the notice in the list.
                while self._unrecorded_notices:
                    self._is_recording = True
                    self._record.handle_notice(self._unrecorded_notices[0])
                    del self._unrecorded_notices[0]
                    self._is_recording = False
                if (
                    any(isinstance(notice, PhaseNotice) for notice in notices)
                    or time.monotonic() >= self._checked_at + CHECK_S
                ):
                    self._leftovers.record_segments()
                    self._checked_at = time.monotonic()
                self._log_start(notices)
            if was_interrupted and self._tickets.missing_groups and not notices and not self._may_fill_step():
                logger.warning(
                    "the current step waits for groups: the run ends with the step before, which has a checkpoint"
                )
                return stopping
            if is_finished and not notices:
                try:
                    ray.get(self._done)  # raises the error of the process, if any
                except ray.exceptions.RayError as problem:
                    raise make_run_error(self._whose, read_last_line(problem), self._logs) from problem
                return stopping

    def _log_start(self, notices: Sequence[Any]) -> None:
        """Log that the start continues, with the line that a process printed last.

        This happens after each minute without a notice, until the first notice after loading.
        """
        now = time.monotonic()
        self._has_begun = self._has_begun or any(notice != PhaseNotice("loading") for notice in notices)
        if notices:
            self._logged_at = now
        if self._has_begun or now < self._logged_at + START_S:
            return
        self._logged_at = now
        process, line = find_last_line(self._logs)
        printed = (
            f"; the process {process} printed last: {line}"
            if process
            else f"; no process has printed yet ({self._logs})"
        )
        logger.info("{} has been starting for {:.0f} s{}", self._whose, now - self._started_at, printed)

    def _take_notices(self, seconds: float) -> list[Any]:
        """Return the notices to record: those left over from an interrupt, or those that arrive within `seconds`."""
        import ray

        if not self._unrecorded_notices:
            if self._pending_take is None:  # else the answer of the interrupted request still has to be read
                self._pending_take = self._mailbox.take.remote(seconds)
            self._unrecorded_notices = list(ray.get(self._pending_take))
        self._pending_take = None
        return list(self._unrecorded_notices)

    def _may_fill_step(self) -> bool:
        """Return True if groups in flight can still complete the last step within the grace period after SIGTERM.

        The first such answer of a step is logged. Without SIGTERM the result is False.
        """
        remaining = self._interrupts.remaining_grace(self._grace) if self._tickets.can_fill_missing else None
        if remaining and not self._is_wait_logged:
            self._is_wait_logged = True
            logger.warning("the current step waits up to {:.0f} s for groups in progress", remaining)
        return bool(remaining)


def make_run_error(whose: str, what: str, logs: Path) -> RunFailed:
    """Build the error of a run whose main process failed.

    Args:
        whose: "verl" or "Trinity".
        what: last line of the process's error.
        logs: folder of the processes' logs.
    """
    return RunFailed(
        f"{whose} ended the run: {what}",
        where=str(logs),
        do="read the logs of its processes there; the same command resumes from the last checkpoint",
    )
