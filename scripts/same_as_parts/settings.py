"""What is compared: each setting by its name, what it covers, and how it is run.

A setting is a procedure of `procedures.py` with overrides of `project/same.yaml`. A new one is one entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from same_as_parts import procedures
from same_as_parts.checkout import Checkout

ALGORITHM = "trainer_common.algorithm"
Procedure = Callable[[Checkout, Path, tuple[str, ...]], Path]


@dataclass(frozen=True)
class Setting:
    """One way to train."""

    summary: str
    overrides: tuple[str, ...] = ()
    procedure: Procedure = procedures.train


SETTINGS: dict[str, Setting] = {
    "grpo": Setting("GRPO in float32, an agent with tools, isolation thread"),
    "bfloat16": Setting("the same in bfloat16", ("model.dtype=bfloat16",)),
    "rloo": Setting(
        "leave-one-out, mean over tokens", (f"{ALGORITHM}.adv_estimator=rloo", f"{ALGORITHM}.loss_aggregation=token")
    ),
    "reinforce++": Setting(
        "REINFORCE++, sum over sequences",
        (f"{ALGORITHM}.adv_estimator=reinforce_plus_plus", f"{ALGORITHM}.loss_aggregation=sequence-sum"),
    ),
    "gae": Setting("PPO with a value head", (f"{ALGORITHM}.adv_estimator=gae", f"{ALGORITHM}.lam=0.9")),
    "distillation": Setting(
        "a teacher on each token, with rewards",
        (
            f"{ALGORITHM}.adv_estimator=distillation",
            f"{ALGORITHM}.teacher.path=embedded:tiny-tools",
            f"{ALGORITHM}.teacher.reward_weight=0.5",
        ),
    ),
    "process-rewards": Setting(
        "a reward for each model call",
        ("rollout.user_workflow=agent.py->CallRewardAgent", f"{ALGORITHM}.process_weight=0.5"),
    ),
    "kl": Setting(
        "KL to the reference in the loss", ("trainer_common.use_kl_loss=true", "trainer_common.kl_loss_coef=0.1")
    ),
    "mini-batches": Setting(
        "two optimizer steps a step, dual clip, importance weights",
        ("trainer_common.mini_batch_num=2", f"{ALGORITHM}.clip_dual=3.0", f"{ALGORITHM}.is_cap=2.0"),
    ),
    "lora": Setting("low-rank adapters", ("trainer_common.lora.rank=4", "trainer_common.optim.lr=0.01")),
    "oversampling": Setting(
        "more groups than the batch needs",
        ("rollout.enable_oversample=true", "rollout.submit_oversample_multiplier=2.0"),
    ),
    "dynamic-sampling": Setting("groups of equal rewards left out", (f"{ALGORITHM}.dynamic_sampling=true",)),
    "validation": Setting(
        "held-out tasks before training and after each step",
        ("trainer_common.val_before_train=true", "trainer_common.test_freq=1", "trainer_common.total_training_steps=2"),
    ),
    "isolation-loop": Setting("one shared event loop", ("rollout.isolation=loop",)),
    "isolation-loops": Setting("event loops in worker processes", ("rollout.isolation=loops", "rollout.processes=2")),
    "isolation-process": Setting(
        "a worker process per attempt",
        ("rollout.isolation=process", "rollout.num_repeat=2", "data.train_batch_size=2", "rollout.max_env_worker=2"),
    ),
    "isolation-sandbox": Setting(
        "a sandbox per attempt",
        ("rollout.isolation=sandbox", "rollout.num_repeat=2", "data.train_batch_size=2", "rollout.max_env_worker=2"),
    ),
    "sft": Setting("supervised fine-tuning, with held-out rows", procedure=procedures.train_sft),
    "dpo": Setting("direct preference optimization", procedure=procedures.train_dpo),
    "resume": Setting(
        "kill -9 in step 3, resumed from the checkpoint of step 2; an algorithm that draws",
        (
            "rollout.user_workflow=agent.py->KilledAgent",
            "trainer_common.save_freq=1",
            f"{ALGORITHM}.adv_estimator=algorithm.py->DrawingAlgorithm",
        ),
        procedures.train_killed,
    ),
    "store": Setting(
        "both versions train from one store that COMMIT recorded; tokens are up to 2 steps old",
        (
            "rollout.user_workflow=agent.py->HeldAgent",
            "rollout.deterministic=false",
            "data.train_batch_size=2",
            "trainer_common.max_staleness=2",
        ),
        procedures.train_from_store,
    ),
    "async": Setting(
        "the rollout is one step ahead of the training",
        (
            "trainer_common.mode=async",
            "trainer_common.max_staleness=1",
            "trainer_common.total_training_steps=3",
            "rollout.user_workflow=agent.py->TurnAgent",
            "rollout.deterministic=false",
            "rollout.num_repeat=2",
            "data.train_batch_size=2",
            "data.shuffle=false",
            f"{ALGORITHM}.old_policy=behaviour",
            f"{ALGORITHM}.is_cap=null",
            f"{ALGORITHM}.out_of_date_decay=3.0",
            f"{ALGORITHM}.importance_weight_cap_ratio=1.5",
        ),
    ),
    "serve": Setting(
        "`ajet serve` trains on one client, an episode at a time",
        ("rollout.deterministic=false", "rollout.num_repeat=2", "data.train_batch_size=2",
         "trainer_common.total_training_steps=2"),
        procedures.train_served,
    ),
    "verl": Setting("verl's credit, loss and optimizer without Ray", procedure=procedures.run_verl_credit),
}  # fmt: skip
NAMES = tuple(SETTINGS)
