"""A sampler between its store and its rollout: an attempt counts for the lease under which it was begun, and nothing is
begun with other weights than the announced ones. The rollout's answers come when the test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.backbone import following
from ajet.commands.sampling import sample as waiting
from ajet.commands.sampling import sampler as module
from ajet.commands.sampling.sampler import GroupSampler, PolicyWentBackError, SamplerCounts
from ajet.engine import remote_server
from ajet.engine.drivers import read_server_address
from ajet.engine.remote_server import ServerAwayError
from ajet.schema.episode import Episode
from ajet.schema.errors import UserError
from ajet.store import Address, Lease, Policy, SharedStore, StoreUnavailableError, open_shared, sqlite_store
from ajet.store.signs_of_life import THREAD
from ajet.train.interrupts import Interrupts
from ajet_vllm import server_detection
from tests.support.local_fixtures import config_of
from tests.support.record_fixtures import episode

TOLD_PROBE = {"ids": [1, 2], "tolerance": 0.01, "said": {"0": [0.1], "1": [0.2]}}
"""What a trainer announces, by which a server's weights are known."""


class Rollout:
    """Groups that were begun, by the order in which they were."""

    def __init__(self) -> None:
        self.begun: list[tuple[set[int], Callable[[Episode], None], Future[Any]]] = []
        self.stopped: list[Future[Any]] = []

    def play_group(self, order: int, task: object, *, finished: set[int], on_end: Any, **about: Any) -> Future[Any]:
        self.begun.append((set(finished), on_end, Future()))
        return self.begun[-1][2]

    def stop_group(self, played: Future[Any]) -> None:
        self.stopped.append(played)


class Weights:
    """Of version 0; no others are anywhere."""

    version = 0

    def load_weights(self, folder: Path, version: int, probe: object, waits: object, *, is_leader: bool) -> bool:
        raise FileNotFoundError(folder)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SharedStore]:
    store = open_shared(f"sqlite:{tmp_path}/store.db", rolls=True)
    yield store
    store.disconnect()


@pytest.fixture
def rollout() -> Rollout:
    return Rollout()


@pytest.fixture
def sampler(tmp_path: Path, rollout: Rollout, ledger: SharedStore) -> Iterator[GroupSampler]:
    settings = SimpleNamespace(ajet=config_of(rollout__num_repeat=2, rollout__max_env_worker=2))
    parts: Any = SimpleNamespace(experiment=settings, judge=SimpleNamespace(ranks=None), rollout=rollout)
    store, tasks, weights = open_shared(f"sqlite:{tmp_path}/store.db"), SimpleNamespace(task=str), Weights()
    yield GroupSampler(parts, weights, store, tasks, name="one", counts=SamplerCounts())  # type: ignore[arg-type]
    store.disconnect()


def test_what_was_begun_under_a_lost_lease_ends_no_other(
    sampler: GroupSampler, rollout: Rollout, ledger: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr(sqlite_store.time, "time", lambda: now[0])
    ledger.announce(Policy("run", 0, "", below=1, told={"version": 0}))
    sampler.look_at_store()
    (_, first, first_group) = rollout.begun[0]
    now[0] += 1000.0  # its process was stopped meanwhile
    assert ledger.depths().waiting == 1
    first(episode("lost", order=0, repeat=0))
    sampler.take_in(0.0)
    sampler._polled_at = float("-inf")
    sampler.look_at_store()
    (over, second, second_group) = rollout.begun[1]
    assert sampler.played.lost == 1 and over == set()
    assert rollout.stopped == [first_group], "what nobody wants is not played on"
    first(episode("late", order=0, repeat=1))
    first_group.set_result(None)
    sampler.take_in(0.0)
    assert ledger.depths().closed == 0, "its attempts have not ended"
    for repeat in (0, 1):
        second(episode(f"again{repeat}", order=0, repeat=repeat))
    second_group.set_result(None)
    sampler.take_in(0.0)
    (closed,) = ledger.closed()
    assert [kept.episode.uuid for kept in closed.attempts] == ["again0", "again1"]
    assert {kept.episode.sampler for kept in closed.attempts} == {"one"}, "the record says who played it"


def test_the_next_is_begun_as_one_ends_and_none_after_the_training(
    sampler: GroupSampler, rollout: Rollout, ledger: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks the store is asked for positions only where there is room, and once where there are none."""
    asked: list[int] = []
    lease = sampler.store.lease

    def noted(count: int, **more: Any) -> list[Lease]:
        asked.append(count)
        return lease(count, **more)

    monkeypatch.setattr(sampler.store, "lease", noted)
    ledger.announce(Policy("run", 0, "", below=2, told={"version": 0}))
    sampler.look_at_store()
    sampler._polled_at = float("inf")  # no other look
    sampler.begin_groups()
    assert (len(rollout.begun), len(asked)) == (1, 1), "there is room for two attempts"

    def end(number: int) -> None:
        _, ended, group = rollout.begun[number]
        for repeat in (0, 1):
            ended(episode(f"{number}-{repeat}", order=number, repeat=repeat))
        group.set_result(None)
        sampler.take_in(0.0)
        sampler.begin_groups()

    end(0)
    assert (len(rollout.begun), len(asked)) == (2, 2)
    end(1)
    sampler.begin_groups()
    assert (len(rollout.begun), len(asked)) == (2, 3)
    sampler._polled_at = float("-inf")
    ledger.announce(Policy("run", 0, "", below=9, told={"version": 0, "over": True}))
    sampler._gets_more = True
    sampler.look_at_store()
    sampler.begin_groups()
    assert (len(rollout.begun), len(asked)) == (2, 3) and ledger.depths().next == 2


@pytest.mark.parametrize("late", [0.0, 1.9], ids=["asked often", "asked seldom"])
def test_no_more_is_begun_in_a_minute_than_its_rate(
    late: float, sampler: GroupSampler, rollout: Rollout, ledger: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of two, fifteen episodes a minute: one each eight seconds, though there is room for many."""
    now, begun = [1000.0], list[float]()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    paced = GroupSampler(
        sampler.parts,
        sampler.backbone,
        sampler.store,
        sampler.tasks,
        name="two",
        counts=SamplerCounts(),
        per_minute=15.0,
    )
    paced.max_attempts = 1000
    ledger.announce(Policy("run", 0, "", below=100, told={"version": 0}))
    for _ in range(480):
        paced.look_at_store()
        paced.begin_groups()
        begun += [now[0]] * (len(rollout.begun) - len(begun))
        now[0] += module.STORE_POLL_S + late
    apart = [later - earlier for earlier, later in zip(begun, begun[1:], strict=False)]
    assert min(apart) >= 8.0, "never two within what one may take"
    assert max(apart) <= 8.0 + module.STORE_POLL_S + late, "and no later than the next look after that"
    assert max(sum(2 for each in begun if start <= each < start + 60) for start in begun) <= 16


@pytest.mark.parametrize(("engine", "loaded"), [("auto", ["loads"]), ("vllm", [])])
def test_an_engine_of_ones_own_is_there_before_a_trainer_is_waited_for(
    engine: str, loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    class Backbone:
        def __init__(self, experiment: Any) -> None:
            said.append("loads")

        def close(self) -> None:
            said.append("closes")

    monkeypatch.setattr(following, "FollowingBackbone", Backbone)
    experiment: Any = SimpleNamespace(ajet=config_of(rollout__engine=engine))
    with waiting.open_first_backbone(experiment) as opens:
        assert said == loaded
        opens(experiment)
        assert said == ["loads"], "the first is the one that was there"
        opens(experiment)
        assert said == ["loads", "loads"]
    assert said == ["loads", "loads"], "who took one closes it"
    said.clear()
    with pytest.raises(KeyboardInterrupt), waiting.open_first_backbone(experiment):
        raise KeyboardInterrupt
    assert said == loaded + ["closes" for _ in loaded], "nobody took it"


def test_a_server_elsewhere_that_is_away_as_a_sampler_begins_is_waited_for(
    ledger: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lives meanwhile, for the others; and ends as the training does, or when that takes too long."""
    monkeypatch.setattr(waiting, "STORE_POLL_S", 0.0)
    settings = config_of(rollout__engine="vllm", rollout__vllm__base_url="http://127.0.0.1:1/v1")
    tries = iter([ServerAwayError("No server answers."), server_detection.open_remote, "the engine"])

    def opens(experiment: Any) -> Any:
        found = next(tries)
        if isinstance(found, ServerAwayError):
            raise found
        return found if isinstance(found, str) else found(experiment.ajet, vocabulary=9)

    experiment: Any = SimpleNamespace(ajet=settings)
    options = waiting.SampleOptions(Address(Path("store.db")), name="one")

    def there() -> Any:
        return waiting.SamplerProcess(experiment, options, ledger).open_backbone(opens)

    assert there() == "the engine"
    assert [(each.name, each.details) for each in ledger.members()] == [("one", {"server": "http://127.0.0.1:1"})]
    tries = iter([ServerAwayError("No server answers.")])
    ledger.announce(Policy("run", 3, "", told={"over": True}))
    with pytest.raises(waiting.EndedBeforeStartError):
        there()
    tries = iter([ServerAwayError("No server answers.")])
    monkeypatch.setattr(remote_server, "AWAY", -1.0)
    with pytest.raises(UserError, match="No server answers"):
        there()


def test_what_is_shown_in_a_log_of_the_run_is_in_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a sampler that a script or a trainer starts; another file or a terminal is none of the run's."""
    settings: Any = SimpleNamespace(root=tmp_path, name="run", ajet=config_of(), sections={}, backbone_overrides={})
    logs = tmp_path / "run" / "logs"
    logs.mkdir(parents=True)
    shown = logs / "run_sampler_0.log"
    shown.touch()
    (tmp_path / "mine.txt").touch()
    for where, names in ((shown, []), (tmp_path / "mine.txt", ["run_sampler_my-host.log"])):
        with monkeypatch.context() as patch:
            patch.setattr(waiting.os, "fstat", lambda _, where=where: where.stat())
            with waiting.log_to_file(settings, "my/host", SamplerCounts()):
                module.logger.info("it plays")
        assert [path.name for path in logs.iterdir() if path != shown] == names
    assert "it plays" in (logs / "run_sampler_my-host.log").read_text()


def test_a_disk_that_refuses_a_log_ends_no_sampler(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("no folder")
    settings: Any = SimpleNamespace(root=tmp_path, name="run", ajet=config_of(), sections={}, backbone_overrides={})
    with waiting.log_to_file(settings, "one", SamplerCounts()):
        pass


@pytest.mark.parametrize(("url", "away"), [("http://127.0.0.1:1/v1", True), ("localhost:1/v1", False)])
def test_an_address_that_is_none_is_not_waited_for(url: str, away: bool) -> None:
    with pytest.raises(UserError, match="No inference server answers") as error:
        server_detection.open_remote(config_of(rollout__engine="vllm", rollout__vllm__base_url=url), vocabulary=9)
    assert isinstance(error.value, ServerAwayError) is away


def test_nothing_is_begun_while_the_announced_weights_are_not_there(
    sampler: GroupSampler, rollout: Rollout, ledger: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MISSED", -1.0)
    said: list[str] = []
    sink = module.logger.add(lambda message: said.append(str(message)), level="WARNING")
    ledger.announce(Policy("run", 3, str(tmp_path / "elsewhere"), below=4, told={"version": 3}))
    try:
        sampler.look_at_store()
    finally:
        module.logger.remove(sink)
    assert not rollout.begun and ledger.depths().next == 0
    assert any("the weights of step 3 are not available yet" in each for each in said)


def test_another_trainer_that_went_on_from_an_earlier_version_has_other_weights_of_the_same(
    sampler: GroupSampler, ledger: SharedStore, tmp_path: Path
) -> None:
    """This one was stopped while the new trainer fell back and made that version anew."""
    sampler.backbone.version = 2  # type: ignore[misc]
    ledger.announce(Policy("run", 2, "", below=0, told={"version": 2, "began": 0}))
    sampler.look_at_store()
    for began, expected in ((2, False), (1, True)):
        later = open_shared(f"sqlite:{tmp_path}/store.db", rolls=True)
        later.announce(Policy("run", 2, "", below=0, told={"version": 2, "began": began}))
        sampler._polled_at = float("-inf")
        if expected:
            with pytest.raises(PolicyWentBackError):
                sampler.look_at_store()
        else:
            sampler.look_at_store()
        later.disconnect()


def test_what_a_sign_of_life_finds_lost_is_not_played_on(
    sampler: GroupSampler, rollout: Rollout, ledger: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr(sqlite_store.time, "time", lambda: now[0])
    sampler.renew_every, sampler.max_attempts = -1.0, 4
    ledger.announce(Policy("run", 0, "", below=2, told={"version": 0}))
    sampler.look_at_store()
    first, second = (sampler.under_way[order].lease for order in (0, 1))
    now[0] += 100.0
    sampler.store.renew([second])
    now[0] += 100.0
    (taken,) = ledger.lease(1)
    assert taken.order == first.order, "its lease had ended"
    sampler.renew_leases()
    assert rollout.stopped == [rollout.begun[0][2]] and list(sampler.under_way) == [second.order]
    assert sampler.played.lost == 1


def test_after_an_error_what_was_leased_is_to_be_had_at_once(
    sampler: GroupSampler, ledger: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.announce(Policy("run", 0, "", below=1, told={"version": 0}))
    sampler.look_at_store()
    assert ledger.depths().leased == 1
    give_back = sampler.store.give_back

    def down(leases: Any) -> None:
        raise StoreUnavailableError("The store does not answer.")

    monkeypatch.setattr(sampler.store, "give_back", down)
    sampler.release()
    assert ledger.depths().leased == 1, "and no second error hides the first"
    monkeypatch.setattr(sampler.store, "give_back", give_back)
    sampler.release()
    assert (ledger.depths().leased, ledger.depths().waiting, sampler.played.given_back) == (0, 1, 1)


def test_what_is_held_is_renewed_while_weights_are_loaded(
    sampler: GroupSampler, ledger: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes: here until it was."""
    ledger.announce(Policy("run", 0, "", below=1, told={"version": 0}))
    sampler.look_at_store()
    renew, renewed, many = sampler.store.renew, list[list[int]](), threading.Event()

    def noted(leases: Any) -> None:
        renew(leases)
        renewed.append([lease.order for lease in leases])
        if len(renewed) == 3:
            many.set()
        if len(renewed) == 2:
            raise StoreUnavailableError("The store does not answer.")

    def load_weights(folder: Path, version: int, probe: object, waits: object, *, is_leader: bool) -> bool:
        assert many.wait(60)
        return True

    monkeypatch.setattr(sampler.store, "renew", noted)
    monkeypatch.setattr(sampler.backbone, "load_weights", load_weights)
    sampler.renew_every = 0.001
    ledger.announce(Policy("run", 1, "/1", below=1, told={"version": 1}))
    sampler._polled_at, sampler._renewed_at = float("-inf"), float("inf")
    sampler.look_at_store()
    assert renewed[:3] == [[0]] * 3 and [each.name for each in ledger.members()] == ["one"]
    count = len(renewed)
    assert not [thread for thread in threading.enumerate() if thread.name == THREAD] and len(renewed) == count


def test_a_load_that_hangs_holds_nothing_for_ever(
    sampler: GroupSampler, ledger: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.announce(Policy("run", 0, "", below=1, told={"version": 0}))
    sampler.look_at_store()
    renewed: list[Any] = []

    def load_weights(folder: Path, version: int, probe: object, waits: object, *, is_leader: bool) -> bool:
        for thread in threading.enumerate():
            if thread.name == THREAD:
                thread.join(60)
        return True

    monkeypatch.setattr(module, "MAX_LOAD_S", -1.0)
    monkeypatch.setattr(sampler.store, "renew", renewed.append)
    monkeypatch.setattr(sampler.backbone, "load_weights", load_weights)
    sampler.renew_every, sampler._renewed_at = 0.001, float("inf")
    ledger.announce(Policy("run", 1, "/1", below=1, told={"version": 1}))
    sampler._polled_at = float("-inf")
    sampler.look_at_store()
    assert renewed == []


def test_of_those_that_sample_from_one_server_the_first_that_is_not_silent_gives_it_weights(
    sampler: GroupSampler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr(sqlite_store.time, "time", lambda: now[0])
    assert sampler.is_leader(), "its engine is its own"
    sampler.server = "http://there:8000"
    with closing_stores(tmp_path, 3) as (earlier, mine, elsewhere):
        for store, name, server in ((elsewhere, "another", "http://other"), (earlier, "zero", sampler.server)):
            store.join("sampler", name, {module.SERVER: server})
            now[0] += 1.0
        mine.join("sampler", "one", {module.SERVER: sampler.server})
        assert not sampler.is_leader()
        now[0] += 1000.0
        mine.join("sampler", "one", {module.SERVER: sampler.server})
        assert sampler.is_leader(), "the other one fell silent"
        earlier.join("sampler", "zero", {module.SERVER: sampler.server})
        assert not sampler.is_leader()
        earlier.leave()
        assert sampler.is_leader()


def test_a_leader_that_drains_leads_nobody_and_goes_on_with_what_others_give_the_server(
    tmp_path: Path, rollout: Rollout, ledger: SharedStore
) -> None:
    server = SimpleNamespace(base_url="http://server")
    config = config_of(rollout__num_repeat=2, rollout__max_env_worker=2, rollout__engine="vllm", rollout__vllm=server)
    parts: Any = SimpleNamespace(
        experiment=SimpleNamespace(ajet=config), judge=SimpleNamespace(ranks=None), rollout=rollout
    )
    found: list[tuple[bool, Any]] = []

    class Given:
        version = 0

        def load_weights(self, folder: object, version: int, probe: object, waits: object, *, is_leader: bool) -> bool:
            (member,) = ledger.members()
            found.append((is_leader, member.details[module.SERVER]))
            self.version = version
            _, ended, group = rollout.begun[0]
            for repeat in (0, 1):
                ended(episode(f"e{repeat}", order=0, repeat=repeat))
            group.set_result(None)
            return True

    store, tasks = open_shared(f"sqlite:{tmp_path}/store.db"), SimpleNamespace(task=str)
    draining = GroupSampler(parts, Given(), store, tasks, name="one", counts=SamplerCounts())  # type: ignore[arg-type]
    ledger.announce(Policy("run", 0, "", below=1, told={"version": 0, "probe": TOLD_PROBE}))
    draining.look_at_store()
    assert len(rollout.begun) == 1 and [each.details[module.SERVER] for each in ledger.members()] == ["http://server"]
    ledger.announce(Policy("run", 1, "", below=1, told={"version": 1, "probe": TOLD_PROBE}))
    draining.drain(Interrupts(), 600.0)
    assert found == [(False, "")], "who is there beside it gives the server the next weights"
    assert draining.played.groups == 1 and draining.played.given_back == 0
    store.disconnect()


def test_who_drains_ends_in_order_though_its_server_is_gone(
    tmp_path: Path, rollout: Rollout, ledger: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = SimpleNamespace(base_url="http://server")
    config = config_of(rollout__num_repeat=2, rollout__max_env_worker=4, rollout__engine="vllm", rollout__vllm=server)
    parts: Any = SimpleNamespace(
        experiment=SimpleNamespace(ajet=config), judge=SimpleNamespace(ranks=None), rollout=rollout
    )
    asked, looks = list[int](), list[int]()

    class Gone:
        version = 0

        def load_weights(self, folder: object, version: int, probe: object, waits: object, *, is_leader: bool) -> bool:
            asked.append(version)
            raise UserError("The weights of the server cannot be known: ConnectError: refused")

    def renewed() -> None:
        looks.append(len(rollout.begun))
        if len(looks) == 3:
            _, ended, group = rollout.begun[0]
            for repeat in (0, 1):
                ended(episode(f"e{repeat}", order=0, repeat=repeat))
            group.set_result(None)

    store, tasks = open_shared(f"sqlite:{tmp_path}/store.db"), SimpleNamespace(task=str)
    draining = GroupSampler(parts, Gone(), store, tasks, name="one", counts=SamplerCounts())  # type: ignore[arg-type]
    ledger.announce(Policy("run", 0, "", below=1, told={"version": 0, "probe": TOLD_PROBE}))
    draining.look_at_store()
    ledger.announce(Policy("run", 1, "", below=1, told={"version": 1, "probe": TOLD_PROBE}))
    monkeypatch.setattr(draining, "renew_leases", renewed)
    draining.drain(Interrupts(), 600.0)
    assert asked == [1] and len(looks) >= 3, "a server that is gone is not asked again and again"
    assert (draining.played.groups, draining.played.given_back, ledger.depths().closed) == (1, 0, 1)
    store.disconnect()


def test_who_drains_goes_on_with_no_trainer_that_forgot_what_it_plays_with(
    sampler: GroupSampler, ledger: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler.backbone.version = 2  # type: ignore[misc]
    ledger.announce(Policy("run", 2, "", below=0, told={"version": 2, "began": 0}))
    sampler.look_at_store()
    taken: list[int] = []

    def load_weights(folder: object, version: int, *about: object, is_leader: bool) -> bool:
        taken.append(version)
        return True

    monkeypatch.setattr(sampler.backbone, "load_weights", load_weights)
    for began, expected in ((1, []), (2, [3])):
        later = open_shared(f"sqlite:{tmp_path}/store.db", rolls=True)
        later.announce(Policy("run", 3, "", below=0, told={"version": 3, "began": began}))
        sampler.follow_server(float("inf"))
        assert taken == expected
        later.disconnect()


def test_who_waits_for_a_trainer_says_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two that waited at one server would each take the other for silent."""
    monkeypatch.setattr(waiting, "STORE_POLL_S", 0.0)
    said: list[Any] = []
    experiment: Any = SimpleNamespace(ajet=config_of())
    store: Any = SimpleNamespace(
        join=lambda *told: said.append(told), announced=lambda: "policy" if len(said) == 3 else None
    )
    options = waiting.SampleOptions(Address(Path("store.db")), name="one", lease_seconds=0.0)
    assert waiting.SamplerProcess(experiment, options, store).wait_for_policy() == "policy"
    assert said == [("sampler", "one", {module.SERVER: ""})] * 3


@contextmanager
def closing_stores(folder: Path, count: int) -> Iterator[list[SharedStore]]:
    opened = [open_shared(f"sqlite:{folder}/store.db") for _ in range(count)]
    yield opened
    for store in opened:
        store.disconnect()


@pytest.mark.parametrize("url", ["http://there:8000", "http://there:8000/", "http://there:8000/v1", None])
def test_a_server_has_one_name_however_its_address_is_written(url: str | None) -> None:
    vllm = SimpleNamespace(base_url=url)
    config: Any = SimpleNamespace(rollout=SimpleNamespace(engine="vllm", vllm=vllm))
    assert read_server_address(config) == ("http://there:8000" if url else "")
    config.rollout.engine = "transformers"
    assert read_server_address(config) == ""
