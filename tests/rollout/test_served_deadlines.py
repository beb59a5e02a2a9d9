"""The desk's time limits: what a store may come to does not end them, and a mistake in ajet ends more than them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from ajet.client import Client, EpisodeLost
from ajet.schema.episode import Group
from ajet.store import Kept, Lease, LeaseLostError, StoreUnavailableError
from tests.support.served import KEY, RunningServer, start_serving

LIMITS = {"num_repeat": 3, "group_deadline": 600, "min_group": 1}


@contextmanager
def heard() -> Iterator[list[str]]:
    said: list[str] = []
    sink = logger.add(said.append, format="{message}", level="WARNING")
    try:
        yield said
    finally:
        logger.remove(sink)


def lost(*given: Any) -> None:
    raise LeaseLostError("position 0 is leased by another process, or finished")


def ends_the_idle(served: RunningServer) -> None:
    """Who looks for those whose time is over still does."""
    made = served.open(train=False, task="alone")
    served.forgotten(made["episode"])
    until = time.monotonic() + 60
    while served.client.get(f"/episodes/{made['episode']}").json()["status"] == "open":
        assert time.monotonic() < until, "nobody looks any more"


class Full:
    """A keeper without room: an attempt that is given up then leaves a group without an end."""

    def put(self, lease: Lease, kept: Kept) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("ended", [True, False], ids=["a group with an end", "a group without"])
def test_a_position_that_is_anothers_by_now_ends_no_time_limits(ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        heard() as said,
        start_serving(backlog=9, keeper=None if ended else Full(), gateway={"idle_timeout": 900}, **LIMITS) as served,
    ):
        monkeypatch.setattr(served.store, "close", lost)
        monkeypatch.setattr(served.store, "give_back", lost)
        if ended:
            served.play(1.0, task="q")
        else:
            served.client.delete(f"/episodes/{served.open(task='q')['episode']}")
        served.overdue()
        if ended:
            group = served.desk.results.get(timeout=60)
            assert isinstance(group, Group) and group.episodes[0].reward == 1.0
        if ended:
            ends_the_idle(served)
        until = time.monotonic() + 60
        while served.client.get("/episodes").json()["open_groups"]:
            assert time.monotonic() < until
        served.looked()
        assert not served.desk.deadlines.watching.done()
    assert sum("leased by another process" in each for each in said) == 1, said


class Elsewhere:
    """A keeper whose positions others have."""

    def put(self, lease: Lease, kept: Kept) -> None:
        lost()


def test_an_end_at_a_position_that_is_anothers_counts_nowhere_and_the_client_is_told(tmp_path: Path) -> None:
    with start_serving(backlog=9, pending=tmp_path, keeper=Elsewhere(), gateway={"idle_timeout": 900}) as served:
        answer = served.finish(served.open(task="q"), reward=1.0)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "place_lost")
        served.looked()
        client = Client(str(served.client.base_url), KEY)
        with pytest.raises(EpisodeLost):
            client.begin("q").finish(reward=1.0)
        client.close()


def test_a_store_that_is_away_is_said_once_until_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with heard() as said, start_serving(backlog=9, keeper=Full(), **LIMITS) as served:
        for task in ("q", "r"):
            served.client.delete(f"/episodes/{served.open(task=task)['episode']}")
        asked, plain = list[int](), served.store.give_back

        def away(leases: Any) -> None:
            asked.append(1)
            raise StoreUnavailableError("The store is away.")

        monkeypatch.setattr(served.store, "give_back", away)
        served.overdue()
        until = time.monotonic() + 60
        while len(asked) < 6:
            assert time.monotonic() < until
            served.looked()
        assert sum("could not be returned to the store yet" in each for each in said) == 1
        monkeypatch.setattr(served.store, "give_back", plain)
        while served.client.get("/episodes").json()["open_groups"]:
            assert time.monotonic() < until


def test_a_mistake_in_ajet_ends_the_server_and_not_its_limits_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_serving(backlog=9, pending=tmp_path, **LIMITS) as served:
        monkeypatch.setattr(served.store, "close", lambda lease: {}["mistake"])
        served.play(1.0, task="q")
        served.overdue()
        for _ in range(2):
            with pytest.raises(KeyError, match="mistake"):
                served.desk.results.get(timeout=60)
