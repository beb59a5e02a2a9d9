"""What is said of episodes that were changed while they waited in a run's store."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from ajet.store import Kept, RunStore
from ajet.store.digest import ALTERED
from ajet_proof.auditing.altered import list_altered_episodes
from ajet_proof.auditing.audit import audit_run
from ajet_proof.auditing.report import encode_audit, print_audit
from tests.support.record_fixtures import episode

WHY = (
    f"{ALTERED}: episode e7 of position 3: its digest does not match the one recorded when it was stored (sqlite "
    "store.sqlite)"
)


def screen(run: Path) -> str:
    console = Console(file=StringIO(), width=200)
    print_audit(audit_run(run), console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_what_the_steps_left_out_is_named_and_is_no_change_of_the_record(tmp_path: Path) -> None:
    rows = [{"step": 1}, {"step": 2, "given_up": {"3": [WHY], "4": ["the tool is down"]}}]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert list_altered_episodes(tmp_path) == [f"step 2: {WHY}"]
    found = audit_run(tmp_path)
    assert found.ok and json.loads(encode_audit(found))["altered"] == [f"step 2: {WHY}"]
    shown = screen(tmp_path)
    assert f"left out step 2: {WHY}" in shown
    assert "no chain" in shown and "The record is unchanged" not in shown, "nothing holds the rest"


@pytest.mark.slow
def test_what_waits_in_the_runs_own_folder_is_compared_with_its_digests(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "pending")
    for lease in store.lease(2):
        store.put(lease, Kept(episode(f"e{lease.order}")), Kept(episode(f"f{lease.order}")))
    assert audit_run(tmp_path).ok
    file = tmp_path / "pending" / "step-1.jsonl"
    one, other = file.read_text().splitlines()
    file.write_text(f"{one}\n{other.replace('1+1?', '1+2?')}\n")
    (change,) = audit_run(tmp_path).changes
    assert (change.file, change.line) == ("pending/step-1.jsonl", 2) and "episode f1 of position 1" in change.what
    assert "changed  pending/step-1.jsonl:2: changed in the store: episode f1" in screen(tmp_path)


@pytest.mark.parametrize(("offset", "length"), [(-5, 9), (0, 1 << 40), (1 << 70, 1)])
def test_arrays_that_a_line_says_are_nowhere_are_a_change_and_cost_nothing(
    tmp_path: Path, offset: int, length: int
) -> None:
    store = RunStore(tmp_path / "pending")
    (lease,) = store.lease(1)
    store.put(lease, Kept(episode("e")))
    file = tmp_path / "pending" / "step-0.jsonl"
    row = json.loads(file.read_text())
    row["blob"] |= {"offset": offset, "length": length}
    file.write_text(json.dumps(row, ensure_ascii=False) + "\n")
    (change,) = audit_run(tmp_path).changes
    assert "its arrays are not at the recorded position" in change.what


def test_rows_of_metrics_that_are_no_rows_end_no_audit(tmp_path: Path) -> None:
    rows = [{"given_up": 3}, {"given_up": {"3": 4, "5": [6]}}, {"step": 2, "given_up": {"3": [WHY]}}]
    rows.append({"step": 4, "given_up": {"3": [WHY]}})  # by a trainer that goes on
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + "no row\n")
    assert audit_run(tmp_path).altered == [f"step 2: {WHY}"]
