"""The tutorial of asking back: other things are held out, and a pretrained model learns which question to ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.config import resolve_reference
from tests.support.ports import free_port
from tests.support.tutorial_runs import TUTORIALS, learned

FOLDER = TUTORIALS / "example_learn2ask"


def test_no_held_out_thing_is_ordered_in_training_and_each_step_has_both_kinds() -> None:
    orders = resolve_reference("orders.py->Orders", base=FOLDER)(None)
    split = {name: orders.tasks(name) for name in ("train", "validation")}
    things = {name: {task.task_id.rpartition("-")[0] for task in tasks} for name, tasks in split.items()}
    assert not things["train"] & things["validation"]
    assert len(split["validation"]) == 48 and len({task.task_id for task in split["validation"]}) == 48
    for tasks in split.values():
        assert [task.metadata["missing"] for task in tasks] == ["colour", "day"] * (len(tasks) // 2)


@pytest.mark.extra_slow
@pytest.mark.timeout(2400)
def test_it_learns_which_question_to_ask(tmp_path: Path) -> None:
    port = f"stand_in_port={free_port()}"
    held_out, rewards = learned(FOLDER / "learn2ask.yaml", tmp_path, "learn2ask", port)
    assert held_out[-1] > held_out[0] + 0.2, held_out
    assert sum(rewards[-4:]) > sum(rewards[:4]) + 0.8, rewards
