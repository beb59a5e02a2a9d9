"""Checkpoints of tiny models by verl's own FSDPCheckpointManager: a program of two processes over gloo. Each has the
tokenizer of tiny-tools, and as many rows as that has tokens.

    python -m tests.contract.verl_checkpoints FOLDER

Each kind gets FOLDER/KIND/actor as verl writes it, and FOLDER/KIND/source.safetensors with what the processes held,
gathered by torch's collectives.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

WORLD = 2
KINDS = ("fsdp2", "fsdp1", "lora", "single")


def main(rank: int, folder: Path) -> None:
    """Save every kind."""
    from ajet_verl import cpu

    os.environ.update(cpu.build_environment())
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    from tests.support.local_fixtures import tiny_llama, tiny_qwen3
    from tests.support.vllm_fixtures import VOCABULARY as WORDS

    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("fsdp",))
    save(shard(tiny_qwen3(seed=1, vocab_size=WORDS), mesh, fully_shard), folder / "fsdp2")
    whole = tiny_qwen3(seed=2, vocab_size=WORDS)
    save(FullyShardedDataParallel(whole, device_mesh=mesh, device_id=torch.device("cpu")), folder / "fsdp1")
    save(shard(adapted(tiny_llama(seed=3, vocab_size=WORDS)), mesh, fully_shard), folder / "lora")
    dist.destroy_process_group()
    if rank == 0:
        dist.init_process_group("gloo", init_method=f"file://{folder / 'store1'}", rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
        save(shard(tiny_llama(seed=4, vocab_size=WORDS).bfloat16(), mesh, fully_shard), folder / "single")
        dist.destroy_process_group()


def adapted(model: Any) -> Any:
    """With adapters that change something."""
    import torch
    from peft import LoraConfig, get_peft_model

    wrapped = get_peft_model(model, LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"]))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    return wrapped


def shard(model: Any, mesh: Any, fully_shard: Any) -> Any:
    """FSDP 2 over its layers and the rest, as verl does it."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    for layer in inner.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def save(model: Any, folder: Path) -> None:
    """By verl's manager, and gathered."""
    import torch.distributed as dist
    from safetensors.torch import save_file
    from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType
    from transformers import AutoTokenizer
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    from ajet.engine.embedded import shipped_folder

    tokenizer = AutoTokenizer.from_pretrained(shipped_folder("tiny-tools"))
    manager = FSDPCheckpointManager(
        model, processing_class=tokenizer, checkpoint_config={"save_contents": ["model"], "load_contents": ["model"]}
    )
    manager.save_checkpoint(str(folder / "actor"), global_step=3)
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.state_dict_type(
            model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=False, rank0_only=False)
        ):
            full = model.state_dict()
    else:
        full = {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}
    if dist.get_rank() == 0:
        save_file({name: tensor.clone() for name, tensor in full.items()}, folder / "source.safetensors")
    dist.barrier()


def both(folder: Path) -> int:
    """Both ranks, forked from here, where what they share is imported."""
    from ajet_verl import cpu

    os.environ.update(cpu.build_environment())
    import verl.utils.checkpoint.fsdp_checkpoint_manager  # noqa: F401

    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=main, args=(rank, folder)) for rank in range(WORLD)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return int(any(rank.exitcode for rank in ranks))


if __name__ == "__main__":
    sys.exit(both(Path(sys.argv[1])))
