"""ScorerCall: one attempt as scorers see it, by the names of their parameters.

Invariant: an answer is read in one form, the one that its row or the configuration names; what a scorer does not ask
for is not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ajet.schema.errors import JudgeFailure
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge.extraction import FORMS, answer_text, extract_answer, find_form_name, strip_thoughts

ANSWER, REFERENCE = "model_answer", "ground_truth"


@dataclass(frozen=True, slots=True)
class ScorerCall:
    """The values that a scorer may ask for by the names of its arguments."""

    workflow_task: WorkflowTask
    workflow_output: WorkflowOutput
    config: Any = None
    """The composed one, with attribute access."""
    answer_schema: str | None = None
    """`task_judge.answer_schema`."""

    @property
    def task(self) -> Task:
        """The task that was to be solved."""
        return self.workflow_task.task

    @property
    def metadata(self) -> dict[str, Any]:
        """The task's: its row."""
        return self.task.metadata

    @property
    def text(self) -> str:
        """All that the workflow says is the answer. Raises JudgeFailure where it says nothing of it."""
        if "final_answer" not in self.workflow_output.metadata:
            raise JudgeFailure(
                "the workflow's output has no metadata['final_answer'], which scorers read; return the answer as a "
                "text, or WorkflowOutput(metadata={'final_answer': …})"
            )
        return answer_text(self.workflow_output.metadata["final_answer"])

    @property
    def form(self) -> str:
        """The form in which the answer still has to be read; "" for none, or where its workflow has read it already."""
        if "answer_schema" in self.workflow_output.metadata:
            return ""
        return find_form_name(self.metadata, self.answer_schema)

    @property
    def reply(self) -> str | None:
        """The whole of it without thinking, or what stands in the form; None where nothing stands there."""
        form = self.form
        return FORMS[form].read(self.text) if form else strip_thoughts(self.text)

    @property
    def model_answer(self) -> str | None:
        """What stands in the form; without one, in the last box, else the last <answer> tags, else after ####, else all
        of it. None: there is no answer."""
        form = self.form
        found = FORMS[form].read(self.text) if form else extract_answer(self.text) or strip_thoughts(self.text)
        return (found or "").strip() or None

    @property
    def ground_truth(self) -> Any:
        """The row's answer, as it stands there; None where it has none."""
        found = self.metadata.get("answer")
        if found in (None, "", []):
            nested = self.metadata.get("reward_model")  # verl's rows
            found = nested.get("ground_truth") if isinstance(nested, Mapping) else None
        return None if found in ("", []) else found


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
"""What a parameter of a scorer gets, by its name."""
VERL_PARAMETERS = ("data_source", "solution_str", REFERENCE, "extra_info")
"""What verl's reward functions are called with."""
