"""Several LoRA adapters on one model: which agent uses which, how they are stored and loaded.

    model folder/adapters/agents.json      {"format": 1, "adapters": [{"name": "solver", "agents": ["solver"]}, ...]}
    model folder/adapters/NAME/            the adapter in peft's layout

Invariant: an agent gets the first adapter, in YAML order, with a pattern that matches its target tag or name. Agents
without a match use the model without adapters and never train. Adapter weights are loaded exactly as saved, and the
model's own weights stay unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.record.files import read_json
from ajet.schema.errors import MissingExtraError, UserError

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.config.schema.trainer_common import LoraConfig


FOLDER, TABLE = "adapters", "agents.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter and the agents that use it, as patterns of target tags and agent names (`critic`, `player-*`)."""

    name: str
    agents: tuple[str, ...]


class Adapters(Sequence[Adapter]):
    """The LoRA adapters of a model, in order."""

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self._adapters = tuple(adapters)

    def __getitem__(self, at: Any) -> Any:
        return self._adapters[at]

    def __len__(self) -> int:
        return len(self._adapters)

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._adapters)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the adapters, in order."""
        return tuple(adapter.name for adapter in self._adapters)

    def find_adapter(self, agent: str, target: str) -> str | None:
        """Return the name of the adapter that an agent uses, or None for the model without adapters.

        Args:
            agent: name of the agent.
            target: the agent's target tag.
        """
        for adapter in self._adapters:
            if any(fnmatchcase(target, pattern) or fnmatchcase(agent, pattern) for pattern in adapter.agents):
                return adapter.name
        return None

    @classmethod
    def from_config(cls, lora: LoraConfig) -> Adapters:
        """Return the adapters in `trainer_common.lora.adapters`, possibly empty."""
        return cls(
            [Adapter(name, tuple(adapter_config.agents or [name])) for name, adapter_config in lora.adapters.items()]
        )

    @classmethod
    def from_folder(cls, folder: Path | None) -> Adapters:
        """Return the adapters saved in a model folder, possibly none. `folder` None, for a model in a single file, has
        none.

        Raises:
            UserError: the table is invalid or an adapter is missing.
        """
        if folder is None or not (table_file := folder / FOLDER / TABLE).is_file():
            return cls([])
        try:
            table = read_json(table_file)
            if table["format"] != FORMAT:
                raise ValueError(f"its format {table['format']!r} is unknown")
            adapters = cls(
                [Adapter(str(entry["name"]), tuple(map(str, entry["agents"]))) for entry in table["adapters"]]
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{table_file} cannot be read: {error}",
                where=str(table_file),
                expected="the file that ajet wrote with the adapters",
            ) from error
        for name in adapters.names:
            if name != Path(name).name or not (adapter_folder(folder, name) / "adapter_config.json").is_file():
                raise UserError(
                    f"The files of the adapter {name} are missing.",
                    where=str(adapter_folder(folder, name)),
                    expected="adapter_config.json and adapter_model.safetensors, unchanged from the checkpoint",
                )
        return adapters

    def write(self, folder: Path) -> None:
        """Write the table of adapters and agents into a model folder."""
        table = {"format": FORMAT, "adapters": [asdict(adapter) for adapter in self._adapters]}
        (folder / FOLDER / TABLE).write_text(json.dumps(table, indent=1))


def adapter_folder(model: Path, name: str) -> Path:
    """Return the folder of the adapter `name` inside a model's folder."""
    return model / FOLDER / name


def load_adapters(config: AjetConfig, base: Path | None = None) -> Adapters:
    """Return the adapters of `model.path` if the path is a local folder, else none.

    Raises:
        UserError: the table is invalid or an adapter is missing.
    """
    from ajet.engine.model_source import find_local_model

    folder = find_local_model(config.model.path, base=base) if config.model.path is not None else None
    return Adapters.from_folder(folder)


def attach_adapters(model: Any, folder: Path, names: tuple[str, ...]) -> Any:
    """Attach saved adapters to `model` in place, and return the model. `choose_adapter` then selects one of them.

    Raises:
        MissingExtraError: peft is not installed.
        UserError: the adapters do not fit the model.
    """
    try:
        from peft import PeftModel
    except ImportError:
        raise MissingExtraError("peft", "local", needed_for="a model with adapters") from None
    first_name, *other_names = names
    settings: dict[str, Any] = {"autocast_adapter_dtype": False, "is_trainable": False}
    try:
        adapted = PeftModel.from_pretrained(
            model, adapter_folder(folder, first_name), adapter_name=first_name, **settings
        )
        for name in other_names:
            adapted.load_adapter(adapter_folder(folder, name), adapter_name=name, **settings)
    except (ValueError, RuntimeError, OSError, KeyError) as error:
        raise _build_adapter_error(folder, error) from error
    return model


def choose_adapter(model: Any, name: str | None) -> None:
    """Activate one adapter for computation and gradients. None deactivates all."""
    from peft.tuners.lora import LoraLayer

    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.set_adapter([] if name is None else [name])


def load_adapter_weights(model: Any, folder: Path, name: str) -> None:
    """Load the weights of adapter `name` from `folder` into a peft model.

    Raises:
        UserError: the file does not fit the model's adapter: other names, number of matrices or alpha.
    """
    from peft import set_peft_model_state_dict
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    adapter = adapter_folder(folder, name)
    try:
        tensors = load_file(adapter / "adapter_model.safetensors")
        result: Any = set_peft_model_state_dict(model, tensors, adapter_name=name)
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise _build_adapter_error(adapter, error) from error
    own_count = sum(
        f".lora_A.{name}." in parameter_name or f".lora_B.{name}." in parameter_name
        for parameter_name, _ in model.named_parameters()
    )
    if result.unexpected_keys or len(tensors) != own_count:
        raise _build_adapter_error(
            adapter, ValueError(f"the file has {len(tensors)} matrices, and this model's adapters have {own_count}")
        )
    saved_alpha, run_alpha = (
        read_json(adapter / "adapter_config.json").get("lora_alpha"),
        model.peft_config[name].lora_alpha,
    )
    if saved_alpha != run_alpha:
        raise _build_adapter_error(
            adapter, ValueError(f"the file's lora alpha is {saved_alpha}, and this run's is {run_alpha}")
        )


def _build_adapter_error(path: Path, error: Exception) -> UserError:
    """Return the error for adapters that cannot be loaded, with what files are expected."""
    return UserError(
        f"The adapters in {path} cannot be loaded: {str(error)[:400]}",
        where=str(path),
        expected="adapters of this model, with the rank, alpha and modules that they were trained with",
    )
