"""Writes the run's folder and screen output from verl's notices, in the same form as the local backbone.

Invariants: a step is recorded completely, episodes before the row of metrics, and its checkpoint is committed after
both, so a resumed run never has a step missing in the record. For every recorded episode: sampled tokens = trained
tokens + untrained tokens by reason.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from loguru import logger

from ajet.algorithm import build_discarded_outcomes
from ajet.algorithm.staleness import warn_of_mismatch
from ajet.backbone.canary import Canary
from ajet.backbone.decoupled.closed_groups import list_samplers
from ajet.environment.pinned import PinnedFile
from ajet.record.learned import is_idle
from ajet.rollout.failure import refuse_if_all_failed
from ajet.schema.episode import Group, list_episodes
from ajet.schema.errors import UserError
from ajet.train.step import TrainedStep
from ajet_ray.mailbox import (
    CheckpointNotice,
    DeathNotice,
    GroupNotice,
    Notice,
    PhaseNotice,
    ProcessNotice,
    StepNotice,
    TicketFailure,
    TicketRequest,
    ToolsNotice,
    ValidationNotice,
)
from ajet_ray.tickets import drop_rows

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record import RunDirectory
    from ajet.record.held_out import Measurement
    from ajet.train.sink import RunSink
    from ajet_ray.tickets import LaunchTickets


HOPELESS = 4
"""Number of consecutive batches without a scored episode after which the run ends."""
DEATHS = 5
"""Process deaths before the run ends."""


class RayRecord:
    """Writes each notice of the run's processes to the run's folder and keeps the counts that end the run."""

    backbone = "verl"
    """The key, in a checkpoint's state, of the name of the backbone's own checkpoint folder."""

    def __init__(self, experiment: Experiment, run: RunDirectory, sink: RunSink, tickets: LaunchTickets) -> None:
        """Start at the step of the resumed checkpoint, or at step 0.

        Args:
            sink: receives episodes, steps and validations, and writes them to disk and screen.
            tickets: the launch's claims on groups, with the state of each task.
        """
        self.settings, self._run = experiment.ajet, run
        self.tools = PinnedFile(run.path, goes_on=run.goes_on)
        """The tools offered to the run's first attempt, which every later attempt must be offered too."""
        self._sink, self._tickets = sink, tickets
        self._validation_groups: list[Group] = []
        self._saved: CheckpointNotice | None = None
        self._failed: list[Group] = []
        self._death_count = 0
        self._child_pids: set[int] = set()
        self._remote_processes: list[dict[str, str | int]] = []
        self._validation: dict[str, float] = {}
        self._measured: tuple[int, Measurement] | None = None
        self.idle_steps = 0
        rounded = self.settings.model.dtype != "float32"
        self._canary = Canary(self.settings.trainer_common.canary, rounded=rounded)
        self._alarm = self.settings.trainer_common.mismatch_alarm(rounded=rounded)
        resumed = run.resumed.state if run.resumed else {}
        self._validation.update(resumed.get("validation", {}))
        self.step = run.resumed.step if run.resumed else 0

    @property
    def is_exhausted(self) -> bool:
        """True after `trainer_common.stop_after_idle_steps` consecutive steps without a training signal."""
        return 0 < self.settings.trainer_common.stop_after_idle_steps <= self.idle_steps

    def handle_notice(self, letter: Notice) -> None:
        """Apply a notice to the run's folder and status.

        Raises:
            UserError: a whole batch failed, several batches had no score, or too many processes died.
        """
        # Only a process that has loaded the checkpoint sends these. From now on the run repeats the steps after the
        # checkpoint, so the first such notice removes the records of those steps.
        if isinstance(letter, (GroupNotice, StepNotice, ValidationNotice)):
            self._run.take_up()
        match letter:
            case ToolsNotice():
                self.tools.first(letter.tools)
            case TicketRequest():
                self._tickets.note_request(letter.ticket)
            case GroupNotice():
                self._handle_group(letter.group, letter.step)
            case TicketFailure():
                self._tickets.give_up(letter.ticket, self.step + 1)
            case StepNotice():
                self._handle_step(letter)
            case ValidationNotice():
                self._handle_validation(letter)
            case CheckpointNotice():
                self._saved = letter
            case DeathNotice():
                self._handle_death(letter)
            case PhaseNotice():
                self._run.status.set(phase=letter.name, step=letter.step)
                self._record_child_processes()
            case ProcessNotice() if letter.host == socket.gethostname():
                self._run.status.add_process(letter.pid, letter.role)
            case ProcessNotice():
                self._remote_processes.append({"role": letter.role, "pid": letter.pid, "host": letter.host})
                self._run.status.set(elsewhere=self._remote_processes)

    def _record_child_processes(self) -> None:
        """Add all descendants of the run's process to the run's status.

        `ajet stop` then finds Ray's processes on this machine even after the run's process was killed.
        """
        self._child_pids |= {process["pid"] for process in self._run.status.get("processes")}
        for child in psutil.Process().children(recursive=True):
            if child.pid not in self._child_pids:
                with suppress(psutil.NoSuchProcess):
                    self._run.status.add_process(child.pid, child.name())

    def _handle_group(self, group: Group, step: int) -> None:
        """Record the episodes of a finished group. A validation group is stored until its validation ends.

        Args:
            step: the training step that requested the group.

        Raises:
            UserError: all episodes of a whole batch of groups failed, or the last four batches had no score.
        """
        first_episode = group.episodes[0]
        if first_episode.split == "train" and not self._tickets.close(group, step):
            return  # the group was recorded before: the process that had received it died, and it was sent again
        # With remote samplers the announcer writes the number of groups in each state, here nobody else does.
        if first_episode.split == "train" and "samplers" not in (self._run.status.get("depths") or {}):
            self._run.status.set(depths={"leased": len(self._tickets.list_begun())})
        for episode in group.episodes:
            self._sink.on_episode(episode)
        if first_episode.split == "validation":
            self._validation_groups.append(group)
            return
        self._failed = [] if group.scored else [*self._failed, group]  # only consecutive groups count
        if len(self._failed) >= self.settings.data.train_batch_size:
            refuse_if_all_failed(list_episodes(self._failed), first_episode.step)
        if len(self._failed) >= HOPELESS * self.settings.data.train_batch_size:
            raise UserError(
                f"No episode of the last {len(self._failed)} tasks was scored, so there is nothing to train on.",
                where=f"step {first_episode.step}",
                expected="rewards from the workflow or the judge",
                do="run the same YAML with --backbone debug: it shows the judge's verdict of each episode",
            )

    def _handle_step(self, notice: StepNotice) -> None:
        """Record a training step with the use of each episode, and commit a checkpoint that the step has written.

        Raises:
            UserError: the log-probabilities of trainer and engine differ too much, in two steps in a row.
        """
        credit_by_uuid = {entry.uuid: entry for entry in notice.credited}
        step_groups = self._tickets.take_step(notice.step, credit_by_uuid)
        groups, stale = step_groups.over, step_groups.stale
        trained = TrainedStep(
            notice.step,
            notice.step - 1,  # the policy version before the update
            [*groups, *stale],
            {uuid: entry.outcome for uuid, entry in credit_by_uuid.items()} | build_discarded_outcomes(stale, "stale"),
            {uuid: entry.trained for uuid, entry in credit_by_uuid.items()},
            notice.metrics,
            tasks=sorted(group.order for group in groups if group.scored and group.order not in step_groups.retrained),
            retrained=sorted(step_groups.retrained),
            discarded=sorted(group.order for group in [*(group for group in groups if not group.scored), *stale]),
            waiting=self._tickets.list_waiting(),
            given_up=step_groups.given_up,
            dead=step_groups.dead,
            quarantined=step_groups.quarantined,
        )
        metrics = self._sink.commit(trained)
        self.idle_steps = self.idle_steps + 1 if is_idle(metrics) else 0
        self.step = notice.step
        if self._saved is not None:
            self._commit_checkpoint(self._saved)
        warn_of_mismatch(metrics, self._alarm)
        if "canary_gap" in metrics:
            # The gap was measured on tokens sampled with the current weights, so only their samplers can be at fault.
            current_samplers = list_samplers(groups, notice.step - 1)
            self._canary.judge(metrics["canary_gap"], version=notice.step - 1, samplers=current_samplers)

    def _handle_death(self, notice: DeathNotice) -> None:
        """Log the death of a process, which the run survives. Raises UserError at the fifth death."""
        self._death_count += 1
        logger.warning("{}: {}", notice.role, notice.why)
        if self._death_count >= DEATHS:
            raise UserError(
                f"Processes of the run died {self._death_count} times. The last one: {notice.role}: {notice.why}",
                where=str(self._run.path / "logs"),
                expected="a workflow that does not kill its process (by memory, native crashes, os._exit)",
                do="read the logs there; `rollout.isolation: process` runs such a workflow in a separate process",
            )

    def _handle_validation(self, notice: ValidationNotice) -> None:
        """Record the validation groups received so far as one validation, and keep its metrics for the checkpoint."""
        groups, self._validation_groups = sorted(self._validation_groups, key=lambda group: group.order), []
        self._validation, measured = self._sink.commit_validation(groups, step=notice.step, seconds=notice.seconds)
        self._measured = notice.step, measured

    def _commit_checkpoint(self, saved: CheckpointNotice) -> None:
        """Move the folder that verl wrote into a new checkpoint of the run, without verl's queue of untrained rows.

        The checkpoint appears in one atomic operation: a crash leaves either the complete checkpoint or none.

        Args:
            saved: step and folder of verl's checkpoint.
        """
        self._saved = None
        folder = Path(saved.folder)
        state: dict[str, Any] = {
            self.backbone: folder.name,
            "frontier": self._tickets.commit(),
            "validation": self._validation,
            "validated": saved.step,
        }

        def write(into: Path) -> None:
            """Fill the new checkpoint's temporary folder, before it gets its final name."""
            drop_rows(folder)
            os.rename(folder, into / folder.name)
            self._tickets.complete(into, into / folder.name)

        measured = self._measured[1] if self._measured is not None and self._measured[0] == saved.step else None
        self._run.checkpoints.save(saved.step, write, state, measured=measured)
        self._tickets.forget(saved.step)
        self._run.retain()  # the run's limits on stored episodes may allow removal after a checkpoint
