"""Several adapters on one model: which agent has which, and the folder that they are saved in.

    model folder/adapters/agents.json      {"format": 1, "adapters": [{"name": "solver", "agents": ["solver"]}, ...]}
    model folder/adapters/NAME/            that adapter, in peft's layout

Invariant: an agent has the first adapter, in the order of the YAML, of which a pattern is its target tag or its name;
one that has none is answered by the model without adapters, and never trains.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.record.bounded_json import read_json
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config.schema.trainer_common import Lora

FOLDER, TABLE = "adapters", "agents.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Adapter:
    """One of them, and whose it is: patterns of target tags and agents' names (`critic`, `player-*`)."""

    name: str
    agents: tuple[str, ...]


class Adapters(Sequence[Adapter]):
    """The LoRA adapters of a model, in order."""

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self._all = tuple(adapters)

    def __getitem__(self, at: Any) -> Any:
        return self._all[at]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._all)

    @property
    def names(self) -> tuple[str, ...]:
        """The adapters' names, in order."""
        return tuple(each.name for each in self._all)

    def of(self, agent: str, target: str) -> str | None:
        """The name of the adapter that this agent has; None: it has none."""
        for each in self._all:
            if any(fnmatchcase(target, pattern) or fnmatchcase(agent, pattern) for pattern in each.agents):
                return each.name
        return None

    @classmethod
    def configured(cls, lora: Lora) -> Adapters:
        """The adapters that `trainer_common.lora.adapters` names; empty where it names none."""
        return cls([Adapter(name, tuple(each.agents or [name])) for name, each in lora.adapters.items()])

    @classmethod
    def saved(cls, folder: Path) -> Adapters:
        """The adapters beside the model in `folder`; empty where there are none. Raises UserError for a table that is
        none, or an adapter that is not there."""
        place = folder / FOLDER / TABLE
        if not place.is_file():
            return cls([])
        try:
            told = read_json(place)
            if told["format"] != FORMAT:
                raise ValueError(f"its format is {told['format']!r}")
            found = cls([Adapter(str(each["name"]), tuple(map(str, each["agents"]))) for each in told["adapters"]])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{place} cannot be read: {error}", where=str(place), expected="the table that ajet wrote with it"
            ) from error
        for name in found.names:
            if name != Path(name).name or not (folder_of(folder, name) / "adapter_config.json").is_file():
                raise UserError(
                    f"The adapter {name} is not there.",
                    where=str(folder_of(folder, name)),
                    expected="adapter_config.json and adapter_model.safetensors, as its checkpoint had them",
                )
        return found

    def write(self, folder: Path) -> None:
        """The table, beside the adapters in `folder`."""
        told = {"format": FORMAT, "adapters": [asdict(each) for each in self._all]}
        (folder / FOLDER / TABLE).write_text(json.dumps(told, indent=1))


def folder_of(model: Path, name: str) -> Path:
    """The folder of the adapter `name` inside a model's folder."""
    return model / FOLDER / name
