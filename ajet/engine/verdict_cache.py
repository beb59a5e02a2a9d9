"""VerdictCache: remembers which models passed the engine's self-check (agreement with their eager forward pass).

Invariant: the key of an entry covers everything relevant except the values of the weights: modules and configuration,
the model's code and files next to it, ajet's code, number formats, device, processor, libraries and their environment
variables; not the thread count, which affects rounding only. Only agreement is stored; failed models are checked every
time. The canary (a comparison of engine and trainer at each start) checks the weights, so a run without it neither
stores nor uses entries.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loguru import logger

from ajet.config.locations import find_cache_root
from ajet.engine.models import read_processor_flags

_LIBRARY_VARIABLES = ("ATEN_", "CUBLAS", "CUDNN_", "DNNL_", "MKL_", "NVIDIA_", "ONEDNN_", "PYTORCH_", "TORCH_")
"""Prefixes of environment variables that select kernels."""


class VerdictCache:
    """Stored results of the self-check in one folder, one file each.

    An unreadable or read-only folder only costs time: models are then checked at each start.

    Args:
        folder: None for ajet's cache.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or find_cache_root() / "agreed"

    def has(self, key: str) -> bool:
        """True if agreement was stored under `key`."""
        # Path.exists raises an error in folders without permission
        return bool(key) and os.path.isfile(self._folder / key)

    def add(self, key: str) -> None:
        """Store agreement under `key`, except "". Idempotent."""
        if not key:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / key).touch()
        except OSError as error:
            logger.info("the result of a model check cannot be stored, so each start repeats the check: {}", error)


def build_verdict_key(model: Any, *, code: Sequence[Path]) -> str:
    """Return the key under which a model's check is stored.

    The result is "" if some of the model's code is not in a file.

    Args:
        code: folders of ajet's modules that compute the model.
    """
    import torch
    import transformers

    source_files = {_find_source_file(type(module)) for module in model.modules()}
    if None in source_files:
        return ""
    device = model.get_input_embeddings().weight.device
    if device.type == "cuda":
        processor = repr((torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)))
    else:
        processor = repr((platform.machine(), read_processor_flags(), torch.backends.cpu.get_cpu_capability()))
    facts = [
        repr(model),
        model.training,
        [
            (type(module).__qualname__, module.config.to_json_string(use_diff=False))
            for module in _list_configured_modules(model)
        ],
        [(name, str(tensor.dtype)) for name, tensor in [*model.named_parameters(), *model.named_buffers()]],
        [device.type, processor],
        [torch.__version__, torch.__config__.show(), torch.get_float32_matmul_precision(), transformers.__version__],
        sorted((name, value) for name, value in os.environ.items() if name.startswith(_LIBRARY_VARIABLES)),
    ]
    digest = hashlib.sha256(repr(facts).encode())
    folders = {*code, Path(__file__).parent, *(Path(file).parent for file in source_files if file)}
    for file in sorted(file for folder in folders for file in folder.glob("*.py")):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _find_source_file(kind: type) -> str | None:
    """Return the file that defines a class, or None for a class without a file."""
    try:
        file = inspect.getsourcefile(kind)
    except (TypeError, OSError):  # defined in a notebook, or compiled
        return None
    return file if file and os.path.isfile(file) else None


def _list_configured_modules(model: Any) -> list[Any]:
    """Return one module for each distinct configuration, since layers share theirs."""
    module_by_config = {id(module.config): module for module in model.modules() if hasattr(module, "config")}
    return [module for module in module_by_config.values() if hasattr(module.config, "to_json_string")]
