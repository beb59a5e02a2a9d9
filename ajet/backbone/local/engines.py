"""The engine that samples what the local backbone trains: over the trainer's own tensors, or vLLM with a copy.

Invariant: whichever it is, after `weights_changed(version)` it samples with the policy's present weights, and while it
is paused it computes nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import torch
from loguru import logger

from ajet.engine.contract import TokenEngine
from ajet.engine.models import context_length
from ajet.schema.call import Ids

if TYPE_CHECKING:
    from ajet.backbone.local.policy import Policy
    from ajet.config import AjetConfig
    from ajet.engine.agreed import Agreed
    from ajet.engine.model_source import ModelSource

GIB = 1 << 30


class PausableEngine(TokenEngine, Protocol):
    """A TokenEngine that makes room for an update."""

    def paused(self) -> AbstractContextManager[None]:
        """A block within which no forward pass runs; calls wait."""
        ...

    def greedy(self, prompt_ids: Ids, count: int, adapter: str | None = None) -> tuple[list[int], list[float]]:
        """The `count` most likely tokens after the prompt and their logprobs at temperature 1; no call of the run is
        changed by it."""
        ...


def open_engine(
    config: AjetConfig, source: ModelSource, policy: Policy, agreed: Agreed | None = None
) -> PausableEngine:
    """The engine that `rollout.engine` names. `agreed`: as in TransformersEngine. Raises UserError."""
    if config.rollout.engine == "vllm":
        return _vllm(config, source, policy)
    from ajet.engine.transformers import TransformersEngine

    return TransformersEngine(
        policy.model,
        version=0,
        max_num_seqs=config.rollout.max_num_seqs,
        max_model_len=min(config.rollout.max_model_len, context_length(policy.model)),
        adapters=policy.adapters.names,
        agreed=agreed,
    )


def _vllm(config: AjetConfig, source: ModelSource, policy: Policy) -> PausableEngine:
    from ajet.engine.models import folder_of
    from ajet.engine.vllm import VllmEngine

    values = policy.weights.values
    logger.info("starting vLLM; on a CPU this takes about a minute")
    engine = VllmEngine(
        folder_of(source),
        dtype=values.dtype,
        device=values.device,
        max_num_seqs=config.rollout.max_num_seqs,
        max_model_len=min(config.rollout.max_model_len, context_length(policy.model)),
        weights=policy.changed,
        seed=config.seed,
        threads=torch.get_num_threads(),
        cache_bytes=int(config.rollout.vllm.cache_gib * GIB) if config.rollout.vllm.cache_gib else None,
        eager=config.rollout.vllm.eager,
        trust_remote_code=source.trust_remote_code,
    )
    try:
        if policy.adapted is None:
            engine.check_weights()
    except BaseException:
        engine.close()
        raise
    sizes = {name: f"{size / 1e6:,.0f} MB" for name, size in engine.memory.items()}
    logger.info(
        "vLLM holds a copy of the weights ({weights}) and {cache} of keys and values in processes of its own; an "
        "update passes by {bucket} of shared memory",
        **sizes,
    )
    return engine
