"""Reports the progress of verl's trainer to the run's own process, and ends the run early on request.

Invariants: every step, validation and checkpoint is posted once, in order. A requested stop ends the run after a step
that is trained, saved and posted. The mix-in precedes verl's classes in ajet's trainers; its private methods of verl
are checked by the test of `hooks`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ajet.schema.episode import list_episodes
from ajet.schema.errors import AjetError
from ajet_ray.mailbox import CreditEntry, PhaseNotice, Sender, StepNotice, ValidationNotice, read_numbers

if TYPE_CHECKING:
    from ajet.schema.batch import TrainingBatch
    from ajet_ray.rows import RebuiltBatch

OURS = {
    "actor/entropy": "entropy",
    "timing_s/gen": "seconds/rollout",
    "timing_s/update_actor": "seconds/train",
    "timing_s/step": "seconds/step",
}
"""Maps verl's metric names to the names that ajet uses on every backbone."""


class RunStoppedError(AjetError):
    """The run ended on request, with its progress saved."""


class ReportingHooks:
    """Mix-in for verl's trainers that sends a message to the run's own process at each event of a step."""

    config: Any
    global_steps: int
    total_training_steps: int
    timing_raw: dict[str, float]
    replay_buffer: Any
    agent_loop_manager: Any
    val_dataloader: Any

    def __init__(self, config: Any) -> None:
        """Connect to the run's mailbox, then run verl's constructor."""
        self._sender = Sender()
        self._is_stopping = False
        self._credit_entries: list[CreditEntry] = []
        super().__init__(config)  # type: ignore[call-arg]

    def on_step_begin(self) -> None:
        """Report the start of a step's rollout."""
        self._credit_entries = []
        self._sender.post(PhaseNotice("rollout", self.global_steps))
        super().on_step_begin()  # type: ignore[misc]

    def on_credit(self, rebuilt: RebuiltBatch, batch: TrainingBatch) -> None:
        """Store each episode's advantage or reason for exclusion, for the report at the end of the step."""
        trained = batch.trained_by_episode
        for episode in list_episodes(rebuilt.groups):
            outcome = batch.outcomes[episode.uuid]
            self._credit_entries.append(CreditEntry(episode.uuid, outcome, trained[episode.uuid]))

    def on_sample_end(self) -> None:
        """Report that the step's episodes are complete and its update begins."""
        self._sender.post(PhaseNotice("update", self.global_steps))
        super().on_sample_end()  # type: ignore[misc]

    def on_step_end(self) -> None:
        """Save an additional checkpoint if the run shall stop after this trained step."""
        self._is_stopping = self._sender.should_stop()
        save_interval = self.config.trainer.save_freq
        is_saved_by_verl = save_interval > 0 and (
            self.global_steps % save_interval == 0 or self.global_steps >= self.total_training_steps
        )
        if self._is_stopping and not is_saved_by_verl:
            self._save_checkpoint()  # type: ignore[attr-defined]
        super().on_step_end()  # type: ignore[misc]

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], timing_raw: Any, *args: Any, **kwargs: Any) -> None:
        """Report the metrics of the step. This is verl's last call in a step.

        Raises:
            RunStoppedError: a stop was requested.
        """
        super()._compute_metrics(batch, metrics, timing_raw, *args, **kwargs)  # type: ignore[misc]
        numbers = read_numbers(metrics)
        numbers = {
            ajet_name: numbers[verl_name] for verl_name, ajet_name in OURS.items() if verl_name in numbers
        } | numbers
        numbers["seconds/update"] = numbers.get("seconds/step", 0.0) - numbers.get("seconds/rollout", 0.0)
        numbers["version"] = float(self.global_steps)
        self._sender.post_and_wait(StepNotice(self.global_steps, numbers, self._credit_entries))
        if self._is_stopping:
            raise RunStoppedError

    def _validate(self) -> dict[str, float]:
        """Run the validation tasks, and return only the duration.

        The run's own process computes the metrics from the episodes that it wrote to disk.
        """
        import uuid

        import numpy as np
        import transfer_queue
        from verl.utils import tensordict_utils

        started = time.monotonic()
        self._sender.post(PhaseNotice("validation", self.global_steps))
        for rows in self.val_dataloader:
            rows["uid"] = np.array([str(uuid.uuid4()) for _ in rows["raw_prompt"]], dtype=object)
            batch = tensordict_utils.get_tensordict(rows)
            tensordict_utils.assign_non_tensor_data(batch, "global_steps", self.global_steps)
            tensordict_utils.assign_non_tensor_data(batch, "validate", True)
            tag = {"is_prompt": True, "status": "pending", "global_steps": self.global_steps}
            uids = list(batch["uid"])
            transfer_queue.kv_batch_put(keys=uids, partition_id="val", tags=[dict(tag) for _ in uids])
            self.agent_loop_manager.generate_sequences(batch)
            self.replay_buffer.sample(global_steps=self.global_steps, partition_id="val", batch_size=len(uids))
        seconds = time.monotonic() - started
        self._sender.post_and_wait(ValidationNotice(self.global_steps, seconds))
        return {"seconds/validation": seconds}
