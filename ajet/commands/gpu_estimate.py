"""Estimates GPU memory and step time by formula, for backbones whose trainer and engine share GPUs in turns.

Invariant: all numbers are estimated, not measured, from the size of the model, the settings and the published peak
numbers of a GPU. docs/sizes.md has each formula with the source. Not included: communication, moving offloaded weights,
tools, judges, and the sharing of prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from ajet.commands.runner import load_runner
from ajet.record.console import format_bytes, format_seconds
from ajet.train.footprint import (
    GIB,
    LOGITS,
    MOMENTS,
    count_longest_sample,
    count_trained_weights,
    estimate_activations,
    estimate_cache,
)

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.engine.dimensions import ModelSize

GpuName = Literal["H200", "H100", "A100", "L40S", "4090"]


class GpuType(NamedTuple):
    """Published peak numbers of one GPU model."""

    memory: float  # bytes
    flops: float
    """Operations a second in bfloat16, without sparsity."""
    bandwidth: float
    """Bandwidth of the GPU's memory in bytes per second."""


GPUS: dict[GpuName, GpuType] = {
    "H200": GpuType(141e9, 989e12, 4.8e12),
    "H100": GpuType(80e9, 989e12, 3.35e12),
    "A100": GpuType(80e9, 312e12, 2.039e12),
    "L40S": GpuType(48e9, 362e12, 0.864e12),
    "4090": GpuType(24e9, 165e12, 1.008e12),
}
"""NVIDIA's data sheets: SXM models with 80 GB where there are several. docs/sizes.md names them."""
COMPUTE_USE = (0.25, 0.5)
"""Share of the peak reached by training and prefill: worst and best."""
BANDWIDTH_USE = (0.4, 0.8)
"""Share of the bandwidth reached by decoding: worst and best."""
CONTEXT = GIB
"""Bytes of the CUDA context and of buffers of NCCL."""
LOGIT_BYTES = 6
"""Bytes per logit in an update: bfloat16, and float32 for the softmax."""


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Estimated memory per GPU during a training step, in bytes."""

    weights: float
    """The shard of the trained weights, in float32, and of the frozen weights below adapters."""
    gradients: float
    optimizer: float
    reference: float
    """The shard of the reference model on the GPU during an update."""
    gathered: float
    """Two layers in bfloat16, unsharded: the computing layer and the next layer."""
    activations: float
    logits: float
    engine_weights: float
    cache: float
    resident: float
    """Bytes that the trainer still occupies while the engine samples."""
    cache_tokens: int
    """Tokens whose keys and values fit into one engine's caches, or 0 for an unknown architecture."""

    @property
    def update(self) -> float:
        """Peak bytes per GPU during an update, after the engine has freed its memory."""
        shards = self.weights + self.gradients + self.optimizer + self.reference
        return CONTEXT + shards + self.gathered + self.activations + self.logits

    @property
    def sampling(self) -> float:
        """Bytes per GPU in use while the engine samples."""
        return CONTEXT + self.engine_weights + self.cache + self.resident


def estimate_memory(size: ModelSize, settings: AjetConfig, gpu: GpuType) -> GpuMemory:
    """Return the memory that each GPU needs during a step: in the update, and while the engine samples.

    Args:
        size: The model's size. All zeros but `parameters` if the architecture is not known.
        settings: The settings of the run.
        gpu: The type of all GPUs.
    """
    trainer, rollout = settings.trainer_common, settings.rollout
    gpu_count = count_gpus(settings)
    trained_weights = count_trained_weights(size, settings)
    has_adapters = bool(trainer.lora.total_rank)
    # Bytes per parameter: 4 in the trainer's float32, 2 in the engine's bfloat16.
    weights = 4 * (size.parameters + (trained_weights if has_adapters else 0)) / gpu_count
    optimizer = MOMENTS * trained_weights / gpu_count
    reference = 4 * size.parameters / gpu_count if settings.needs_reference_model and not has_adapters else 0
    resident_reference = reference if not trainer.fsdp_config.param_offload else 0
    resident = (0 if trainer.fsdp_config.param_offload else weights + reference) + (
        0 if trainer.fsdp_config.optimizer_offload else optimizer
    )
    sequence_parts = trainer.ulysses_sequence_parallel_size
    tokens = max(trainer.micro_batch_tokens, math.ceil(count_longest_sample(settings) / sequence_parts))
    engine_weights = 2 * size.parameters / rollout.tensor_model_parallel_size
    cache = max(0.0, rollout.gpu_memory_utilization * gpu.memory - engine_weights)
    bytes_per_token = estimate_cache(size, width=2) / rollout.tensor_model_parallel_size
    return GpuMemory(
        weights=weights,
        gradients=4 * trained_weights / gpu_count,
        optimizer=optimizer,
        reference=resident_reference,
        gathered=4 * size.parameters / size.layers if size.layers else 0,
        activations=estimate_activations(size, settings, tokens, width=2),
        logits=max(LOGIT_BYTES * size.vocabulary * tokens, LOGITS if size.vocabulary else 0),
        engine_weights=engine_weights,
        cache=cache,
        resident=resident,
        cache_tokens=int(cache / bytes_per_token) if bytes_per_token else 0,
    )


def estimate_seconds(
    size: ModelSize, settings: AjetConfig, gpu: GpuType, *, compute: float, bandwidth: float
) -> tuple[float, float]:
    """Return (seconds of sampling, seconds of scoring and update) of one step with replies of full length.

    Args:
        compute: share of the GPU's peak operations that is reached, from 0 to 1.
        bandwidth: share of the GPU's peak bandwidth that is reached, from 0 to 1.
    """
    rollout, trainer = settings.rollout, settings.trainer_common
    flops_per_second, bytes_per_second = gpu.flops * compute, gpu.bandwidth * bandwidth
    longest = count_longest_sample(settings)
    prompt = min(settings.data.max_prompt_length, longest)
    reply = min(settings.data.max_response_length, longest)
    episodes = settings.data.train_batch_size * rollout.num_repeat

    flops_per_token = 2.0 * size.parameters + 2.0 * size.layers * size.hidden * longest
    # Forward and backward cost 3 forwards, recomputed activations 1; scoring by policy and reference 1 each.
    passes = (4 if trainer.gradient_checkpointing else 3) + 1 + settings.needs_reference_model
    update_seconds = passes * flops_per_token * episodes * longest / (count_gpus(settings) * flops_per_second)

    gpus_per_engine = rollout.tensor_model_parallel_size
    rows = math.ceil(episodes * gpus_per_engine / count_gpus(settings))
    cached_rows = estimate_memory(size, settings, gpu).cache_tokens // longest
    rows_at_once = max(1, min(rows, rollout.max_num_seqs, cached_rows or rows))
    bytes_read = 2.0 * size.parameters + estimate_cache(size, width=2) * rows_at_once * (prompt + reply / 2)
    token_seconds = (
        max(bytes_read / bytes_per_second, 2.0 * size.parameters * rows_at_once / flops_per_second) / gpus_per_engine
    )
    prefill_seconds = 2.0 * size.parameters * rows_at_once * prompt / (gpus_per_engine * flops_per_second)
    return math.ceil(rows / rows_at_once) * (prefill_seconds + reply * token_seconds), update_seconds


def describe_estimate(size: ModelSize, settings: AjetConfig, name: GpuName) -> Iterator[tuple[str, str]]:
    """Yield the rows (label, text) of a plan with the estimated memory and time of a step.

    Args:
        name: Model of the GPUs.
    """
    gpu = GPUS[name]
    memory = estimate_memory(size, settings, gpu)
    parts = {
        "weights": memory.weights, "gradients": memory.gradients, "optimizer": memory.optimizer,
        "reference model": memory.reference, "gathered layers": memory.gathered, "activations": memory.activations,
        "logits": memory.logits,
    }  # fmt: skip
    part_list = ", ".join(f"{label} {format_bytes(value)}" for label, value in parts.items() if value)
    caveat = (
        "" if size.layers else "; without activations and cache, because the model's name does not give their sizes"
    )
    tokens = f" ({memory.cache_tokens:,} tokens)" if memory.cache_tokens else ""
    hardware = f"each of {count_gpus(settings)} × {name} ({format_bytes(gpu.memory)}; another: ajet plan --gpu)"
    peak = max(memory.update, memory.sampling)
    fits = (
        ""
        if peak <= gpu.memory
        else f"; it does not fit: {format_bytes(peak)} are needed, {format_bytes(gpu.memory)} are there"
    )
    if not memory.cache:
        fits += "; rollout.gpu_memory_utilization leaves no memory for the cache after vLLM's weights"
    yield (
        "memory",
        f"estimated, not measured, on {hardware}: an update {format_bytes(memory.update)} ({part_list}); sampling "
        f"{format_bytes(memory.sampling)} (vLLM's weights {format_bytes(memory.engine_weights)}, cache "
        f"{format_bytes(memory.cache)}{tokens}){caveat}{fits}",
    )
    best, worst = (
        estimate_seconds(size, settings, gpu, compute=compute, bandwidth=bandwidth)
        for compute, bandwidth in zip(reversed(COMPUTE_USE), reversed(BANDWIDTH_USE), strict=True)
    )
    compute_use = f"{COMPUTE_USE[0]:.0%} to {COMPUTE_USE[1]:.0%} of {gpu.flops / 1e12:.0f} TFLOP/s"
    bandwidth_use = f"{BANDWIDTH_USE[0]:.0%} to {BANDWIDTH_USE[1]:.0%} of {gpu.bandwidth / 1e12:.2f} TB/s"
    step, sampling_time, update_time = (
        f"{format_seconds(low)} to {format_seconds(high)}"
        for low, high in ((sum(best), sum(worst)), (best[0], worst[0]), (best[1], worst[1]))
    )
    yield (
        "time",
        (
            f"estimated, not measured: {step} per step with replies of full length (sampling {sampling_time}, update "
            f"{update_time}), at {compute_use} and {bandwidth_use}; formulas: docs/sizes.md"
        ),
    )


def count_gpus(settings: AjetConfig) -> int:
    """Return the number of GPUs on all nodes, at least 1."""
    return max(1, settings.trainer_common.nnodes * settings.trainer_common.n_gpus_per_node)


def find_own_gpu(experiment: Experiment, *, on_cluster: bool = False) -> GpuName | None:
    """Return the type of GPU on which a run started on this machine would train, or None if it trains on the CPU.

    An unknown GPU counts as an H100.

    Args:
        on_cluster: True if the run joins a cluster, whose machines have GPUs.
    """
    device = experiment.ajet.trainer_common.device
    if on_cluster or device not in ("auto", "cpu"):
        return "H100"
    if device == "cpu" or (names := load_runner(experiment.backbone).name_accelerators()) is None:
        return None
    return next((name for name in GPUS if name in names), "H100")
