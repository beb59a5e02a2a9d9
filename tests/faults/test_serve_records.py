"""`ajet serve` where the disk or the process's descriptors are full for a moment: an end that could not be recorded is
none, and may be asked for again."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from ajet.record import EpisodeFiles
from ajet.schema.episode import Group
from tests.support.served import (
    Recorder,
    RunningServer,
    StoreUnavailableError,
    open_sqlite_store,
    read_tasks,
    start_serving,
)

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def fault(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[None]:
    """The disk has no room from the `number`-th file on that is put on it, however often it is tried."""
    put, count = os.fsync, 0

    def full(handle: int) -> None:
        nonlocal count
        count += 1
        if count >= number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        put(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        yield


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Nothing can be opened, whatever is closed meanwhile: all below the limit are taken. What is open goes on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for taken in range(3):
        os.fstat(taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def in_the_way(folder: Path) -> Iterator[None]:
    """The folder was moved away, and something else has its name."""
    moved = folder.with_name("moved")
    if folder.exists():
        folder.rename(moved)
    folder.write_text("no folder")
    try:
        yield
    finally:
        folder.unlink()
        if moved.exists():
            moved.rename(folder)


FAULTS = ["the arrays", "the lines", "the folder", "no descriptors", "moved"]


def failing(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[None]:
    if kind == "no descriptors":
        return no_descriptors()
    return in_the_way(folder) if kind == "moved" else fault(monkeypatch, FAULTS.index(kind) + 1)


def opened(served: RunningServer, **body: object) -> dict[str, object]:
    """An episode with one model call."""
    made = served.open(**body)
    assert served.ask(made).status_code == 200
    return made


def not_recorded(answer: httpx.Response) -> None:
    told = answer.json()["error"]
    assert (answer.status_code, told["code"], answer.headers["retry-after"]) == (503, "not_recorded", "1"), told


@pytest.mark.parametrize("kind", FAULTS)
def test_an_end_that_could_not_be_recorded_is_recorded_when_it_is_asked_for_again(tmp_path, monkeypatch, kind):
    folder = tmp_path / "pending"
    with start_serving(backlog=9, pending=folder, judge=None) as served:
        first, second = opened(served, task="a"), opened(served, task="a")
        for _ in range(2):
            with failing(kind, folder, monkeypatch):
                not_recorded(served.finish(first, reward=0.5))
                assert served.client.get(f"/episodes/{first['episode']}").json()["status"] == "unrecorded"
        told = served.finish(first, reward=9.0)
        assert told.status_code == 200 and told.json()["reward"] == 0.5, "the verdict was there already"
        assert served.finish(second, reward=1.0).status_code == 200
        group = served.take_group()
        assert [episode.reward for episode in group.episodes] == [0.5, 1.0]
    again = [episode.uuid for episode in EpisodeFiles(folder).read(0)]
    assert sorted(again) == sorted([first["episode"], second["episode"]]), "each once"


def test_an_end_that_nobody_asks_for_again_is_recorded_by_the_server(tmp_path):
    folder = tmp_path / "pending"
    with start_serving(
        backlog=9, num_repeat=1, pending=folder, gateway={"idle_timeout": 30}, episode_timeout=0.2
    ) as served:
        with in_the_way(folder):
            made = served.open(task="a")
            until = time.monotonic() + 60
            while (state := served.client.get(f"/episodes/{made['episode']}").json()["status"]) in ("open", "judging"):
                assert time.monotonic() < until
            assert state == "unrecorded"
        group = served.take_group()
        assert group.episodes[0].failure is not None
        told = served.finish(made, reward=1)
        assert told.status_code == 409 and "episode_timeout" in told.json()["error"]["message"]


def test_an_end_that_is_given_up_leaves_its_place_to_another(tmp_path):
    folder = tmp_path / "pending"
    with start_serving(backlog=9, tasks=1, pending=folder) as served:
        made = opened(served)
        with in_the_way(folder):
            not_recorded(served.finish(made, reward=1))
            told = served.client.delete(f"/episodes/{made['episode']}").json()
            assert told["status"] == "aborted" and "could not be recorded" in told["reason"]
            assert served.finish(made, reward=1).status_code == 409
        assert served.client.get("/episodes").json()["open"] == []
        assert served.play(0.0)["repeat"] == 0 and served.play(1.0)["repeat"] == 1
        group = served.take_group()
        assert [episode.reward for episode in group.episodes] == [0.0, 1.0]


def test_an_end_that_is_never_recorded_is_given_up_after_the_idle_time(tmp_path):
    folder = tmp_path / "pending"
    with start_serving(backlog=9, pending=folder, gateway={"idle_timeout": 0.2}) as served, in_the_way(folder):
        made = served.open(task="a")
        until = time.monotonic() + 60
        while (state := served.client.get(f"/episodes/{made['episode']}").json())["status"] != "aborted":
            assert time.monotonic() < until and state["status"] in ("open", "judging", "unrecorded")
        assert "could not be recorded" in state["reason"] and served.client.get("/episodes").json()["open"] == []
        assert served.finish(made, reward=1).status_code == 409


def test_a_group_whose_deadline_passes_closes_without_an_end_that_cannot_be_recorded(tmp_path):
    folder = tmp_path / "pending"
    limits = {"num_repeat": 3, "group_deadline": 600, "min_group": 2}
    with start_serving(backlog=9, pending=folder, gateway={"idle_timeout": 600}, **limits) as served:
        for reward in (0.0, 1.0):
            served.play(reward, task="q")
        late = opened(served, task="q")
        with in_the_way(folder):
            served.overdue()
            group = served.take_group()
            assert [episode.reward for episode in group.episodes] == [0.0, 1.0]
            told = served.client.get(f"/episodes/{late['episode']}").json()
            assert told["status"] == "aborted" and "group_deadline" in told["reason"]
            assert "could not be recorded" in told["reason"]
        assert served.finish(late, reward=1).status_code == 409
        assert served.client.get("/episodes").json()["open_groups"] == 0
        assert served.play(1.0, task="q")["repeat"] == 0, "another group"
    kept = [episode.uuid for number in EpisodeFiles(folder).steps() for episode in EpisodeFiles(folder).read(number)]
    assert len(kept) == 3 and late["episode"] not in kept


@pytest.mark.parametrize(
    "problem", [StoreUnavailableError("The store cannot be worked on."), OSError(28, "No space left")]
)
def test_a_lost_attempt_counts_where_the_store_has_no_place_for_it_beside_its_group(tmp_path, problem):
    def refused():
        raise problem

    limits = {"num_repeat": 1, "gateway": {"idle_timeout": 0.1}}
    with start_serving(tasks=2, backlog=9, pending=tmp_path, **limits) as served, served.during_opening(refused):
        for _ in range(2):  # who looks for idle ones goes on
            made = served.open()
            group = served.take_group()
            assert [episode.uuid for episode in group.episodes] == [made["episode"]]
            assert group.episodes[0].failure is not None


def test_an_episode_given_up_on_a_full_disk_is_gone_at_once(tmp_path):
    folder = tmp_path / "pending"
    with start_serving(backlog=9, pending=folder) as served:
        made = opened(served, task="a")
        with in_the_way(folder):
            assert served.client.delete(f"/episodes/{made['episode']}").json()["status"] == "aborted"
        assert served.client.get("/episodes").json() == {
            "open": [], "ended": {"completed": 0, "failed": 0, "aborted": 1}, "open_groups": 1, "waiting_groups": 0,
            "held_out_tasks": 0,
            "version": 0,
        }  # fmt: skip


def test_a_server_that_ends_hands_over_what_it_could_not_record(tmp_path):
    folder = tmp_path / "pending"
    with start_serving(backlog=9, num_repeat=1, pending=folder) as served:
        made = opened(served, task="a")
        with in_the_way(folder):
            not_recorded(served.finish(made, reward=1))
            served.close()
        group = served.take_group()
        assert group.episodes[0].reward == 1.0


@pytest.mark.parametrize("kind", FAULTS)
def test_without_a_trainer_too_an_end_is_acknowledged_when_it_is_recorded(tmp_path, monkeypatch, kind):
    (tmp_path / "x.yaml").write_text("ajet: {model: {path: 'embedded:tiny-tools'}, backbone: debug}")
    recorder = Recorder(tmp_path / "x.yaml", tmp_path / "record")
    folder = recorder.episodes
    with start_serving(keeper=recorder.keeper) as served:
        first = opened(served, task="a")
        with failing(kind, folder, monkeypatch):
            not_recorded(served.finish(first, reward=0.5))
        assert served.finish(first, reward=0.5).status_code == 200
        assert [one.uuid for one in EpisodeFiles(folder).read(0, "debug")] == [first["episode"]]
        last = opened(served, task="b")
        served.close()
        recorder.record_rest([served.take() for _ in range(2)])
    assert [one.uuid for one in EpisodeFiles(folder).read(0, "debug")] == [first["episode"], last["episode"]]


NUMBERS = {"NaN": "NaN", "Infinity": "Infinity", "-Infinity": "-Infinity", "1e999": "1e999"}


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_that_is_not_finite_is_refused_by_its_field_and_takes_no_place(number):
    with start_serving(backlog=9) as served:
        body = f'{{"task": {{"question": "q", "scores": [1, {{"low": {number}}}]}}}}'
        answer = served.client.post("/episodes", content=body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "task.scores.1.low"
        told = served.client.get("/episodes").json()
        assert (told["open"], told["open_groups"]) == ([], 0)
        made = opened(served, task="a")
        url = f"/episodes/{made['episode']}/finish"
        answer = served.client.post(url, content=f'{{"reward": 1, "metadata": {{"seen": [{number}]}}}}')
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "metadata.seen.0"
        assert served.finish(made, reward=1).status_code == 200


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_that_is_not_finite_in_a_task_file_is_named_by_line_and_field(tmp_path, number):
    (tmp_path / "tasks.jsonl").write_text(f'{{"question": "a"}}\n{{"question": "b", "weight": {{"x": {number}}}}}\n')
    reader = {"type": "jsonl_dataset_file", "jsonl_dataset_file": {"training": {"file_path": "tasks.jsonl"}}}
    (tmp_path / "x.yaml").write_text(json.dumps({"ajet": {"task_reader": reader}}))
    with pytest.raises(Exception, match=r"weight\.x: (NaN|-?Infinity) is not valid JSON") as raised:
        read_tasks(tmp_path / "x.yaml")
    assert ":2" in str(raised.value)


def test_a_mistake_of_ours_has_the_shape_of_every_error():
    with start_serving(tasks=1) as served:
        served.break_task_reader()
        answer = served.client.post("/episodes", json={})
        told = answer.json()["error"]
        assert (answer.status_code, told["code"]) == (500, "internal_error") and "bug" not in told["message"]


def test_a_group_that_was_whole_waits_in_sqlite_for_the_next_server(tmp_path):
    path = tmp_path / "store.sqlite"
    store = open_sqlite_store(path)
    with start_serving(backlog=9, store=store, keeper=store) as served:
        names = {served.play(reward, task="a")["episode"] for reward in (0.0, 1.0)}
        assert not served.is_playing and served.expects_results, "a server that is asked to end waits for it, too"
        assert isinstance(served.take(), Group) and not served.expects_results
    store = open_sqlite_store(path)
    with start_serving(backlog=9, store=store, keeper=store) as served:
        group = served.take_group()
        assert {each.uuid for each in group.episodes} == names
        assert served.complete_orders() == [group.order]
