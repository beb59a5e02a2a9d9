"""The Trinity backbone's description, known before its code is loaded."""

from __future__ import annotations

from pathlib import Path

from ajet.backbone.descriptors import DEBUGS_OWN, FROM_STORE, HELD_OUT, NO_VALIDATION, STEP_ENDS, TEXT_ONLY, TIMES
from ajet.config.backbones import Descriptor

LAYERS = Path(__file__).with_name("layers")
"""YAML files with Trinity's keys, filled from ajet's."""
ENGINES = "Trinity's engines are configured under trinity.explorer.rollout_model"

TRINITY = Descriptor(
    "trinity",
    "trains on Ray, by Trinity-RFT's explorer and trainer",
    can=frozenset({"trains", "decouples", "spreads"}),
    runner="ajet_trinity.launch:TrinityRunner",
    roots=("trinity",),
    filled=(LAYERS / "trinity_default.yaml",),
    idle={
        **dict.fromkeys(TIMES, FROM_STORE),
        "rollout.engine": ENGINES,
        "rollout.vllm": ENGINES,
        "rollout.endpoint": TEXT_ONLY,
        "rollout.val_kwargs": NO_VALIDATION,
        "rollout.submit_oversample_multiplier": "Trinity runs exactly the groups that a batch needs",
        **dict.fromkeys(HELD_OUT, NO_VALIDATION),
        "trainer_common.val_before_train": NO_VALIDATION,
        "trainer_common.val_pass_n": NO_VALIDATION,
        "trainer_common.test_freq": NO_VALIDATION,
        "trainer_common.max_staleness": FROM_STORE,
        "trainer_common.max_staleness_strategy": "this backbone always drops older groups",
        "trainer_common.megatron": "Trinity's trainer distributes weights by FSDP",
        "trainer_common.canary": "the difference between engine and trainer is not measured on this backbone",
        "trainer_common.optim.eps": "Trinity's optimizer has no such key",
        "trainer_common.threads": "Ray sets the number of threads of Trinity's processes",
        "trainer_common.grace": STEP_ENDS,
        "debug": DEBUGS_OWN,
    },
)
