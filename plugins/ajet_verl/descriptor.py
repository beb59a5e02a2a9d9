"""Descriptor of the verl backbone, read before its code is loaded."""

from __future__ import annotations

from pathlib import Path

from ajet.backbone.descriptors import DEBUGS_OWN, FROM_STORE, ONLY_TRINITY, STEP_ENDS, TEXT_ONLY, TIMES
from ajet.config.backbones import Descriptor
from ajet_verl.verls import ADVICE

LAYERS = Path(__file__).with_name("layers")
"""Folder of YAML files with verl's keys, filled from ajet's."""
VERLS_SERVERS = "verl's servers are configured under verl.actor_rollout_ref.rollout"

VERL = Descriptor(
    "verl",
    "trains on Ray, on one machine or many",
    can=frozenset({"trains", "streams", "decouples", "replaces", "spreads"}),
    runner="ajet_verl.launch:VerlRunner",
    roots=("verl", "actor_rollout_ref", "critic", "trainer", "algorithm"),
    sections=(
        *("model_engine", "actor_rollout_ref", "data", "critic", "custom_reward_function", "reward_model"),
        *("sandbox_fusion", "reward", "algorithm", "distillation", "transfer_queue", "trainer", "global_profiler"),
        *("skip", "ray_kwargs"),
    ),
    shares_gpus=True,
    defaults_page="docs/reference/verl_keys.md",
    advice=ADVICE,
    filled=tuple(LAYERS / f"{name}.yaml" for name in ("verl_default", "verl_fsdp")),
    idle={
        **dict.fromkeys(TIMES, FROM_STORE),
        "rollout.engine": VERLS_SERVERS,
        "rollout.vllm": VERLS_SERVERS,
        "rollout.endpoint": TEXT_ONLY,
        "rollout.n_vllm_engine": ONLY_TRINITY,
        "trainer_common.trinity_only__n_vllm_engine": ONLY_TRINITY,
        "rollout.submit_oversample_multiplier": "verl runs exactly the groups that a batch needs",
        "trainer_common.threads": "Ray sets the number of threads of verl's processes",
        "trainer_common.grace": STEP_ENDS,
        "debug": DEBUGS_OWN,
    },
    extra="verl",
)
