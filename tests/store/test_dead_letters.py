"""A position that is given out no more is said once, with its reasons, and is neither trained nor skipped."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from loguru import logger

from ajet.record.resume import RecoveryCounts
from ajet.store import RunStore, open_shared
from ajet.store.dead_letters import LONGEST_REASON, DeadLetterLog, list_dead_letters

TASKS: Any = SimpleNamespace(task=lambda order: SimpleNamespace(task_id=f"task-{order}"))


def test_it_is_said_once_and_again_where_it_was_revived_and_given_up_again(tmp_path: Path) -> None:
    store = open_shared(f"sqlite:{tmp_path}/store.db", rolls=True, max_attempts=1)
    given_up, said = DeadLetterLog(store), list[str]()
    sink = logger.add(lambda message: said.append(str(message)), level="WARNING")
    try:
        (lease,) = store.lease(1)
        assert given_up.log_new(TASKS) == {} and given_up.count == 0
        store.fail(lease, "?" * 1000)
        assert given_up.log_new(TASKS) == {0: ["?" * LONGEST_REASON]}
        assert given_up.log_new(TASKS) == {} and given_up.count == 1
        store.revive(0)
        assert given_up.log_new(TASKS) == {} and given_up.count == 0
        store.fail(store.lease(1)[0], "its server is down")
        assert given_up.log_new(None) == {0: ["its server is down"]}
    finally:
        logger.remove(sink)
        store.disconnect()
    assert ["(position 0 of the training order) is given up after 1 attempt: ?" in each for each in said] == [
        True,
        False,
    ]
    assert "0 is given up after 1 attempt: its server is down" in said[1]


def test_a_store_of_one_process_has_none(tmp_path: Path) -> None:
    assert list_dead_letters(RunStore(tmp_path)) == [] and DeadLetterLog(RunStore(tmp_path)).log_new(TASKS) == {}


def test_a_resume_counts_it_by_its_name_and_skips_nothing() -> None:
    rows: list[dict[str, Any]] = [{"step": 1, "tasks": [0, 1]}, {"step": 2, "tasks": [3, 4], "discarded": [5]}]
    found = RecoveryCounts.of(rows, [6], step=2, dead=[2, 5, 9])
    assert (found.consumed, found.under_way, found.skipped, found.doubled, found.given_up) == (5, 1, 2, 0, 2)
    assert "skipped 2, doubled 0, given up 2 " in str(found), "7 and 8 are"
    assert str(RecoveryCounts.of(rows, [2], step=2)).endswith("skipped 0, doubled 0")
    assert RecoveryCounts.of(rows, [], step=2).skipped == 1, "without a reason it is lost"
    told: list[dict[str, Any]] = [*rows, {"step": 3, "tasks": [6], "given_up": {"2": ["boom"], "6": ["boom"]}}]
    assert (RecoveryCounts.of(told, [], step=3).skipped, RecoveryCounts.of(told, [], step=3).given_up) == (0, 1), (
        "6 was revived"
    )
    assert RecoveryCounts.of(told, [], step=2).skipped == 1, "a row that is played again says nothing"
