"""A TokenEngine that only samples: for the debug backbone and `ajet chat`, which train nothing.

Invariant: the weights are loaded once, in the engine's own dtype; no copy is kept beside them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.engine.contract import TokenEngine


def open_sampler(config: AjetConfig, *, base: Path | None = None) -> tuple[TokenEngine, Any]:
    """Engine and tokenizer for `model.path`. Relative paths are looked up in `base` first. Raises UserError."""
    import torch

    from ajet.engine.model_source import locate
    from ajet.engine.models import context_length, fast_dtype, load_model, load_tokenizer
    from ajet.engine.transformers import TransformersEngine

    device = config.trainer_common.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and config.trainer_common.threads != "auto":
        torch.set_num_threads(int(config.trainer_common.threads))
    dtype = fast_dtype(device) if config.model.dtype == "auto" else getattr(torch, config.model.dtype)
    assert config.model.path is not None, "require_ready asks for it"
    source = locate(config.model.path, base=base)
    tokenizer = load_tokenizer(source)
    model = load_model(source, dtype=dtype, device=device)
    engine = TransformersEngine(
        model,
        max_num_seqs=config.rollout.max_num_seqs,
        max_model_len=min(config.rollout.max_model_len, context_length(model)),
    )
    return engine, tokenizer
