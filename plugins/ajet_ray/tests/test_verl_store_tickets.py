"""verl's rows where samplers play: which groups tickets are for, what a step takes, what is announced and when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.backbone.decoupled import announcer
from ajet.backbone.decoupled.announcer import Announcer
from ajet.backbone.decoupled.terms import PROBE, SERVER
from ajet.engine.probe import WeightsProbe
from ajet.record.checkpoint import Checkpoint
from ajet.schema.call import VersionRun
from ajet.schema.episode import Outcome
from ajet.schema.errors import ConfigError
from ajet.schema.task import Task
from ajet.store import Address, Kept, Lease, Policy, SharedStore, TrainerFencedError, open_shared
from ajet.task_reader import TaskOrder
from ajet_ray.mailbox import CreditEntry, TicketGrant
from ajet_ray.modes import DECOUPLED
from ajet_ray.store_tickets import StoreTickets, require_model
from ajet_verl.train import require_store
from tests.support.local_fixtures import config_of
from tests.support.record_fixtures import episode

pytestmark = pytest.mark.verl

ORDER = TaskOrder([Task(task_id=f"t{number}") for number in range(9)], 0, shuffle=False)
STORE = Address(Path("store.db"))
TERMS: Any = SimpleNamespace(
    policy=lambda run, step, version, weights, below, **more: Policy(
        run,
        step,
        str(weights or ""),
        below=below,
        told={"over": more["is_last"], "began": more["first_version"], **more["extra_facts"]},
    )
)


class Launch:
    """One trainer's, and what a sampler does beside it."""

    def __init__(self, path: Path, *, step: int = 0, at: Any = None, steps: int = 99, **settings: Any) -> None:
        """`step`: whose checkpoint it goes on from, which holds `at` of the store. `steps`: of the whole run."""
        config = config_of(**{"data__train_batch_size": 2, "rollout__num_repeat": 2, **settings})
        self.store: SharedStore = open_shared(f"sqlite:{path}/store.db", rolls=True, at=at, run="run")
        resumed = SimpleNamespace(step=step, path=path / "checkpoints" / f"step-{step}") if step else None
        run: Any = SimpleNamespace(
            experiment=SimpleNamespace(ajet=config),
            resumed=resumed,
            checkpoints=SimpleNamespace(folder=path / "checkpoints", horizon=step),
        )
        says = Announcer(self.store, TERMS, "run", config)
        self.loaded: list[Path | None] = []
        """Folders whose weights were loaded for the probe."""
        self.tickets = StoreTickets(self.store, says, ORDER, run, self, steps=steps)  # type: ignore[arg-type]

    def continue_probe(self, earlier: WeightsProbe | None, below: int) -> WeightsProbe:
        """As FolderProbe."""
        return WeightsProbe(
            (1, 2), 0.01, {version: said for version, said in (earlier.logprobs if earlier else {}).items()}
        )

    def score_text(self, folder: Path | None) -> list[float]:
        """The same."""
        self.loaded.append(folder)
        return [-1.0 - len(self.loaded)]

    def play(self, order: int, *, version: int = 0, scored: bool = True) -> None:
        (lease,) = self.store.lease(1)
        assert lease.order == order
        self.end(lease, version=version, scored=scored)

    def end(self, lease: Lease, *, version: int = 0, scored: bool = True) -> None:
        """What a sampler plays of it."""
        order = lease.order
        for repeat in (0, 1):
            whole = episode(f"{order}-{repeat}", order=order, repeat=repeat)
            calls = [replace(call, versions=(VersionRun(0, version, version),)) for call in whole.calls]
            verdict = whole.verdict if scored else None
            self.store.put(lease, Kept(replace(whole, calls=calls, verdict=verdict)))
        self.store.close(lease)

    def granted(self, ticket: int, step: int) -> list[int]:
        """Somebody asks for tickets up to this one, and hands over what they are for."""
        self.tickets.note_request(ticket)
        grants: list[TicketGrant] = self.tickets.list_grants()
        for grant in grants:
            assert grant.group is not None and self.tickets.close(grant.group, step)
            assert not self.tickets.close(grant.group, step), "whoever died after it had told"
        return [grant.order for grant in grants]

    def take(self, step: int, *orders: int) -> Any:
        """The step's credit went to these."""
        outcome = Outcome(step=step)
        return self.tickets.take_step(
            step, {f"{each}-{at}": CreditEntry("", outcome, 1) for each in orders for at in (0, 1)}
        )

    @property
    def policy(self) -> Policy:
        announced = self.store.announced()
        assert announced is not None
        return announced.policy


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    made: list[Launch] = []

    def begun(**more: Any) -> Launch:
        made.append(Launch(tmp_path, **more))
        return made[-1]

    yield begun
    for each in made:
        each.store.disconnect()


def test_a_ticket_waits_for_a_group_and_a_kill_before_the_checkpoint_leaves_it_there(launch: Any) -> None:
    first = launch()
    assert (first.policy.step, first.policy.weights, first.policy.below) == (0, "", 10)
    first.play(0)
    assert first.granted(1, 1) == [0] and first.tickets.list_grants() == [], "the other one waits"
    assert first.tickets.missing_groups == 1
    first.play(1)
    assert first.granted(1, 1) == [1] and first.tickets.missing_groups == 0
    first.play(2)
    assert first.tickets.list_grants() == [], "nobody asks for more"
    taken = first.take(1, 0, 1)
    assert ([group.order for group in taken.over], taken.stale, taken.retrained) == ([0, 1], [], [])
    assert first.tickets.list_waiting() == [2] and first.policy.step == 0, "no checkpoint is there yet"
    assert not first.tickets.groups, "no episode of a step that is over is held in memory"
    committed = first.tickets.commit()
    first.tickets.forget(1)
    assert first.policy.step == 1 and first.policy.weights.endswith("checkpoints/step-1")
    assert first.granted(2, 2) == [2] and first.take(2, 2).over
    second = launch(step=1, at=committed)  # the first one was killed before step 2 had a checkpoint
    assert second.policy.step == 1 and second.policy.told["began"] == 1
    assert second.granted(0, 2) == [2] and second.tickets.list_open() == [2]
    with pytest.raises(TrainerFencedError):
        first.tickets.forget(2)
    second.tickets.finish_run()
    assert second.policy.told["over"] and not [each for each in second.store.members() if each.role == "trainer"]


def test_a_probe_is_said_for_who_samples_from_a_server_elsewhere_and_for_nobody_else(
    launch: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(announcer, "SHOWN_EVERY", 0.0)
    made = launch()
    sampler = open_shared(f"sqlite:{tmp_path}/store.db")
    sampler.join("sampler", "own engine", {SERVER: ""})
    for _ in range(2):
        made.tickets.list_grants()
    assert made.loaded == [] and PROBE not in made.policy.told
    for order in (0, 1):
        made.play(order)
    assert made.granted(1, 1) == [0, 1]
    made.take(1, 0, 1)
    made.tickets.commit()
    made.tickets.forget(1)
    assert made.loaded == [] and PROBE not in made.policy.told
    sampler.join("sampler", "elsewhere", {SERVER: "http://10.0.0.5:8000"})
    for _ in range(2):
        made.tickets.list_grants()
    first = tmp_path / "checkpoints" / "step-1"
    assert made.loaded == [None, first], "what it began with, too: a server that is given no others has it"
    assert WeightsProbe.from_json(made.policy.told[PROBE]).logprobs == {0: (-2.0,), 1: (-3.0,)}  # type: ignore[union-attr]
    made.tickets.list_grants()
    assert len(made.loaded) == 2, "once each"
    made.tickets.finish_run()
    assert made.policy.told["over"]


def test_it_hopes_for_what_samplers_play_now(launch: Any) -> None:
    """So many groups as lack, whether they are being played or have closed since the last look."""
    made = launch()
    assert made.granted(1, 1) == [] and made.tickets.missing_groups == 2 and not made.tickets.can_fill_missing
    one, two = made.store.lease(2)
    assert made.tickets.list_grants() == [] and made.tickets.can_fill_missing
    made.store.give_back([two])
    made.tickets.list_grants()
    made.tickets.list_grants()
    assert not made.tickets.can_fill_missing
    (two,) = made.store.lease(1)
    made.tickets.list_grants()
    made.end(one)
    assert len(made.tickets.list_grants()) == 1
    assert made.tickets.missing_groups == 1 and made.tickets.can_fill_missing, "one has closed, one is being played"


def test_what_a_step_gave_is_told_with_the_use(launch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, told = launch(), []
    use = made.store.use

    def noted(orders: Any, step: int, *, advantages: Any, **more: Any) -> None:
        told.append((step, advantages))
        use(orders, step, advantages=advantages, **more)

    monkeypatch.setattr(made.store, "use", noted)
    for order in (0, 1):
        made.play(order)
    assert made.granted(1, 1) == [0, 1]
    given = {"0-0": -0.5, "0-1": 0.5, "1-0": None}
    made.tickets.take_step(1, {uuid: CreditEntry("", Outcome(1, advantage), 1) for uuid, advantage in given.items()})
    assert told == [(1, {"0-0": -0.5, "0-1": 0.5})]


def test_nothing_is_played_that_no_step_is_left_for(launch: Any) -> None:
    made = launch(steps=2)
    assert made.policy.below == 4, "two steps of two groups, though ten might be under way"
    for order in (0, 1):
        made.play(order, scored=order > 0)
    assert made.granted(1, 1) == [0, 1] and made.granted(2, 1) == []
    assert made.policy.below == 5, "of the first one nobody has a score: another is to be played for it"
    made.play(2)
    assert made.granted(2, 1) == [2]
    made.take(1, 1, 2)
    made.tickets.forget(1)
    assert made.policy.below == 5, "two more for the second step"
    for order in (3, 4):
        made.play(order, version=1)
    assert made.granted(4, 2) == [3, 4] and made.store.lease(1, below=made.policy.below) == []
    made.take(2, 3, 4)
    made.tickets.forget(2)
    assert made.policy.below == 5, "none is left"


def test_what_is_too_old_is_for_no_ticket_and_leaves_with_the_step(launch: Any) -> None:
    made = launch(max_staleness=0)
    for order in (0, 1, 2):
        made.play(order)
    assert made.granted(1, 1) == [0, 1]
    made.take(1, 0, 1)
    made.tickets.forget(1)
    assert made.granted(3, 2) == [], "the third one was played with the weights before"
    made.play(3, version=1)
    made.play(4, version=1)
    assert made.granted(3, 2) == [3, 4]
    taken = made.take(2, 3, 4)
    assert ([group.order for group in taken.over], [group.order for group in taken.stale]) == ([3, 4], [2])
    assert made.store.begun() == []


def test_a_group_is_trained_again_where_that_is_asked_for(launch: Any) -> None:
    made = launch(algorithm__max_trained_count=2, max_staleness=None, data__train_batch_size=1)
    made.play(0)
    assert made.granted(0, 1) == [0] and made.take(1, 0).retrained == []
    made.tickets.forget(1)
    assert made.granted(1, 2) == [0] and made.take(2, 0).retrained == [0]
    assert made.granted(2, 3) == [] and made.store.depths().over == 1


def test_in_the_place_of_a_group_without_a_score_another_may_be_played(launch: Any) -> None:
    made = launch(max_staleness=0)
    made.play(0, scored=False)
    made.play(1)
    assert made.granted(1, 1) == [0, 1] and made.policy.below == 2
    assert made.granted(2, 1) == [] and made.policy.below == 3, "else trainer and samplers wait for each other"
    made.play(2)
    assert made.granted(2, 1) == [2]
    assert [group.order for group in made.take(1, 1, 2).over] == [0, 1, 2]


def test_a_group_that_takes_its_process_down_stays_in_the_store(launch: Any) -> None:
    made = launch()
    made.play(0)
    made.tickets.note_request(0)
    assert [grant.order for grant in made.tickets.list_grants()] == [0]
    made.tickets.give_up(0, 1)
    assert made.granted(1, 1) == [] and made.tickets.list_open() == [] and made.store.depths().closed == 1
    (late,) = made.tickets.closed_groups.ready(0, 1).groups
    assert not made.tickets.close(late, 1), "its last process told that it had it before it died"
    made.play(1)
    assert made.granted(1, 1) == [1]
    made.tickets.note_request(3)
    made.tickets.give_up(2, 1)  # its process died twice while it waited
    made.play(2)
    assert [grant.order for grant in made.tickets.list_grants()] == [-1, 2]


def verls(mode: str, strategy: str, *, filters: bool = False) -> dict[str, Any]:
    return {
        "trainer": {"v1": {"trainer_mode": mode}},
        "actor_rollout_ref": {"actor": {"strategy": strategy}},
        "algorithm": {"filter_groups": {"enable": filters}},
    }


@pytest.mark.parametrize(
    ("mode", "strategy", "address", "said"),
    [
        (DECOUPLED, "fsdp", None, "--from-store"),
        ("ajet_sync", "fsdp", STORE, "trainer_mode"),
        (DECOUPLED, "megatron", STORE, "megatron"),
    ],
)
def test_a_store_without_its_mode_and_a_mode_without_its_store_are_refused(
    mode: str, strategy: str, address: Any, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        require_store(verls(mode, strategy), address)
    assert said in str(refused.value)
    require_store(verls(DECOUPLED, "fsdp2"), STORE)
    with pytest.raises(ConfigError, match="filter_groups"):
        require_store(verls(DECOUPLED, "fsdp2", filters=True), STORE)
    require_store(verls("ajet_sync", "megatron"), None)


def test_a_checkpoint_that_no_sampler_can_load_is_not_gone_on_from(tmp_path: Path) -> None:
    (tmp_path / "global_step_3").mkdir()
    sharded = Checkpoint(tmp_path, 3, None, {"verl": "global_step_3", "frontier": {}})
    with pytest.raises(ConfigError, match="without samplers"):
        require_model(sharded)
    (tmp_path / "model.safetensors").touch()
    require_model(sharded)
    with pytest.raises(ConfigError, match="without samplers"):
        require_model(replace(sharded, state={"verl": "global_step_3", "order": {}}))


def test_a_merge_that_takes_long_is_no_silence(launch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, said = launch(), threading.Event()
    monkeypatch.setattr(announcer, "HEARTBEAT_S", 0.01)
    join = one.store.join

    def joins(*about: Any) -> None:
        join(*about)
        said.set()

    def merge(actor: Path, into: Path) -> None:
        assert actor == tmp_path / "verl" / "actor" and said.wait(60), "while it goes on"

    monkeypatch.setattr(one.store, "join", joins)
    monkeypatch.setattr("ajet_ray.merge.merge_checkpoint", merge)
    one.tickets.complete(tmp_path, tmp_path / "verl")
    assert [(each.role, each.name) for each in one.store.members()] == [("trainer", "run")]
