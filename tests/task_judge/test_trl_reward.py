"""Reward functions with TRL's signature, arguments in another order, and pairs that are none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.config import Experiment
from ajet.schema.episode import Verdict
from ajet.schema.errors import ConfigError, JudgeFailure
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge import Judge, open_judge

REWARDS = '''
import re
import numpy

def by_answer(completions, answer, **kwargs):
    """As TRL's documentation has it."""
    return [1.0 if text == right else 0.0 for text, right in zip(completions, answer, strict=True)]

def by_prompt(prompts, completions, **kwargs):
    return [float(len(prompt)) for prompt, _ in zip(prompts, completions, strict=True)]

def by_truth(completions, ground_truth, **kwargs):
    return [float(text == right) for text, right in zip(completions, ground_truth, strict=True)]

def by_keywords(completions, **kwargs):
    return [float(kwargs["level"][0] + len(kwargs["prompts"]))]

def by_talk(prompts, completions, **kwargs):
    replies = [completion[0]["content"] for completion in completions]
    return [float(prompt[-1]["content"] + reply == "2 + 2?4") for prompt, reply in zip(prompts, replies, strict=True)]

async def awaited(completions, answer):
    return [True]

def of_numpy(completions, answer):
    return numpy.array([0.5])

def undecided(completions, **kwargs):
    return [None]

def too_many(completions, **kwargs):
    return [1.0, 2.0]

def of_words(completions, **kwargs):
    return ["1.0"]

def a_pair(completions, **kwargs):
    return 0.5, True

def lacks(completions, colour):
    return [1.0]

class Called:
    def __call__(self, completions, answer, **kwargs):
        return [0.25 for _ in completions]

called = Called()

def state(completions, trainer_state):
    return [1.0]

def singular(prompt, completion):
    return 1.0

def swapped(output, task):
    return 1.0

class Swapped:
    def __init__(self, config): pass
    def compute_reward(self, workflow_output, workflow_task):
        return 1.0

class InOrder:
    def __init__(self, config): pass
    def compute_reward(self, task, output):
        return 1.0
'''
ROW = {"answer": "4", "level": 3}
ASKED = Task(main_query="2 + 2?", metadata=ROW)
TALK = Task(init_messages=[{"role": "user", "content": "2 + 2?"}], metadata=ROW)


def judge_of(folder: Path, **named: Any) -> Judge:
    (folder / "r.py").write_text(REWARDS)
    return open_judge(Experiment.from_dict({"ajet": {"task_judge": named}}, base=folder))


def verdict(judge: Judge, task: Task = ASKED, answer: str = "4") -> Verdict:
    output = WorkflowOutput(metadata={"final_answer": answer})
    return asyncio.run(judge.verdict(WorkflowTask(task=task), output))


@pytest.mark.parametrize("key", ["judge_protocol", "scorer"])
@pytest.mark.parametrize(
    ("name", "task", "answer", "reward"),
    [
        ("by_answer", ASKED, "4", 1.0),
        ("by_answer", ASKED, "5", 0.0),
        ("by_truth", Task(main_query="q", metadata={"ground_truth": "4"}), "4", 1.0),
        ("by_answer", Task(main_query="q", metadata={"Answer": "4", "answer": "4"}), "4", 1.0),
        ("by_answer", Task(main_query="q", metadata={"Answer": "4"}), "4", 1.0),
        ("by_prompt", ASKED, "4", 6.0),
        ("by_keywords", ASKED, "4", 4.0),
        ("by_talk", TALK, "4", 1.0),
        ("awaited", ASKED, "4", 1.0),
        ("of_numpy", ASKED, "4", 0.5),
        ("undecided", ASKED, "4", None),
        ("called", ASKED, "4", 0.25),
    ],
)
def test_it_is_called_as_trl_calls_it(
    tmp_path: Path, key: str, name: str, task: Task, answer: str, reward: float | None
) -> None:
    assert verdict(judge_of(tmp_path, **{key: f"r.py->{name}"}), task, answer).reward == reward


@pytest.mark.parametrize(
    ("name", "said"),
    [("too_many", "[1.0, 2.0]"), ("of_words", "'1.0'"), ("a_pair", "(0.5, True)"), ("lacks", "column colour")],
)
def test_what_is_no_list_of_one_is_no_reward(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(JudgeFailure) as failed:
        verdict(judge_of(tmp_path, judge_protocol=f"r.py->{name}"))
    assert said in str(failed.value)


@pytest.mark.parametrize(
    ("name", "do"),
    [
        ("state", "default"),
        ("singular", "def singular(task, output):"),
        ("swapped", "def swapped(task, output):"),
        ("Swapped", "def compute_reward(self, workflow_task, workflow_output):"),
    ],
)
def test_other_signatures_are_refused_with_their_line(tmp_path: Path, name: str, do: str) -> None:
    with pytest.raises(ConfigError) as refused:
        judge_of(tmp_path, judge_protocol=f"r.py->{name}")
    line = next(n for n, text in enumerate(REWARDS.splitlines(), 1) if f"{name}(" in text or f"{name}:" in text)
    assert do in refused.value.do
    assert refused.value.where.endswith((f"r.py:{line}", f"r.py:{line + 2}"))


def test_names_are_free_in_the_right_order(tmp_path: Path) -> None:
    assert verdict(judge_of(tmp_path, judge_protocol="r.py->InOrder")).reward == 1.0


def fixed(result: Any) -> Judge:
    class Fixed:
        def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Any:
            return result

    return Judge(Fixed())


def tensor(value: Any) -> Any:
    import torch

    return torch.tensor(value)


@pytest.mark.parametrize("make", [lambda value: value, np.asarray, np.float32, tensor])
def test_scalars_of_numpy_and_torch_are_numbers(make: Callable[[float], Any]) -> None:
    for told in (make(0.5), (make(0.5), None), [make(0.5)], {"score": make(0.5)}):
        assert verdict(fixed(told)).reward == 0.5


@pytest.mark.parametrize("make", [lambda value: value, np.asarray, np.bool_, tensor])
def test_truths_of_numpy_and_torch_are_truths(make: Callable[[bool], Any]) -> None:
    found = verdict(fixed((0.5, make(False))))
    assert (found.reward, found.success) == (0.5, False)
    assert verdict(fixed(make(True))).success is True


@pytest.mark.parametrize(
    "pair",
    [(True, 0.5), (False, 1.0), (1.0, 0.5), (0.5, 1), (1, 0), (np.bool_(True), np.float32(0.5)), (0.5, "yes")],
    ids=repr,
)
def test_a_pair_whose_second_is_no_truth_is_refused(pair: tuple[Any, Any]) -> None:
    with pytest.raises(JudgeFailure) as failed:
        verdict(fixed(pair))
    assert "(reward, is_success)" in str(failed.value)
    if isinstance(pair[0], bool):
        assert f"return {pair[1]!r}, {pair[0]!r}" in str(failed.value)
