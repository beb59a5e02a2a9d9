"""The coding tutorial: its functions have their tests, what is written is run in a sandbox, and it learns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ajet.config import load_experiment, resolve_reference
from ajet.schema.task import WorkflowTask
from ajet.task_judge.scorers.judge import ScorerJudge
from tests.support.tutorial_runs import TUTORIALS, learned, prints, taught
from tests.support.workflow_fixtures import scene

FOLDER = TUTORIALS / "example_coding"


def of(reference: str) -> Any:
    return resolve_reference(reference, base=FOLDER)


def test_each_function_is_what_its_tests_ask_for_and_parentheses_decide() -> None:
    """Here without a sandbox, as the programs are the tutorial's own."""
    found = of("functions.py->functions")()
    assert not set(found["train"]) & set(found["validation"])
    for each in (*found["validation"], *found["train"]):
        assert passes(each.program(parentheses=True), each.tests())
        assert passes(each.program(parentheses=False), each.tests()) == (each.first[0] == "times")


def test_no_held_out_function_is_demonstrated() -> None:
    rows = of("functions.py->demonstrations")()
    asked = {each.question() for each in of("functions.py->functions")()["train"]}
    assert {row["messages"][1]["content"] for row in rows} <= asked


@pytest.mark.parametrize(
    ("written", "reward"),
    [("def f(x): return (x + 3) * 4", 1.0), ("def f(x): return x + 3 * 4", 0.0), ("import sys; sys.exit(0)", 0.0)],
)
def test_an_attempt_is_asked_and_judged_in_a_sandbox(written: str, reward: float) -> None:
    experiment = load_experiment(FOLDER / "coding.yaml", backbone="local")
    experiment.require_ready()
    wanted = of("functions.py->Wanted")(("add", 3), ("times", 4))
    task = WorkflowTask(task=of("functions.py->task_of")(wanted))
    with scene(written, config=experiment.config) as played:
        output = asyncio.run(of("agent.py->Programmer")().execute(task, played.tuner))
        assert [call.trained for call in played.session.close().calls] == [True]
    assert asyncio.run(ScorerJudge(experiment).compute_reward(task, output)).reward == reward


def passes(program: str, tests: str) -> bool:
    space: dict[str, Any] = {}
    exec(program, space)
    try:
        exec(tests, space)
    except AssertionError:
        return False
    return True


@pytest.mark.extra_slow
def test_it_learns(tmp_path: Path) -> None:
    prints(FOLDER / "functions.py", tmp_path / "demonstrations.jsonl")
    model = taught(FOLDER / "sft.yaml", tmp_path)
    held_out, rewards = learned(FOLDER / "coding.yaml", tmp_path, "coding", model)
    assert held_out[-1] > held_out[0] + 0.2 and sum(rewards[-4:]) > sum(rewards[:4]) + 0.8, (held_out, rewards)
