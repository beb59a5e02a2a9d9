"""What a training takes of memory and disk, told from the model's size and the settings before anything is loaded.

Invariant: an estimate is called one. The sums follow what the local backbone holds (`ajet.backbone.local`: weights and
the low halves of their masters, two moments, gradients during an update, a pass of `micro_batch_tokens`); what verl
holds on each GPU is `gpu_estimate`'s to say, but for the disk.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.config.backbone_names import described
from ajet.config.plugin import load_code
from ajet.config.plugins import find_part
from ajet.record.checkpoints import checkpoints_folder

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.engine.weight_shapes import ModelSize

GIB = 1 << 30
SMALL = 4
"""So many times what is needed must be free for nobody to worry about an estimate."""
MOMENTS = 8
"""Bytes a trained weight: AdamW's two, in float32."""
PROGRAM = GIB // 2
"""Python, torch and transformers themselves."""
LEAST = 16
"""A sampler that has less of the cache that it wants than one part in so many samples hardly anything at once."""
LOGITS = 3 * 32 * 2**20
"""Of a chunk, its gradient and its softmax."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes on the local backbone."""

    weights: int
    """With the low halves of their masters, and adapters."""
    moments: int
    reference: int
    cache: int
    """Keys and values while sampling, at most."""
    update: int
    """What an update takes for as long as it lasts: gradients, one pass, copies for several optimizer steps, and at
    most the hidden states that a critic's optimizer goes over again (`critic.epochs`), those of an optimizer step."""
    longest: int
    """Tokens of the largest pass."""
    longest_sample: int
    """Tokens of the longest sample that the settings allow."""
    flops: float
    """Of the forward and backward pass over them."""
    checkpoint: int
    """On the disk."""
    sampler: int = 0
    """What a sampler beside the trainer takes all the time (`mode: async`): a program with weights and a cache of its
    own; without them on other machines (`--from-store`)."""

    @property
    def both(self) -> int:
        """The bytes of trainer and sampler at once."""
        return self.peak + self.sampler

    @property
    def peak(self) -> int:
        """The trainer's, at the end of a step; sampling and update take turns. Without what the engine lays out anew
        where there is room to spare (`packed_weights`)."""
        return PROGRAM + self.weights + self.moments + self.reference + max(self.cache, self.update)


def footprint(size: ModelSize, settings: AjetConfig, *, wide: bool, context: int | None = None) -> Footprint:
    """The footprint of a model of `size`. `wide`: its weights are float32, not bfloat16; `context`: the longest
    sequence that it was made for."""
    trainer, rollout, data = settings.trainer_common, settings.rollout, settings.data
    width, rank = 4 if wide else 2, trainer.lora.total_rank
    trained = trained_weights(size, settings)
    low = 0 if wide else 2 * trained
    longest = min(longest_sample(settings), context or 1 << 30)
    tokens = max(longest, min(trainer.micro_batch_tokens, longest * data.train_batch_size * rollout.num_repeat))
    needs_reference = trainer.use_kl_loss or trainer.algorithm.use_kl_in_reward
    moves = trainer.mini_batch_num * max(1, len(trainer.lora.adapters))
    copies = (MOMENTS + width) * trained + low if moves > 1 else 0
    chosen = find_part("algorithm", trainer.algorithm.adv_estimator)
    valued = 0
    if chosen is not None and "critic" in load_code(chosen.code).needs and trainer.algorithm.critic.epochs > 1:
        replies = min(data.max_response_length, longest) * data.train_batch_size * rollout.num_repeat
        valued = width * size.hidden * math.ceil(replies / trainer.mini_batch_num)
    cache = cache_bytes(size, width=width) * longest * rollout.max_num_seqs
    own = rollout.vllm.cache_gib if rollout.engine == "vllm" else None
    played = PROGRAM + width * size.parameters + (int(own * GIB) if own else cache)
    return Footprint(
        weights=width * size.parameters + low + (width * trained if rank else 0),
        moments=MOMENTS * trained,
        reference=width * size.parameters if needs_reference and not rank else 0,
        cache=cache,
        update=4 * trained + activation_bytes(size, settings, tokens, width=width) + LOGITS + copies + valued,
        longest=tokens,
        longest_sample=longest,
        flops=6.0 * size.parameters * tokens + 12.0 * size.layers * size.hidden * tokens * longest,
        checkpoint=width * size.parameters + (width + MOMENTS) * trained + low,
        sampler=played if trainer.mode == "async" else 0,
    )


def trained_weights(size: ModelSize, settings: AjetConfig) -> int:
    """Return how many weights are trained."""
    rank = settings.trainer_common.lora.total_rank
    return rank * size.adapted if rank else size.parameters


def longest_sample(settings: AjetConfig) -> int:
    """Return the tokens of the longest sample that the settings allow."""
    return min(settings.data.max_prompt_length + settings.data.max_response_length, settings.rollout.max_model_len)


def cache_bytes(size: ModelSize, *, width: int) -> int:
    """Return the bytes of keys and values of a token. `width`: of a number."""
    return 2 * width * size.kept * size.layers


def activation_bytes(size: ModelSize, settings: AjetConfig, tokens: int, *, width: int) -> int:
    """Return the bytes that a forward pass over `tokens` leaves for the backward pass. `width`: of a number."""
    row = width * (7 * size.hidden + 2 * size.kept + 5 * size.inner) + 8 * size.hidden  # as measured
    if settings.trainer_common.gradient_checkpointing:
        return tokens * (row + width * size.hidden * size.layers)
    return tokens * row * size.layers


def checkpoint_bytes(size: ModelSize, settings: AjetConfig, *, wide: bool) -> int:
    """The bytes of one checkpoint, on any backbone. verl's holds float32 weights and moments, and for samplers the
    weights once more, as a model folder."""
    if described(settings.backbone).opens is None:
        merged = 4 if settings.trainer_common.mode == "async" else 0
        return (4 + MOMENTS + merged) * size.parameters
    return footprint(size, settings, wide=wide).checkpoint


def checkpoints_at_once(settings: AjetConfig, *, validates: bool, steps: int | None) -> int:
    """How many lie on the disk at the same time, at most: those that are kept, the best one, and the one that is being
    written before an older one goes. `steps` None: no end is known. With samplers each step is saved."""
    trainer = settings.trainer_common
    kept = trainer.max_checkpoints_to_keep + (trainer.keep_best and validates) + 1
    if steps is None:
        return kept
    every = 1 if trainer.mode == "async" else trainer.save_freq
    saved = math.ceil(steps / every) if every > 0 else 1
    return min(kept, max(saved, 1))


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk that a run would be written to."""

    folder: Path
    """The nearest one that is there."""
    free: int
    refused: str
    """Why nothing can be written there; "" where it can."""


def disk_of(experiment: Experiment) -> list[Disk]:
    """The record's, and the checkpoints' where they lie elsewhere."""
    run = experiment.root / experiment.name
    checkpoints = checkpoints_folder(run, experiment.ajet.trainer_common.checkpoint_base_dir)
    return list(dict.fromkeys(_disk(path) for path in (run, checkpoints)))


def _disk(wanted: Path) -> Disk:
    there = next(path for path in (wanted, *wanted.parents) if path.exists())
    refused = ""
    if not there.is_dir():
        refused = f"{there} is a file, not a folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        refused = f"{there} cannot be written"
    return Disk(there, shutil.disk_usage(there).free, refused)


def gib(count: float) -> str:
    """A size for a person."""
    if 0 < count < 2**20:
        return f"{max(1, round(count / 2**10))} KiB"
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{count / 2**20:.0f} MiB"


def memory_words(found: Footprint) -> str:
    """The words for the parts of the peak."""

    def parts() -> Iterator[str]:
        yield f"weights {gib(found.weights)}"
        yield f"optimizer {gib(found.moments)}"
        if found.reference:
            yield f"reference model {gib(found.reference)}"
        yield f"an update {gib(found.update)} (a pass of up to {found.longest:,} tokens)"
        yield f"or, while sampling, keys and values {gib(found.cache)}"

    whole = f"about {gib(found.peak)} at its peak: {', '.join(parts())}"
    if not found.sampler:
        return whole
    return f"{whole}; and {gib(found.sampler)} for a sampler beside it, with weights and a cache of its own"


def cache_beside(found: Footprint, free: int) -> int | None:
    """Bytes of keys and values that a sampler's vLLM gets of the `free` ones of the device that trains, too, so that
    the trainer has what it takes at its peak; None where there is enough for what it takes by itself."""
    cache = found.cache
    left = free - found.peak - (found.sampler - cache)
    return None if left >= cache else max(left, cache // LEAST)
