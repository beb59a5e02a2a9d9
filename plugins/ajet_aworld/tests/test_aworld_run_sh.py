"""run.sh of the GAIA example beside the one that AWorld's page prints, and both against verl's configuration."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet_aworld import packages
from tests.support.verl_fixtures import without_verl

TRAIN = packages.find_folder() / "train"
OURS = TRAIN / "examples" / "train_gaia_with_aworld_verl" / "run.sh"
PRINTED = Path(__file__).parents[3] / "tests" / "printed" / "aworld_run.sh"
"""As the page has it, indented."""
PROGRAMS = {"python3": "shift 2; printf '%s\\n' \"$@\"", "ajet": f"echo {packages.find_folder()}"}
"""What stands in for the programs that it calls."""


def overrides(script: Path, folder: Path, *more: str) -> dict[str, str]:
    """What it gives verl, by a Python that only prints it."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, line in PROGRAMS.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / "bin" / name).chmod(0o755)
    env = {"PATH": f"{folder}/bin:/usr/bin:/bin"}
    done = subprocess.run(["bash", str(script), *more], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line and not line.startswith("Using"))


@pytest.mark.slow
def test_the_pages_commands_before_it_work_in_a_folder_of_ones_own(tmp_path):
    """AWorld's wheel has a `train` of its own, which is all that Python finds by itself."""
    where = [Path(sys.executable).with_name("ajet"), "aworld", "path"]
    said = subprocess.run(where, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (said.stdout.strip(), said.stderr) == (str(packages.find_folder()), "")
    tasks = [sys.executable, "-m", "train.examples.train_gaia_with_aworld_verl.create_dataset"]
    env = {"PATH": "", "PYTHONPATH": said.stdout.strip()}
    done = subprocess.run(tasks, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in (tmp_path / "datasets").iterdir()) == ["test.parquet", "train.parquet"]


def test_it_differs_from_the_page_where_it_says_so(tmp_path):
    ours, printed = overrides(OURS, tmp_path, "trainer.test_freq=7"), overrides(PRINTED, tmp_path)
    assert ours.pop("trainer.test_freq") == "7" and printed.pop("trainer.test_freq") == "5"  # further ones win
    assert ours.pop("trainer.v1.sampler.sync_refill_failed_groups") == "true"
    renamed = {name: printed.pop(f"custom_reward_function.{name}") for name in ("path", "name")}
    assert ours.pop("reward.custom_reward_function.name") == renamed["name"]
    assert Path(ours.pop("reward.custom_reward_function.path")).is_file()
    assert ours.keys() == printed.keys() and len(ours) > 45
    apart = {key for key in ours if ours[key] != printed[key]}
    room = {"data.max_prompt_length", "data.max_response_length"}
    room |= {f"actor_rollout_ref.{key}_max_token_len_per_gpu" for key in ("actor.ppo", "ref.log_prob")}
    rollout = "actor_rollout_ref.rollout"
    files = {f"{rollout}.agent.agent_loop_config_path", f"{rollout}.multi_turn.tool_config_path"}
    assert apart == room | files
    for key in files:
        assert ours[key].replace(str(TRAIN), "/your/path/to/train") == printed[key] and Path(ours[key]).is_file()
    (agent,) = yaml.safe_load(Path(ours[f"{rollout}.agent.agent_loop_config_path"]).read_text())
    assert agent["name"] == "gaia_agent" and agent["_target_"].startswith("train.examples.train_gaia_with_aworld_verl.")


@without_verl
@pytest.mark.slow
@pytest.mark.parametrize("script", [OURS, PRINTED], ids=["ours", "printed"])
def test_every_override_is_one_of_verls(script, tmp_path):
    from hydra import compose, initialize_config_dir

    found = find_spec("verl")
    assert found is not None and found.origin is not None
    given = overrides(script, tmp_path)
    with initialize_config_dir(str(Path(found.origin).parent / "trainer" / "config"), version_base=None):
        config: Any = compose("ppo_trainer", [f"{key}={value}" for key, value in given.items()])
    assert config.actor_rollout_ref.rollout.agent.agent_loop_config_path.endswith("agent.yaml")
    assert config.data.truncation == "error" and config.data.filter_overlong_prompts
