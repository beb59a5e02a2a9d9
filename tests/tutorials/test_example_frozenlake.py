"""The frozen lake: demonstrations are games of gymnasium's lake, and rewards teach to reach the goal."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from ajet.config import load_experiment, resolve_reference
from ajet.schema.task import Task, WorkflowTask
from tests.support.tutorial_runs import TUTORIALS, learned, prints, taught
from tests.support.workflow_fixtures import scene

FOLDER = TUTORIALS / "example_frozenlake"


def of(reference: str) -> Any:
    return resolve_reference(reference, base=FOLDER)


@pytest.mark.slow
def test_demonstrations_win_about_half_of_their_games() -> None:
    draw, first = random.Random(1), of("demonstrations.py->FIRST_SEED")
    games = [of("demonstrations.py->play")(first + number, draw) for number in range(150)]
    assert 0.35 < mean(reward for _, reward in games) < 0.55
    for messages, _ in games:
        assert [message["role"] for message in messages[:2]] == ["system", "user"]
        assert messages[1]["content"].startswith("###\n#P") and len(messages) <= 1 + 2 * 10
        assert all(of("workflow.py->parse_action")(each["content"]) is not None for each in messages[2::2])


def test_a_shortest_path_goes_around_the_holes() -> None:
    find_step = of("demonstrations.py->find_step")
    assert find_step(["SFF", "HHF", "GFF"], 0) == "right"
    assert find_step(["SHF", "FFF", "FHG"], 4) == "right"


def test_small_yaml_plays_lakes_of_the_demonstrations() -> None:
    experiment = load_experiment(FOLDER / "small.yaml")
    experiment.require_ready()
    assert experiment.config.frozen_lake.frozen_lake_size == of("demonstrations.py->SIZE")
    assert experiment.ajet.rollout.multi_turn.max_steps == of("demonstrations.py->MAX_STEPS")


def test_an_attempt_ends_at_the_goal_with_reward_1() -> None:
    lake = generate_random_map(size=4, seed=7)
    position, script = 0, ["I do not know"]
    while lake[position // 4][position % 4] != "G":
        step = of("demonstrations.py->find_step")(lake, position)
        down, right = of("workflow.py->MOVES")[step]
        position += 4 * down + right
        script.append(f"\\boxed{{{step}}}")
    task = WorkflowTask(task=Task(main_query="", task_id="t", metadata={"random_number": 7}))
    with scene(*script, config=load_experiment(FOLDER / "small.yaml").config) as played:
        output = asyncio.run(of("workflow.py->FrozenLakeWorkflow")().execute(task, played.tuner))
    assert (output.reward, output.is_success) == (1.0, True)
    assert output.log_metrics == {"turns": len(script), "invalid_steps": 1}


@pytest.mark.extra_slow
@pytest.mark.timeout(2400)
def test_rewards_teach_to_reach_the_goal(tmp_path: Path) -> None:
    prints(FOLDER / "demonstrations.py", tmp_path / "demonstrations.jsonl")
    model = taught(FOLDER / "sft.yaml", tmp_path)
    held_out, rewards = learned(FOLDER / "small.yaml", tmp_path, "frozen_lake_small", model)
    assert held_out[-1] > held_out[0] + 0.15 and mean(rewards[-8:]) > mean(rewards[:8]) + 0.1, (held_out, rewards)
