"""docs/adapters.md's training, as a person runs it: real TRL in its own environment, an agent of AWorld."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from ajet.record import EpisodeFiles
from ajet.schema.errors import UserError
from ajet_trl.processor import require_trl
from tests.docs.snippets import ROOT, blocks

pytestmark = pytest.mark.extra_slow
STEPS = 4


def test_the_pages_training_trains_on_exact_tokens(tmp_path):
    try:
        require_trl()
    except UserError as lacking:
        pytest.skip(str(lacking))
    if find_spec("aworld") is None:
        pytest.skip("AWorld is not installed")
    files = {each.title: each.text for each in blocks(ROOT / "docs" / "adapters.md")}
    for name in ("score.py", "adder.py"):
        (tmp_path / name).write_text(files[name])
    done = subprocess.run(
        [sys.executable, "adder.py"], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=900, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    [run] = (tmp_path / "runs" / "agent_trainer" / "debug").iterdir()
    rows = [row for row in json.loads((run / "trl" / "trainer_state.json").read_text())["log_history"] if "loss" in row]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1)) and rows[0]["grad_norm"] > 0
    for row in rows:
        played = [episode for episode, _ in EpisodeFiles(run / "episodes").recorded(row["step"])]
        assert len(played) == 16 and {episode.policy for episode in played} == {(row["step"] - 1,) * 2}
        assert row["reward"] == pytest.approx(sum(episode.reward for episode in played) / 16, abs=1e-4)
    assert (run / "model" / "model.safetensors").is_file()
    proven = subprocess.run(
        [sys.executable, "-m", "ajet.cli.launcher", "prove", str(run), "--ids-only"], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert proven.returncode == 0, proven.stdout
