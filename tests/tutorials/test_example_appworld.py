"""The tutorial of a world of apps trains to its end, in the service that its flag starts, and learns to shop."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ajet.config import resolve_reference
from ajet.record import EpisodeFiles
from tests.support.ports import free_port
from tests.support.tutorial_runs import TUTORIALS, learned, prints, taught

FOLDER = TUTORIALS / "example_appworld"
SMALL = ["model.path=embedded:tiny-tools", "rollout.max_model_len=1024", "rollout.max_response_length_in_one_turn=24",
         "rollout.num_repeat=2", "rollout.multi_turn.max_steps=2", "data.train_batch_size=2",
         "data.max_prompt_length=512", "data.max_response_length=512",
         "trainer_common.total_training_steps=2"]  # fmt: skip


def of(reference: str) -> Any:
    return resolve_reference(reference, base=FOLDER)


def listed(shopping: dict[str, int]) -> frozenset[str]:
    return frozenset(f"{count} {item}" for item, count in shopping.items())


@pytest.mark.slow
def test_demonstrations_are_attempts_in_the_world_and_none_is_at_a_held_out_list() -> None:
    draw, shop = random.Random(0), of("shop_service.py->Shop")
    scores = Counter[float]()
    for number in range(200):
        world = shop()
        told = iter(of("demonstrations.py->demonstration")(f"shown-{number}", draw))
        assert [next(told), next(told)] == world.create(f"shown-{number}")
        for said in told:
            answer, _, over = world.step(said["content"])
            assert over or next(told) == {"role": "user", "content": answer}
        assert over
        scores[world.evaluate()] += 1
    assert set(scores) == {0.0, 0.5, 1.0} and scores[1.0] < 60 < scores[0.5], scores
    shopping, tasks = of("shop_service.py->shopping_list"), shop.tasks
    held_out = {listed(shopping(task)) for task in tasks["dev"]}
    assert len(tasks["train"]) > 150 and held_out.isdisjoint(listed(shopping(task)) for task in tasks["train"])
    told = [message["content"] for row in of("demonstrations.py->demonstrations")() for message in row["messages"]]
    read = {frozenset(text.split(", ")) for text in told if text[0].isdigit()}
    assert len(read) > 200 and held_out.isdisjoint(read)


@pytest.mark.extra_slow
def test_it_trains_to_its_end(tmp_path: Path) -> None:
    more = [*SMALL, f"appworld_port={free_port()}", "--with-appworld"]
    held_out, rewards = learned(FOLDER / "appworld.yaml", tmp_path, "appworld", *more)
    assert len(rewards) == 2 and len(held_out) == 2
    files = EpisodeFiles(tmp_path / "launcher_record" / "appworld" / "episodes")
    played = [episode for step in (1, 2) for episode in files.read(step, "train")]
    assert len(played) == 2 * 2 * 2 and not [episode.failure for episode in played if episode.failure]
    for episode in played:
        assert episode.reward is not None and 0 <= episode.reward <= 1 and 1 <= len(episode.calls) <= 2


@pytest.mark.extra_slow
def test_it_learns_to_shop(tmp_path: Path) -> None:
    prints(FOLDER / "demonstrations.py", tmp_path / "demonstrations.jsonl")
    subprocess.run([sys.executable, str(FOLDER / "make_model.py"), "shopper"], check=True, cwd=tmp_path, timeout=120)
    model = taught(FOLDER / "sft.yaml", tmp_path)
    more = [model, f"appworld_port={free_port()}", "--with-appworld"]
    held_out, _ = learned(FOLDER / "small.yaml", tmp_path, "appworld_small", *more)
    assert held_out[-1] >= held_out[0] + 0.3, held_out
