"""EpisodeCredit: computes the advantages of a step's episodes, and writes them into Trinity's rows (Experience).

Advantages are computed as on every backbone. Invariants: they cover all groups of a step, as in the run's folder, and a
missing group is an error. Each trained token's loss weight travels in the field `returns`, otherwise unused without a
critic. Rows without weight are dropped. Padding rows, which give each trainer process equal numbers, train nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from ray.exceptions import RayError
from trinity.algorithm.advantage_fn import AdvantageFn
from trinity.buffer.operators.experience_operator import ExperienceOperatorV1
from trinity.common.experience import Experience
from trinity.explorer import scheduler
from trinity.explorer.scheduler import RunnerWrapper

from ajet.algorithm import assign_credit, open_algorithm
from ajet.schema.episode import list_episodes
from ajet_ray.cluster.ray_errors import read_last_line
from ajet_ray.mailbox import CreditEntry, CreditNotice, DeathNotice, Sender
from ajet_ray.rows import rebuild_groups
from ajet_trinity.processes.here import load_context
from ajet_trinity.processes.workflow import build_blank


class EpisodeCredit(AdvantageFn, ExperienceOperatorV1):
    """Trinity's `algorithm.advantage_fn` that computes ajet's advantages before the trainer."""

    def __init__(self) -> None:
        """Load the run's settings and its advantage algorithm, and connect to the run's mailbox."""
        experiment = load_context().experiment
        self._settings = experiment.ajet
        self._algorithm = open_algorithm(experiment.ajet, base=experiment.base)
        self._sender = Sender()

    async def prepare(self) -> None:
        """Replace Trinity's runner class in this process, which creates the runners. Trinity calls this."""

        replace_dead_runners()

    async def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, float]]:
        """Compute the advantages of a step, and return the rows to train.

        Args:
            exps: all rows of the step's groups.

        Returns:
            The rows with advantages and weights, padded to a multiple of the trainer's processes, and no metrics.

        Raises:
            RuntimeError: a group of the step is missing.
        """
        step = int(exps[0].eid.batch)
        expected, returned = self._settings.data.train_batch_size, len({exp.eid.task for exp in exps})
        if returned != expected:  # Trinity would train on a part, and the missing episodes would not be played again
            raise RuntimeError(
                f"step {step}: {returned} of {expected} groups came back; read the logs of the runners for the reason"
            )
        trained, notice = self._assign_credit(exps, step)
        await self._sender.post_async(notice)
        while not trained or len(trained) % load_context().ranks:
            trained.append(_set_weight(build_blank(), 0.0, torch.zeros(1)))
        for row in trained:
            row.eid.batch = step
            row.info = {"model_version": step - 1, "ajet_rows": len(trained)}
        return trained, {}

    def __call__(self, exps: Any, **kwargs: Any) -> Any:
        """Refuse the call that Trinity makes in the trainer: `process` computes the advantages before it."""
        raise NotImplementedError("credit is given before the trainer, by `process`")

    @classmethod
    def compute_in_trainer(cls) -> bool:
        """Return False, because advantages need complete groups, which exist before the trainer."""
        return False

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Return no default arguments. Trinity requires the method."""
        return {}

    def _assign_credit(self, exps: list[Experience], step: int) -> tuple[list[Experience], CreditNotice]:
        # Rows without ajet's data are blank rows of unscored groups.
        """Compute the credit of a step's rows.

        Returns:
            The rows with a loss weight above 0, and the notice with each episode's outcome for the run's own process.
        """
        ajet_rows = [exp for exp in exps if "ajet" in exp.info]
        keys = [f"{row.info['ajet']['order']}_{row.eid.run}_{row.eid.step}" for row in ajet_rows]
        rebuilt = rebuild_groups(keys, _read_fields(ajet_rows))
        batch = assign_credit(rebuilt.groups, self._settings, self._algorithm, step=step)
        row_by_timeline = {id(timeline): row for row, timeline in enumerate(rebuilt.timelines) if timeline is not None}
        trained = []
        for sample in batch.samples:
            if sample.weight:
                row = ajet_rows[row_by_timeline[id(sample.timeline)]]
                trained.append(
                    _set_weight(row, sample.weight, torch.from_numpy(sample.advantages[row.prompt_length :]))
                )
        tokens = batch.trained_by_episode
        entries = [
            CreditEntry(episode.uuid, batch.outcomes[episode.uuid], tokens[episode.uuid])
            for episode in list_episodes(rebuilt.groups)
        ]
        return trained, CreditNotice(step, entries, dict(batch.metrics))


def _set_weight(row: Experience, weight: float, advantages: torch.Tensor) -> Experience:
    """Write advantages and loss weight of a row's trained tokens into the row, and return it. `advantages` is
    [response]."""
    assert row.action_mask is not None
    mask = row.action_mask.float()
    row.advantages, row.returns = advantages.float() * mask, mask * weight
    return row


def _read_fields(rows: list[Experience]) -> dict[str, list[Any]]:
    """Return the fields of Trinity's rows under verl's names (`rows.FIELDS`)."""
    fields: dict[str, list[Any]] = {
        "prompts": [row.tokens[: row.prompt_length].numpy() for row in rows],
        "responses": [row.tokens[row.prompt_length :].numpy() for row in rows],
        "extra_fields": [{"ajet": row.info["ajet"]} for row in rows],
    }
    fields["response_mask"] = [row.action_mask.numpy() for row in rows if row.action_mask is not None]
    fields["rollout_log_probs"] = [row.logprobs.numpy() for row in rows if row.logprobs is not None]
    return fields


# LastingRunner: a process of Trinity that runs groups of episodes. After its death it is replaced, and its group runs
# once more.
# Invariant: each requested group is returned, or the run ends. Trinity replaces a runner for later tasks, but waits
# forever for the dead runner's task (its scheduler's `task_done_callback`). The mailbox repeats the answer for a
# repeated ticket and hands over an already finished group. After several deaths the run's own process ends the run
# (`ajet_ray.record.DEATHS`).
ROLE = "explorer's runner"


class LastingRunner(RunnerWrapper):
    """Handle of a Trinity runner that replaces a dead process and repeats its task (for `RunnerWrapper`)."""

    async def run_with_retry(self, *args: Any, **kwargs: Any) -> Any:
        """Run a task, and return Trinity's answer. If the process dies, the task runs again in a new one."""
        while True:
            try:
                answer = await super().run_with_retry(*args, **kwargs)
                if not answer[0].ok:  # Trinity reports a dead actor like any failure, so check the actor
                    await self.runner.__ray_ready__.remote()
                return answer
            except RayError as died:
                await self._replace_runner(died)

    async def _replace_runner(self, died: RayError) -> None:
        """Report a runner's death and start a new process, until one starts."""
        while True:
            await Sender().post_async(DeathNotice(ROLE, read_last_line(died)))
            try:
                return await self.restart_runner()
            except RayError as error:
                died = error


def replace_dead_runners() -> None:
    """Replace the runner class in the process of the scheduler, because the scheduler looks up the class by name."""
    scheduler.RunnerWrapper = LastingRunner
