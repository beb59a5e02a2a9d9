"""ScorerCall: the values of one attempt that scorers may request by parameter name.

Invariant: the answer is extracted in one form, named by the row or the configuration. Unused values are never computed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ajet.schema.errors import JudgeFailure
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge.extraction import FORMS, answer_text, extract_answer, find_form_name, strip_thoughts

ANSWER, REFERENCE = "model_answer", "ground_truth"


@dataclass(frozen=True, slots=True)
class ScorerCall:
    """The values of one attempt, each computed when a scorer requests it by parameter name."""

    workflow_task: WorkflowTask
    workflow_output: WorkflowOutput
    config: Any = None
    """The composed config, with attribute access."""
    answer_schema: str | None = None  # `task_judge.answer_schema`

    @property
    def task(self) -> Task:
        """The task of the attempt."""
        return self.workflow_task.task

    @property
    def metadata(self) -> dict[str, Any]:
        """The task's metadata: its row."""
        return self.task.metadata

    @property
    def text(self) -> str:
        """The workflow's complete answer text. Raises JudgeFailure without one."""
        if "final_answer" not in self.workflow_output.metadata:
            raise JudgeFailure(
                "the workflow's output has no metadata['final_answer'], which scorers read; return the answer as "
                "a string, or WorkflowOutput(metadata={'final_answer': …})"
            )
        return answer_text(self.workflow_output.metadata["final_answer"])

    @property
    def form(self) -> str:
        """Name of the answer form to extract, such as "boxed".

        It is "" without a form, or if the workflow has extracted the answer already.
        """
        # A workflow that extracts the answer itself writes the form's name into its output.
        if "answer_schema" in self.workflow_output.metadata:
            return ""
        return find_form_name(self.metadata, self.answer_schema)

    @property
    def reply(self) -> str | None:
        """The model's text without reasoning, or the content of the answer form. None without content."""
        form = self.form
        return FORMS[form].read(self.text) if form else strip_thoughts(self.text)

    @property
    def model_answer(self) -> str | None:
        """The extracted answer, or None.

        It is the content of the answer form. Without a form it is the last box, else the last <answer> tags, else the
        text after ####, else the complete text.
        """
        form = self.form
        extracted = FORMS[form].read(self.text) if form else extract_answer(self.text) or strip_thoughts(self.text)
        return (extracted or "").strip() or None

    @property
    def ground_truth(self) -> Any:
        """The row's answer, unchanged; None without one."""
        truth = self.metadata.get("answer")
        if truth in (None, "", []):
            nested = self.metadata.get("reward_model")  # verl's rows
            truth = nested.get("ground_truth") if isinstance(nested, Mapping) else None
        return None if truth in ("", []) else truth


ARGUMENTS: Mapping[str, Callable[[ScorerCall], Any]] = {
    ANSWER: lambda call: call.model_answer,
    REFERENCE: lambda call: call.ground_truth,
    "reply": lambda call: call.reply,
    "solution_str": lambda call: call.text,
    "question": lambda call: call.task.main_query,
    "task": lambda call: call.task,
    "output": lambda call: call.workflow_output,
    "workflow_task": lambda call: call.workflow_task,
    "workflow_output": lambda call: call.workflow_output,
    "metadata": lambda call: call.metadata,
    "data_source": lambda call: call.metadata.get("data_source", ""),
    "extra_info": lambda call: call.metadata.get("extra_info") or {},
    "step": lambda call: call.workflow_task.step,
    "config": lambda call: call.config,
}
"""Value of each scorer parameter by name."""
VERL_PARAMETERS = ("data_source", "solution_str", REFERENCE, "extra_info")
"""Parameters of verl's reward functions."""


def read_parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return a function's parameters by name; {} for C functions without a signature."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
