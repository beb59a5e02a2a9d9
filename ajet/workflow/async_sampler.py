"""AsyncSampler: an agent with its own evaluation in one class, as in AgentRL.

Invariant: the result of `evaluate_record` is the attempt's score; None means no score, never 0, and no other judge is
called. Without the method `task_judge` or the scorers of the task file judge the attempt.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr

from ajet.schema.errors import BoundaryError, JudgeFailure
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge.judge import call_user_function
from ajet.task_judge.scorers.call import ScorerCall
from ajet.workflow.function import to_output
from ajet.workflow.workflow import Workflow

if TYPE_CHECKING:
    from ajet.workflow.tuner import ModelTuner


@dataclass(frozen=True, slots=True)
class Record:
    """A finished attempt, as passed to `evaluate_record`."""

    workflow_task: WorkflowTask
    output: WorkflowOutput
    """Result of `run`; a returned text is `metadata["final_answer"]`."""
    meta_infos: dict[str, Any] = field(default_factory=dict)
    """Entries written by `run` to `self.record.meta_infos`, as in AgentRL."""

    @property
    def task(self) -> Task:
        """The task of the episode."""
        return self.workflow_task.task

    @property
    def model_answer(self) -> str | None:
        """The answer in the task's form (`answer_schema`), or None without one.

        Raises JudgeFailure if `run` returned no answer.
        """
        return ScorerCall(self.workflow_task, self.output).model_answer

    @property
    def ground_truth(self) -> Any:
        """The task's `answer`, or None."""
        return ScorerCall(self.workflow_task, self.output).ground_truth


class AsyncSampler(Workflow):
    """Base class: write `run` and optionally `evaluate_record`, and name the class in `rollout.user_workflow`."""

    name: str = "sampler"

    _tuner: Any = PrivateAttr(default=None)

    @abstractmethod
    async def run(self, task: Task, tuner: ModelTuner) -> Any:
        """Play the task with an agent that calls `tuner`.

        A `run` with the task as only argument calls the model by `create_chat_completions`.

        Returns:
            A WorkflowOutput, a text (the answer) or a number (the reward). For None, `self.record.meta_infos` is the
                output's metadata.
        """

    async def create_chat_completions(self, **request: Any) -> Any:
        """Return the tuned model's ChatCompletion for the fields of a Chat Completions request."""
        return await self._tuner.as_raw_openai_sdk_client().chat.completions.create(**request)

    async def evaluate_record(self, record: Record) -> float | None:
        """Return the attempt's score; None for no score. If not overridden, the configured judge is called."""
        raise NotImplementedError

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner, /) -> Any:
        """Call `run`, and score its output by `evaluate_record` if the class overrides it."""
        self._tuner, self.record = tuner, Record(workflow_task, WorkflowOutput())
        run: Callable[..., Awaitable[Any]] = self.run
        result = await run(*(workflow_task.task, tuner)[: 2 if _takes_tuner(run) else 1])
        meta_infos = self.record.meta_infos
        output = WorkflowOutput(metadata=dict(meta_infos)) if result is None and meta_infos else to_output(result)
        if type(self).evaluate_record is AsyncSampler.evaluate_record:
            return output
        return await evaluate_output(self.evaluate_record, workflow_task, output, meta_infos)


def _takes_tuner(run: Callable[..., Any]) -> bool:
    """Return True if `run` takes the task and the tuner, False if only the task."""
    try:
        inspect.signature(run).bind(None, None)
    except TypeError:
        return False
    return True


async def evaluate_output(
    evaluate: Callable[[Record], float | Awaitable[float | None] | None],
    workflow_task: WorkflowTask,
    output: Any,
    meta_infos: dict[str, Any] | None = None,
) -> Any:
    """Return the output with the score of `evaluate` as its reward.

    A score of None marks the output as undecided. A value that is no WorkflowOutput is returned unchanged: the episode
    fails by it later.

    Raises:
        JudgeFailure, BoundaryError: raised by `evaluate`.
    """
    if not isinstance(output, WorkflowOutput):
        return output
    try:
        score = await call_user_function(
            evaluate, Record(workflow_task, output, {} if meta_infos is None else meta_infos)
        )
        scored = to_output(score) if score is not None else None
        if score is not None and not (isinstance(scored, WorkflowOutput) and scored.reward is not None):
            raise JudgeFailure(f"evaluate_record returned {score!r:.200}; expected a number, or None for no score")
    except BoundaryError:
        raise
    except Exception as error:
        raise JudgeFailure(f"evaluate_record raised {type(error).__name__}: {error}") from error
    if scored is None:
        return output.model_copy(update={"reward": None, "undecided": True})
    success = output.is_success if scored.is_success is None else scored.is_success
    return output.model_copy(update={"reward": scored.reward, "is_success": success})
