"""Debug names comparisons that are never true because their sides are of different kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ajet import Task
from ajet.commands.agent_hints import comparison_hints
from ajet.config import Experiment
from ajet.schema.episode import Episode

NEVER = [  # the line that compares, the row's answer, the agent's
    ('return float(output.metadata["final_answer"] == task.metadata["answer"])', 5, "5"),
    ('return float(output.metadata["final_answer"] == task.metadata["answer"])', "5", 5),
    ('return float(int(output.metadata["final_answer"]) == task.metadata["answer"])', "5", "5"),
    ('return float(output.metadata.get("final_answer").strip() != task.metadata.get("answer"))', 5, "5"),
    ("return float(output == task.metadata['answer'])", "5", "5"),
    ("return float(output.metadata['final_answer'] == task)", "5", "5"),
    ("return float(task.metadata['answer'] == output.metadata['final_answer'])", ["5"], "5"),
    (
        "row = task.metadata; told = row['answer']; said = output.metadata['final_answer']; return float(said == told)",
        5,
        "5",
    ),
]
FINE = [
    ('return float(output.metadata["final_answer"] == task.metadata["answer"])', "5", "5"),
    ('return float(output.metadata["final_answer"] == str(task.metadata["answer"]))', 5, "5"),
    ('return float(float(output.metadata["final_answer"]) == task.metadata["answer"])', 5, "5"),
    ('return float(parsed(output.metadata["final_answer"]) == task.metadata["answer"])', 5, "5"),
    ("said = output.metadata['final_answer']; said = int(said); return float(said == task.metadata['answer'])", 5, "5"),
    ("return float(output.metadata['missing'] == task.metadata['answer'])", 5, "5"),
    ("return float(task.metadata['answer'] == None)", 5, "5"),
    ("return float(task.metadata['answer'] == 'unknown')", 5, "5"),
    ("return float(task.metadata['answer'] in output.metadata['final_answer'])", "5", "5"),
]


def hints(folder: Path, code: str, row: Any, said: Any, **named: Any) -> list[str]:
    (folder / "code.py").write_text(code)
    made = Experiment.from_dict({"ajet": named}, base=folder)
    episode = Episode("u", Task(metadata={"answer": row}), 0, 1, "debug", metadata={"final_answer": said})
    return comparison_hints(made, episode)


def judged(folder: Path, line: str, row: Any, said: Any) -> list[str]:
    code = f"def parsed(x): return int(x)\n\n\ndef reward(task, output):\n    {line}\n"
    return hints(folder, code, row, said, task_judge={"judge_protocol": "code.py->reward"})


@pytest.mark.parametrize(("line", "row", "said"), NEVER)
def test_a_comparison_that_is_never_true_is_named(tmp_path: Path, line: str, row: Any, said: Any) -> None:
    (hint,) = judged(tmp_path, line, row, said)
    assert "code.py:5" in hint and "str(" in hint


@pytest.mark.parametrize(("line", "row", "said"), FINE)
def test_what_may_be_equal_is_not(tmp_path: Path, line: str, row: Any, said: Any) -> None:
    assert judged(tmp_path, line, row, said) == []


def test_classes_and_agents_are_read_likewise(tmp_path: Path) -> None:
    code = """
from ajet import Workflow

class Right:
    def __init__(self, config): pass

    def compute_reward(self, workflow_task, workflow_output):
        right = workflow_output.metadata["final_answer"] == workflow_task.task.metadata["answer"]
        return float(right), right

class Agent(Workflow):
    async def execute(self, workflow_task, tuner):
        reply = await tuner.as_raw_openai_sdk_client().chat.completions.create(messages=[])
        return reply.choices[0].message.content.strip() == workflow_task.task.metadata["answer"]
"""
    named = {"rollout": {"user_workflow": "code.py->Agent"}, "task_judge": {"judge_protocol": "code.py->Right"}}
    one, other = hints(tmp_path, code, 5, "5", **named)
    assert "code.py:8" in one and "code.py:14" in other
    assert hints(tmp_path, code, "5", "5", **named) == []


def test_code_without_a_source_is_left_alone(tmp_path: Path) -> None:
    assert hints(tmp_path, "reward = max", 5, "5", task_judge={"judge_protocol": "code.py->reward"}) == []
    lambdas = "reward = lambda task, output: float(output == 1)"
    assert hints(tmp_path, lambdas, 5, "5", task_judge={"judge_protocol": "code.py->reward"}) == []
