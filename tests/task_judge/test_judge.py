"""Verdicts: what wins, what is no score, and what is a failure of the judge."""

import asyncio
import math
import sys
import threading

import numpy as np
import pytest

from ajet.config import Experiment, resolve_reference
from ajet.schema.episode import Verdict
from ajet.schema.errors import (
    ConfigError,
    EnvironmentFailure,
    JudgeFailure,
    RewardFailure,
    UnresolvedReferenceError,
)
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge import BaseJudge, Judge, open_judge
from ajet.task_judge.math_judge import MathAnswerJudge

TASK = WorkflowTask(task=Task(main_query="6*7?", task_id="t", metadata={"answer": "so 6*7 = 42\n#### 42"}))


def judging(result):
    """A judge that answers (or raises) `result`."""

    class Fixed(BaseJudge):
        def compute_reward(self, workflow_task, workflow_output):
            if isinstance(result, Exception):
                raise result
            return result

    return Fixed(None)


def verdict(judge, output=None, **options):
    return asyncio.run(Judge(judge, **options).verdict(TASK, output or WorkflowOutput()))


def test_a_reward_that_is_set_wins():
    found = verdict(judging((0.0, False)), WorkflowOutput(reward=0.5, is_success=True))
    assert (found.reward, found.success) == (0.5, True)


def test_a_reward_of_zero_is_set():
    assert verdict(judging((1.0, True)), WorkflowOutput(reward=0.0)).reward == 0.0


def test_a_list_of_rewards_is_discounted():
    assert verdict(None, WorkflowOutput(reward=[1.0, 2.0, 4.0]), gamma=0.5).reward == 1 + 1 + 1
    assert verdict(judging(([1, 2], True)), gamma=0.5).reward == 2.0


def test_an_empty_list_of_rewards_is_no_score():
    found = verdict(judging((1.0, True)), WorkflowOutput(reward=[]))
    assert found.reward is None and "no score" in found.reason


def test_without_judge_and_reward_there_is_no_score():
    found = verdict(None, WorkflowOutput(is_success=True))
    assert found.reward is None and found.success and "no judge" in found.reason


@pytest.mark.parametrize("result", [None, (None, None), Verdict(None), (None, False)])
def test_a_judge_that_does_not_decide_gives_no_score(result):
    found = verdict(judging(result))
    assert found.reward is None and "the judge returned None" in found.reason


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ((1, True), Verdict(1.0, True)),
        ((True, True), Verdict(1.0, True)),
        ((np.float32(0.5), np.bool_(False)), Verdict(0.5, False)),
        ((0.0, None), Verdict(0.0, None)),
        ([0.25, True], Verdict(0.25, True)),
        ([0.25, None], Verdict(0.25, None)),
        ([0.25, 1], Verdict(1.25, None, turns=(0.25, 1.0))),
        ([0.5, 0.25, 0.25], Verdict(1.0, None, turns=(0.5, 0.25, 0.25))),
        (Verdict(0.5, True, "half right"), Verdict(0.5, True, "half right")),
        (0.5, Verdict(0.5, None)),
        (np.float32(0.5), Verdict(0.5, None)),
        (2, Verdict(2.0, None)),
        (True, Verdict(1.0, True)),
        (np.bool_(False), Verdict(0.0, False)),
    ],
)
def test_what_judges_may_answer(result, expected):
    found = verdict(judging(result))
    assert found == expected
    assert type(found.reward) is float and (found.success is None or type(found.success) is bool)


@pytest.mark.parametrize(
    "result",
    [
        (math.nan, True),
        (math.inf, True),
        Verdict(-math.inf),
        ([1.0, math.nan], True),
        ("1.0", True),
        (1.0, "yes"),
        ([1.0, "x"], True),
        [1.0, "x"],
        (1.0,),
        "good",
        math.nan,
        object(),
        KeyError("answer"),
        ZeroDivisionError(),
    ],
)
def test_a_judge_that_fails_is_a_failure_and_no_zero(result):
    with pytest.raises(JudgeFailure) as failure:
        verdict(judging(result))
    assert "Fixed" in str(failure.value)


@pytest.mark.parametrize("reward", [math.nan, -math.inf, [1.0, math.nan]])
def test_a_workflow_whose_reward_is_no_number(reward):
    with pytest.raises(RewardFailure, match="workflow's reward"):
        verdict(None, WorkflowOutput(reward=reward))


def test_a_failure_that_names_its_boundary_keeps_it():
    with pytest.raises(EnvironmentFailure):
        verdict(judging(EnvironmentFailure("gone")))


def test_an_async_judge_runs_on_the_loop_and_a_plain_one_does_not_block_it():
    class Async(BaseJudge):
        async def compute_reward(self, workflow_task, workflow_output):
            await asyncio.sleep(0)
            self.thread = threading.current_thread()
            return 1.0, True

    class Blocking(BaseJudge):
        def compute_reward(self, workflow_task, workflow_output):
            self.entered.set()
            assert self.release.wait(60)
            return 2.0, True

    async def both():
        one, other = Async(None), Blocking(None)
        other.entered, other.release = threading.Event(), threading.Event()
        blocked = asyncio.create_task(Judge(other).verdict(TASK, WorkflowOutput()))
        while not other.entered.is_set() and not blocked.done():
            await asyncio.sleep(0)
        first = await Judge(one).verdict(TASK, WorkflowOutput())
        assert one.thread is threading.current_thread() and not blocked.done()
        other.release.set()
        return first.reward, (await blocked).reward

    assert asyncio.run(both()) == (1.0, 2.0)


def test_a_judge_that_exits_the_program_does_not():
    class Exits(BaseJudge):
        def compute_reward(self, workflow_task, workflow_output):
            raise SystemExit(3)

    with pytest.raises(JudgeFailure, match="tried to end the program"):
        verdict(Exits(None))


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("42", 1.0),
        (r"First \boxed{41}, no: \boxed{42}", 1.0),
        (r"\boxed{{42.0}}", 1.0),
        (str([{"type": "text", "text": r"It is \boxed{\text{42}}."}]), 1.0),
        (r"\boxed{\frac{84}{2}}", 0.0),
        ([{"type": "text", "text": r"\boxed{42}"}], 1.0),
        ("<answer>42</answer>", 1.0),
        (r"<think>\boxed{42}</think> \boxed{43}", 0.0),
        (r"<think>\boxed{42}", 0.0),
        ("a long story without an answer\nthat mentions 42", 0.0),
        (None, 0.0),
        ("", 0.0),
    ],
)
def test_math_answers(answer, reward):
    found = verdict(MathAnswerJudge(None), WorkflowOutput(metadata={"final_answer": answer}))
    assert (found.reward, found.success) == (reward, bool(reward)) and found.reason


def test_a_task_without_an_answer_gets_no_score():
    task = WorkflowTask(task=Task(task_id="bare"))
    output = WorkflowOutput(metadata={"final_answer": "42"})
    found = asyncio.run(Judge(MathAnswerJudge(None)).verdict(task, output))
    assert found.reward is None and "bare" in found.reason


JUDGES = """
from ajet.task_judge.base_judge import BaseJudge

class Mine(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        return self.config.points.right, True

class Broken(BaseJudge):
    def __init__(self, config):
        self.points = config.points.missing

    def compute_reward(self, workflow_task, workflow_output):
        return self.points, True

class NoJudge:
    pass

def right(task, output):
    return float(task.metadata["answer"] == output.metadata["final_answer"])

async def awaited(task, output):
    return right(task, output), True

def raises(task, output):
    raise KeyError("answer")

def three(task, output, config):
    return 1.0
"""


def experiment(tmp_path, protocol):
    (tmp_path / "judge.py").write_text(JUDGES)
    tree = {"ajet": {"task_judge": {"judge_protocol": protocol}}, "points": {"right": 7}}
    return Experiment.from_dict(tree, base=tmp_path)


def test_a_judge_is_named_by_reference_and_gets_the_config(tmp_path):
    judge = open_judge(experiment(tmp_path, "judge.py->Mine"), reader_judge=judging((1.0, True)))
    assert asyncio.run(judge.verdict(TASK, WorkflowOutput())).reward == 7.0
    assert "Mine" in str(judge)


def test_without_a_reference_the_readers_judge_decides(tmp_path):
    judge = open_judge(experiment(tmp_path, None), reader_judge=judging((3.0, True)))
    assert asyncio.run(judge.verdict(TASK, WorkflowOutput())).reward == 3.0


def test_without_any_judge(tmp_path):
    judge = open_judge(experiment(tmp_path, None))
    assert asyncio.run(judge.verdict(TASK, WorkflowOutput())).reward is None
    assert "workflow" in str(judge)


@pytest.mark.parametrize(
    ("protocol", "error", "message"),
    [
        ("judge.py->Nobody", UnresolvedReferenceError, "Nobody"),
        ("judge.py->Broken", ConfigError, "missing"),
        ("judge.py->NoJudge", ConfigError, "is not a judge"),
        (
            "judge.py->three",
            ConfigError,
            r"(?s)with the arguments \(task, output\).*judge.py:\d+.*def three\(task, output\):",
        ),
    ],
)
def test_what_is_wrong_with_a_judge_is_said_before_the_run(tmp_path, protocol, error, message):
    with pytest.raises(error, match=message):
        open_judge(experiment(tmp_path, protocol))


@pytest.mark.parametrize(("name", "success"), [("right", None), ("awaited", True)])
def test_a_function_is_a_judge_and_gets_the_task_itself(tmp_path, name, success):
    judge = open_judge(experiment(tmp_path, f"judge.py->{name}"))
    task = WorkflowTask(task=Task(metadata={"answer": "42"}))
    found = asyncio.run(judge.verdict(task, WorkflowOutput(metadata={"final_answer": "42"})))
    assert found == Verdict(1.0, success) and str(judge).endswith(name)


def test_a_function_that_raises_is_a_failure_of_the_judge_and_named(tmp_path):
    judge = open_judge(experiment(tmp_path, "judge.py->raises"))
    with pytest.raises(JudgeFailure, match="raises raised KeyError"):
        asyncio.run(judge.verdict(TASK, WorkflowOutput()))


def test_shipped_judges_resolve(tmp_path):
    judge = open_judge(experiment(tmp_path, "ajet.task_judge.math_judge->MathAnswerJudge"))
    output = WorkflowOutput(metadata={"final_answer": "42"})
    assert asyncio.run(judge.verdict(TASK, output)).reward == 1.0


STARTS = ("subprocess.Popen", "os.fork", "os.posix_spawn")


def test_a_plain_number_costs_no_process():
    started: list[object] = []
    watching = [True]
    sys.addaudithook(lambda event, arguments: started.append(arguments) if watching and event in STARTS else None)
    verdict(MathAnswerJudge(None), WorkflowOutput(metadata={"final_answer": r"\boxed{43}"}))
    watching.clear()  # a hook stays for good
    assert started == []


def test_of_several_tags_the_last_counts_and_for_gaia_the_first():
    task = Task(task_id="t", metadata={"answer": "1"})
    reply = "<think><answer>3</answer></think><answer>1</answer> or <answer>2</answer>"
    output = WorkflowOutput(metadata={"final_answer": reply})
    judge = Judge(MathAnswerJudge(None))
    assert asyncio.run(judge.verdict(WorkflowTask(task=task), output)).reward == 0.0
    task.metadata["data_source"] = "gaia"
    assert asyncio.run(judge.verdict(WorkflowTask(task=task), output)).reward == 1.0


def test_a_judge_of_a_file_is_called_what_its_author_calls_it(tmp_path):
    (tmp_path / "marks.py").write_text("class Marks:\n    def __init__(self, config): ...\n")
    found = resolve_reference("marks.py->Marks", base=tmp_path)
    assert str(Judge(found(None))) == "marks.Marks"
