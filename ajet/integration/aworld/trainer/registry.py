"""Training engines by name.

Invariant: TRAIN_PROCESSOR holds subclasses of TrainerProcessor only, each under one name. Installed packages bring
theirs by the entry point group `ajet.train_processors`, which is read when a name is asked for that is not here.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from ajet.integration.aworld.trainer.run_processor import (
    DebugProcessor,
    LocalProcessor,
    TrinityProcessor,
    VerlProcessor,
)
from ajet.integration.aworld.trainer.trainer_processor import TrainerProcessor
from ajet.integration.trl import TrlTrainer

GROUP = "ajet.train_processors"
VERL = "verl"
TRAIN_PROCESSOR: dict[str, type[TrainerProcessor]] = {
    VERL: VerlProcessor,
    "local": LocalProcessor,
    "debug": DebugProcessor,
    "trinity": TrinityProcessor,
    "trl": TrlTrainer,
}


def register(name: str, kind: Any) -> None:
    """Raises ValueError for a name that is taken, and for what is no subclass of TrainerProcessor."""
    if name in TRAIN_PROCESSOR:
        raise ValueError(f"{name} is already registered")
    TRAIN_PROCESSOR[name] = _checked(name, kind)


def unregister(name: str) -> None:
    """Forget it; nothing happens where it is not known."""
    TRAIN_PROCESSOR.pop(name, None)


def processor(name: str) -> type[TrainerProcessor]:
    """The class of that name. Raises ValueError, which lists those that are known."""
    if name not in TRAIN_PROCESSOR:
        for each in entry_points(group=GROUP):
            if each.name == name:
                TRAIN_PROCESSOR[name] = _checked(name, each.load())
    if name not in TRAIN_PROCESSOR:
        known = sorted({*TRAIN_PROCESSOR, *(each.name for each in entry_points(group=GROUP))})
        raise ValueError(f"{name} is not supported; there are: {', '.join(known)}")
    return _checked(name, TRAIN_PROCESSOR[name])


def _checked(name: str, kind: Any) -> type[TrainerProcessor]:
    if not (isinstance(kind, type) and issubclass(kind, TrainerProcessor)):
        raise ValueError(f"{name} train engine is not a TrainerProcessor: {kind!r}")
    return kind
