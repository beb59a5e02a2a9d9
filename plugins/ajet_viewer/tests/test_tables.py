"""`ajet runs`: a table whose names can be copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.record.learned import LEARNED_NOTHING
from ajet.record.reward_hacking import GAMED
from ajet_viewer import tables


def test_a_list_of_runs_has_names_that_can_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On 80 columns: the other cells take a second line, a name does not."""
    name = "demo/eval/20261123-163533"
    monkeypatch.setenv("COLUMNS", "80")
    row = {"state": "finished", "step": 40, "train/reward": 0.0312, "debug/reward": None, "reward_short": "",
           LEARNED_NOTHING: False, GAMED: False, "held_out_short": "0.0156 ±0.031 (64/64)", "updated": 1.0}  # fmt: skip
    listed = [{"name": name, **row}]
    monkeypatch.setattr(tables.Library, "runs", lambda self: listed)
    for whole in (True, False):
        tables.show_runs(tmp_path)
        shown = capsys.readouterr().out
        assert (name in shown) is whole and all(len(line) <= 80 for line in shown.splitlines())
        listed.append({"name": "x" * 200, **row})


def test_where_there_are_no_runs_the_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / f"[bold] {'long ' * 30}".strip() / "x[" / "bold]"
    assert tables.show_runs(root) == 0
    assert f"There are no runs in {root}. " in capsys.readouterr().out
