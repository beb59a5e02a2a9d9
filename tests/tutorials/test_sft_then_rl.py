"""The tutorial of demonstrations and then rewards: each is what its agent would see, and does what the page says."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from ajet.config import load_experiment, resolve_reference
from ajet.schema.task import WorkflowTask
from tests.support.tutorial_runs import TUTORIALS, learned, taught
from tests.support.workflow_fixtures import scene

FOLDER = TUTORIALS / "example_sft"
CALL = '<tool_call>\n{"name": "price", "arguments": {"item": "ITEM"}}\n</tool_call>'


def of(reference: str) -> Any:
    return resolve_reference(reference, base=FOLDER)


def test_the_demonstrations_are_those_that_it_writes_and_solve_their_tasks() -> None:
    draw = random.Random(0)
    rows = [json.loads(line) for line in (FOLDER / "demonstrations.jsonl").read_text().splitlines()]
    assert rows == [of("shop.py->demonstration")(draw) for _ in rows] and len(rows) == of("shop.py->DEMONSTRATIONS")
    for row in rows:
        *_, told, answer = row["messages"]
        assert answer["content"].endswith(f"\\boxed{{{told['content']}}}")


@pytest.mark.parametrize(
    ("script", "reward", "asked"),
    [
        ([CALL, "\\boxed{PRICE}"], 1.0, 1),
        ([CALL, "PRICE"], 0.0, 1),
        (["\\boxed{1}"], 0.0, 0),
    ],
)
def test_an_attempt_is_played_and_judged(script: list[str], reward: float, asked: int) -> None:
    task = of("shop.py->Shop")(None).tasks("validation")[0]
    item, price = task.metadata["item"], str(task.metadata["price"])
    with scene(*(text.replace("ITEM", item).replace("PRICE", price) for text in script)) as played:
        output = asyncio.run(of("agent.py->Shopper")().execute(WorkflowTask(task=task), played.tuner))
    assert (output.reward, output.is_success, output.log_metrics) == (reward, reward == 1, {"asked": asked})


def test_both_yamls_are_valid() -> None:
    for name in ("sft.yaml", "rl.yaml"):
        load_experiment(FOLDER / name).require_ready()


@pytest.mark.extra_slow
def test_demonstrations_save_steps_and_rewards_teach_the_rest(tmp_path: Path) -> None:
    held_out, after = learned(FOLDER / "rl.yaml", tmp_path, "shop_rl", taught(FOLDER / "sft.yaml", tmp_path))
    assert held_out[-1] > max(0.8, held_out[0]) and sum(after[-4:]) > sum(after[:4]) + 0.4, (held_out, after)
    _, alone = learned(FOLDER / "rl.yaml", tmp_path, "shop_alone", "ajet.experiment_name=shop_alone")
    assert sum(after[:8]) > sum(alone[:8]) + 0.8, (after, alone)
