"""The study's cells, and its tables from recorded runs."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ajet.config import load_experiment
from tests.support.viewer_fixtures import write_seed_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("study", ROOT / "benchmarks" / "study.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_first_seeds_of_everything_come_first(study: ModuleType) -> None:
    cells = list(study.list_cells(["tool", "search"], ["grpo", "rloo"], 2))
    assert [cell.name for cell in cells[:4]] == ["tool-grpo-1", "tool-rloo-1", "search-grpo-1", "search-rloo-1"]
    assert len({cell.name for cell in cells}) == 8 and {cell.seed for cell in cells[4:]} == {2}


def test_tables_come_from_finished_runs(study: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    played = (("grpo", 1, 2, "finished"), ("rloo", 1, 7, "finished"), ("rloo", 2, 8, "failed"))
    for name, seed, solved, outcome in played:
        folder = write_seed_run(tmp_path / f"tool-{name}-{seed}", seed, solved)
        (folder / "status.json").write_text(json.dumps({"outcome": outcome}))
    place = ["--place", str(tmp_path), "--results", str(tmp_path / "results"), "--tasks", "tool", "--table"]
    assert study.main([*place, "--algorithms", "grpo", "rloo", "--seeds", "2"]) == 0
    assert "2 of 4 runs finished" in capsys.readouterr().out
    found = json.loads((tmp_path / "results" / "study_tool.json").read_text())
    assert [(group["label"], len(group["runs"])) for group in found["groups"]] == [("grpo", 1), ("rloo", 1)]
    assert (tmp_path / "results" / "study_tool.csv").is_file()


@pytest.mark.extra_slow
def test_every_cell_composes(study: ModuleType) -> None:
    for cell in study.list_cells(list(study.TASKS), list(study.ALGORITHMS), 1):
        experiment = load_experiment(study.TASKS[cell.task].yaml, backbone="local", overrides=cell.list_overrides())
        experiment.require_ready()
        assert experiment.ajet.trainer_common.mini_batch_num == 2
