"""Quarantine of a store's groups: many in a row are reported at each doubling, and a restart finds none of them."""

from __future__ import annotations

from pathlib import Path

from loguru import logger

from ajet.backbone.decoupled import quarantine
from ajet.backbone.decoupled.quarantine import MANY_IN_A_ROW, Quarantine
from ajet.store import GroupTerms, Kept, SharedStore, open_shared
from ajet.store.group_check import kind_of
from tests.support.record_fixtures import episode

TERMS = GroupTerms(run="r", repeats=2, longest=10_000)


def opened(path: Path, at: dict[str, str] | None = None) -> SharedStore:
    return open_shared(f"sqlite:{path}", rolls=True, run="r", at=at)


def close_groups(store: SharedStore, count: int) -> None:
    for lease in store.lease(count):
        store.put(lease, Kept(episode(f"of {lease.order}"), ended_by="one"))
        store.close(lease)


def test_many_in_a_row_are_reported_at_doublings(tmp_path: Path) -> None:
    store, records = opened(tmp_path / "store.db"), list[str]()
    held = Quarantine(store, TERMS)
    sink = logger.add(lambda line: records.append(str(line)), level="ERROR", format="{message}",
                      filter=quarantine.__name__)  # fmt: skip
    try:
        close_groups(store, 2 * MANY_IN_A_ROW)
        for at, lease in enumerate(store.closed(), 1):
            assert not held.admits(lease, "another task", 1)
            assert len(records) == (at >= MANY_IN_A_ROW) + (at >= 2 * MANY_IN_A_ROW)
    finally:
        logger.remove(sink)
    dead = store.dead()
    (kind,) = {kind_of(each.reasons[-1]) for each in dead}
    assert len(dead) == 2 * MANY_IN_A_ROW and kind
    for line, count in zip(records, (MANY_IN_A_ROW, 2 * MANY_IN_A_ROW), strict=True):
        assert str(count) in line and kind in line
    store.disconnect()


def test_a_restart_finds_no_quarantined_group(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = opened(path)
    close_groups(store, 3)
    (first, *_) = store.closed()
    assert not Quarantine(store, TERMS).admits(first, "another task", 1)
    at = store.commit()
    store.disconnect()
    for saved in (at, None):
        store = opened(path, saved)
        assert [lease.order for lease in store.closed()] == [1, 2]
        assert [each.order for each in store.dead()] == [0]
        assert 0 not in [lease.order for lease in store.lease(3)]
        store.disconnect()
