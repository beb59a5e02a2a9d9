"""A rehearsal: the largest pass that an update may have, on made-up tokens, before anything is played.

Invariant: it leaves no trace but its numbers: weights, moments, random generators and the engine are as before, bit for
bit. What it takes, an update takes, so that memory which does not suffice is told now and not at a late step.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ajet.backbone.contract import Rehearsal
from ajet.schema.batch import Sample
from ajet.schema.errors import UserError
from ajet.schema.timeline import SampledSpan, Timeline

if TYPE_CHECKING:
    from ajet.backbone.local.trainer import Trainer

_NO_MEMORY = ("not enough memory", "out of memory", "can't allocate memory")


def rehearsed(trainer: Trainer, lengths: Sequence[int], device: torch.device) -> Rehearsal:
    """Pass over a made-up sample of each length. Raises UserError for a lack of memory."""
    vocabulary = int(trainer.policy.forward.head.weight.shape[0])
    adapter = next(iter(trainer.policy.adapters.names), None)
    samples = [made_up(length, vocabulary, seed, adapter) for seed, length in enumerate(lengths)]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.monotonic()
    try:
        trainer.rehearse(samples)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not _lacks_memory(error):
            raise
        raise UserError(
            f"An update does not fit into the memory: a pass over {sum(lengths):,} tokens, the longest samples that "
            "the settings allow.",
            where="the rehearsal before step 1; nothing was played",
            expected="room for one forward and backward pass beside weights, optimizer and engine",
            do="lower data.max_response_length, data.max_prompt_length or rollout.max_model_len (the longest sample) "
            "and trainer_common.micro_batch_tokens; gradient_checkpointing: true; lora.rank: 8; a smaller model. "
            "--no-rehearsal starts without this test",
        ) from error
    return Rehearsal(sum(lengths), time.monotonic() - began, _peak(device))


def made_up(length: int, vocabulary: int, seed: int, adapter: str | None = None) -> Sample:
    """A sample of which every token but the first is trained."""
    ids = np.random.default_rng(seed).integers(0, vocabulary, length).astype(np.int32)
    mask = np.arange(length) > 0
    zeros = np.zeros(length, np.float32)
    spans = (SampledSpan(0, 1, length),)
    versions = np.where(mask, 0, -1).astype(np.int32)
    timeline = Timeline(0, "", "", ids, mask, zeros, zeros, versions, spans, adapter)
    return Sample(timeline, f"rehearsal-{seed}", seed, mask.astype(np.float32), 1.0)


def _lacks_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(w in str(error).lower() for w in _NO_MEMORY)


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024
