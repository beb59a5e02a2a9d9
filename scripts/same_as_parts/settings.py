"""What is compared: each setting by its name, as overrides of `project/same.yaml`; `verl` is its credit."""

from __future__ import annotations

ALGORITHM = "trainer_common.algorithm"
SETTINGS: dict[str, tuple[str, ...]] = {
    "grpo": (),
    "bfloat16": ("model.dtype=bfloat16",),
    "rloo": (f"{ALGORITHM}.adv_estimator=rloo", f"{ALGORITHM}.loss_aggregation=token"),
    "reinforce++": (f"{ALGORITHM}.adv_estimator=reinforce_plus_plus", f"{ALGORITHM}.loss_aggregation=sequence-sum"),
    "kl": ("trainer_common.use_kl_loss=true", "trainer_common.kl_loss_coef=0.1"),
    "mini-batches": ("trainer_common.mini_batch_num=2", f"{ALGORITHM}.clip_dual=3.0", f"{ALGORITHM}.is_cap=2.0"),
    "lora": ("trainer_common.lora.rank=4", "trainer_common.optim.lr=0.01"),
    "oversampling": ("rollout.enable_oversample=true", "rollout.submit_oversample_multiplier=2.0"),
    "dynamic-sampling": (f"{ALGORITHM}.dynamic_sampling=true",),
}
VERL = "verl"
NAMES = (*SETTINGS, VERL)
