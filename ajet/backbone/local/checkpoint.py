"""Reads and writes checkpoints: the model in transformers' layout, and the trainer's state.

    model.safetensors, config.json, tokenizer files     Hugging Face layout; a single LoRA adapter is merged in
    adapter/                                            with LoRA: the adapter alone, in peft's layout
    adapters/NAME/, adapters/agents.json                with several adapters: each alone, its agents; base model
    unmerged
    trainer/state.safetensors                           trained values, low halves of the masters, moments, RNG; the
                                                        critic's values and moments
    trainer/state.json                                  version, optimizer steps, the layout of the flat buffer

Invariant: `read_checkpoint` restores every bit written by `write_checkpoint` and reads no other data. Writing copies no
tensors except merged ones. Disk errors reach the caller, and the caller must never treat the folder as complete.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ajet.backbone.local.lora import base_state, merged_state, save_adapters
from ajet.config.record_file import open_record_descriptor
from ajet.engine.adapters import FOLDER
from ajet.record.checkpoint import require_sound
from ajet.record.files import read_json
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.backbone.local.optimizer import FlatAdamW
    from ajet.backbone.local.policy import LocalPolicy
    from ajet.backbone.local.value_head import ValueHead

FORMAT = 1
BUFFER_BYTES = 1 << 24


def write_checkpoint(
    folder: Path,
    policy: LocalPolicy,
    optimizer: FlatAdamW,
    tokenizer: Any,
    version: int,
    critic: ValueHead | None = None,
) -> None:
    """Write a checkpoint into an existing empty folder."""
    from safetensors.torch import save_file

    model = policy.model
    if policy.adapters:
        save_file(base_state(policy.adapted), folder / "model.safetensors", metadata={"format": "pt"})
        save_adapters(policy.adapted, folder / FOLDER)
        policy.adapters.write(folder)
    elif policy.adapted is not None:
        save_file(merged_state(policy.adapted), folder / "model.safetensors", metadata={"format": "pt"})
        save_adapters(policy.adapted, folder / "adapter")
    else:
        persistent = model.state_dict().keys()
        buffers = [(name, buffer) for name, buffer in model.named_buffers() if name in persistent]
        state = {name: tensor.detach() for name, tensor in [*model.named_parameters(), *buffers]}
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(folder)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    trainer = folder / "trainer"
    trainer.mkdir()
    save_file(_list_tensors(policy, optimizer, critic), trainer / "state.safetensors")
    steps = optimizer.counts if policy.adapters else optimizer.steps
    about = {"format": FORMAT, "version": version, "steps": steps, "layout": _build_layout(policy)}
    if critic is not None:
        about["critic_steps"] = critic.optimizer.steps
    (trainer / "state.json").write_text(json.dumps(about, indent=1))


def read_checkpoint(folder: Path, policy: LocalPolicy, optimizer: FlatAdamW, critic: ValueHead | None = None) -> int:
    """Restore weights, optimizer, critic and RNG in place, and return the version.

    Raises:
        UserError: the folder has no trainer state, or the state belongs to another model.
    """
    require_sound(folder)
    about = _read_matching_state(folder, policy)
    if critic is not None and "critic_steps" not in about:
        raise UserError(
            f"The checkpoint in {folder} contains no value head, which this run's algorithm needs.",
            where=str(folder / "trainer" / "state.json"),
            expected="the trainer_common.algorithm.adv_estimator that the checkpoint was written with",
            do="to start a new run with its weights, set model.path to the checkpoint",
        )
    state = _list_tensors(policy, optimizer, critic)
    _read_into(_state_path(folder), state)
    torch.set_rng_state(state["rng"])
    if "rng_cuda" in state:
        torch.cuda.set_rng_state(state["rng_cuda"])
    steps = about["steps"]
    optimizer.counts = {str(name): int(count) for name, count in steps.items()} if policy.adapters else {"": int(steps)}
    if critic is not None:
        critic.optimizer.counts = {"": int(about["critic_steps"])}
    return int(about["version"])


def read_weights(folder: Path, policy: LocalPolicy) -> None:
    """Restore only the weights, in place.

    Raises:
        UserError: as in `read_checkpoint`.
    """
    require_sound(folder)
    _read_matching_state(folder, policy)
    _read_into(_state_path(folder), {"values": policy.weights.values})


def read_version(folder: Path) -> int:
    """Return the policy version in a checkpoint.

    Raises:
        UserError: the folder was not written by the local backbone.
    """
    require_sound(folder, tensors=False)
    return int(_read_state_json(folder)["version"])


def read_dtype(folder: Path) -> str:
    """Return the number format of the checkpoint's weights.

    Raises:
        UserError: the folder was not written by the local backbone.
    """
    return str(_read_state_json(folder)["layout"][0]).removeprefix("torch.")


def _state_path(folder: Path) -> Path:
    """Return the file of the trainer's tensors in a checkpoint."""
    return folder / "trainer" / "state.safetensors"


def _read_state_json(folder: Path) -> dict[str, Any]:
    """Return the description of a checkpoint's trainer state. Raises UserError if it is missing or invalid."""
    file = folder / "trainer" / "state.json"
    try:
        about: dict[str, Any] = read_json(file)
        if not (isinstance(about["version"], int) and isinstance(about["format"], int) and about["layout"][0]):
            raise ValueError("its version, format or layout is unknown")
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(
            f"The checkpoint in {folder} contains no trainer state, so training cannot resume from it.",
            where=str(file),
            expected="a checkpoint that the local backbone wrote",
            do="to start a new run with its weights, set model.path to the checkpoint",
        ) from error
    return about


def _read_matching_state(folder: Path, policy: LocalPolicy) -> dict[str, Any]:
    """Return the description of a checkpoint's trainer state. Raises UserError if it belongs to another model, dtype or
    LoRA setting.
    """
    about = _read_state_json(folder)
    if about["format"] != FORMAT or about["layout"] != json.loads(json.dumps(_build_layout(policy))):
        raise UserError(
            f"The checkpoint in {folder} belongs to another model, dtype or LoRA setting.",
            where=str(folder / "trainer" / "state.json"),
            expected="the model.path, model.dtype and trainer_common.lora that the checkpoint was written with",
        )
    return about


def _read_into(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Fill `tensors` from a safetensors file through a small buffer.

    Memory never holds a second copy or a mapping of the file.
    """
    buffer = bytearray(BUFFER_BYTES)
    window = memoryview(buffer)
    with io.FileIO(open_record_descriptor(file, os.O_RDONLY)) as handle:
        # A safetensors file begins with the header's length in 8 bytes; offsets in the header count from the header's
        # end.
        length = int.from_bytes(handle.read(8), "little")
        if length > os.fstat(handle.fileno()).st_size:
            raise UserError(f"{file} is not a safetensors file.", where=str(file))
        header = json.loads(handle.read(length))
        for name, tensor in tensors.items():
            start, stop = header[name]["data_offsets"]
            target_bytes = tensor.view(torch.uint8)
            handle.seek(8 + length + start)
            for chunk in target_bytes.split(BUFFER_BYTES):
                if handle.readinto(window[: chunk.numel()]) != chunk.numel():
                    raise UserError(
                        f"The file {file} is incomplete.",
                        where=str(file),
                        expected=f"{stop - start} bytes for the tensor {name}",
                    )
                chunk.copy_(torch.frombuffer(buffer, dtype=torch.uint8, count=chunk.numel()))


def _list_tensors(policy: LocalPolicy, optimizer: FlatAdamW, critic: ValueHead | None) -> dict[str, torch.Tensor]:
    """Return the tensors of the trainer's state by name: weights, moments, critic and random generators. Reading fills
    them in place.
    """
    weights = policy.weights
    tensors = {"values": weights.values, "first": optimizer.first, "second": optimizer.second}
    if weights.low is not None:
        tensors["low"] = weights.low
    if critic is not None:
        tensors |= critic.tensors()
    tensors["rng"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["rng_cuda"] = torch.cuda.get_rng_state()
    return tensors


def _build_layout(policy: LocalPolicy) -> list[Any]:
    """Return the dtype and each parameter's name, shape and start in the flat buffer, as JSON. Equal layouts mean
    compatible states.
    """
    weights = policy.weights
    return [str(weights.values.dtype), [[slot.name, list(slot.shape), slot.start] for slot in weights.places]]
