"""StoreTickets: assigns groups finished by remote samplers to verl's tickets, the trainer's claims on one group each.

Samplers and trainer share a store (a database of groups). A position is a task's place in the training order.
Invariants: a ticket's group is fresh enough for the step that requests and trains it. Until there is one, the
requester waits. No group is sampled that no remaining step can train. The store counts a group as used by a step once
the step's checkpoint belongs to the run. This checkpoint also has the model in Hugging Face layout, and samplers are
told about it only then. After `kill -9` the last checkpoint is valid: groups used by later steps are available for the
next launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.backbone.decoupled.announcer import BACKLOG, Announcer, make_status_writer, open_for_training
from ajet.backbone.decoupled.closed_groups import ClosedGroups
from ajet.backbone.decoupled.quarantine import Quarantine, build_group_terms
from ajet.backbone.decoupled.terms import PROBE, SamplingTerms
from ajet.config.schema.trainer_common import CANARY_ROUNDED
from ajet.engine.probe import WeightsProbe, encode_probe_text
from ajet.schema.episode import Group, collect_advantages
from ajet.schema.errors import ConfigError
from ajet.schema.task import Task
from ajet_ray.mailbox import CreditEntry, TicketGrant
from ajet_ray.tickets import LaunchTickets, TicketGroups

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record import RunDirectory
    from ajet.record.checkpoint import Checkpoint
    from ajet.store import Address, GroupTerms, SharedStore
    from ajet.task_reader import TaskOrder


NO_POSITION = -1
"""Stands for a place in the training order in the grant of an abandoned ticket."""


class StoreTickets(LaunchTickets):
    """Assigns groups that remote samplers have finished to the trainer's tickets: its claims on one group each."""

    def __init__(
        self,
        store: SharedStore,
        announcer: Announcer,
        order: TaskOrder,
        run: RunDirectory,
        probes: FolderProbe,
        *,
        steps: int,
        terms: GroupTerms | None = None,
    ) -> None:
        """Read the store and announce the run's state to samplers.

        Args:
            store: the database shared with samplers, opened for training.
            announcer: publishes the run's state and weights to samplers.
            order: the training order of the tasks.
            probes: computes log-probabilities of a fixed text, by which samplers identify a server's weights.
            steps: total number of steps of the run, with those of earlier launches.
            terms: conditions that a remote sampler's group must meet, or None to accept every group.
        """
        settings = run.experiment.ajet
        super().__init__(store, order, batch=settings.data.train_batch_size)
        self._shared_store = store
        self._announcer = announcer
        self._run = run
        self._size, self._steps_in_all = settings.data.train_batch_size, steps
        self.closed_groups = ClosedGroups(
            store, settings.trainer_common, Quarantine(store, terms) if terms is not None else None
        )
        self._first_step = self._trained_step = self._saved_step = run.resumed.step if run.resumed is not None else 0
        """Trained steps, and steps with a checkpoint. Both are policy versions."""
        earlier = store.announced()
        self._probes = probes
        self._probe = probes.continue_probe(
            WeightsProbe.from_json(earlier.policy.told.get(PROBE)) if earlier else None, self._first_step
        )
        self._granted_count = 0
        """Number of tickets granted so far."""
        self.groups: dict[int, Group] = {}
        """Position -> its finished group, until a training step takes it."""
        self._abandoned_tickets: set[int] = set()
        """Tickets abandoned before the grant."""
        self._leased_count = 0
        """Number of positions leased by samplers, at the last read of the store."""
        self._given_up: set[int] = set()
        """Positions with groups that kill their process. The next launch tries them once more."""
        self._announce_state(stale=0)

    def list_grants(self) -> list[TicketGrant]:
        """Assign groups finished by remote samplers to the trainer's waiting requests, in order, and return them.

        A request is for a ticket, the trainer's claim on one group. Requests without a finished group stay open for the
        next call. Also announces the trainer's state to samplers.
        """
        self.closed_groups.read(self._order, self._trained_step)
        ready = self.closed_groups.ready(self._trained_step, self._trained_step + 1)
        grantable = [
            group
            for group in ready.groups
            if group.order not in self._ticket_of_position and group.order not in self._given_up
        ]
        # Samplers may play a limited number of positions ahead of the trainer. Groups that no step will train on are
        # announced as stale, so that they do not count towards this limit.
        untrainable_count = sum(not group.scored for group in self._list_handed_groups()) + len(self._given_up)
        earlier_leased_count = self._announcer.leased
        self._announce_state(stale=len(ready.stale) + untrainable_count)
        # A group closed after the read above is not in `ready` yet, so count it as leased still.
        self._leased_count = max(earlier_leased_count, self._announcer.leased)
        grants, unassigned = list[TicketGrant](), iter(grantable)
        while self._granted_count <= self._last_requested:
            if self._granted_count in self._abandoned_tickets:  # answered without a task, to keep the ticket order
                self._granted_count += 1
                grants.append(TicketGrant(NO_POSITION, Task()))
            elif (group := next(unassigned, None)) is not None:
                grants.append(self._make_grant(group))
            else:
                break
        if self.missing_groups:
            # A heartbeat, and a log line with the number of groups that the step has and needs.
            self._announcer.wait(self._trained_step + 1, self._size - self.missing_groups, self._size, len(ready.stale))
        else:
            self._announcer.live(self._trained_step)  # a heartbeat only
        return grants

    @property
    def missing_groups(self) -> int:
        """Number of groups that the trainer has requested and no remote sampler has finished."""
        return max(0, self._last_requested + 1 - self._granted_count)

    @property
    def can_fill_missing(self) -> bool:
        """True if remote samplers have at least as many groups in flight as the trainer waits for."""
        return self.missing_groups <= self._leased_count

    def close(self, group: Group, step: int) -> bool:
        """Record which training step requested a group, once the group's rows have reached the trainer.

        The store has closed the group already, when its sampler finished it.

        Returns:
            False if the group was recorded before, or given up.
        """
        if group.order in self._steps or group.order not in self.groups:
            return False
        self._steps[group.order] = step
        return True

    def give_up(self, ticket: int, step: int) -> None:
        """Give up a ticket (the trainer's claim on a group), because its group kills every process that reads it.

        The group stays in the store, but is not granted again until the run is resumed.
        """
        if ticket >= self._granted_count:  # the ticket has no group yet
            self._abandoned_tickets.add(ticket)
            return
        for order in [
            order for order, ticket_of_order in self._ticket_of_position.items() if ticket_of_order == ticket
        ]:
            logger.warning("the task at position {} kills the process that runs it: it stays in the store", order)
            self._given_up.add(order)
            del self._ticket_of_position[order], self.groups[order]
            self._steps.pop(order, None)

    def take_step(self, step: int, credited: Mapping[str, CreditEntry]) -> TicketGroups:
        """Record a step's use of groups in the store, and return these groups.

        The groups are those that the step trained, those without a scored episode, and those too old for a later step.

        Args:
            credited: the step's use of each episode, by uuid. A group with a credited episode was trained.
        """
        self.closed_groups.read(self._order, step - 1)
        ready = self.closed_groups.ready(step - 1, step)
        finished = [
            group
            for group in self._list_handed_groups()
            if not group.scored or any(episode.uuid in credited for episode in group.episodes)
        ]
        used_orders = {group.order for group in finished}
        stale = [group for group in ready.stale if group.order not in used_orders]
        reuse = self.closed_groups.take(finished, stale, ready.expired)
        outcomes = {uuid: entry.outcome for uuid, entry in credited.items()}
        scored = [group for group in finished if group.scored]
        retrainable, advantages = reuse.find_retrainable(scored, outcomes), collect_advantages(outcomes)
        self._shared_store.use((group.order for group in scored), step, again=retrainable, advantages=advantages)
        self._store.discard((group.order for group in finished if not group.scored), step, "no_score")
        self._store.discard((group.order for group in stale), step, "stale")
        self._store.discard(reuse.expired, step, "stale")
        for group in finished:
            del self._steps[group.order], self._ticket_of_position[group.order], self.groups[group.order]
        self._given_up.difference_update(group.order for group in stale)  # these have left the store
        self._trained_step = step
        retrained = [group.order for group in scored if group.order in reuse.before]
        return TicketGroups(
            finished,
            stale,
            retrained,
            self._announcer.take_newly_dead(self._order),
            self._announcer.dead,
            self._announcer.quarantined,
        )

    def list_waiting(self) -> list[int]:
        """List the places in the training order of tasks that were leased and whose groups no step has used yet."""
        return self._store.begun()

    def forget(self, step: int) -> None:
        """Announce a checkpoint to samplers, and drop groups from the store that no kept checkpoint needs.

        Args:
            step: the step of the new checkpoint, whose weights samplers load next.
        """
        self._saved_step = step
        self._store.forget(self._run.checkpoints.horizon)
        self._announcer.changed()
        self._announce_state(stale=0)  # the next look at the store counts stale groups and announces again

    def complete(self, checkpoint: Path, verls: Path) -> None:
        """Write the model into the checkpoint in Hugging Face layout, which samplers load.

        Args:
            checkpoint: folder of the new checkpoint.
            verls: the folder `global_step_N` with verl's shards.
        """
        from ajet_ray.merge import merge_checkpoint

        with self._announcer.alive(lambda: self._trained_step):  # heartbeats, since merging takes minutes
            merge_checkpoint(verls / "actor", checkpoint)

    def finish_run(self) -> None:
        """Announce the end of the run to samplers, and leave the store."""
        self._announce_state(stale=0, is_last=True)
        self._shared_store.leave()

    def _announce_state(self, *, stale: int, is_last: bool = False) -> None:
        """Publish the newest checkpoint's weights, and how many task positions samplers may play ahead of the trainer.

        Args:
            stale: number of groups in the store that no step will train on.
            is_last: True to announce the end of the run.
        """
        # Only samplers at a remote server need the probe, and computing it loads the model, so it is done when needed.
        if self._announcer.needs_probe and self._saved_step not in self._probe.logprobs and not is_last:
            self._update_probe()
        self._announcer.announce(
            self._saved_step,
            self._saved_step,  # the policy version: each step makes one
            self._find_weights(),
            first_version=self._first_step,
            probe=self._probe if self._saved_step in self._probe.logprobs else None,
            stale=stale,
            groups_needed=self._size * max(0, self._steps_in_all - self._trained_step),
            is_last=is_last,
        )

    def _update_probe(self) -> None:
        """Compute the log-probabilities of the fixed probe text by the announced weights.

        The first call also computes them for the launch's first weights, for servers that have loaded no update yet.
        """
        staleness_limit = self._run.experiment.ajet.trainer_common.max_staleness
        version_count = BACKLOG if staleness_limit is None else staleness_limit + 1
        with self._announcer.alive(lambda: self._trained_step):
            if not self._probe.logprobs and self._saved_step > self._first_step:
                self._probe = self._probe.add_version(
                    self._first_step, self._probes.score_text(self._find_first_weights()), keep=version_count
                )
            self._probe = self._probe.add_version(
                self._saved_step, self._probes.score_text(self._find_weights()), keep=version_count
            )
        self._announcer.changed()  # the next announcement is sent even if nothing but the probe differs

    def _find_weights(self) -> Path | None:
        """Return the folder of the announced weights, or None if they are those of model.path."""
        if self._saved_step > self._first_step:
            return (self._run.checkpoints.folder / f"step-{self._saved_step}").absolute()
        return self._find_first_weights()

    def _find_first_weights(self) -> Path | None:
        """Return the folder of the weights with which the trainer started or resumed, or None for model.path."""
        return self._run.resumed.path.absolute() if self._run.resumed is not None else None

    def _list_handed_groups(self) -> list[Group]:
        """List groups whose rows reached the trainer and that no training step has used yet."""
        return [self.groups[order] for order in self._steps]

    def _make_grant(self, group: Group) -> TicketGrant:
        """Assign a group that a sampler finished to the next ticket (the trainer's claim on a group)."""
        self._ticket_of_position[group.order], self.groups[group.order] = self._granted_count, group
        self._granted_count += 1
        return TicketGrant(group.order, group.task, group)


def open_store_tickets(
    experiment: Experiment, run: RunDirectory, address: Address, order: TaskOrder, tokenizer: Any, *, steps: int
) -> StoreTickets:
    """Open the shared store of a run with remote samplers, as its trainer.

    Returns the object that assigns the samplers' groups to the trainer's claims (tickets).

    Args:
        address: address of the store.
        order: the training order of the tasks.
        tokenizer: the model's tokenizer, with which samplers must agree.
        steps: total number of steps of the run, with those of earlier launches.

    Raises:
        UserError: the store or the resumed checkpoint does not fit the run.
    """
    settings = experiment.ajet
    frontier: Mapping[str, Any] | None = None
    if run.resumed is not None:
        require_model(run.resumed)
        frontier = dict(run.resumed.state["frontier"])
        order.require_same(frontier)
    terms = SamplingTerms.of(experiment, tokenizer, order)
    store = open_for_training(address, run, settings, frontier)
    announcer = Announcer(store, terms, run.run_id, settings, report_depths=make_status_writer(run))
    terms_of_groups = build_group_terms(experiment, run.run_id, adapters=settings.trainer_common.lora.adapters)
    probe = FolderProbe(experiment, tokenizer)
    return StoreTickets(store, announcer, order, run, probe, steps=steps, terms=terms_of_groups)


def require_model(checkpoint: Checkpoint) -> None:
    """Raise ConfigError for a checkpoint of a run without samplers.

    It has only verl's shards and no model folder, so samplers would wait for its weights forever.
    """
    if "frontier" not in checkpoint.state or not any(checkpoint.path.glob("*.safetensors")):
        raise ConfigError(
            "The checkpoint was made without samplers: it contains no model that samplers could load.",
            where=str(checkpoint.path),
            expected="a checkpoint made with --from-store",
            do="start a new run from its weights: run `ajet export`, set ajet.model.path to the exported "
            "folder, and use --fresh",
        )


# The probe's log-probabilities by the weights in a folder, since the trained weights are in other processes.
# Invariant: a model is loaded completely and into main memory, and only for a sampler that identifies a remote
# server by the probe. The folder is the folder announced to samplers.
class FolderProbe:
    """Computes a run's probe: the log-probabilities of a fixed text by the weights of a checkpoint."""

    def __init__(self, experiment: Experiment, tokenizer: Any) -> None:
        """Encode the probe text, without loading a model.

        Args:
            experiment: says which model to load, and in which number format.
        """
        self._experiment = experiment
        self._ids = encode_probe_text(tokenizer)
        self._rounded = experiment.ajet.model.dtype != "float32"

    def continue_probe(self, earlier: WeightsProbe | None, below: int) -> WeightsProbe:
        """Return the probe, the log-probabilities of a fixed text, of a trainer that resumes from version `below`.

        Args:
            earlier: The probe announced before. Its log-probabilities of versions lower than `below` are copied.
            below: The resumed version. The caller adds its log-probabilities, since the weights may differ now.
        """
        tolerance = self._experiment.ajet.trainer_common.canary_tolerance(rounded=self._rounded) or CANARY_ROUNDED
        return WeightsProbe.resume_from(earlier, self._ids, tolerance, version=below)

    def score_text(self, folder: Path | None) -> list[float]:
        """Load a model and return the log-probability of each token of the probe text but the first.

        Args:
            folder: folder of the weights, or None for model.path.

        Raises:
            UserError: the model cannot be loaded.
        """
        import torch

        from ajet.engine.model_source import ModelSource, locate_model
        from ajet.engine.models import load_model

        config = self._experiment.ajet.model
        assert config.path is not None, "require_ready refuses a missing model.path"
        trusted = config.trust_remote_code
        if folder is None:
            source = locate_model(config.path, base=self._experiment.base, trust_remote_code=trusted)
        else:
            source = ModelSource(str(folder), folder=folder, trust_remote_code=trusted)
        model = load_model(source, dtype=torch.bfloat16 if self._rounded else torch.float32)
        ids = torch.tensor(self._ids)
        with torch.inference_mode():
            logprobs = model(ids[None]).logits[0, :-1].float().log_softmax(-1)  # [tokens - 1, vocabulary]
        return [float(value) for value in logprobs[torch.arange(len(ids) - 1), ids[1:]]]
