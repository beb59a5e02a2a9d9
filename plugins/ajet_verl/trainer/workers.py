"""verl's workers with what they lack: a learning rate that falls linearly, steps that train nothing, images in rows of
one length, engines that compute what rows share once, and attention that is the model's own.

Invariants: the rate follows the number of the training step, as on the local backbone; verl saves and restores the
schedule as it does its own. The linear one is made where verl's engine makes its own in a private method, replaced on
the one engine of the actor; the trainer's private methods are in `hooks`, which these processes need not import. A
token's place among images is the one that the agent loop told, however long the rows of a batch are.
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
    """Trains the actor."""

    def reset(self) -> None:
        """Build the engine, or build it anew."""
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
    """Mixed into verl's workers: mends what they are given before they look at it."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[attr-defined]
    def init_model(self) -> None:
        """verl's, with the engines of `trees` where the configuration asks for them; where it asks for torch's fused
        attention, of models that it is right for."""
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
        """A training step without anything to train on: the learning rate goes on to that of the next one."""
        worker: Any = self
        worker.actor.engine.lr_scheduler_step()

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="ref"))
    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict | None:
        """verl's."""
        return super().compute_ref_log_prob(fix_position_ids(data))  # type: ignore[misc]

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_log_prob(self, data: TensorDict) -> TensorDict | None:
        """verl's."""
        return super().compute_log_prob(fix_position_ids(data))  # type: ignore[misc]

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: TensorDict) -> TensorDict | None:
        """verl's."""
        return super().update_actor(fix_position_ids(data))  # type: ignore[misc]


def fix_position_ids(data: TensorDict) -> TensorDict:
    """`data`, whose rows' `position_ids` are ragged along their tokens.

    Where a model sees images they are [kinds, tokens] a row, and TransferQueue takes the first of the two dimensions
    for the ragged one as soon as all rows are of one length: verl then cuts them at the wrong places.
    """
    positions = data.get("position_ids")
    if positions is not None and positions.is_nested and positions.dim() == 3:
        values, ends = positions.values(), positions.offsets()
        if values.shape[0] == int(ends[-1]):
            rows = values.reshape(len(ends) - 1, -1, values.shape[-1]).unbind()
            data["position_ids"] = nested_tensor_from_tensor_list(list(rows), ragged_idx=2)
    return data


class Actor(_WorkerMixin, ActorRolloutRefWorker):
    """For the modes sync and colocate_async."""


class DetachedActor(_WorkerMixin, DetachActorWorker):
    """For separate_async."""


class LinearActor(_WorkerMixin, ActorRolloutRefWorker):
    """For the modes sync and colocate_async."""

    actor_worker_cls = LinearTraining


class LinearDetachedActor(_WorkerMixin, DetachActorWorker):
    """For separate_async."""

    actor_worker_cls = LinearTraining
