"""Chooses the attention of verl's engines for `attn_implementation: sdpa`.

Invariant: the trained model is the model of transformers' eager pass. torch's fused attention silently omits features
missing in the kernel (Gemma 2's soft caps: log-probabilities are off by whole nats), and some models cannot be built
with it. Both kinds of models use eager attention, with a log line. All other models are compared with the eager pass
before the first step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from loguru import logger
from omegaconf import DictConfig, open_dict
from torch import Tensor

from ajet.engine.same_model import EAGER, logits_match, set_attention, use_attention

FUSED = "sdpa"
LENGTHS = (29, 40, 3)
"""Token counts of the probe's sequences, padded to one length as in verl's rows."""


def is_fused_requested(config: DictConfig) -> bool:
    """Return True if an FSDP engine shall use fused attention; `config` is verl's `actor_rollout_ref`."""
    chosen = (config.model.get("override_config") or {}).get("attn_implementation")
    return bool(chosen == FUSED and str(config.actor.strategy).startswith("fsdp"))


def replace_unsupported(config: DictConfig) -> None:
    """Select eager attention if the model cannot be built with fused attention; `config` as above."""
    from transformers import AutoConfig
    from verl.utils.fs import copy_to_local
    from verl.utils.model import get_hf_auto_model_class

    model = config.model
    folder = copy_to_local(model.get("hf_config_path") or model.path, use_shm=model.get("use_shm", False))
    found: Any = AutoConfig.from_pretrained(folder, trust_remote_code=model.get("trust_remote_code", False))
    kind = get_hf_auto_model_class(hf_config=found)._model_mapping.get(type(found), None)
    if getattr(kind, "_supports_sdpa", True):
        return
    with open_dict(model.override_config):
        model.override_config.attn_implementation = EAGER
    logger.info("{} has no fused attention: using transformers' eager attention", kind.__name__)


def check_attention(engine: Any) -> None:
    """Compare an engine's model with its eager pass over a few rows; use eager attention if they differ.

    Called on each rank after the weights are loaded.
    """
    model = getattr(engine.module, "module", engine.module)
    packed = bool(getattr(engine, "packed", False))
    if engine.use_ulysses_sp or not (packed or model.config._attn_implementation == FUSED):
        return  # split rows are computed by trees only
    with torch.no_grad(), engine.eval_mode():
        with use_attention(engine.module, EAGER):
            wanted = _compute_logits(engine)
        with use_attention(engine.module, FUSED):
            found = _compute_logits(engine)
    differs = torch.tensor(int(not logits_match(found, wanted, engine._autocast_dtype)), device=found.device)
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
    """Return the probe's logits, [N, V]."""
    from verl.utils.device import get_device_id

    config = engine.module.config
    draw, vocabulary = np.random.default_rng(0), config.get_text_config().vocab_size
    ids = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.int64)
    own = torch.zeros(ids.shape, dtype=torch.bool)
    for row, length in enumerate(LENGTHS):
        ids[row, :length] = torch.from_numpy(draw.integers(0, vocabulary, length))
        own[row, :length] = True
    places = torch.arange(ids.shape[1]).expand(ids.shape) * own
    if hasattr(config, "vision_config"):
        places = places.expand(4, *places.shape)  # text positions are equal in each dimension
    device = get_device_id()
    given = {"input_ids": ids, "attention_mask": own, "position_ids": places}
    output = engine.module(**{name: value.to(device) for name, value in given.items()}, use_cache=False)
    logits: Tensor = output.logits
    return logits[own.to(logits.device)]
