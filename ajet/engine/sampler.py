"""Opens a TokenEngine for processes that sample and do not train: the debug backbone and `ajet chat`.

Invariant: the weights are loaded once, in the engine's own dtype, without a second copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.engine.adapters import Adapters

if TYPE_CHECKING:
    import torch

    from ajet.config import AjetConfig
    from ajet.engine.contract import TokenEngine
    from ajet.engine.model_source import ModelSource
    from ajet.engine.transformers import TransformersEngine


Weights = Callable[[], Iterable[tuple[str, Any]]]


def open_sampler(
    config: AjetConfig, *, base: Path | None = None, weights: Weights | None = None
) -> tuple[TokenEngine, Any]:
    """Open the engine selected by `rollout.engine` and the tokenizer of `model.path`.

    Args:
        base: first folder for relative paths.
        weights: yields the tensors for `weights_changed` of a vLLM started by ajet.

    Raises:
        UserError: the model or the engine cannot be opened.
    """
    from ajet.engine.model_source import locate_model
    from ajet.engine.models import load_tokenizer

    assert config.model.path is not None, "require_ready asks for it"
    source = locate_model(config.model.path, base=base, trust_remote_code=config.model.trust_remote_code)
    tokenizer = load_tokenizer(source)
    if config.rollout.engine != "vllm":
        return _open_transformers(config, source), tokenizer
    if config.rollout.vllm.base_url is None:
        return _open_vllm(config, source, weights), tokenizer
    from ajet.engine.server_detection import open_remote

    return open_remote(config, vocabulary=len(tokenizer)), tokenizer


def _open_transformers(config: AjetConfig, source: ModelSource) -> TokenEngine:
    from ajet.engine.models import load_model

    device, dtype = choose_machine(config)
    model = load_model(source, dtype=dtype, device=device, max_model_len=config.rollout.max_model_len)
    names = Adapters.from_folder(source.folder).names if source.folder is not None else ()
    if names and source.folder is not None:
        from ajet.engine.adapters import attach_adapters

        model = attach_adapters(model, source.folder, names)
    return make_transformers_engine(config, model, names)


def make_transformers_engine(config: AjetConfig, model: Any, adapters: Sequence[str] = ()) -> TransformersEngine:
    """Create an engine over `model` and its `adapters`, with the configured limits."""
    from ajet.engine.models import read_context_length
    from ajet.engine.transformers import TransformersEngine

    return TransformersEngine(
        model,
        max_num_seqs=config.rollout.max_num_seqs,
        max_model_len=min(config.rollout.max_model_len, read_context_length(model)),
        adapters=adapters,
    )


def _open_vllm(config: AjetConfig, source: ModelSource, weights: Weights | None) -> TokenEngine:
    import torch

    from ajet.engine.models import prepare_folder
    from ajet.engine.vllm import VllmEngine

    device, dtype = choose_machine(config)
    settings = config.rollout.vllm
    return VllmEngine(
        prepare_folder(source),
        dtype=dtype,
        device=device,
        max_num_seqs=config.rollout.max_num_seqs,
        max_model_len=config.rollout.max_model_len,
        weights=weights,
        seed=config.seed,
        threads=torch.get_num_threads(),
        cache_bytes=int(settings.cache_gib * (1 << 30)) if settings.cache_gib else None,
        eager=settings.eager,
        trust_remote_code=source.trust_remote_code,
        adapters=Adapters.from_folder(source.folder).names if source.folder is not None else (),
    )


def choose_machine(config: AjetConfig) -> tuple[str, torch.dtype]:
    """Return device and number format, and set torch's threads if configured."""
    import torch

    from ajet.engine.models import choose_fast_dtype

    device = config.trainer_common.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and config.trainer_common.threads != "auto":
        torch.set_num_threads(int(config.trainer_common.threads))
    return device, choose_fast_dtype(device) if config.model.dtype == "auto" else getattr(torch, config.model.dtype)
