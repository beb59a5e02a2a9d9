"""Low-rank adapters (arXiv 2106.09685), implemented with peft.

Invariant: only adapters train; the base weights are frozen and never copied. The reference model is the same model with
adapters switched off. Of several adapters, only the active one computes and gets gradients. Merging adapters into
bfloat16 weights preserves their change on average over a matrix, however small relative to the weights.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.schema.trainer_common import AdapterConfig
from ajet.engine.adapters import Adapters, adapter_folder
from ajet.record.files import read_json
from ajet.schema.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import torch

    from ajet.config.schema.trainer_common import LoraConfig

_NOISE, _SLICE, _STRIDE = 1 << 20, 1 << 18, 40503
"""Size of the shared noise for rounding, weights rounded at a time, and offset of the noise between slices."""


def add_adapters(model: Any, lora: LoraConfig) -> Any:
    """Return the model as a peft model with fresh adapters. At first the adapters change no output.

    Creates one adapter, or those of `lora.adapters` in order, all trainable.

    Raises:
        MissingExtraError: peft is not installed.
        ConfigError: no module matches the configured names.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise MissingExtraError("peft", "local", needed_for="LoRA (trainer_common.lora.rank)") from None
    wanted = {name: lora.resolve_adapter(name) for name in lora.adapters} or {"default": lora}
    configs = {
        name: LoraConfig(
            r=adapter.rank,
            lora_alpha=adapter.alpha,  # type: ignore[arg-type] # peft multiplies by it, a float is as good
            target_modules=adapter.target_modules,
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
        )
        for name, adapter in wanted.items()
    }
    first, *further_names = configs
    _refuse_names(model, lora.adapters)
    try:
        adapted = get_peft_model(model, configs[first], adapter_name=first, autocast_adapter_dtype=False)
        for name in further_names:
            adapted.add_adapter(name, configs[name], autocast_adapter_dtype=False)
    except ValueError as error:
        raise ConfigError(
            f"The model {type(model).__name__} cannot get adapters: {error}",
            where="ajet.trainer_common.lora.target_modules",
            expected="all-linear, or names of the model's linear modules",
        ) from error
    _refuse_end_adapters(model, several=len(configs) > 1 or bool(lora.adapters))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name)
    return adapted


def _refuse_end_adapters(model: Any, *, several: bool) -> None:
    """Refuse adapters on embeddings or head that no sampler could use.

    Tied modules share their weights, so merging an adapter of one changes the other. A head does not see all tokens of
    a step, so several adapters cannot share a head.

    Raises:
        ConfigError: the model has such an adapter.
    """
    from peft.tuners.lora import LoraLayer

    ends = {"embedding": model.get_input_embeddings(), "head": model.get_output_embeddings()}
    adapted = [end for end, module in ends.items() if isinstance(module, LoraLayer)]
    weights = [getattr(module, "weight", None) for module in ends.values()]
    key, expected = "ajet.trainer_common.lora.target_modules", "all-linear, or names of layers between these two"
    if adapted and weights[0] is weights[1]:
        raise ConfigError(
            f"The embedding and the output head of {type(model).__name__} share their weights, so an adapter on "
            f"the {' and the '.join(adapted)} alone could not be merged.",
            where=key,
            expected=expected,
        )
    if "head" in adapted and several:
        raise ConfigError(
            f"The output head of {type(model).__name__} does not see every token of a batch, so several adapters "
            "cannot share it.",
            where=key,
            expected=expected,
        )


def _refuse_names(model: Any, names: Iterable[str]) -> None:
    """Refuse adapter names that conflict with parts of the model.

    torch rejects some as module names. peft cuts the adapter's name out of parameter names wherever found, and would
    save all adapters under wrong names.

    Raises:
        ConfigError: a name conflicts.
    """
    import torch

    module_names = {module_name for module, _ in model.named_modules() for module_name in module.split(".")}
    module_names |= {"base_model", "model", "weight", "bias"}
    for name in names:
        if name in module_names or name.startswith("lora_") or hasattr(torch.nn.ModuleDict(), name):
            raise ConfigError(
                f"An adapter cannot have the name {name!r}, because a module of {type(model).__name__} has it.",
                where=f"ajet.trainer_common.lora.adapters.{name}",
                expected="another name",
                do=f"`{name}-1: {{agents: [{name}]}}` assigns an adapter of another name to that agent",
            )


def merge_saved_adapters(lora: LoraConfig, folder: Path) -> LoraConfig:
    """Return `lora` with the settings of adapters saved in `folder`. Other adapters remain as configured."""
    saved = {name: _read_saved_adapter(adapter_folder(folder, name)) for name in Adapters.from_folder(folder).names}
    return lora.model_copy(update={"adapters": {**lora.adapters, **saved}}) if saved else lora


def _read_saved_adapter(path: Path) -> AdapterConfig:
    """Return the settings of a saved adapter from its peft configuration file."""
    config = read_json(path / "adapter_config.json")
    return AdapterConfig(rank=config["r"], alpha=config["lora_alpha"], target_modules=config["target_modules"])


def parse_adapter_name(parameter: str) -> str:
    """Return the adapter of a parameter, from the parameter's name."""
    return parameter.partition(".lora_")[2].split(".")[1]


def base_state(model: Any) -> dict[str, torch.Tensor]:
    """Return the weights of a peft model without adapters, under the plain model's names."""
    base = model.get_base_model()
    tensors = [*base.named_parameters(), *_persistent_buffers(base)]
    return {name.replace(".base_layer.", "."): tensor.detach() for name, tensor in tensors if ".lora_" not in name}


def merged_state(model: Any) -> dict[str, torch.Tensor]:
    """Return the weights of a peft model with adapters merged in, under the plain model's names.

    Only the adapted matrices are new tensors.
    """
    return base_state(model) | dict(adapted_weights(model))


def adapted_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each adapted matrix with its adapter merged in, under the plain model's name."""
    from peft.tuners.lora import LoraLayer

    adapted: list[tuple[str, Any]] = [
        (name, module) for name, module in model.get_base_model().named_modules() if isinstance(module, LoraLayer)
    ]
    for name, module in adapted:
        weight: torch.Tensor = module.get_base_layer().weight.detach()
        change: torch.Tensor = module.get_delta_weight("default")
        yield f"{name}.weight", _add_rounded(weight, change.detach(), seed=zlib.crc32(name.encode()))


def _add_rounded(weight: torch.Tensor, change: torch.Tensor, *, seed: int) -> torch.Tensor:
    """Return `weight` + `change` in the weight's dtype, with stochastic rounding for bfloat16.

    Rounding to nearest would lose most small changes. Instead each element is rounded up with the probability that
    makes the mean exact (Gupta 2015, arXiv 1502.02551), with noise that is the same in every step. The sum runs in
    cache-sized slices.
    """
    import torch

    if weight.dtype != torch.bfloat16:
        return weight + change.to(weight.dtype)
    total = torch.empty_like(weight, memory_format=torch.contiguous_format)
    slices = (tensor.reshape(-1).split(_SLICE) for tensor in (weight, change, total))
    for number, (old_slice, change_slice, new_slice) in enumerate(zip(*slices, strict=True)):
        # bfloat16 is the upper half of a float32: adding noise to the lower 16 bits and cutting them off rounds up
        # with a probability equal to the remainder.
        bits = old_slice.float().add_(change_slice).view(torch.int32)
        start = (seed + number * _STRIDE) % _NOISE
        bits.add_(_draw_noise(weight.device)[start : start + bits.numel()]).bitwise_right_shift_(16)
        new_slice.copy_(bits.to(torch.int16).view(torch.bfloat16))
    return total


@cache
def _draw_noise(device: torch.device) -> torch.Tensor:
    """Return noise for a weight's lower 16 bits: `_NOISE` numbers, followed by the first `_SLICE` of them.

    Drawing fresh noise for each weight took two thirds of the time of a sum.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, 1 << 16, (_NOISE,), dtype=torch.int32, generator=generator)
    return torch.cat([drawn, drawn[:_SLICE]]).to(device)


def save_adapters(model: Any, folder: Path) -> None:
    """Write adapters in peft's layout: a single one into `folder`, several into subfolders."""
    for config in model.peft_config.values():
        # a set's order differs between processes, and with it the file's bytes
        if isinstance(config.target_modules, set):
            config.target_modules = sorted(config.target_modules)
    model.save_pretrained(folder, save_embedding_layers=False)


def _persistent_buffers(base: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the buffers that belong to the model's state dict. Others are recomputed when the model is built."""
    persistent = base.state_dict().keys()
    return [(name, buffer) for name, buffer in base.named_buffers() if name in persistent]
