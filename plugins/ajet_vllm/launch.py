"""Starts vLLM: arguments, environment of its processes, and memory limits.

Invariant: the environment of this process is restored afterwards, because vLLM sets a dozen variables (LD_PRELOAD among
them) that other child processes must not inherit. Variables set by the user take precedence.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

from ajet.engine.adapters import adapter_folder
from ajet.engine.models import build_loader_options
from ajet.record.files import read_json
from ajet_vllm import sockets
from ajet_vllm.owner import VARIABLE

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs

BLOCK = 128
"""Maximum tokens per block of keys and values."""
MOST_LOGPROBS = 64
"""Maximum number of alternatives per token in a request."""
SHARE = 8
"""The key-value cache gets at most 1/SHARE of the free memory."""
UNKNOWN_SHAPE_BYTES = 4 << 30
"""Maximum size in bytes of the cache for a model whose cache size per token is unknown."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # adapter ranks supported by vLLM


@dataclass(frozen=True, slots=True)
class VllmLaunch:
    """The settings with which vLLM is started.

    Args:
        folder: a model in Hugging Face layout.
        cache_bytes: memory for keys and values. None reserves enough for `max_num_seqs` sequences of `max_model_len`,
            within the free memory.
        eager: None means compiled and captured on a GPU, eager on a CPU.
    """

    folder: Path
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")
    max_num_seqs: int = 64
    max_model_len: int | None = None
    seed: int = 0
    threads: int = 1
    cache_bytes: int | None = None
    eager: bool | None = None
    trust_remote_code: bool = False
    adapters: tuple[str, ...] = ()
    """Adapters in `folder` that requests may select."""

    def arguments(self) -> AsyncEngineArgs:
        """Return vLLM's engine arguments.

        Raises:
            ValueError: vLLM does not support the model or adapter.
            OSError: the model cannot be read.
        """
        from transformers import AutoConfig
        from vllm.engine.arg_utils import AsyncEngineArgs

        trusted = self.trust_remote_code
        shape = AutoConfig.from_pretrained(self.folder, **build_loader_options(trusted)).get_text_config()
        # 1 << 30: no limit
        length = min(self.max_model_len or 1 << 30, int(getattr(shape, "max_position_embeddings", None) or 1 << 30))
        free, total = memory(self.device)
        return AsyncEngineArgs(
            model=str(self.folder),
            trust_remote_code=trusted,
            dtype=str(self.dtype).removeprefix("torch."),
            max_model_len=length,
            max_num_seqs=self.max_num_seqs,
            max_logprobs=MOST_LOGPROBS + 1,  # one more column per token carries the policy version
            logprobs_mode="processed_logprobs",
            generation_config="vllm",  # do not use the model's own sampling defaults
            enable_prefix_caching=True,
            enforce_eager=self.device.type == "cpu" if self.eager is None else self.eager,
            kv_cache_memory_bytes=self.cache_bytes or self._compute_cache_bytes(shape, length, free),
            gpu_memory_utilization=0.9 * free / total,  # vLLM refuses to start if this share of the total is not free
            seed=self.seed,
            worker_extension_cls="ajet_vllm.worker.LiveWeights",
            disable_log_stats=True,
            use_tqdm_on_load=False,
            **self._build_lora_arguments(),
        )

    def _build_lora_arguments(self) -> dict[str, Any]:
        """Return the engine arguments for adapters, or {} without adapters.

        Raises:
            ValueError: an adapter has a higher rank than vLLM supports.
        """
        if not self.adapters:
            return {}
        ranks = [read_json(adapter_folder(self.folder, name) / "adapter_config.json")["r"] for name in self.adapters]
        max_rank = next((size for size in LORA_RANKS if size >= max(ranks)), None)
        if max_rank is None:
            raise ValueError(
                f"vLLM serves adapters of rank {LORA_RANKS[-1]} at most, but an adapter of this run has rank "
                f"{max(ranks)}"
            )
        return {"enable_lora": True, "max_loras": len(self.adapters), "max_lora_rank": max_rank}

    def lora_request(self, adapter: str | None) -> Any:
        """Return vLLM's request object that selects an adapter by name, or None for the base model."""
        if adapter is None:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest(adapter, self.adapters.index(adapter) + 1, str(adapter_folder(self.folder, adapter)))

    def _compute_cache_bytes(self, shape: Any, length: int, free: int) -> int:
        """Return the bytes for keys and values of `max_num_seqs` sequences, at most an eighth of the free memory.

        The result always suffices for one sequence.

        Args:
            shape: the model's text config.
            length: maximum length of a sequence in tokens.
            free: free memory in bytes.
        """
        token_bytes = bytes_per_token(shape, torch.empty(0, dtype=self.dtype).element_size())
        if token_bytes is None:
            return min(free // SHARE, UNKNOWN_SHAPE_BYTES)
        sequence_bytes = (math.ceil(length / BLOCK) + 1) * BLOCK * token_bytes  # in complete blocks, with a spare one
        # One block more, since vLLM reserves one as its null block.
        return max(sequence_bytes + BLOCK * token_bytes, min(self.max_num_seqs * sequence_bytes, free // SHARE))


def bytes_per_token(shape: Any, element: int) -> int | None:
    """Return the bytes of keys and values per token, over all layers of a model with standard attention.

    Returns None for other models, such as those with latent attention (`kv_lora_rank`).

    Args:
        shape: the model's text config.
        element: bytes of a number.
    """
    layers, heads = getattr(shape, "num_hidden_layers", None), getattr(shape, "num_attention_heads", None)
    if not layers or not heads or hasattr(shape, "kv_lora_rank"):
        return None
    head_size = getattr(shape, "head_dim", None) or shape.hidden_size // heads
    return 2 * layers * (getattr(shape, "num_key_value_heads", None) or heads) * head_size * element


def memory(device: torch.device) -> tuple[int, int]:
    """Return the device's memory as (free, total) bytes."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return int(free), int(total)
    main_memory = psutil.virtual_memory()
    return int(main_memory.available), int(main_memory.total)


@contextmanager
def environment(threads: int) -> Iterator[None]:
    """Set the environment variables for vLLM's import and its processes within the block, and restore them after it.

    Variables set by the user stay, apart from those that ajet depends on.

    Args:
        threads: number of CPU threads of each of vLLM's processes.
    """
    previous_environment = dict(os.environ)
    defaults = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # do not pin threads to cores, which the trainer uses, too
        "OMP_NUM_THREADS": str(threads),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",  # the model is a local folder
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # ajet's sampler replaces the one of the first model runner
    os.environ[VARIABLE] = str(os.getpid())
    os.environ[sockets.VARIABLE] = str(sockets.folder())
    try:
        yield
    finally:
        for name in os.environ.keys() - previous_environment.keys():
            del os.environ[name]
        os.environ.update(previous_environment)
