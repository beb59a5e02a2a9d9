"""Training engines by name.

Invariant: a name is one subclass of TrainerProcessor: registered in this process, or provided by a plug-in.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from ajet.config.plugin import load_code
from ajet.config.plugins import describe_broken, find_all_parts, find_part
from ajet_aworld.trainer.trainer_processor import TrainerProcessor

VERL = "verl"
_registered: dict[str, type[TrainerProcessor]] = {}


def register(name: str, kind: Any) -> None:
    """Register an engine. Raises ValueError for a used name, or a class other than TrainerProcessor's subclasses."""
    if name in _registered or find_part("train_engine", name) is not None:
        raise ValueError(f"{name} is already registered")
    _registered[name] = _require_processor(name, kind)


def unregister(name: str) -> None:
    """Remove a name; unknown names are ignored."""
    _registered.pop(name, None)


def find_processor(name: str) -> type[TrainerProcessor]:
    """Return the class of the name. Raises ValueError with the known names."""
    if name in _registered:
        return _registered[name]
    part = find_part("train_engine", name)
    if part is None:
        known_names = ", ".join(sorted({*_registered, *find_all_parts("train_engine")}))
        raise ValueError(f"{name} is not supported; there are: {known_names}. {describe_broken()}".rstrip())
    return _require_processor(name, load_code(part.code))


class TrainProcessors(MutableMapping[str, type[TrainerProcessor]]):
    """All engines by name, as AWorld's `TRAIN_PROCESSOR`."""

    def __getitem__(self, name: str) -> type[TrainerProcessor]:
        """Return the class of an engine. Raises KeyError for an unknown name."""
        if name not in {*self}:
            raise KeyError(name)
        return find_processor(name)

    def __setitem__(self, name: str, kind: Any) -> None:
        """Register an engine. Raises ValueError for a used name."""
        register(name, kind)

    def __delitem__(self, name: str) -> None:
        """Remove an engine registered in this process. Raises KeyError for any other name."""
        del _registered[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of all engines, those of plug-ins and those registered in this process."""
        return iter({**find_all_parts("train_engine"), **_registered})

    def __len__(self) -> int:
        return len([*self])


TRAIN_PROCESSOR = TrainProcessors()


def _require_processor(name: str, kind: Any) -> type[TrainerProcessor]:
    """Return the class of an engine unchanged. Raises ValueError if it is no subclass of TrainerProcessor."""
    if not (isinstance(kind, type) and issubclass(kind, TrainerProcessor)):
        raise ValueError(f"the train engine {name} must be a subclass of TrainerProcessor, got {kind!r}")
    return kind
