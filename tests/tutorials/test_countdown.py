"""The countdown tutorial: its puzzles can be solved, its rule runs nothing of what is written, and it learns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ajet.config import load_experiment, resolve_reference
from ajet.schema.task import Task, WorkflowTask
from tests.support.tutorial_runs import TUTORIALS, learned, prints, taught
from tests.support.workflow_fixtures import scene

FOLDER = TUTORIALS / "example_countdown"


@pytest.mark.parametrize(
    ("expression", "right"),
    [
        ("16 - 9", True),
        ("(16) - 9", True),
        ("9 - 16", False),
        ("16 - 9 + 0", False),
        ("16 - 9 - 16 + 16", False),
        ("7", False),
        ("16 // 9 * 7", False),
        ("16 - 9 if 1 else 0", False),
        ("16 ** 9", False),
        ("-(9 - 16)", False),
        ("__import__('os').getpid() or 7", False),
        ("16 - 9\x00", False),
        ("(" * 150 + "16 - 9" + ")" * 150, False),
        ("16 / (9 - 9)", False),
        ("", False),
    ],
)
def test_the_rule(expression: str, right: bool) -> None:
    assert resolve_reference("countdown_answer_as_judge.py->solves", base=FOLDER)(expression, [9, 16], 7) is right


def test_fractions_are_exact() -> None:
    assert resolve_reference("countdown_answer_as_judge.py->solves", base=FOLDER)("8 / (3 - 8 / 3)", [8, 3, 8, 3], 24)


def test_every_puzzle_has_a_solution_and_no_held_out_one_is_trained_on() -> None:
    solves = resolve_reference("countdown_answer_as_judge.py->solves", base=FOLDER)
    found = resolve_reference("puzzles.py->puzzles", base=FOLDER)()
    assert all(solves(solution, nums, target) for split in found.values() for nums, target, solution in split)
    kept_back = {frozenset((*nums, target)) for nums, target, _ in found["validation"]}
    assert kept_back.isdisjoint(frozenset((*nums, target)) for nums, target, _ in found["train"])
    rows = resolve_reference("puzzles.py->demonstrations", base=FOLDER)()
    questions = {task.main_query for task in reader().tasks("train")}
    assert {row["messages"][1]["content"] for row in rows} <= questions


def test_an_attempt_is_asked_and_judged(tmp_path: Path) -> None:
    """By the names and with the columns that AgentJet's YAML and data set have."""
    experiment = load_experiment(FOLDER / "countdown.yaml", backbone="local")
    experiment.require_ready()
    theirs = "tutorial.example_countdown."
    workflow = resolve_reference(f"{theirs}countdown->ExampleCountdownLearn", base=tmp_path)()
    judge = resolve_reference(f"{theirs}countdown_answer_as_judge->CountdownAnswerAsJudge", base=tmp_path)(None)
    task = WorkflowTask(task=Task(task_id="t", metadata={"nums": [9, 16], "target": 7}))
    for said, reward in (("\\boxed{16 - 9}", 1.0), ("\\boxed{16 + 9}", 0.0), ("16 - 9", 0.0)):
        with scene(said, config=experiment.config) as played:
            output = asyncio.run(workflow.execute(task, played.tuner))
            assert [call.trained for call in played.session.close().calls] == [True]
        assert judge.compute_reward(task, output) == (reward, reward == 1)


def reader() -> Any:
    return resolve_reference("puzzles.py->Puzzles", base=FOLDER)(None)


@pytest.mark.extra_slow
def test_it_learns(tmp_path: Path) -> None:
    prints(FOLDER / "puzzles.py", tmp_path / "demonstrations.jsonl")
    model = taught(FOLDER / "sft.yaml", tmp_path)
    _, rewards = learned(FOLDER / "countdown.yaml", tmp_path, "countdown", model)
    assert sum(rewards[-5:]) > sum(rewards[:5]) + 0.75, rewards
