"""Task, WorkflowTask and WorkflowOutput: the models used by users' workflows.

Invariant: a `Task` is an unchanged value of the task reader. `task_id` names the task in every record. All numbers are
finite, because records and requests are JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ajet.schema.errors import TaskError
from ajet.schema.process_reward import ProcessReward


class Task(BaseModel):
    """A task to solve. Further fields are allowed. Raises TaskError for a number that is not finite."""

    model_config = ConfigDict(extra="allow")

    main_query: str = Field(default="", description="The question or instruction, as text.")
    init_messages: list[dict[str, Any]] = Field(
        default_factory=list, description="Messages that begin the conversation."
    )
    task_id: str = Field(
        default="", description="Stable name of the task; readers make one from the content if it is missing."
    )
    env_type: str = Field(default="no_env", description="Kind of environment, for env_service tasks.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="All other values of the row, e.g. `answer`.")

    @model_validator(mode="after")
    def _require_finite(self) -> Task:
        """Raise TaskError for NaN or infinity anywhere in the task, which a record in JSON could not hold."""
        invalid = find_non_finite(dict(self))
        if invalid is not None:
            field, number = invalid
            raise TaskError(
                f"A task contains a number that is not finite: {field} is {json.dumps(number)}.",
                where=f"task {self.task_id or self.main_query[:80]!r}, {field}",
                expected="a finite number, or None for a missing value: JSON has no NaN or infinity",
                do="correct the value in the source of the task (pandas and numpy read an empty table cell as NaN)",
            )
        return self


_REFUSED_NAMES = ("tokenizer", "llm_inference_fn", "observation_window")


class WorkflowTask(BaseModel):
    """An attempt at a task, as received by `Workflow.execute`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    task: Task
    episode_uuid: str = ""
    task_id: str = ""
    env_type: str = "no_env"
    task_batch_index: int = Field(default=0, description="Index of the task within its batch.")
    task_thread_index: int = Field(default=0, description="Index of the attempt within its group (the repeat).")
    task_tag: str = Field(default="", description='Short name for logs: "T{task_id}#R{repeat}".')
    step: int = Field(default=0, description="Training step for which the attempt runs; 0 without training.")
    gym_env: Any = Field(default=None, description="Client of the environment service; None without one.")
    tool_results: list[str] = Field(
        default_factory=list, description="For the judge: the results of tools, as the model was shown them."
    )

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError. For an attribute of AgentJet's WorkflowTask that ajet lacks, say what to use."""
        if name in _REFUSED_NAMES:
            raise AttributeError(f"a WorkflowTask has no attribute {name}: use the tuner to call the model")
        return super().__getattr__(name)  # type: ignore[misc] # pydantic hides it from type checkers


class WorkflowOutput(BaseModel):
    """The result of `Workflow.execute`.

    A set `reward` is final; None calls the judge. A list holds a reward per model call or per agent: the episode's
    reward is the sum, discounted by `rollout.gamma`, and each entry credits the tokens of its call or agent. Further
    fields are recorded with the metadata. Raises TypeError for a non-numeric reward.
    """

    model_config = ConfigDict(extra="allow")

    reward: float | list[float] | None = None
    is_success: bool | None = None
    undecided: bool = Field(
        default=False,
        description="True if the workflow could not decide: the attempt gets no score, and no judge is called.",
    )
    process: list[ProcessReward] = Field(
        default_factory=list, description="Rewards of parts of the attempt, in addition to `reward`."
    )
    metadata: dict[str, Any] = Field(default_factory=dict, description="Values for the judge, e.g. `final_answer`.")
    log_metrics: dict[str, Any] = Field(
        default_factory=dict,
        description="Values for metrics: numbers are averaged over the step, nested ones under the name `outer/inner`; "
        "other values are only recorded.",
    )

    @field_validator("reward", mode="before")
    @classmethod
    def _require_number(cls, value: Any) -> Any:
        """Raise TypeError for a reward which is a text or a dict, before pydantic converts it."""
        for reward in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(reward, (str, bytes, dict)):
                raise TypeError(
                    f"WorkflowOutput(reward={value!r:.200}): expected a number, a list of numbers (one per "
                    "turn), or None to let the judge decide"
                )
        return value


def find_non_finite(value: Any) -> tuple[str, float] | None:
    """Return path and value of the first NaN or infinite number inside a value, or None.

    The path is `scores.2` for example, or "" for the value itself. Walks mappings, lists and tuples, without recursion.
    """
    unvisited: list[tuple[str, Any]] = [("", value)]
    while unvisited:
        path, item = unvisited.pop()
        if isinstance(item, (float, np.floating)):
            if not math.isfinite(item):
                return path, float(item)
        elif isinstance(item, Mapping):
            unvisited += [
                (f"{path}.{name}" if path else str(name), child) for name, child in reversed(list(item.items()))
            ]
        elif isinstance(item, (list, tuple)):
            unvisited += [(f"{path}.{n}" if path else str(n), item[n]) for n in reversed(range(len(item)))]
    return None


def extract_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message's content, without images."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""
