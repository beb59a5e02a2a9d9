"""The experiment that both sides of bench_verl.py play: one question, one reply, a reward that a line computes.

Ours is the tasks and the workflow below; verl's own is `ROWS` of the same questions and `compute_score`.
"""

from __future__ import annotations

from typing import Any

from ajet import ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask

ITEMS = ("eel", "fig", "ham", "jam", "nut", "oat", "pea", "yam")
COUNT = 512


def question(number: int) -> str:
    """The only message of a prompt."""
    return f"Tell me in a few words what a good {ITEMS[number % len(ITEMS)]} costs at market number {number}."


def share_of_letters(text: str) -> float:
    """The reward: something that differs from reply to reply, so that every step has something to train."""
    return sum(sign.islower() for sign in text) / max(len(text), 1)


class Questions:
    """The task reader."""

    def __init__(self, config: Any) -> None:
        pass

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(task_id=str(number), main_query=question(number)) for number in range(COUNT if split == "train" else 1)
        ]


class OneTurn(Workflow):
    """The agent: one call through the OpenAI SDK, as users write it."""

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client()
        messages: Any = [{"role": "user", "content": workflow_task.task.main_query}]
        reply = await client.chat.completions.create(model="tuned", messages=messages)
        return WorkflowOutput(reward=share_of_letters(reply.choices[0].message.content or ""))


def verl_row(number: int) -> dict[str, Any]:
    """The same task as a row of the data set that verl's own loader reads."""
    return {
        "prompt": [{"role": "user", "content": question(number)}],
        "data_source": "one_turn",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": number},
    }


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any, **_: Any) -> float:
    """verl's `reward.custom_reward_function`."""
    return share_of_letters(solution_str)
