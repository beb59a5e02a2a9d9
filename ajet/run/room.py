"""What a planned run takes, held against what this machine has.

Invariant: nothing is fetched, loaded or started for it: of a model that is not at hand, nothing is said.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.run.footprint import Footprint, checkpoint_bytes, checkpoints_at_once, footprint

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.engine.weight_shapes import ModelSize


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes."""

    checkpoint: int
    at_once: int
    """Checkpoints on the disk at the same time, at most."""
    local: Footprint | None
    """On the local backbone; None on another."""
    memory: int | None
    """Free on the device that would train; None where nobody knows."""
    processor: bool
    """No GPU would compute it."""

    @property
    def disk(self) -> int:
        """For all checkpoints."""
        return self.checkpoint * self.at_once


def room_of(experiment: Experiment, *, train: int, validates: bool) -> Room | None:
    """The room that a model needs; None for one that is not on this machine yet, or whose files do not say how large it
    is. `train`: how many tasks there are; 0: clients bring them."""
    from ajet.engine.machine import device_kind, float32_is_usual, free_memory

    settings = experiment.ajet
    size, context = size_of(settings.model.path, experiment.base)
    if size is None:
        return None
    device = settings.trainer_common.device
    wide = settings.model.dtype == "float32" or (settings.model.dtype == "auto" and float32_is_usual(device))
    steps = settings.total_steps(train) if train else settings.trainer_common.total_training_steps
    local = experiment.backbone.opens is not None
    return Room(
        checkpoint_bytes(size, settings, wide=wide),
        checkpoints_at_once(settings, validates=validates, steps=steps),
        footprint(size, settings, wide=wide, context=context) if local else None,
        free_memory(device) if local else None,
        device_kind(device) == "cpu",
    )


def size_of(model: str | None, base: Path) -> tuple[ModelSize | None, int | None]:
    """Return the size and the longest context in tokens of a model; None for what its files do not say, or are not on
    this machine to say."""
    from ajet.engine.dimensions import dimensions
    from ajet.engine.model_source import at_hand
    from ajet.engine.weight_shapes import model_size

    folder = at_hand(model, base=base, weights=False) if model is not None else None
    if folder is None:
        return None, None
    size, shape = model_size(folder), dimensions(folder)
    return size or (shape.size() if shape is not None else None), _context(folder)


def size_by_name(model: str | None) -> ModelSize | None:
    """Return the size that a model's name tells (`Qwen2.5-7B-Instruct`, `Mixtral-8x7B`): parameters alone, all else 0;
    None for a name that tells none."""
    from ajet.engine.weight_shapes import ModelSize

    found = re.search(r"(?<![A-Za-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([BM])(?![A-Za-z0-9])", Path(model or "").name, re.I)
    if found is None:
        return None
    parameters = float(found[2]) * (1e9 if found[3] in "bB" else 1e6) * int(found[1] or 1)
    return ModelSize(round(parameters), 0, 0, 0, 0, 0, 0)


def _context(folder: Path) -> int | None:
    told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    longest = (told.get("text_config") or told).get("max_position_embeddings")
    return longest if isinstance(longest, int) else None
