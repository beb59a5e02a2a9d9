"""run.sh of the GAIA example, as a person starts it, on a machine without an accelerator."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ajet.engine.embedded import shipped_folder
from ajet_aworld import packages
from ajet_ray.cluster.leftovers import RANDOM
from ajet_testing.left_behind import mapped
from ajet_verl import cpu

EXAMPLE = packages.find_folder() / "train" / "examples" / "train_gaia_with_aworld_verl"
POSITIONS = 4096
"""More than the embedded model has by itself: schemas of tools, a token a letter."""
SMALL = (
    "data.max_prompt_length=3072", "data.max_response_length=256", "data.dataloader_num_workers=0",
    "data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n=2",
    "trainer.total_training_steps=2", "trainer.resume_mode=disable",
    "actor_rollout_ref.rollout.agent.num_workers=1", "actor_rollout_ref.rollout.max_num_batched_tokens=4096",
    "actor_rollout_ref.rollout.max_num_seqs=8", "reward.num_workers=1",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
)  # fmt: skip
"""Less of everything."""
ON_A_CPU = (
    "trainer.device=cpu", "actor_rollout_ref.model.use_remove_padding=false",
    "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
    "actor_rollout_ref.actor.strategy=fsdp2", "actor_rollout_ref.actor.use_torch_compile=false",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    "actor_rollout_ref.actor.fsdp_config.param_offload=false",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload=false",
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32",
    "actor_rollout_ref.rollout.dtype=float32", "actor_rollout_ref.rollout.enforce_eager=true",
    "actor_rollout_ref.rollout.free_cache_engine=false", "+actor_rollout_ref.rollout.enable_sleep_mode=false",
    "actor_rollout_ref.rollout.load_format=auto",
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=64",
    "ray_kwargs.ray_init.num_cpus=16", "+ray_kwargs.ray_init.num_gpus=1",
    "+ray_kwargs.ray_init.include_dashboard=false",
)  # fmt: skip
"""What docs/aworld.md does not print: verl has no settings for a CPU."""


def long_model(folder: Path) -> Path:
    """The embedded model, with room for tools."""
    made = folder / "model"
    shutil.copytree(shipped_folder("tiny-tools"), made)
    config = json.loads((made / "config.json").read_text())
    config["max_position_embeddings"] = POSITIONS
    (made / "config.json").write_text(json.dumps(config))
    return made


def environment(model: Path, tools: str, servers: str) -> dict[str, str]:
    """`tools`: the address of the environment; `servers`: those that are asked for."""
    given = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "MCP_"))}
    given |= cpu.build_environment()
    given["PYTHONPATH"] = os.pathsep.join([given["PYTHONPATH"], str(packages.find_folder())])
    given["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    given |= {
        "model_path": str(model),
        "MCP_SERVER_URL": tools,
        "MCP_SERVERS": servers,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return given | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "VLLM_LOGGING_LEVEL": "WARN"}


@contextmanager
def scratch() -> Iterator[Path]:
    """A short folder for temporary files, Ray's among them; it goes, and what verl leaves in shared memory."""
    memory = Path("/dev/shm")
    before, folder = set(memory.iterdir()), Path(tempfile.mkdtemp(prefix="v"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for path in set(memory.iterdir()) - before:
            if path.name.startswith(RANDOM) and not mapped(str(path)):
                path.unlink(missing_ok=True)
