"""`trainer_common`: how the policy is updated, validated and saved."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ajet.config.algorithms import ALGORITHMS, OWN
from ajet.config.schema.base import SERVE, Section, key, nowhere, section
from ajet.config.schema.choices import TRACKERS, name_or_reference
from ajet.config.schema.reasons import NO_TRINITY, NO_VALIDATION

STALE_CAP = 2.0
"""What `is_cap: auto` is where older weights may have sampled: that of Yao et al. (2025), and verl's own."""


class Algorithm(Section):
    """The policy gradient."""

    adv_estimator: Annotated[str, AfterValidator(name_or_reference(tuple(ALGORITHMS), OWN))] = key(
        "grpo",
        f"How rewards become advantages: one of {', '.join(ALGORITHMS)}, or a reference to an algorithm of your own.",
        kind="reference",
    )
    norm_adv_by_std: bool = key(True, "GRPO: divide by the group's standard deviation (Dr.GRPO: false).")
    clip_low: float = key(0.2, "The importance ratio is clipped below at 1 - clip_low.", ge=0, le=1)
    clip_high: float = key(0.2, "The importance ratio is clipped above at 1 + clip_high.", ge=0)
    clip_dual: float | None = key(
        None, "Dual clip: bounds the loss of negative advantages at this ratio; null: no bound.", gt=1
    )
    loss_aggregation: Literal["sequence", "token", "sequence-sum"] = key(
        "sequence",
        "Mean over episodes of their mean token loss; mean over all tokens; or mean over episodes of the sum over "
        "tokens divided by the maximal length.",
    )
    is_cap: Annotated[float, Field(gt=0)] | Literal["auto"] | None = key(
        "auto",
        "Truncate the importance weights against the engine's logprobs at this value; null: no weights. auto: 2.0 "
        "where earlier weights may have sampled (ajet serve; verl's asynchronous modes), null elsewhere.",
    )
    dynamic_sampling: bool = key(
        False,
        "Leave groups with nothing to learn from, such as those whose rewards are all equal, out of the batch (DAPO); "
        "with `rollout.enable_oversample` others take their place.",
    )
    equal_rewards: float = key(
        1e-4,
        "Rewards of one group that lie no further apart are equal: there is nothing to prefer. Divided by their "
        "standard deviation, a judge's rounding would count as much as right and wrong.",
        ge=0,
    )
    use_kl_in_reward: bool = key(False, "Subtract the KL divergence from the reference model from the reward.")
    kl_in_reward_coef: float = key(0.001, "Its coefficient.", ge=0)


class Optim(Section):
    """AdamW."""

    lr: float = key(1e-6, "Learning rate.", ge=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = key("constant", "After the warm-up.")
    lr_warmup_steps: int = key(0, "Training steps in which the rate rises from 0; 0 or less: none.", ge=-1)
    min_lr_ratio: float = key(0.0, "Where linear and cosine end, as a part of `lr`.", ge=0, le=1)
    weight_decay: float = key(0.0, "Decoupled weight decay.", ge=0)
    betas: list[float] = key([0.9, 0.95], "Decay of the two moments.", min_length=2, max_length=2)
    eps: float = key(1e-8, "Added to the denominator.", gt=0)
    grad_clip: float | None = key(1.0, "Largest norm of the gradient; null does not clip.", gt=0)


class Lora(Section):
    """Train low-rank adapters instead of all weights."""

    rank: int = key(0, "Rank; 0 trains all weights.", ge=0)
    alpha: float = key(16, "Scale: updates are multiplied by alpha / rank.", gt=0)
    target_modules: str | list[str] = key("all-linear", "Modules that get adapters.")


class FsdpConfig(Section):
    """What the verl backbone keeps in main memory, whatever the `strategy`."""

    param_offload: bool = key(True, "Keep parameters in main memory between uses.", training=False)
    optimizer_offload: bool = key(True, "Keep the optimizer's state there.", training=False)


class Megatron(Section):
    """How Megatron splits the model on the verl backbone, with `strategy: megatron`."""

    tensor_model_parallel_size: int = key(1, "GPUs that each layer is split over.", training=False, ge=1)
    pipeline_model_parallel_size: int = key(1, "GPUs that the layers are dealt out to.", training=False, ge=1)
    context_parallel_size: int = key(1, "GPUs that one sequence is split over.", training=False, ge=1)
    expert_model_parallel_size: int = key(1, "GPUs that the experts are dealt out to.", training=False, ge=1)


Tracker = Annotated[str, AfterValidator(name_or_reference(tuple(TRACKERS), "tracker.py->MyTracker"))]


class TrainerCommon(Section):
    """How the policy is updated, validated and saved."""

    mode: Literal["sync", "colocate_async", "separate_async"] = key(
        "sync",
        "sync: play a batch, then train on it, in turns. On verl also colocate_async: unfinished episodes go on with "
        "the new weights; separate_async: engines and trainer at once, on GPUs of their own.",
        needs={"colocate_async": "streams", "separate_async": "streams"},
    )
    max_staleness: int | None = key(
        4,
        "Training steps between an episode's first weights and those that it trains, at most; null: any number (verl, "
        "in its asynchronous modes; ajet serve, which drops older groups).",
        idle={SERVE: None},
        ge=0,
    )
    max_staleness_strategy: Literal["drop", "wait"] = key(
        "drop",
        "What becomes of a group that is about to be older: drop it and play another task, or wait for it before "
        "training goes on (verl, in its asynchronous modes).",
    )
    algorithm: Algorithm = section(Algorithm, "The policy gradient.")
    optim: Optim = section(Optim, "AdamW.")
    lora: Lora = section(Lora, "Train low-rank adapters instead of all weights.")
    mini_batch_num: int = key(1, "Optimizer steps per training step.", ge=1)
    micro_batch_tokens: int = key(
        4096,
        "Tokens of one forward and backward pass; bounds the memory. On verl those of one GPU; a longer sequence has a "
        "pass of its own.",
        ge=1,
    )
    gradient_checkpointing: bool = key(False, "Recompute activations in the backward pass: less memory, slower.")
    use_kl_loss: bool = key(True, "Add the KL divergence from the reference model to the loss.")
    kl_loss_coef: float = key(0.002, "Its coefficient.", ge=0)
    kl_loss_type: Literal["low_var_kl", "k1", "k2", "k3", "kl", "abs", "mse"] = key(
        "low_var_kl", "Estimator: k1 (kl), k2 (mse), k3 (low_var_kl) or abs."
    )
    canary: Annotated[float, Field(gt=0)] | Literal["auto"] | None = key(
        "auto",
        "Nats between the logprobs of engine and trainer for the same tokens, on average: two hand-overs of weights "
        "in a row with more stop the run (local and verl). auto: 0.01 in float32, 0.2 in bfloat16; null: any.",
        training=False,
    )
    total_epochs: int = key(
        50,
        "Passes over the training tasks.",
        training=False,
        idle={SERVE: "it ends after `total_training_steps`, or never"},
        ge=1,
    )
    total_training_steps: int | None = key(
        None, "Steps after which to stop, whatever the epochs; null: no limit.", training=False, ge=1
    )
    stop_after_idle_steps: int = key(
        50,
        "End the run after so many steps in a row in which nothing could be learned (equal rewards, no reward, a "
        "learning rate of 0), with a checkpoint and the reason; `ajet serve` goes on and warns; 0: never.",
        training=False,
        ge=0,
    )
    val_before_train: bool = key(False, "Validate before the first step.", training=False, idle={SERVE: NO_VALIDATION})
    test_freq: int = key(20, "Validate every n steps; 0 or less: never.", training=False, idle={SERVE: NO_VALIDATION})
    val_pass_n: int = key(
        4, "The n of the metric pass@n in validation.", training=False, idle={SERVE: NO_VALIDATION}, ge=1
    )
    save_freq: int = key(20, "Save a checkpoint every n steps; the last step is always saved.", training=False)
    max_checkpoints_to_keep: int = key(2, "Older checkpoints are removed.", training=False, ge=1)
    keep_best: bool = key(
        True,
        "Keep also the checkpoint with the best validation; a later one is better only by more than chance explains.",
        training=False,
    )
    resume: str = key(
        "auto", "auto goes on with a run of the same configuration; never; or the path of a checkpoint.", training=False
    )
    checkpoint_base_dir: str | None = key(
        None, "Folder for checkpoints; null is the run directory's `checkpoints/`.", training=False
    )
    logger: Tracker | list[Tracker] = key(
        "console",
        f"Trackers, one or a list: {', '.join(TRACKERS)}, or a reference to one of your own. metrics.jsonl is always "
        "written. One that is not installed warns and is left out.",
        training=False,
        kind="reference",
    )
    log_freq: int = key(1, "Report metrics every n steps.", training=False, ge=1)
    device: str = key(
        "auto",
        "auto, cpu, cuda, cuda:N or mps; on verl auto, cuda, npu or cpu (for tests).",
        training=False,
    )
    threads: int | Literal["auto"] = key(
        "auto",
        "Threads of torch on a CPU.",
        training=False,
    )
    nnodes: int = key(1, "Machines (verl and trinity).", training=False, ge=1)
    n_gpus_per_node: int = key(8, "GPUs on each (verl and trinity).", training=False, ge=0)
    strategy: Literal["fsdp", "fsdp2", "megatron"] = key(
        "fsdp", "How weights and optimizer are spread over the GPUs (verl)."
    )
    fsdp_config: FsdpConfig = section(
        FsdpConfig,
        "What the verl backbone keeps in main memory, whatever the `strategy`.",
        training=False,
    )
    ulysses_sequence_parallel_size: int = key(
        1, "GPUs that one sequence is split over (verl, with FSDP).", training=False, ge=1
    )
    megatron: Megatron = section(
        Megatron,
        "How Megatron splits the model (verl).",
        training=False,
        when=("trainer_common.strategy", "megatron"),
    )
    trinity_only__n_vllm_engine: int = key(
        1, "Number of engines (trinity).", training=False, idle=nowhere(NO_TRINITY), ge=1
    )

    @property
    def importance_cap(self) -> float | None:
        """`algorithm.is_cap`, with what `auto` is in this mode. (`ajet serve` settles it for itself.)"""
        cap = self.algorithm.is_cap
        if cap == "auto":
            return None if self.mode == "sync" else STALE_CAP
        return cap
