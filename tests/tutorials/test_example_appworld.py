"""The tutorial of a world of apps trains to its end, in the service that its flag starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.record import EpisodeFiles
from tests.ports import free_port
from tests.tutorial_runs import TUTORIALS, learned

SMALL = ["model.path=embedded:tiny-tools", "rollout.max_model_len=1024", "rollout.max_response_length_in_one_turn=24",
         "rollout.num_repeat=2", "rollout.multi_turn.max_steps=2", "data.train_batch_size=2",
         "data.max_prompt_length=512", "data.max_response_length=512",
         "trainer_common.total_training_steps=2"]  # fmt: skip


@pytest.mark.extra_slow
def test_it_trains_to_its_end(tmp_path: Path) -> None:
    more = [*SMALL, f"appworld_port={free_port()}", "--with-appworld"]
    held_out, rewards = learned(TUTORIALS / "example_appworld" / "appworld.yaml", tmp_path, "appworld", *more)
    assert len(rewards) == 2 and len(held_out) == 2
    files = EpisodeFiles(tmp_path / "launcher_record" / "appworld" / "episodes")
    played = [episode for step in (1, 2) for episode in files.read(step, "train")]
    assert len(played) == 2 * 2 * 2 and not [episode.failure for episode in played if episode.failure]
    for episode in played:
        assert episode.reward is not None and 0 <= episode.reward <= 1 and 1 <= len(episode.calls) <= 2
