"""Saved adapters, from a model's folder onto the model: for who samples with them, and for who trains on from them.

Invariant: weights come as they were saved; the model's own are not touched, and nothing of the adapters that is asked
for is left behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.engine.adapters import Adapters, folder_of
from ajet.record.bounded_json import read_json
from ajet.schema.errors import MissingExtra, UserError

if TYPE_CHECKING:
    from ajet.config import AjetConfig


def adapters_of(config: AjetConfig, base: Path | None = None) -> Adapters:
    """The adapters beside the model that `model.path` names, where it is a folder at hand. Raises UserError."""
    from ajet.engine.model_source import at_hand

    folder = at_hand(config.model.path, base=base) if config.model.path is not None else None
    return Adapters([]) if folder is None else Adapters.saved(folder)


def with_adapters(model: Any, folder: Path, names: tuple[str, ...]) -> Any:
    """`model`, which becomes a peft model's, with the adapters of these names in `folder`; it computes with them where
    it is told to. Raises UserError."""
    try:
        from peft import PeftModel
    except ImportError:
        raise MissingExtra("peft", "local", needed_for="a model with adapters") from None
    first, *others = names
    settings: dict[str, Any] = {"autocast_adapter_dtype": False, "is_trainable": False}
    try:
        adapted = PeftModel.from_pretrained(model, folder_of(folder, first), adapter_name=first, **settings)
        for name in others:
            adapted.load_adapter(folder_of(folder, name), adapter_name=name, **settings)
    except (ValueError, RuntimeError, OSError, KeyError) as error:
        raise _unreadable(folder, error) from error
    return model


def choose_adapter(model: Any, name: str | None) -> None:
    """Have `model` compute with this one of several adapters alone, and let it alone get gradients; None: with none."""
    from peft.tuners.lora import LoraLayer

    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.set_adapter([] if name is None else [name])


def take_weights(model: Any, folder: Path, name: str) -> None:
    """Fill the adapter `name` of a peft model with the one of that name in `folder`. Raises UserError where it is
    another one."""
    from peft import set_peft_model_state_dict
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    place = folder_of(folder, name)
    try:
        tensors = load_file(place / "adapter_model.safetensors")
        told: Any = set_peft_model_state_dict(model, tensors, adapter_name=name)
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise _unreadable(place, error) from error
    own = sum(f".lora_A.{name}." in each or f".lora_B.{name}." in each for each, _ in model.named_parameters())
    if told.unexpected_keys or len(tensors) != own:
        raise _unreadable(place, ValueError(f"it has {len(tensors)} matrices, and this model's {own}"))
    was, now = read_json(place / "adapter_config.json").get("lora_alpha"), model.peft_config[name].lora_alpha
    if was != now:
        raise _unreadable(place, ValueError(f"its alpha is {was}, and here it would be {now}"))


def _unreadable(place: Path, error: Exception) -> UserError:
    return UserError(
        f"The adapters in {place} cannot be taken: {str(error)[:400]}",
        where=str(place),
        expected="adapters of this model, of the rank, alpha and modules that they were trained with",
    )
