"""The tutorial of OpenEnv trains to its end, against the server that its YAML starts."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from ajet.record import EpisodeFiles
from tests.support.ports import free_port
from tests.support.tutorial_runs import TUTORIALS, learned, prints, taught

FOLDER = TUTORIALS / "example_openenv"
SMALL = ["model.path=embedded:tiny-tools", "rollout.max_model_len=1024", "rollout.max_response_length_in_one_turn=24",
         "rollout.num_repeat=2", "rollout.multi_turn.max_steps=2", "data.train_batch_size=2",
         "data.max_prompt_length=512", "data.max_response_length=512", "task_reader.random_dummy.validation_size=2",
         "trainer_common.total_training_steps=2"]  # fmt: skip


@pytest.mark.extra_slow
def test_it_trains_to_its_end(tmp_path: Path) -> None:
    port = f"openenv_port={free_port()}"
    held_out, rewards = learned(FOLDER / "openenv.yaml", tmp_path, "openenv", *SMALL, port)
    assert len(rewards) == 2 and len(held_out) == 2
    files = EpisodeFiles(tmp_path / "launcher_record" / "openenv" / "episodes")
    played = [episode for step in (1, 2) for episode in files.read(step, "train")]
    assert len(played) == 2 * 2 * 2 and not [episode.failure for episode in played if episode.failure]
    assert all(episode.reward in (0.0, 1.0) and 1 <= len(episode.calls) <= 2 for episode in played)


@pytest.mark.extra_slow
@pytest.mark.timeout(2400)
def test_more_games_are_won(tmp_path: Path) -> None:
    prints(FOLDER / "demonstrations.py", tmp_path / "demonstrations.jsonl")
    model = taught(FOLDER / "sft.yaml", tmp_path)
    port = f"openenv_port={free_port()}"
    steps = ["trainer_common.total_training_steps=20", "trainer_common.save_freq=20"]
    held_out, won = learned(FOLDER / "small.yaml", tmp_path, "openenv_small", model, port, *steps)
    assert mean(won[-5:]) > mean(won[:5]) + 0.05, won  # of 1,280 games each: two standard errors are 0.04
    assert held_out[-1] > held_out[0] + 0.05, held_out  # of 256 games each: it was 0.14 to 0.23 in three runs
