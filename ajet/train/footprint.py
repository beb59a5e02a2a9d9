"""Estimate memory, disk and tool tokens of a run before anything is loaded.

Invariant: estimates are labelled as estimates and download or load nothing. The formulas follow the memory layout of
the local backbone (`ajet.backbone.local`). `gpu_estimate` covers verl's memory per GPU; the disk estimate is shared.
"""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from loguru import logger

from ajet.config.backbones import find_backbone
from ajet.config.plugin import load_code
from ajet.config.plugins import find_part
from ajet.record.checkpoints import checkpoints_folder
from ajet.record.console import counted, format_bytes, format_seconds
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.config import AjetConfig, Experiment
    from ajet.engine.dimensions import ModelSize
    from ajet.schema.task import Task
    from ajet.tokens.renderer import Rendered
    from ajet.workflow.workflow import ToolWorkflow

GIB = 1 << 30
MOMENTS = 8
"""Bytes per trained weight: AdamW's two moments in float32."""
PROGRAM = GIB // 2
"""Bytes of Python, torch and transformers themselves."""
LOGITS = 3 * 32 * 2**20
"""Bytes of the logits of a chunk, their gradient and their softmax."""
SMALL = 4
"""A training skips the rehearsal if this multiple of its memory is free."""
FLOPS = 5e10
"""Operations a second of a processor with few cores in a forward and backward pass, roughly."""
LONGEST_S = 60.0
"""Maximum seconds of a rehearsal on a CPU."""
REPLY = 16
"""Minimum number of tokens left for a reply."""


class Footprint(NamedTuple):
    """The memory of a training on the local backbone, in bytes."""

    weights: int
    """Includes adapters, and the low halves of the weights' masters."""
    moments: int
    reference: int
    cache: int  # keys and values while sampling, at most
    update: int  # gradients, one pass, copies for several optimizer steps, hidden states for a critic's further epochs
    longest: int  # tokens of the largest pass
    longest_sample: int  # tokens of the longest sample that the settings allow
    flops: float  # operations of the forward and backward pass over `longest` tokens
    checkpoint: int  # on the disk
    sampler: int  # a parallel sampler process (`mode: async`) has its own weights and cache

    @property
    def both(self) -> int:
        """The bytes of trainer and sampler if both are in memory at the same time."""
        return self.peak + self.sampler

    @property
    def peak(self) -> int:
        """The trainer's bytes at the end of a step. Sampling and update take turns."""
        return PROGRAM + self.weights + self.moments + self.reference + max(self.cache, self.update)


def estimate_footprint(size: ModelSize, settings: AjetConfig, *, wide: bool, context: int | None = None) -> Footprint:
    """Estimate memory, operations and checkpoint size of training a model on the local backbone.

    Args:
        size: The numbers of the model.
        settings: The settings of the run.
        wide: True for float32 weights, False for bfloat16.
        context: The model's context length in tokens. None: unknown.
    """
    trainer, rollout, data = settings.trainer_common, settings.rollout, settings.data
    width, rank = 4 if wide else 2, trainer.lora.total_rank
    trained = count_trained_weights(size, settings)
    low_halves = 0 if wide else 2 * trained
    longest_sample = min(count_longest_sample(settings), context or 1 << 30)
    episodes = data.train_batch_size * rollout.num_repeat
    tokens = max(longest_sample, min(trainer.micro_batch_tokens, longest_sample * episodes))
    needs_reference = trainer.use_kl_loss or trainer.algorithm.use_kl_in_reward
    optimizer_steps = trainer.mini_batch_num * max(1, len(trainer.lora.adapters))
    copies = (MOMENTS + width) * trained + low_halves if optimizer_steps > 1 else 0
    algorithm = find_part("algorithm", trainer.algorithm.adv_estimator)
    hidden_states = 0
    if algorithm is not None and "critic" in load_code(algorithm.code).needs and trainer.algorithm.critic.epochs > 1:
        replies = min(data.max_response_length, longest_sample) * episodes
        hidden_states = width * size.hidden * math.ceil(replies / trainer.mini_batch_num)
    activations = estimate_activations(size, settings, tokens, width=width)
    cache = estimate_cache(size, width=width) * longest_sample * rollout.max_num_seqs
    vllm_cache_gib = rollout.vllm.cache_gib if rollout.engine == "vllm" else None
    sampler = PROGRAM + width * size.parameters + (int(vllm_cache_gib * GIB) if vllm_cache_gib else cache)
    return Footprint(
        weights=width * size.parameters + low_halves + (width * trained if rank else 0),
        moments=MOMENTS * trained,
        reference=width * size.parameters if needs_reference and not rank else 0,
        cache=cache,
        update=4 * trained + activations + LOGITS + copies + hidden_states,
        longest=tokens,
        longest_sample=longest_sample,
        # Per token: 6 operations for each weight (2 forward, 4 backward), and attention to all tokens before it.
        flops=6.0 * size.parameters * tokens + 12.0 * size.layers * size.hidden * tokens * longest_sample,
        checkpoint=width * size.parameters + (width + MOMENTS) * trained + low_halves,
        sampler=sampler if trainer.mode == "async" else 0,
    )


def count_trained_weights(size: ModelSize, settings: AjetConfig) -> int:
    """Return the number of weights that the optimizer changes: those of the adapters with LoRA, otherwise all."""
    rank = settings.trainer_common.lora.total_rank
    return rank * size.adapted if rank else size.parameters


def count_longest_sample(settings: AjetConfig) -> int:
    """Return the tokens of the longest sample allowed by the settings."""
    return min(settings.data.max_prompt_length + settings.data.max_response_length, settings.rollout.max_model_len)


def estimate_cache(size: ModelSize, *, width: int) -> int:
    """Return the bytes of a token's keys and values, with `width` bytes per number."""
    return 2 * width * size.kv_width * size.layers


def estimate_activations(size: ModelSize, settings: AjetConfig, tokens: int, *, width: int) -> int:
    """Return the bytes of activations stored for the backward pass, with `width` bytes per number."""
    # For one token in one layer. The factors were measured.
    layer_bytes = width * (7 * size.hidden + 2 * size.kv_width + 5 * size.inner) + 8 * size.hidden
    if settings.trainer_common.gradient_checkpointing:
        return tokens * (layer_bytes + width * size.hidden * size.layers)
    return tokens * layer_bytes * size.layers


def estimate_checkpoint(size: ModelSize, settings: AjetConfig, *, wide: bool) -> int:
    """Return the bytes of one checkpoint, on any backbone."""
    if find_backbone(settings.backbone).opens is not None:
        return estimate_footprint(size, settings, wide=wide).checkpoint
    merged = 4 if settings.trainer_common.mode == "async" else 0  # samplers also need the weights as a model folder
    return (4 + MOMENTS + merged) * size.parameters


def count_checkpoints(settings: AjetConfig, *, validates: bool, steps: int | None) -> int:
    """Return the maximum number of checkpoints on the disk at the same time. `steps` None: a run without end."""
    trainer = settings.trainer_common
    stored = trainer.max_checkpoints_to_keep + (trainer.keep_best and validates) + 1  # written before an older one goes
    if steps is None:
        return stored
    save_interval = 1 if trainer.mode == "async" else trainer.save_freq  # samplers get each step
    return min(stored, max(math.ceil(steps / save_interval) if save_interval > 0 else 1, 1))


class Disk(NamedTuple):
    """The disk of a run's files."""

    folder: Path  # the nearest one that exists
    free: int
    refused: str  # why nothing can be written there, or ""


def find_disks(experiment: Experiment) -> list[Disk]:
    """Return the disk that holds the record, and the disk of the checkpoints if it is another one."""
    run = experiment.root / experiment.name
    checkpoints = checkpoints_folder(run, experiment.ajet.trainer_common.checkpoint_base_dir)
    return list(dict.fromkeys(_find_disk(path) for path in (run, checkpoints)))


def _find_disk(wanted: Path) -> Disk:
    """Return the disk on which a file or folder would be created, with its free bytes."""
    folder = next(path for path in (wanted, *wanted.parents) if path.exists())
    refused = ""
    if not folder.is_dir():
        refused = f"{folder} is a file, not a folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        refused = f"this user may not write to {folder}"
    return Disk(folder, shutil.disk_usage(folder).free, refused)


def describe_memory(footprint: Footprint, free: int | None = None) -> str:
    """Return a text on the peak memory, its parts and the free memory.

    Args:
        footprint: The estimated memory.
        free: Free bytes. None: unknown.
    """
    reference = f", reference model {format_bytes(footprint.reference)}" if footprint.reference else ""
    text = (
        f"at most about {format_bytes(footprint.peak)}: weights {format_bytes(footprint.weights)}, optimizer "
        f"{format_bytes(footprint.moments)}{reference}, an update {format_bytes(footprint.update)} (a pass of up to "
        f"{footprint.longest:,} tokens), or, while sampling, keys and values {format_bytes(footprint.cache)}"
    )
    if footprint.sampler:
        text += f"; and {format_bytes(footprint.sampler)} for a colocated sampler with its own weights and cache"
    return text if free is None else f"{text}; {format_bytes(free)} are free"


class RunNeeds(NamedTuple):
    """Disk and memory needs of a run, and the free memory."""

    checkpoint: int  # bytes on the disk
    checkpoints: int  # on the disk at the same time, at most
    local: Footprint | None  # None on another backbone than the local one
    free: int | None  # bytes of memory on the device that would train; None if not known
    on_cpu: bool


def estimate_needs(experiment: Experiment, *, train: int, validates: bool) -> RunNeeds | None:
    """Return the disk and memory that a run needs, or None if the model's size is unknown.

    Args:
        train: The number of training tasks. 0: clients bring the tasks.
        validates: True if the run has held-out tasks.
    """
    from ajet.engine.dimensions import read_size_and_context
    from ajet.engine.machine import is_float32_default, measure_free_memory, resolve_device_kind

    settings = experiment.ajet
    size, context = read_size_and_context(settings.model.path, experiment.base)
    if size is None:
        return None
    device = settings.trainer_common.device
    wide = settings.model.dtype == "float32" or (settings.model.dtype == "auto" and is_float32_default(device))
    steps = settings.count_steps(train) if train else settings.trainer_common.total_training_steps
    is_local = experiment.backbone.opens is not None
    return RunNeeds(
        estimate_checkpoint(size, settings, wide=wide),
        count_checkpoints(settings, validates=validates, steps=steps),
        estimate_footprint(size, settings, wide=wide, context=context) if is_local else None,
        measure_free_memory(device) if is_local else None,
        resolve_device_kind(device) == "cpu",
    )


def require_tools_fit(experiment: Experiment) -> None:
    """Raise UserError if tools leave no room for a reply. Called before a run, on every backbone."""
    from ajet.engine.model_source import locate_configured_model
    from ajet.engine.models import load_tokenizer
    from ajet.task_reader import open_reader

    if experiment.ajet.model.path is not None and find_tool_workflow(experiment):
        task = open_reader(experiment).tasks("train")[0]
        source = locate_configured_model(experiment.ajet, experiment.base)
        render_with_tools(experiment, task, load_tokenizer(source))


def find_tool_workflow(experiment: Experiment) -> type[ToolWorkflow] | None:
    """Return the workflow class if its prompt certainly lists all tools of `environment.use`, as in mcp_agent."""
    from ajet.environment.replay import replays_alone
    from ajet.rollout.components import load_workflow
    from ajet.workflow.workflow import ToolWorkflow

    rollout, environment = experiment.ajet.rollout, experiment.ajet.environment
    if not environment.use or rollout.force_disable_toolcalls or rollout.engine == "endpoint":
        return None
    if replays_alone(environment):
        return None
    workflow = load_workflow(experiment)
    return workflow if issubclass(workflow, ToolWorkflow) else None


def render_with_tools(
    experiment: Experiment, task: Task, tokenizer: Any, *, start: bool = True
) -> tuple[Rendered, str] | None:
    """Return the task's prompt with tools and a description of the tools' tokens, or None if unknown.

    Args:
        start: True to start servers given as commands. False leaves their tools unknown.

    Raises:
        UserError: the tools cannot be listed, or leave no room for a reply.
    """
    from ajet.rollout.components import make_renderer

    agent = find_tool_workflow(experiment)
    tools = agent.list_tools(experiment, start=start) if agent is not None else None
    if agent is None or tools is None:
        return None
    renderer, messages = make_renderer(experiment.ajet, tokenizer), agent.opening(experiment.config, task)
    prompt, prompt_without_tools = renderer.render(messages, tools), renderer.render(messages)
    names = [tool["function"]["name"] for tool in tools]
    tokens = len(prompt.ids) - len(prompt_without_tools.ids)
    limit = experiment.ajet.rollout.max_model_len - REPLY
    if len(prompt.ids) > limit:
        tool_list = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        raise UserError(
            f"The tools do not fit into the prompt: {len(names)} tools take {tokens} tokens, but the prompt has "
            f"room for {limit}, of which the first task and the system prompt take {len(prompt_without_tools.ids)}.",
            where="ajet.rollout.max_model_len",
            expected=f"more than {len(prompt.ids) + REPLY}, or fewer tools; the tools are {tool_list}",
            do="raise it, or use fewer tools (`tools:` in the environment's file, or fewer servers)",
        )
    return prompt, f"{tokens} of them for {counted(len(names), 'tool')}"


def rehearse_update(experiment: Experiment, backbone: Backbone) -> None:
    """Make a trial update with the longest samples before step 1, or log the reason for skipping.

    The rehearsal changes no state of the run.

    Raises:
        UserError: the memory does not suffice.
    """
    needs = estimate_needs(experiment, train=0, validates=False)
    if needs is None or needs.local is None:
        logger.info("no trial update before step 1: the model's files do not give the model's size")
        return
    if reason := explain_no_rehearsal(needs.local, needs.free, on_cpu=needs.on_cpu):
        logger.info("no trial update before step 1: {}", reason)
        return
    logger.info("trial update before step 1: a pass over {:,} tokens (--no-rehearsal skips it)", needs.local.longest)
    rehearsal = backbone.rehearse(list_longest_samples(needs.local, experiment.ajet))
    seconds, peak = format_seconds(rehearsal.seconds), format_bytes(rehearsal.peak)
    logger.info("the trial update took {}, and at most {} of memory", seconds, peak)


def explain_no_rehearsal(local: Footprint, free: int | None, *, on_cpu: bool) -> str:
    """Return why the trial update before step 1 is skipped: memory is ample, or it would take too long.

    Args:
        local: The estimated memory.
        free: Free bytes. None: unknown.
        on_cpu: True if the training runs on a processor.

    Returns:
        "" if the trial update is needed.
    """
    if free is not None and SMALL * local.peak < free:
        return f"training needs about {format_bytes(local.peak)}, and {format_bytes(free)} are free"
    if on_cpu and local.flops > LONGEST_S * FLOPS:
        reason = (
            f"a pass over {local.longest:,} tokens would take about {format_seconds(local.flops / FLOPS)} on "
            f"this processor; the estimated memory is {format_bytes(local.peak)}"
        )
        return reason if free is None else f"{reason}, and {format_bytes(free)} are free"
    return ""


def list_longest_samples(local: Footprint, settings: AjetConfig) -> list[int]:
    """Return the sample lengths of the largest pass: as many longest samples as fit in `micro_batch_tokens`."""
    count = max(1, min(settings.trainer_common.micro_batch_tokens, local.longest) // local.longest_sample)
    return [local.longest_sample] * count
