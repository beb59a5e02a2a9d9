"""verl's FSDP checkpoint as a model folder in Hugging Face layout: complete exact weights, config and tokenizer.

Invariant: every tensor is joined bit for bit from the ranks' shards, with the shape stated there; only adapters are
added, and only a requested number format rounds. verl is not imported: its shards are plain torch files of DTensors,
read lazily, so one output file at a time is in memory.

    model_world_size_W_rank_R.pt    the state dict of rank R, FSDP 1 or 2
    fsdp_config.json                W
    lora_train_meta.json            with LoRA: rank and alpha
    huggingface/                    config, tokenizer, chat template; no weights
"""

from __future__ import annotations

import json
import logging
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard  # this import also makes torch.load accept them

from ajet.schema.errors import UserError

FILE_BYTES = 4 * 2**30
"""Maximum size of a weight file in bytes, unless a single tensor is larger."""
_PREFIX, _BASE = "base_model.model.", ".base_layer."
_LORA_A, _LORA_B = ".lora_A.default.weight", ".lora_B.default.weight"


@dataclass(frozen=True, slots=True)
class _PlannedTensor:
    """A tensor to write to the model folder, read only when its file is written."""

    name: str
    bytes: int
    make: Callable[[], torch.Tensor]
    """Reads, merges and rounds the tensor."""


def merge_checkpoint(actor: Path, into: Path, *, dtype: str | None = None, file_bytes: int = FILE_BYTES) -> None:
    """Write a verl checkpoint as a Hugging Face model folder.

    Args:
        actor: the folder `global_step_N/actor` of verl's checkpoint.
        into: an empty folder for the model.
        dtype: float32 or bfloat16, or None for the number format of the checkpoint.
        file_bytes: maximum size of a weight file, unless a single tensor is larger.

    Raises:
        UserError: the checkpoint is incomplete, or its sharding is unsupported.
    """
    model_files = actor / "huggingface"
    if not (model_files / "config.json").is_file():
        raise _make_incomplete_error(model_files / "config.json")
    # Megatron through a bridge writes complete weights there, FSDP writes none: then the ranks' shards are merged.
    shards = None if any(model_files.glob("*.safetensors")) else _Shards(actor)
    for file in model_files.iterdir():
        if file.is_file() and (shards is None or file.suffix != ".safetensors"):
            shutil.copyfile(file, into / file.name)
    if shards is None:
        return
    config = json.loads((into / "config.json").read_text(encoding="utf-8"))
    plan = list(_plan_tensors(shards, config, _read_lora_scale(actor), getattr(torch, dtype) if dtype else None))
    _write_files(plan, into, file_bytes)
    config.pop("attn_implementation", None)  # verl's choice for its own processes
    config.pop("torch_dtype", None)
    config["dtype"] = dtype or str(shards.dtype).removeprefix("torch.")
    (into / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


class _Shards:
    """The saved tensors of all ranks, under the names of rank 0."""

    def __init__(self, actor: Path) -> None:
        """Open the shard file of every rank, without reading its tensors into memory.

        Args:
            actor: the folder `global_step_N/actor` of verl's checkpoint.

        Raises:
            UserError: a file is missing or unreadable, or the checkpoint is one of Megatron.
        """
        try:
            world = int(json.loads((actor / "fsdp_config.json").read_text())["world_size"])
        except (OSError, ValueError, KeyError) as problem:
            raise _make_incomplete_error(actor / "fsdp_config.json", do=_MEGATRON_ADVICE) from problem
        self._folder = actor
        with _silence_mesh_warnings():
            self._ranks = [
                self._open_shard(actor / f"model_world_size_{world}_rank_{rank}.pt") for rank in range(world)
            ]
        self.names = sorted(self._ranks[0])
        self.dtype = next(self._ranks[0][name].dtype for name in self.names)

    @staticmethod
    def _open_shard(file: Path) -> Mapping[str, torch.Tensor]:
        """Return a rank's tensors by name, mapped into memory. Raises UserError for an unreadable file."""
        try:
            state: Mapping[str, torch.Tensor] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except (OSError, RuntimeError, pickle.UnpicklingError) as problem:
            raise _make_incomplete_error(file) from problem
        return state

    def size(self, name: str) -> int:
        """Return the size in bytes of a tensor joined from all shards."""
        tensor = self._ranks[0][name]
        return tensor.numel() * tensor.element_size()

    def read_dtype(self, name: str) -> torch.dtype:
        """Return the tensor's saved number format."""
        return self._ranks[0][name].dtype

    def read_tensor(self, name: str) -> torch.Tensor:
        """Return a tensor, joined from the parts of the ranks that hold it.

        Raises:
            UserError: a part is missing, or the tensor is split along several dimensions of the device mesh.
        """
        rank0_tensor = self._ranks[0][name]
        if not isinstance(rank0_tensor, DTensor):  # every rank has the complete tensor
            return rank0_tensor
        split_dims = [
            mesh_dim for mesh_dim, placement in enumerate(rank0_tensor.placements) if type(placement) is Shard
        ]
        # Compare exact types: a subclass of Shard, such as a strided one, orders its parts differently.
        if len(split_dims) > 1 or any(
            type(placement) not in (Shard, Replicate) for placement in rank0_tensor.placements
        ):
            raise UserError(
                f"The tensor {name} is distributed over the processes as {rank0_tensor.placements}, which ajet cannot "
                "merge.",
                where=str(self._folder),
                expected="one split dimension, as FSDP writes it",
            )
        if not split_dims:
            return rank0_tensor.to_local()
        # Along replicated mesh dimensions (HSDP) all ranks hold equal parts: index 0 there, all ranks on the split one.
        mesh_index: list[Any] = [0] * rank0_tensor.device_mesh.mesh.ndim
        mesh_index[split_dims[0]] = slice(None)
        ranks = rank0_tensor.device_mesh.mesh[tuple(mesh_index)].tolist()
        split_placement = rank0_tensor.placements[split_dims[0]]
        assert isinstance(split_placement, Shard)
        local_tensors = []
        for rank in ranks:
            rank_tensor = self._ranks[rank].get(name)
            if not isinstance(rank_tensor, DTensor):
                raise _make_incomplete_error(self._folder / f"model_world_size_{len(self._ranks)}_rank_{rank}.pt")
            local_tensors.append(rank_tensor.to_local())
        tensor = torch.cat(local_tensors, dim=split_placement.dim)
        if tensor.shape != rank0_tensor.shape:
            raise UserError(
                f"The parts of the tensor {name} have together the shape {tuple(tensor.shape)}, not "
                f"{tuple(rank0_tensor.shape)}.",
                where=str(self._folder),
                expected="the shards of one checkpoint",
            )
        return tensor


def _plan_tensors(
    shards: _Shards, config: Mapping[str, Any], scale: float | None, dtype: torch.dtype | None
) -> Iterator[_PlannedTensor]:
    """Yield the tensors to write, under the names that transformers expects.

    Args:
        config: the model's config.json.
        scale: LoRA's alpha / rank, or None without LoRA.
        dtype: number format of the written tensors, or None for the saved one.

    Raises:
        UserError: the checkpoint has adapters without base weights, or adapters other than LoRA on linear layers.
    """
    adapted = {name.removesuffix(_LORA_A) for name in shards.names if name.endswith(_LORA_A)}
    if (adapted and scale is None) or (adapted and not any(_BASE in name for name in shards.names)):
        raise UserError(
            "The checkpoint contains adapters, but not the weights that they belong to.",
            where="verl.actor_rollout_ref.model.lora",
            expected="a checkpoint of the complete model, with lora_train_meta.json",
        )
    tied_head = _find_tied_head(shards, config)
    for name in shards.names:
        if name == tied_head or name.endswith((_LORA_A, _LORA_B)):
            continue
        if "lora_" in name:
            raise UserError(f"ajet cannot merge this kind of adapter: {name}.", expected="LoRA on linear layers")
        plain_name = name.removeprefix(_PREFIX).replace(_BASE, ".")  # the name before PEFT wrapped the model
        module = name.partition(_BASE)[0]
        floating = shards.read_dtype(name).is_floating_point
        if name.endswith(f"{_BASE}weight") and module in adapted:
            assert scale is not None
            read = partial(_merge_adapter, shards, module, scale)
        else:
            read = partial(shards.read_tensor, name)
        yield _PlannedTensor(plain_name, shards.size(name), partial(_round_tensor, read, dtype if floating else None))


def _find_tied_head(shards: _Shards, config: Mapping[str, Any]) -> str | None:
    """Return the name of an output head that shares its weights with the embedding, or None.

    The head is not written, because transformers stores only the embedding of a tied pair.

    Raises:
        UserError: the config ties the two, but their weights differ.
    """
    if not config.get("tie_word_embeddings"):
        return None
    heads = [name for name in shards.names if name.removeprefix(_PREFIX) == "lm_head.weight"]
    embeddings = [name for name in shards.names if name.endswith(".embed_tokens.weight")]
    if len(heads) != 1 or len(embeddings) != 1:
        return None
    if not torch.equal(shards.read_tensor(heads[0]), shards.read_tensor(embeddings[0])):
        raise UserError(
            "Embedding and output head differ, although the model's configuration says that they share their weights.",
            where="config.json: tie_word_embeddings",
        )
    return heads[0]


def _merge_adapter(shards: _Shards, module: str, scale: float) -> torch.Tensor:
    """Return a linear layer's weight with its LoRA adapter added, `W + scale * B @ A`, in the format of W.

    Args:
        module: the layer's name in the checkpoint.
        scale: LoRA's alpha / rank.
    """
    weight = shards.read_tensor(f"{module}{_BASE}weight")
    up, down = shards.read_tensor(module + _LORA_B).float(), shards.read_tensor(module + _LORA_A).float()
    return (weight.float() + scale * (up @ down)).to(weight.dtype)


def _round_tensor(make: Callable[[], torch.Tensor], dtype: torch.dtype | None) -> torch.Tensor:
    """Return the tensor made by a function, converted to a number format, or in its own format for None.

    The result is contiguous, as safetensors requires.
    """
    tensor = make()
    return (tensor if dtype is None else tensor.to(dtype)).contiguous()


def _read_lora_scale(actor: Path) -> float | None:
    """Return LoRA's alpha / rank from verl's checkpoint, or None if the model was trained without LoRA."""
    file = actor / "lora_train_meta.json"
    if not file.is_file():
        return None
    meta = json.loads(file.read_text())
    return float(meta["lora_alpha"]) / float(meta["r"])


def _write_files(plan: list[_PlannedTensor], into: Path, file_bytes: int) -> None:
    """Write the tensors to one safetensors file, or to several with an index file.

    Each tensor is read just before its file is written, so that memory holds the tensors of one file.

    Args:
        file_bytes: maximum size of a file, unless a single tensor is larger.
    """
    from safetensors.torch import save_file

    files: list[list[_PlannedTensor]] = [[]]
    for planned in plan:
        if files[-1] and sum(previous.bytes for previous in files[-1]) + planned.bytes > file_bytes:
            files.append([])
        files[-1].append(planned)
    file_of_tensor: dict[str, str] = {}
    total_bytes = 0
    for number, planned_tensors in enumerate(files, start=1):
        file_name = f"model-{number:05}-of-{len(files):05}.safetensors" if len(files) > 1 else "model.safetensors"
        tensors = {planned.name: planned.make() for planned in planned_tensors}
        save_file(tensors, into / file_name, metadata={"format": "pt"})
        total_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        file_of_tensor.update(dict.fromkeys(tensors, file_name))
    if len(files) > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": file_of_tensor}
        (into / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


@contextmanager
def _silence_mesh_warnings() -> Iterator[None]:
    """Silence torch's warnings about device meshes without process groups, within the block.

    Reading a shard restores its mesh, but needs no process group.
    """
    logger = logging.getLogger("torch.distributed.device_mesh")
    previous_level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(previous_level)


_MEGATRON_ADVICE = "merge a checkpoint of Megatron with `python -m verl.model_merger merge --backend megatron`"


def _make_incomplete_error(file: Path, do: str = "") -> UserError:
    """Build the error of a checkpoint with a missing or unreadable file.

    Args:
        do: advice to the user; by default to export another step.
    """
    return UserError(
        "The checkpoint is incomplete.",
        where=str(file),
        expected="the shards of every process, as verl's FSDP engine writes them",
        do=do or "export another step: this folder was left by an interrupted save",
    )
