"""Low-rank adapters (arXiv 2106.09685) by peft.

Invariant: only the adapters train; the base weights are frozen and never copied. The reference model is the same
model with its adapters switched off. Of several adapters one computes at a time, and only that one gets gradients.
Adapters that are merged into bfloat16 weights keep, over a matrix, all of what they change, however small beside the
weights.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.schema.trainer_common import AdapterConfig
from ajet.engine.adapters import Adapters, adapter_folder
from ajet.record.bounded_json import read_json
from ajet.schema.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import torch

    from ajet.config.schema.trainer_common import LoraConfig

_NOISE, _SLICE, _STRIDE = 1 << 20, 1 << 18, 40503
"""Random numbers that roundings share, how many weights are rounded at a time, and where the next ones begin."""


def add_adapters(model: Any, lora: LoraConfig) -> Any:
    """The model as a peft model with fresh adapters (they change nothing yet): one, or those of `lora.adapters` in
    their order, all of which train. Raises MissingExtraError without peft and ConfigError when no module has one of the
    names."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise MissingExtraError("peft", "local", needed_for="LoRA (trainer_common.lora.rank)") from None
    wanted = {name: lora.resolve_adapter(name) for name in lora.adapters} or {"default": lora}
    configs = {
        name: LoraConfig(
            r=each.rank,
            lora_alpha=each.alpha,  # type: ignore[arg-type] # peft multiplies by it, a float is as good
            target_modules=each.target_modules,
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
        )
        for name, each in wanted.items()
    }
    first, *others = configs
    _refuse_names(model, lora.adapters)
    try:
        adapted = get_peft_model(model, configs[first], adapter_name=first, autocast_adapter_dtype=False)
        for name in others:
            adapted.add_adapter(name, configs[name], autocast_adapter_dtype=False)
    except ValueError as error:
        raise ConfigError(
            f"No adapters can be added to {type(model).__name__}: {error}",
            where="ajet.trainer_common.lora.target_modules",
            expected="all-linear, or names of the model's linear modules",
        ) from error
    _refuse_end_adapters(model, several=len(configs) > 1 or bool(lora.adapters))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name)
    return adapted


def _refuse_end_adapters(model: Any, *, several: bool) -> None:
    """Raises ConfigError for adapters on embeddings and head that no sampler could follow: on one of two modules with
    the same weights, whose sum with its adapter the other would have, too; and several on a head, which does not see
    every token of a step."""
    from peft.tuners.lora import LoraLayer

    ends = {"embedding": model.get_input_embeddings(), "head": model.get_output_embeddings()}
    adapted = [end for end, module in ends.items() if isinstance(module, LoraLayer)]
    weights = [getattr(module, "weight", None) for module in ends.values()]
    where, expected = "ajet.trainer_common.lora.target_modules", "all-linear, or names of layers between these two"
    if adapted and weights[0] is weights[1]:
        raise ConfigError(
            f"The embedding and the head of {type(model).__name__} are the same weights: an adapter on the "
            f"{' and the '.join(adapted)} alone could not be added in.",
            where=where,
            expected=expected,
        )
    if "head" in adapted and several:
        raise ConfigError(
            f"The head of {type(model).__name__} does not see every token of a step: several adapters cannot share it.",
            where=where,
            expected=expected,
        )


def _refuse_names(model: Any, names: Iterable[str]) -> None:
    """Raises ConfigError for a name that peft could not tell from the model's own: torch does not take it as that of a
    module, or peft, which cuts it out of a parameter's name wherever it stands, would save the adapters of all under
    wrong ones."""
    import torch

    own = {part for module, _ in model.named_modules() for part in module.split(".")}
    own |= {"base_model", "model", "weight", "bias"}
    for name in names:
        if name in own or name.startswith("lora_") or hasattr(torch.nn.ModuleDict(), name):
            raise ConfigError(
                f"An adapter cannot be called {name!r}: a part of {type(model).__name__} is.",
                where=f"ajet.trainer_common.lora.adapters.{name}",
                expected="another name",
                do=f"`{name}-1: {{agents: [{name}]}}` is that agent's, too",
            )


def merge_saved_adapters(lora: LoraConfig, folder: Path) -> LoraConfig:
    """`lora`, where the adapters in `folder` are as they were trained, and those that it names besides as it says."""
    saved = {name: _read_saved_adapter(adapter_folder(folder, name)) for name in Adapters.from_folder(folder).names}
    return lora.model_copy(update={"adapters": {**lora.adapters, **saved}}) if saved else lora


def _read_saved_adapter(place: Path) -> AdapterConfig:
    config = read_json(place / "adapter_config.json")
    return AdapterConfig(rank=config["r"], alpha=config["lora_alpha"], target_modules=config["target_modules"])


def parse_adapter_name(parameter: str) -> str:
    """The adapter that a parameter of this name belongs to."""
    return parameter.partition(".lora_")[2].split(".")[1]


def base_state(model: Any) -> dict[str, torch.Tensor]:
    """The weights of the peft model `model` without its adapters, under the names of the plain model."""
    base = model.get_base_model()
    named = [*base.named_parameters(), *_persistent_buffers(base)]
    return {name.replace(".base_layer.", "."): each.detach() for name, each in named if ".lora_" not in name}


def merged_state(model: Any) -> dict[str, torch.Tensor]:
    """The weights of the peft model `model` with its adapters added in, under the names of the plain model. Only the
    adapted matrices are new tensors."""
    return base_state(model) | dict(adapted_weights(model))


def adapted_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The matrices that have adapters, with these added in, under the names of the plain model; one at a time."""
    from peft.tuners.lora import LoraLayer

    adapted: list[tuple[str, Any]] = [
        (name, module) for name, module in model.get_base_model().named_modules() if isinstance(module, LoraLayer)
    ]
    for name, module in adapted:
        weight: torch.Tensor = module.get_base_layer().weight.detach()
        change: torch.Tensor = module.get_delta_weight("default")
        yield f"{name}.weight", _add_rounded(weight, change.detach(), seed=zlib.crc32(name.encode()))


def _add_rounded(weight: torch.Tensor, change: torch.Tensor, *, seed: int) -> torch.Tensor:
    """`weight` + `change` in the weight's type. To the nearest bfloat16 most small changes would be rounded away
    together; so each element is rounded up with the probability that makes it right on average (stochastic rounding:
    Gupta 2015, arXiv 1502.02551), by a number that stays the same from step to step. In slices that a cache holds."""
    import torch

    if weight.dtype != torch.bfloat16:
        return weight + change.to(weight.dtype)
    total = torch.empty_like(weight, memory_format=torch.contiguous_format)
    parts = (each.reshape(-1).split(_SLICE) for each in (weight, change, total))
    for number, (old, more, new) in enumerate(zip(*parts, strict=True)):
        bits = old.float().add_(more).view(torch.int32)
        start = (seed + number * _STRIDE) % _NOISE
        bits.add_(_draw_noise(weight.device)[start : start + bits.numel()]).bitwise_right_shift_(16)
        new.copy_(bits.to(torch.int16).view(torch.bfloat16))
    return total


@cache
def _draw_noise(device: torch.device) -> torch.Tensor:
    """What is added to a weight's lower 16 bits: `_NOISE` of them, and the first `_SLICE` once more. Drawing one for
    each weight anew took two thirds of a sum."""
    import torch

    draw = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, 1 << 16, (_NOISE,), dtype=torch.int32, generator=draw)
    return torch.cat([drawn, drawn[:_SLICE]]).to(device)


def save_adapters(model: Any, folder: Path) -> None:
    """Write them in peft's own layout: the only one into `folder`, several into folders of their own below it."""
    for config in model.peft_config.values():
        if isinstance(config.target_modules, set):  # else the file's bytes differ from process to process
            config.target_modules = sorted(config.target_modules)
    model.save_pretrained(folder, save_embedding_layers=False)


def _persistent_buffers(base: Any) -> list[tuple[str, torch.Tensor]]:
    persistent = base.state_dict().keys()
    return [(name, buffer) for name, buffer in base.named_buffers() if name in persistent]
