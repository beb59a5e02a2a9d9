"""verl's workers with additions: a linear learning-rate schedule, empty steps, image rows, trees and checked attention.

Invariants: the rate follows the number of the training step, as on the local backbone, and verl saves and restores the
schedule like its own. The linear schedule replaces a private method of verl's engine, on the engine of the actor only.
The private methods of the trainer are in `hooks`, which these processes need not import. Position ids of images stay as
computed by the agent loop, for rows of any length.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from loguru import logger
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils.tensordict_utils import nested_tensor_from_tensor_list
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from ajet.algorithm.learning_rate import LearningRateSchedule
from ajet.engine.same_model import EAGER, logits_match, set_attention, use_attention
from ajet_verl.trainer.mini_batches import TREES


class LinearTraining(TrainingWorker):
    """verl's training worker of the actor, with a linear learning-rate schedule."""

    def reset(self) -> None:
        """Build or rebuild the engine with the linear schedule."""
        engine: Any = self.engine
        engine._build_lr_scheduler = self._build_schedule
        super().reset()

    def _build_schedule(self, optimizer: Any) -> LambdaLR:
        """Build the linear schedule from verl's optimizer settings, as factors of the learning rate."""
        optimizer_config: Any = self.optimizer_config
        total_steps = optimizer_config.total_training_steps
        warmup_steps = (
            optimizer_config.lr_warmup_steps
            if optimizer_config.lr_warmup_steps > 0
            else int(optimizer_config.lr_warmup_steps_ratio * total_steps)
        )
        schedule = LearningRateSchedule(1.0, "linear", warmup_steps, optimizer_config.min_lr_ratio or 0.0, total_steps)
        return LambdaLR(optimizer, lambda step: schedule.rate_at(step))


class _WorkerMixin:
    """Mix-in for verl's workers that corrects position ids of images and builds the model with ajet's additions."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[attr-defined]
    def init_model(self) -> None:
        """Build verl's model, with shared prefixes computed once and with checked fused attention if configured."""
        worker: Any = self
        uses_trees, uses_fused_attention = bool(worker.config.get(TREES)), is_fused_requested(worker.config)
        if uses_trees:
            from ajet_verl.trainer.trees import choose_engine
        if uses_fused_attention:
            replace_unsupported(worker.config)
        with choose_engine(uses_trees) if uses_trees else nullcontext():
            super().init_model()  # type: ignore[misc]
        for training_worker in (worker.actor, worker.ref):
            if training_worker is None:
                continue
            return_image_features(training_worker.engine.module)
            if uses_fused_attention:
                check_attention(training_worker.engine)

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


TENSOR_READERS = ("qwen2_vl", "qwen2_5_vl", "glm4v")
"""Model types whose forward pass in verl expects a tensor from the vision tower.

Qwen2-VL needs it in a batch without images (`image_embeds.mean()`), GLM-4V always.
"""


def return_image_features(model: nn.Module) -> None:
    """Make the vision tower of `model` return its features, [N, D], instead of an object holding them."""
    config: Any = getattr(model, "config", None)
    if getattr(config, "model_type", None) not in TENSOR_READERS:
        return
    for name, module in model.named_modules():
        if name.split(".")[-1] == "visual":
            module.register_forward_hook(_take_features)


def _take_features(module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> Tensor:
    """Forward hook of a vision tower: return its features as a tensor, whether it wraps them in an object or not."""
    features: Tensor = getattr(output, "pooler_output", output)
    return features


# Chooses the attention of verl's engines for `attn_implementation: sdpa`.
# Invariant: the trained model is the model of transformers' eager pass. torch's fused attention silently omits
# features missing in the kernel (Gemma 2's soft caps: log-probabilities are off by whole nats), and some models
# cannot be built with it. Both kinds of models use eager attention, with a log line. All other models are compared
# with the eager pass before the first step.
FUSED = "sdpa"
LENGTHS = (29, 40, 3)
"""Token counts of the probe's sequences, padded to one length as in verl's rows."""


def is_fused_requested(config: DictConfig) -> bool:
    """Return True if an FSDP engine shall use fused attention. `config` is verl's `actor_rollout_ref`."""
    attention = (config.model.get("override_config") or {}).get("attn_implementation")
    return bool(attention == FUSED and str(config.actor.strategy).startswith("fsdp"))


def replace_unsupported(config: DictConfig) -> None:
    """Select eager attention in the config if the model cannot be built with torch's fused attention.

    Args:
        config: verl's `actor_rollout_ref`.
    """
    from transformers import AutoConfig
    from verl.utils.fs import copy_to_local
    from verl.utils.model import get_hf_auto_model_class

    model = config.model
    folder = copy_to_local(model.get("hf_config_path") or model.path, use_shm=model.get("use_shm", False))
    hf_config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=model.get("trust_remote_code", False))
    model_class = get_hf_auto_model_class(hf_config=hf_config)._model_mapping.get(type(hf_config), None)
    if getattr(model_class, "_supports_sdpa", True):
        return
    with open_dict(model.override_config):
        model.override_config.attn_implementation = EAGER
    logger.info("{} has no fused attention: using transformers' eager attention", model_class.__name__)


def check_attention(engine: Any) -> None:
    """Compare a model's fused attention with its eager attention over a few rows, and use eager if they differ.

    Every rank must call this, after the weights are loaded.

    Args:
        engine: verl's engine.
    """
    model = getattr(engine.module, "module", engine.module)
    packed = bool(getattr(engine, "packed", False))
    if engine.use_ulysses_sp or not (packed or model.config._attn_implementation == FUSED):
        return  # split rows are computed by trees only
    with torch.no_grad(), engine.eval_mode():
        with use_attention(engine.module, EAGER):
            plain_logits = _compute_logits(engine)
        with use_attention(engine.module, FUSED):
            fused_logits = _compute_logits(engine)
    differs = torch.tensor(
        int(not logits_match(fused_logits, plain_logits, engine._autocast_dtype)), device=fused_logits.device
    )
    dist.all_reduce(differs, op=dist.ReduceOp.MAX)
    if not int(differs):
        return
    logger.warning(
        "torch's fused attention differs from the attention of {}: ajet uses transformers' eager attention, "
        "whose memory grows with the square of the length",
        type(model).__name__,
    )
    if packed:
        engine.theirs = EAGER
    else:
        set_attention(engine.module, EAGER)


def _compute_logits(engine: Any) -> Tensor:
    """Return the model's logits [N, V] for the N tokens of three random sequences (`LENGTHS`)."""
    from verl.utils.device import get_device_id

    config = engine.module.config
    generator, vocabulary = np.random.default_rng(0), config.get_text_config().vocab_size
    ids = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.int64)
    attention_mask = torch.zeros(ids.shape, dtype=torch.bool)
    for row, length in enumerate(LENGTHS):
        ids[row, :length] = torch.from_numpy(generator.integers(0, vocabulary, length))
        attention_mask[row, :length] = True
    position_ids = torch.arange(ids.shape[1]).expand(ids.shape) * attention_mask
    if hasattr(config, "vision_config"):
        position_ids = position_ids.expand(4, *position_ids.shape)  # text positions are equal in each dimension
    device = get_device_id()
    inputs = {"input_ids": ids, "attention_mask": attention_mask, "position_ids": position_ids}
    output = engine.module(**{name: value.to(device) for name, value in inputs.items()}, use_cache=False)
    logits: Tensor = output.logits
    return logits[attention_mask.to(logits.device)]
