"""The tutorial of images, on verl: a vision model learns what the images it is shown say, with exact tokens."""

import json

import pytest

from tests.support.ajet_process import ajet, metric_rows
from tests.support.verl_runs import skip_without_verl
from tests.vision.vision_fixtures import FOLDER, made_model, vision_environment

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots, pytest.mark.timeout(2400)]
STEPS = 10


def test_a_vision_model_learns_to_name_colours(tmp_path):
    skip_without_verl()
    surroundings = vision_environment()
    model = made_model(tmp_path / "model")
    settings = [f"ajet.model.path={model}", "trainer_common.device=cpu"]
    where = ["--exp-dir", str(tmp_path)]
    arguments = ["--conf", str(FOLDER / "vision.yaml"), "--backbone", "verl", "--with-ray", *where, *settings]
    done = ajet(*arguments, cwd=tmp_path, timeout=1800, **surroundings)
    assert done.returncode == 0, done.stdout
    rows = [row for row in metric_rows(tmp_path / "vision") if "tasks" in row]
    assert len(rows) == STEPS
    rewards = [row["train/reward"] for row in rows]
    assert sum(rewards[-3:]) / 3 > 0.85 > 0.7 > rewards[0], rewards
    gap = max(row["logprob_gap_max"] for row in rows if "logprob_gap_max" in row)
    assert gap < 0.05, "engine and trainer are shown the same images at the same places"

    proof = ajet("prove", "vision", "--ids-only", *where, cwd=tmp_path, **surroundings)
    assert proof.returncode == 0 and "forked" not in proof.stdout.split("ids", 1)[0], proof.stdout
    exported = ajet("export", "vision", *where, cwd=tmp_path, **surroundings)
    assert exported.returncode == 0, exported.stdout
    folder = tmp_path / "vision" / "exports" / f"step-{STEPS}"
    assert "vision_config" in json.loads((folder / "config.json").read_text())
    assert (folder / "processor_config.json").is_file(), sorted(each.name for each in folder.iterdir())
