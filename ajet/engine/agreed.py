"""Models that were held against their eager forward pass before, with what they are computed by, on this machine.

Invariant: a verdict is kept under all that it follows from but the values of the weights: the model's modules and
configuration, its own code, the code here that computes it, number format, device, processor and libraries. Only
agreement is kept: what disagreed is tried again. The weights themselves the canary holds, at each start.
"""

from __future__ import annotations

import hashlib
import inspect
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ajet.config.cache import cache_root


class Agreed:
    """The verdicts in one folder, a file each; None: in ajet's cache."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_root() / "agreed"

    def has(self, key: str) -> bool:
        """Whether it was kept."""
        return (self._folder / key).exists()

    def add(self, key: str) -> None:
        """Keep it. Idempotent."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / key).touch()


def key_of(model: Any, *, code: Sequence[Path]) -> str:
    """Under what a verdict on `model` is kept. `code`: folders of ours whose modules compute it."""
    import torch
    import transformers

    device = model.get_input_embeddings().weight.device
    if device.type == "cuda":
        processor = repr((torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)))
    else:
        processor = repr((platform.machine(), torch.cpu.get_capabilities()))
    facts = [
        repr(model),
        [(type(module).__qualname__, module.config.to_json_string()) for module in _configured(model)],
        sorted({str(parameter.dtype) for parameter in model.parameters()}),
        [device.type, processor],
        [torch.__version__, transformers.__version__, torch.get_float32_matmul_precision()],
    ]
    digest = hashlib.sha256(repr(facts).encode())
    own = {inspect.getsourcefile(type(module)) for module in model.modules()}
    ours = [file for folder in (Path(__file__).parent, *code) for file in folder.glob("*.py")]
    for file in sorted({Path(each) for each in own if each} | set(ours)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _configured(model: Any) -> list[Any]:
    """One module of each configuration: layers share theirs."""
    found = {id(module.config): module for module in model.modules() if hasattr(module, "config")}
    return [module for module in found.values() if hasattr(module.config, "to_json_string")]
