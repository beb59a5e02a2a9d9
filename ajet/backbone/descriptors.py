"""Descriptors of the kernel's backbones: capabilities, ignored keys and the location of the code.

Invariant: the command line, the docs and the configuration checks read only descriptors. The code is named as text, so
importing descriptors never imports torch, ray or verl. A contract test checks each descriptor against its code.
"""

from __future__ import annotations

from ajet.config.backbones import Descriptor
from ajet.config.locations import find_default_config

TRAINS_NOTHING = "debug trains nothing"
DEBUGS_OWN = "only the debug backbone reads it"
NO_VALIDATION = "no held-out tasks are run"
ONE_DEVICE = "on this backbone, model and engine share one device"
NO_CLUSTER = "the local backbone is one process on one device"
ONLY_TRINITY = "only the trinity backbone reads it"
FROM_STORE = "only `--from-store` reads it"
STEP_ENDS = "only `--from-store` waits for groups in progress; a step with its own groups always ends"
TIMES = ("trainer_common.algorithm.max_trained_count", "trainer_common.algorithm.retrained_interval")
HELD_OUT = (
    "task_reader.huggingface_dat_repo.validation_split",
    *(
        f"task_reader.{reader}.validation.file_path"
        for reader in ("jsonl_dataset_file", "agentrl", "gsm8k", "math", "gaia", "hotpotqa")
    ),
    *(f"task_reader.{reader}.validation_size" for reader in ("random_dummy", "reasoning_gym")),
)
"""Task reader -> its keys that select the held-out tasks."""
TEXT_ONLY = "an endpoint returns text without token ids, which cannot be trained on"

_IN_THIS_PROCESS = {
    "rollout.tensor_model_parallel_size": ONE_DEVICE,
    "rollout.gpu_memory_utilization": "`rollout.vllm.cache_gib` replaces it",
    "rollout.name": "`rollout.engine` replaces it",
    "rollout.n_vllm_engine": ONLY_TRINITY,
    "trainer_common.trinity_only__n_vllm_engine": ONLY_TRINITY,
}

DEBUG = Descriptor(
    "debug",
    "runs episodes and trains nothing",
    can=frozenset(
        {
            *("serves", "recomputes", "oversamples", "deterministic", "interactive", "distils", "chooses"),
            *("observes", "grades", "adapts", "values"),
        }
    ),
    opens="ajet.backbone.debug->DebugBackbone",
    scorer="ajet.backbone.local.scorer->LocalScorer",
    idle={
        **_IN_THIS_PROCESS,
        "data.train_batch_size": "debug trains nothing; `debug.debug_first_n_tasks` sets the number of tasks",
        "data.shuffle": "debug runs the first tasks of the reader",
        "data.curriculum": TRAINS_NOTHING,
        "rollout.max_env_worker": "`debug.debug_max_parallel` replaces it",
        "rollout.val_kwargs": NO_VALIDATION,
        "rollout.enable_oversample": TRAINS_NOTHING,
        "rollout.submit_oversample_multiplier": TRAINS_NOTHING,
        **dict.fromkeys(HELD_OUT, NO_VALIDATION),
        "store": TRAINS_NOTHING,
        "context_tracker.proof_sample": "`ajet prove` proves debug runs",
        "trainer_common": TRAINS_NOTHING,
        "trainer_common.device": None,
        "trainer_common.threads": None,
    },
)
LOCAL = Descriptor(
    "local",
    "trains in this process",
    can=frozenset(
        {
            *("trains", "serves", "recomputes", "decouples", "oversamples", "deterministic", "interactive"),
            *("teaches", "distils", "chooses", "observes", "grades", "adapts", "values"),
        }
    ),
    opens="ajet.backbone.local->LocalBackbone",
    runner="ajet.commands.runner->LocalRunner",
    scorer="ajet.backbone.local.scorer->LocalScorer",
    layer=find_default_config() / "local" / "local_default.yaml",
    idle={
        **_IN_THIS_PROCESS,
        "rollout.vllm.api_key_env": "a vLLM started by the local backbone needs no key",
        "rollout.endpoint": TEXT_ONLY,
        "trainer_common.max_staleness": "only `mode: async`, `--from-store` and `ajet serve` read it",
        "trainer_common.max_staleness_strategy": "this backbone always drops older groups",
        **dict.fromkeys(TIMES, "only `mode: async` and `--from-store` read it"),
        "trainer_common.nnodes": NO_CLUSTER,
        "trainer_common.n_gpus_per_node": NO_CLUSTER,
        "trainer_common.strategy": NO_CLUSTER,
        "trainer_common.fsdp_config": NO_CLUSTER,
        "trainer_common.ulysses_sequence_parallel_size": NO_CLUSTER,
        "trainer_common.megatron": NO_CLUSTER,
        "debug": DEBUGS_OWN,
    },
    extra="local",
)
