"""StoreTickets: verl's rows where samplers play elsewhere: a ticket is for a group that one of them has closed.

Invariants: a ticket is for a group that is fresh enough for the step that asks for it, which is the step that trains
it; until there is one, who asked waits. No group is played that no step is left for. What a step used counts once its
checkpoint is the run's; that checkpoint holds the model in Hugging Face layout, too, and only then it is announced. So
`kill -9` at any moment leaves what the last checkpoint says: groups that later steps used are there again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.backbone.decoupled.announcer import BACKLOG, Announcer, open_for_training, show_in
from ajet.backbone.decoupled.closed_groups import ClosedGroups
from ajet.backbone.decoupled.quarantine import Quarantine, group_terms
from ajet.backbone.decoupled.terms import PROBE, Terms
from ajet.engine.probe import Probe
from ajet.schema.episode import Group, advantages_of
from ajet.schema.errors import ConfigError
from ajet.schema.task import Task
from ajet_ray.folder_probe import FolderProbe
from ajet_ray.mailbox import CreditEntry, TicketGrant
from ajet_ray.tickets import LaunchTickets, StepGroups

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record import RunDirectory
    from ajet.record.checkpoint import Checkpoint
    from ajet.store import Address, GroupTerms, SharedStore
    from ajet.task_reader import TaskOrder

NO_POSITION = -1
"""The position of a ticket that nobody asks for any more."""


class StoreTickets(LaunchTickets):
    """The tickets of one launch whose groups samplers play: a ticket is a closed group of the store."""

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
        """`store`: opened by this run's trainer. `steps`: of the whole run. `terms`: what a group is held to."""
        settings = run.experiment.ajet
        super().__init__(store, order, batch=settings.data.train_batch_size)
        self._shared, self._announcer, self._run = store, announcer, run
        self._size, self._steps_in_all = settings.data.train_batch_size, steps
        self._closed_groups = ClosedGroups(
            store, settings.trainer_common, Quarantine(store, terms) if terms is not None else None
        )
        self._began = self._trained = self._saved = run.resumed.step if run.resumed is not None else 0
        """Steps that are trained, and whose checkpoint is there: policy versions, too."""
        earlier = store.announced()
        self._probes = probes
        self._probe = probes.continue_probe(Probe.of(earlier.policy.told.get(PROBE)) if earlier else None, self._began)
        self._granted = 0
        """Tickets of which it is known what they are for."""
        self._groups: dict[int, Group] = {}
        """By position, of what was granted and is not over."""
        self._abandoned: set[int] = set()
        """Tickets that were given up before there was a group."""
        self._played = 0
        """Positions that samplers held as of the last look."""
        self._given_up: set[int] = set()
        """Positions whose group takes its process down: the next launch tries them again."""
        self._announce_state(stale=0)

    def list_grants(self) -> list[TicketGrant]:
        """The grants of groups that have closed, for those who asked."""
        self._closed_groups.read(self._order, self._trained)
        ready = self._closed_groups.ready(self._trained, self._trained + 1)
        there = [
            group for group in ready.groups if group.order not in self._places and group.order not in self._given_up
        ]
        # what takes a place among those that may be played, and fills none of the batch
        useless = sum(not each.scored for each in self._list_handed_groups()) + len(self._given_up)
        earlier = self._announcer.leased
        self._announce_state(stale=len(ready.stale) + useless)
        self._played = max(earlier, self._announcer.leased)  # what closed between the two looks is not in `ready` yet
        grants, left = list[TicketGrant](), iter(there)
        while self._granted <= self._last_requested:
            if self._granted in self._abandoned:
                self._granted += 1
                grants.append(TicketGrant(NO_POSITION, Task()))
            elif (group := next(left, None)) is not None:
                grants.append(self._make_grant(group))
            else:
                break
        if self.missing_groups:
            self._announcer.wait(self._trained + 1, self._size - self.missing_groups, self._size, len(ready.stale))
        else:
            self._announcer.live(self._trained)
        return grants

    @property
    def missing_groups(self) -> int:
        """See `Tickets`."""
        return max(0, self._last_requested + 1 - self._granted)

    @property
    def can_fill_missing(self) -> bool:
        """See `Tickets`."""
        return self.missing_groups <= self._played

    def close(self, group: Group, step: int) -> bool:
        """Hand a group over for the step that asked for it. False: it was before, or is given up."""
        if group.order in self._steps or group.order not in self._groups:
            return False
        self._steps[group.order] = step
        return True

    def give_up(self, ticket: int, step: int) -> None:
        """Its group takes every process down that makes rows of it: this launch does not ask for it again."""
        if ticket >= self._granted:
            self._abandoned.add(ticket)
            return
        for order in [order for order, place in self._places.items() if place == ticket]:
            logger.warning("position {} takes its process down: it is left in the store", order)
            self._given_up.add(order)
            del self._places[order], self._groups[order]
            self._steps.pop(order, None)

    def take_step(self, step: int, credited: Mapping[str, CreditEntry]) -> StepGroups:
        """The groups that leave with a step whose credit went to the episodes `credited`, by uuid."""
        self._closed_groups.read(self._order, step - 1)
        ready = self._closed_groups.ready(step - 1, step)
        over = [
            group
            for group in self._list_handed_groups()
            if not group.scored or any(episode.uuid in credited for episode in group.episodes)
        ]
        given = {group.order for group in over}
        stale = [group for group in ready.stale if group.order not in given]
        reuse = self._closed_groups.take(over, stale, ready.worn)
        outcomes = {uuid: each.outcome for uuid, each in credited.items()}
        scored = [group for group in over if group.scored]
        staying, advantages = reuse.staying(scored, outcomes), advantages_of(outcomes)
        self._shared.use((group.order for group in scored), step, again=staying, advantages=advantages)
        self._store.discard((group.order for group in over if not group.scored), step, "no_score")
        self._store.discard((group.order for group in stale), step, "stale")
        self._store.discard(reuse.worn, step, "stale")
        for group in over:
            del self._steps[group.order], self._places[group.order], self._groups[group.order]
        self._given_up.difference_update(group.order for group in stale)
        self._trained = step
        retrained = [group.order for group in scored if group.order in reuse.before]
        return StepGroups(
            over,
            stale,
            retrained,
            self._announcer.newly_dead(self._order),
            self._announcer.dead,
            self._announcer.quarantined,
        )

    def list_waiting(self) -> list[int]:
        """Positions that were begun and that no step has taken yet."""
        return self._store.begun()

    def forget(self, step: int) -> None:
        """The checkpoint of this step is there: it is what samplers play with from now on."""
        self._saved = step
        self._store.forget(self._run.checkpoints.horizon)
        self._announcer.changed()
        self._announce_state(stale=0)

    def complete(self, checkpoint: Path, verls: Path) -> None:
        """The model, as samplers load it."""
        from ajet_ray.merge import merge_checkpoint

        with self._announcer.alive(lambda: self._trained):
            merge_checkpoint(verls / "actor", checkpoint)

    def finish_run(self) -> None:
        """Samplers are told so."""
        self._announce_state(stale=0, over=True)
        self._shared.leave()

    def _announce_state(self, *, stale: int, over: bool = False) -> None:
        if self._announcer.asked and self._saved not in self._probe.said and not over:
            self._update_probe()
        self._announcer.announce(
            self._saved,
            self._saved,
            self._find_weights(),
            began=self._began,
            probe=self._probe if self._saved in self._probe.said else None,
            stale=stale,
            wanted=self._size * max(0, self._steps_in_all - self._trained),
            over=over,
        )

    def _update_probe(self) -> None:
        """What the weights that are announced say of it, and, the first time, those that this launch began with: a
        server that is given no others has those."""
        most = self._run.experiment.ajet.trainer_common.max_staleness
        keep = BACKLOG if most is None else most + 1
        with self._announcer.alive(lambda: self._trained):
            if not self._probe.said and self._saved > self._began:
                self._probe = self._probe.grown(
                    self._began, self._probes.score_text(self._find_first_weights()), keep=keep
                )
            self._probe = self._probe.grown(self._saved, self._probes.score_text(self._find_weights()), keep=keep)
        self._announcer.changed()

    def _find_weights(self) -> Path | None:
        """The folder of the step's weights; None: those of model.path."""
        if self._saved > self._began:
            return (self._run.checkpoints.folder / f"step-{self._saved}").absolute()
        return self._find_first_weights()

    def _find_first_weights(self) -> Path | None:
        """The folder of the weights that this launch began with; None: those of model.path."""
        return self._run.resumed.path.absolute() if self._run.resumed is not None else None

    def _list_handed_groups(self) -> list[Group]:
        """The groups that wait for the step that asked for them."""
        return [self._groups[order] for order in self._steps]

    def _make_grant(self, group: Group) -> TicketGrant:
        self._places[group.order], self._groups[group.order] = self._granted, group
        self._granted += 1
        return TicketGrant(group.order, group.task, group)


def open_store_tickets(
    experiment: Experiment, run: RunDirectory, address: Address, order: TaskOrder, tokenizer: Any, *, steps: int
) -> StoreTickets:
    """The tickets where samplers play; `steps`: of the whole run. Raises UserError."""
    settings = experiment.ajet
    at: Mapping[str, Any] | None = None
    if run.resumed is not None:
        require_model(run.resumed)
        at = dict(run.resumed.state["frontier"])
        order.require_same(at)
    terms = Terms.of(experiment, tokenizer, order)
    store = open_for_training(address, run, settings, at)
    announcer = Announcer(store, terms, run.run_id, settings, show=show_in(run))
    terms_of_groups = group_terms(experiment, run.run_id, adapters=settings.trainer_common.lora.adapters)
    probe = FolderProbe(experiment, tokenizer)
    return StoreTickets(store, announcer, order, run, probe, steps=steps, terms=terms_of_groups)


def require_model(checkpoint: Checkpoint) -> None:
    """Raises ConfigError for one that a run without samplers made, of verl's shards alone: they would wait for its
    weights for ever."""
    if "frontier" not in checkpoint.state or not any(checkpoint.path.glob("*.safetensors")):
        raise ConfigError(
            "The checkpoint was made without samplers: it holds no model that they could load.",
            where=str(checkpoint.path),
            expected="one that was made with --from-store",
            do="begin anew from its weights: `ajet export`, and its folder as ajet.model.path, with --fresh",
        )
