"""WorkflowLoop: the agent loop that verl calls, which runs the workflow and returns its timelines.

A timeline is one token sequence of an episode. Invariants: a failure within an episode never raises. A failed or
unscored episode is written to the run's folder and gives no row, and the other episodes of its group are trained. A
group without any row raises once, as the signal for verl to fetch another task. Validation gives no rows: its metrics
come from the episodes in the run's folder.
"""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from ajet.schema.errors import AjetError
from ajet.schema.task import Task
from ajet_ray.rows import build_rows
from ajet_verl.agent.process import find_routed_shape, open_host


class NothingToTrainError(AjetError):
    """No episode of a group was scored, so verl fetches another task."""


class WorkflowLoop(AgentLoopBase):
    """Runs one session, which is one of the samples that verl requests for a task."""

    async def run(  # type: ignore[override] # verl's workers take a list, its base class does not say so
        self, sampling_params: dict[str, Any], **kwargs: Any
    ) -> list[AgentLoopOutput]:
        """Run an episode and return its token sequences, one output per linear conversation.

        Args:
            sampling_params: ignored; the workflow samples with ajet's settings.
            kwargs: a row of the data set, with verl's uid, session_id and global_steps.
        """
        host = open_host(self.config, self.server_manager, self.tokenizer, self.processor)
        session, index, step = int(kwargs["session_id"]), int(kwargs["index"]), int(kwargs["global_steps"])
        settings = self.rollout_config
        validation_task = Task.model_validate(kwargs["task"]) if kwargs["split"] == "validation" else None
        sessions = settings.n if validation_task is None else settings.val_kwargs.n
        group = await host.join_group(kwargs["uid"], index, validation_task, step=step, sessions=sessions)
        if validation_task is not None:
            return []
        # The last session of a group reports the failure once for the whole group.
        if not group.scored and session == sessions - 1:
            raise NothingToTrainError(f"task {group.task.task_id}: none of {sessions} episodes was scored")
        if session >= len(group.episodes):  # a sampler's group closed at its deadline
            return []
        episode = group.episodes[session]
        # The row of the first scored episode reports the unscored episodes of its group to the trainer, too.
        has_first_score = bool(group.scored) and episode is group.scored[0]
        unscored_episodes = [unscored for unscored in group.episodes if not unscored.scored] if has_first_score else []
        rows = build_rows(
            episode,
            group_order=group.order,
            policy_version=host.version,
            others=unscored_episodes,
            routed_shape=find_routed_shape(self.config),
        )
        return [AgentLoopOutput(**row) for row in rows]
