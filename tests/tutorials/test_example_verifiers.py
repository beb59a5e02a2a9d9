"""The tutorial of verifiers trains to its end: their package in an environment of its own, a process an episode."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ajet.environment.venvs import python_with
from ajet.record import EpisodeFiles
from ajet.schema.errors import UserError
from tests.ajet_command import ajet, metric_rows
from tests.docs.snippets import ROOT

FOLDER = ROOT / "tutorial" / "example_verifiers"


@pytest.mark.extra_slow
def test_it_trains_on_rewards_of_a_taskset(tmp_path: Path) -> None:
    try:
        python_with(FOLDER / "requirements.txt")
    except UserError as problem:
        pytest.skip(f"verifiers could not be installed here: {problem.do}")
    shutil.copytree(FOLDER, tmp_path / "tutorial")
    yaml = tmp_path / "tutorial" / "verifiers.yaml"
    done = ajet("--conf", str(yaml), "--backbone", "local", "trainer_common.threads=1", cwd=tmp_path, timeout=1200)
    assert done.returncode == 0, done.stdout
    run = tmp_path / "launcher_record" / "verifiers"
    rows = [row for row in metric_rows(run) if "train/reward" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    episodes = [each for step in (1, 2, 3, 4) for each in EpisodeFiles(run / "episodes").read(step, "train")]
    assert len(episodes) == 4 * 2 * 4 and not [each.failure for each in episodes if each.failure]
    for each in episodes:
        assert each.reward in (0.0, 1.0) and each.calls and each.metrics["reward_right"] == each.reward
        assert all(call.response_ids.size for call in each.calls), "captured at our gateway, token by token"
    assert [row for row in metric_rows(run) if "validation/reward" in row], "and four tasks are held out"
    assert (run / "checkpoints").is_dir()
