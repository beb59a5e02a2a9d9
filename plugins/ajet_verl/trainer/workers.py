"""verl's workers with additions: a linear learning-rate schedule, empty steps, image rows, trees and checked attention.

Invariants: the rate follows the number of the training step, as on the local backbone, and verl saves and restores the
schedule like its own. The linear schedule replaces a private method of verl's engine, on the engine of the actor only.
The private methods of the trainer are in `hooks`, which these processes need not import. Position ids of images stay as
computed by the agent loop, for rows of any length.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tensordict import TensorDict
from torch.optim.lr_scheduler import LambdaLR
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils.tensordict_utils import nested_tensor_from_tensor_list
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from ajet.algorithm.learning_rate import LearningRateSchedule
from ajet_verl.trainer import attention
from ajet_verl.trainer.mini_batches import TREES
from ajet_verl.trainer.vision import return_image_features


class LinearTraining(TrainingWorker):
    """Trains the actor with a linear schedule."""

    def reset(self) -> None:
        """Build or rebuild the engine with the linear schedule."""
        engine: Any = self.engine
        engine._build_lr_scheduler = self._build_schedule
        super().reset()

    def _build_schedule(self, optimizer: Any) -> LambdaLR:
        optim: Any = self.optimizer_config
        total = optim.total_training_steps
        warmup = optim.lr_warmup_steps if optim.lr_warmup_steps > 0 else int(optim.lr_warmup_steps_ratio * total)
        schedule = LearningRateSchedule(1.0, "linear", warmup, optim.min_lr_ratio or 0.0, total)
        return LambdaLR(optimizer, lambda step: schedule.rate_at(step))


class _WorkerMixin:
    """Mixed into verl's workers: corrects their inputs."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[attr-defined]
    def init_model(self) -> None:
        """Build verl's model, with trees and with checked fused attention if configured."""
        worker: Any = self
        trees, fused = bool(worker.config.get(TREES)), attention.is_fused_requested(worker.config)
        if trees:
            from ajet_verl.trainer.trees import choose_engine
        if fused:
            attention.replace_unsupported(worker.config)
        with choose_engine(trees) if trees else nullcontext():
            super().init_model()  # type: ignore[misc]
        for inner in (worker.actor, worker.ref):
            if inner is None:
                continue
            return_image_features(inner.engine.module)
            if fused:
                attention.check_attention(inner.engine)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[attr-defined]
    def pass_step(self) -> None:
        """Advance the learning rate for a training step without data."""
        worker: Any = self
        worker.actor.engine.lr_scheduler_step()

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="ref"))
    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict | None:
        """Run verl's method with corrected position ids."""
        return super().compute_ref_log_prob(fix_position_ids(data))  # type: ignore[misc]

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_log_prob(self, data: TensorDict) -> TensorDict | None:
        """Run verl's method with corrected position ids."""
        return super().compute_log_prob(fix_position_ids(data))  # type: ignore[misc]

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: TensorDict) -> TensorDict | None:
        """Run verl's method with corrected position ids."""
        return super().update_actor(fix_position_ids(data))  # type: ignore[misc]


def fix_position_ids(data: TensorDict) -> TensorDict:
    """Return `data` with `position_ids` ragged along the tokens.

    Vision models have [kinds, tokens] per row. If all rows have one length, TransferQueue takes the first dimension for
    the ragged dimension, and verl then cuts the rows at wrong places.
    """
    positions = data.get("position_ids")
    if positions is not None and positions.is_nested and positions.dim() == 3:
        values, ends = positions.values(), positions.offsets()
        if values.shape[0] == int(ends[-1]):
            rows = values.reshape(len(ends) - 1, -1, values.shape[-1]).unbind()
            data["position_ids"] = nested_tensor_from_tensor_list(list(rows), ragged_idx=2)
    return data


class Actor(_WorkerMixin, ActorRolloutRefWorker):
    """Worker for the modes sync and colocate_async."""


class DetachedActor(_WorkerMixin, DetachActorWorker):
    """Worker for the mode separate_async."""


class LinearActor(_WorkerMixin, ActorRolloutRefWorker):
    """Worker with a linear schedule, for sync and colocate_async."""

    actor_worker_cls = LinearTraining


class LinearDetachedActor(_WorkerMixin, DetachActorWorker):
    """Worker with a linear schedule, for separate_async."""

    actor_worker_cls = LinearTraining
