"""The trainer's side of a store that samplers fill: which groups a step gets, and what it is told of the others."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loguru import logger

from ajet.backbone.canary import Canary
from ajet.backbone.decoupled import announcer
from ajet.backbone.decoupled.announcer import Announcer, count_ahead
from ajet.backbone.decoupled.closed_groups import ClosedGroups, GroupReuse
from ajet.schema.call import VersionRun
from ajet.schema.episode import Group, Outcome
from ajet.schema.errors import UserError
from ajet.schema.task import Task
from ajet.store import Kept, Lease, SharedStore, open_shared
from ajet.store.dead_letters import LONGEST_REASON
from ajet.store.digest import ALTERED
from ajet.train.sources import store as module
from ajet.train.sources.store import SamplerPool, StoreSource
from ajet.train.step import StepUpdate
from tests.support.local_fixtures import config_of
from tests.support.record_fixtures import episode

TASKS: Any = SimpleNamespace(task=lambda order: Task(main_query="?", task_id=f"task-{order}"))
NOBODY: Any = SimpleNamespace(defer=lambda **more: nullcontext(), remaining_grace=lambda seconds: None)
"""Who interrupts nothing."""
TERMS: Any = SimpleNamespace(policy=lambda *given, **more: given[4])


class Trainer:
    """A source over a store of its own, whose steps are only noted."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        config = config_of(**{"data__train_batch_size": 1, "rollout__num_repeat": 2, **settings})
        self.store: SharedStore = open_shared(f"sqlite:{path}/store.db", rolls=True, max_attempts=2)
        self.source = StoreSource(None, SamplerPool(self.store))  # type: ignore[arg-type]
        self.source.announcer = Announcer(self.store, TERMS, "run", config)
        self.source.closed_groups = ClosedGroups(self.store, config.trainer_common)
        self.backbone = SimpleNamespace(version=0)
        run = SimpleNamespace(status=SimpleNamespace(set=lambda **more: None), run_id="run")
        self.training: Any = SimpleNamespace(
            experiment=SimpleNamespace(ajet=config), trainer=config.trainer_common, backbone=self.backbone,
            run=run, store=self.store, task_order=TASKS, interrupts=NOBODY, step=0, is_step_partial=False,
            total_steps=100,
            save_interrupted=lambda: None,
        )  # fmt: skip
        self.steps: list[dict[str, Any]] = []
        self.gaps: list[float | None] = []
        """What updates say of what samplers sampled, step by step."""
        self.source.canary = Canary("auto", rounded=False)
        monkeypatch.setattr(module, "find_weights", lambda run, step: None)

    def play(self, order: int, *, version: int = 0) -> None:
        """By a sampler."""
        (lease,) = self.store.lease(1)
        assert lease.order == order
        self.end(lease, version=version)

    def end(self, lease: Lease, *, version: int = 0) -> None:
        """What a sampler plays of it."""
        order = lease.order
        for repeat in (0, 1):
            whole = episode(f"{order}-{repeat}", order=order, repeat=repeat)
            calls = [replace(call, versions=(VersionRun(0, version, version),)) for call in whole.calls]
            self.store.put(lease, Kept(replace(whole, calls=calls)))
        self.store.close(lease)

    def step(self) -> dict[str, Any]:
        """What the session got of the source; it learns from each group."""
        taken = self.source.next_groups(self.training)
        groups, reuse = taken.groups, taken.reuse
        told = {"given_up": taken.given_up, "dead": taken.dead, "reuse": reuse, "unused": taken.unused}
        self.steps.append({"groups": [group.order for group in groups], **told})
        training = self.training
        training.step += 1
        self.backbone.version += 1
        outcomes = {each.uuid: Outcome(step=training.step) for group in groups for each in group.episodes}
        self.store.use(self.steps[-1]["groups"], training.step, again=reuse.find_retrainable(groups, outcomes))
        self.store.discard([*(group.order for group in taken.unused["stale"]), *reuse.expired], training.step, "stale")
        gap = self.gaps.pop(0) if self.gaps else None
        self.source.end_step(training, taken, StepUpdate(self.backbone.version - 1, {}, gap))
        return self.steps[-1]


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Trainer]]:
    made: list[Trainer] = []

    def opened(**settings: Any) -> Trainer:
        made.append(Trainer(tmp_path, monkeypatch, **settings))
        return made[-1]

    yield opened
    for each in made:
        each.store.disconnect()


@pytest.mark.parametrize("ends", [True, False], ids=["a sampler that ends with it", "samplers elsewhere"])
def test_asked_to_end_a_trainer_waits_for_what_is_being_played(
    trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """A batch of two: one of them is there and one is leased, or, later, only one in all."""
    made, asked = trainer(data__train_batch_size=2), list[float]()
    made.source.samplers = replace(made.source.samplers, is_colocated=ends)
    interrupts: Any = SimpleNamespace(
        defer=NOBODY.defer,
        remaining_grace=lambda seconds: max(0.0, asked[0] + seconds - time.monotonic()) if asked else None,
    )
    below: list[Any] = []
    monkeypatch.setattr(made.store, "announce", below.append)
    made.source.probe = None  # type: ignore[assignment]
    made.play(0)
    (under_way,) = made.store.lease(1)
    looks = iter(range(9))

    def look(seconds: float) -> None:
        at = next(looks)
        if at == 0:
            assert below[-1] > 0 and made.source.may_complete()
            asked.append(time.monotonic())
        elif at == 1:
            assert made.source.may_complete()
            assert (below[-1] == 0) == ends, "nothing new is begun by those who end, too"
            made.end(under_way)

    monkeypatch.setattr(module.time, "sleep", look)
    made.training.interrupts = interrupts
    made.step()
    assert made.steps[-1]["groups"] == [0, 1]
    (under_way,) = made.store.lease(1)
    looks, hopes = iter(range(9)), list[bool]()

    def look_again(seconds: float) -> None:
        hopes.append(made.source.may_complete())
        if (at := next(looks)) == 1:
            made.store.give_back([under_way])
        if at == 3:
            raise TimeoutError

    monkeypatch.setattr(module.time, "sleep", look_again)
    with pytest.raises(TimeoutError):
        made.step()
    assert hopes[0] == ends and not hopes[-1], "what one group alone can become is no step, but may be kept"


def test_asked_to_end_a_trainer_gives_up_nothing_that_just_began_or_just_closed(
    trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its looks are moments: a group is begun after one and closed after the next has read what is closed."""
    made, asked = trainer(), list[bool]()
    interrupts: Any = SimpleNamespace(defer=NOBODY.defer, remaining_grace=lambda seconds: 60.0 if asked else None)
    monkeypatch.setattr(made.store, "announce", lambda policy: None)
    made.source.probe = None  # type: ignore[assignment]
    begun, read, hopes = list[Lease](), made.source.closed_groups.read, list[bool]()

    def look(seconds: float) -> None:
        hopes.append(made.source.may_complete())
        if not asked:
            asked.append(True)
            begun.extend(made.store.lease(1))

    def and_then_it_closes(tasks: Any, version: int) -> None:
        read(tasks, version)
        if len(hopes) == 2 and begun:
            made.end(begun.pop())

    monkeypatch.setattr(module.time, "sleep", look)
    monkeypatch.setattr(made.source.closed_groups, "read", and_then_it_closes)
    made.training.interrupts = interrupts
    made.step()
    assert hopes == [True] * 3 and made.steps[-1]["groups"] == [0]


@pytest.mark.parametrize("left", [60.0, 0.0, None])
def test_what_its_own_samplers_play_may_end_after_a_trainer_that_is_asked_to(
    trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch, left: float | None
) -> None:
    made, looks = trainer(), list[int]()
    made.source.samplers = replace(made.source.samplers, is_colocated=True)
    made.source.announced = 0
    (under_way,) = made.store.lease(1)

    def look(seconds: float) -> None:
        looks.append(made.store.depths().leased)
        if len(looks) == 2:
            made.store.give_back([under_way])

    monkeypatch.setattr(made.store, "announce", lambda policy: None)
    monkeypatch.setattr(module.time, "sleep", look)
    made.source.probe = None  # type: ignore[assignment]
    made.training.interrupts = SimpleNamespace(
        defer=NOBODY.defer, forget_raised=lambda: None, remaining_grace=lambda seconds: left
    )
    made.source.stop(made.training, KeyboardInterrupt())
    assert looks == ([1, 1] if left else [])


def test_a_position_that_is_given_up_is_said_once_and_counted_in_each_row(trainer: Callable[..., Trainer]) -> None:
    said: list[str] = []
    sink = announcer.logger.add(lambda message: said.append(str(message)), level="WARNING")
    made = trainer()
    try:
        for _ in range(2):
            (lease,) = made.store.lease(1)
            made.store.fail(lease, "the tool's server is down" + "!" * 1000)
        made.play(1)
        first = made.step()
        made.play(2)
        second = made.step()
    finally:
        announcer.logger.remove(sink)
    assert (first["groups"], second["groups"]) == ([1], [2])
    assert list(first["given_up"]) == [0] and second["given_up"] == {} and first["dead"] == second["dead"] == 1
    assert [len(why) for why in first["given_up"][0]] == [LONGEST_REASON] * 2
    assert ["(position 0 of the training order) is given up after 2 attempts" in each for each in said] == [True]


def test_a_group_that_was_changed_while_it_waited_is_named_and_no_step_is_made_of_it(
    trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    made = trainer()
    made.play(0)
    made.play(1)
    with closing(sqlite3.connect(tmp_path / "store.db")) as base:
        changed = "UPDATE ends SET line = replace(line, '\"reward\": 1.0', '\"reward\": 9.0') WHERE uuid = '0-1'"
        assert base.execute(changed).rowcount == 1
        base.commit()
    said: list[str] = []
    sink = announcer.logger.add(lambda message: said.append(str(message)), level="WARNING")
    try:
        step = made.step()
    finally:
        announcer.logger.remove(sink)
    assert [f"(position 0 of the training order) is given up: {ALTERED}" in each for each in said].count(True) == 1
    assert step["groups"] == [1] and list(step["given_up"]) == [0]
    (why,) = step["given_up"][0]
    assert why.startswith(f"{ALTERED}: episode 0-1 of position 0: its digest")
    assert made.store.closed() == []


def test_a_sampler_that_says_another_version_than_it_samples_with_ends_the_run_and_is_named(
    trainer: Callable[..., Trainer],
) -> None:
    made = trainer()
    made.gaps = [0.5, 0.001, 0.5, None, 0.5]
    for step in range(4):  # no two in a row: a reply across a hand-over may be one
        made.play(step, version=step)
        made.step()
    made.play(4, version=4)
    with pytest.raises(UserError, match="two steps in a row.*machine-7") as refusal:
        made.step()
    assert refusal.value.where == "policy version 4" and "ajet audit" in str(refusal.value.do)


def test_a_version_that_is_not_there_yet_is_trained_on_by_no_step(trainer: Callable[..., Trainer]) -> None:
    made = trainer()
    made.play(0, version=7)
    made.play(1)
    only = made.step()
    assert only["groups"] == [1] and [group.order for group in only["unused"]["stale"]] == [0]


TIMES = "algorithm__max_trained_count"
REST = "algorithm__retrained_interval"
AGE = "max_staleness"


def test_a_group_is_trained_so_often_new_ones_first_and_with_steps_between(trainer: Callable[..., Trainer]) -> None:
    made = trainer(**{TIMES: 3, REST: 2, AGE: None})
    made.play(0)
    assert made.step()["groups"] == [0]
    for order in (1, 2):
        made.play(order)
    assert made.step()["groups"] == [1], "new ones first"
    assert made.step()["groups"] == [2], "also where another may be used again"
    found = [made.step() for _ in range(6)]
    assert [step["groups"] for step in found] == [[0], [1], [2], [0], [1], [2]]
    assert [list(step["reuse"].retrainable) for step in found] == [[0], [1], [2], [], [], []]
    assert all(step["reuse"].before == step["groups"] for step in found)
    made.play(3)
    assert made.step()["groups"] == [3] and made.store.depths().over == 3, "and then never again"


def test_what_is_too_old_for_another_time_is_used_up_and_no_stale_group(trainer: Callable[..., Trainer]) -> None:
    made = trainer(**{TIMES: 5, AGE: 1})
    made.play(0)
    assert [made.step()["groups"], made.step()["groups"]] == [[0], [0]]
    made.play(1, version=2)
    third = made.step()
    assert (third["groups"], third["reuse"].expired, third["unused"]) == ([1], [0], {"stale": []})
    depths = made.store.depths()
    assert (depths.again, depths.closed, depths.over) == (1, 0, 1) and made.store.begun() == []


def test_a_run_that_goes_on_with_fewer_times_uses_no_group_more_often(trainer: Callable[..., Trainer]) -> None:
    made = trainer(**{TIMES: 3, AGE: None})
    made.play(0)
    assert [made.step()["groups"], made.step()["groups"]] == [[0], [0]]
    made.source.closed_groups = ClosedGroups(made.store, config_of(**{TIMES: 2, AGE: None}).trainer_common)
    made.play(1)
    third = made.step()
    assert (third["groups"], third["reuse"].expired, made.store.depths().over) == ([1], [0], 1)


def test_what_may_be_used_again_or_waits_to_be_discarded_takes_no_sampler_s_place(
    trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(**{TIMES: 2, AGE: 1})
    below: list[int] = []
    monkeypatch.setattr(made.source, "probe", SimpleNamespace(to_json=dict), raising=False)
    monkeypatch.setattr(made.store, "announce", below.append)
    made.play(0)
    late = made.store.lease(1)  # a long one, which two steps overtake
    assert made.step()["groups"] == made.step()["groups"] == [0]
    made.source.announce_policy(made.training)
    assert below == [2], "one under way is all that there may be"
    made.store.give_back(late)
    made.play(1)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: made.play(2, version=2))
    monkeypatch.setattr(module, "time", clock)  # its own: other threads sleep, too
    third = made.step()  # begins with the stale one alone, and would wait for ever for another
    assert below == [2, 3] and (third["groups"], [group.order for group in third["unused"]["stale"]]) == ([2], [1])


def test_nothing_is_played_that_no_step_is_left_for(
    trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, below = trainer(**{AGE: 5}), list[int]()
    monkeypatch.setattr(made.source, "probe", SimpleNamespace(to_json=dict), raising=False)
    monkeypatch.setattr(made.store, "announce", below.append)
    made.training.total_steps = 3
    made.source.announce_policy(made.training)
    made.play(0)
    lost = made.store.lease(1)
    for _ in range(2):
        made.store.fail(lost[0], "its server is down")
        lost = lost if made.store.dead() else made.store.lease(1)
    made.source.announce_policy(made.training)
    made.step()
    made.source.announce_policy(made.training)
    assert below == [3, 4], "three steps of one group each; another in the place of the one that is given up"
    made.training.total_steps = 9
    made.source.announce_policy(made.training)
    assert below == [3, 4, 8], "and on, where the run is made longer: six ahead"


def test_who_watches_a_run_sees_where_its_positions_are(
    trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, shown = trainer(**{AGE: 1}), list[dict[str, Any]]()
    monkeypatch.setattr(announcer, "SHOWN_EVERY", 0.0)
    made.store.join("sampler", "machine-7", {"version": 3, "episodes": 6, "seconds": 12.0})
    says = Announcer(
        made.store, TERMS, "run", config_of(data__train_batch_size=2, max_staleness=1), report_depths=shown.append
    )
    monkeypatch.setattr(made.store, "announce", lambda policy: None)
    made.play(0)
    held = made.store.lease(1)
    says.announce(0, 0, None, first_version=0)
    made.store.give_back(held)
    says.announce(0, 0, None, first_version=0)
    whole = {"samplers": 1, "closed": 1, "again": 0, "dead": 0}
    depths = [each["depths"] for each in shown]
    assert depths == [whole | {"leased": 1, "free": 2}, whole | {"leased": 0, "free": 3}], "four may be under way"
    assert [sorted(each["oldest"]) for each in shown] == [["lease", "waiting_group"], ["waiting_group"]]
    for each in shown:
        (sampler,) = each["samplers"]
        assert (sampler["name"], sampler["version"], sampler["episodes_per_second"]) == ("machine-7", 3, 0.5)
        assert 0 <= sampler["age"] < 60 and abs(each["looked"] - time.time()) < 60


def test_a_trainer_that_waits_says_so_at_once_and_how_to_start_a_sampler(trainer: Callable[..., Trainer]) -> None:
    made, said = trainer(), list[str]()
    says = Announcer(made.store, TERMS, "run", config_of(), sampler_command="ajet sample --store s.db")
    sink = logger.add(lambda line: said.append(str(line)), format="{message}")
    try:
        says.wait(1, 0, 8, 0)
        says.wait(1, 0, 8, 0)
        says.last_wait_log -= announcer.HEARTBEAT_S + 1
        made.store.join("sampler", "machine-7")
        says.wait(1, 3, 8, 0)
    finally:
        logger.remove(sink)
    first, later = (line.strip() for line in said)
    assert first.endswith(
        "0 of 8 are complete, 0 too old; 0 samplers are running: start samplers with `ajet sample --store s.db`"
    )
    assert later == "step 1 waits for groups: 3 of 8 are complete, 0 too old; 1 sampler is running"


def test_while_a_trainer_is_busy_it_lives_and_shows_what_samplers_do(
    trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update may take an hour."""
    made, seen = trainer(), threading.Event()
    shown = list[dict[str, Any]]()

    def show(told: dict[str, Any]) -> None:
        shown.append(told["depths"])
        if told["depths"]["leased"]:
            seen.set()

    monkeypatch.setattr(announcer, "SHOWN_EVERY", 0.01)
    made.source.announcer = Announcer(made.store, TERMS, "run", config_of(), report_depths=show)
    with made.source.running(made.training):
        made.training.step = 7
        made.store.lease(1)
        assert seen.wait(60)
    (own,) = made.store.members()
    assert (own.role, own.name, set(own.details)) == ("trainer", "run", {"step"}) and shown[-1]["leased"] == 1


def test_of_a_group_of_which_nothing_was_trained_nothing_is_trained_later() -> None:
    groups = [Group(TASKS.task(order), order, [episode(f"{order}", order=order)]) for order in (0, 1, 2)]
    outcomes = {"0": Outcome(step=4), "1": Outcome(untrained={"zero_variance": 2}), "2": Outcome(step=4)}
    assert GroupReuse(retrainable=[0, 1]).find_retrainable(groups, outcomes) == [0]


@pytest.mark.parametrize(
    ("times", "most", "groups"), [(1, 4, 20), (2, 4, 10), (3, 4, 7), (9, 4, 4), (1, None, 8), (3, None, 8)]
)
def test_the_more_often_a_group_is_trained_the_fewer_are_played_ahead(
    times: int, most: int | None, groups: int
) -> None:
    assert count_ahead(config_of(**{"data__train_batch_size": 4, TIMES: times, AGE: most})) == groups


@pytest.mark.parametrize("torn", [True, False])
def test_a_step_that_was_cut_apart_is_announced_to_no_sampler(torn: bool, trainer: Callable[..., Trainer]) -> None:
    """Whoever plays on with weights of no step would play what no trainer knows of."""
    did: list[str] = []
    made = trainer()
    made.source.samplers = replace(made.source.samplers, is_colocated=True)
    made.source.announced = 0
    made.training.is_step_partial, made.training.save_interrupted = torn, lambda: did.append("save")
    made.training.interrupts = SimpleNamespace(
        defer=NOBODY.defer, forget_raised=lambda: None, remaining_grace=lambda seconds: 60.0
    )
    made.source.announce_policy = lambda session: did.append("announce")  # type: ignore[method-assign, misc, assignment]
    made.source.stop(made.training, KeyboardInterrupt())
    assert did == (["save"] if torn else ["save", "announce"])
