"""`trainer_common`: how the policy is updated, validated and saved."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ajet.config.schema.algorithm import AlgorithmConfig
from ajet.config.schema.base import NO_VALIDATION, SERVE, Section, key, section

STALE_CAP = 2.0
"""Value of `is_cap: auto` if older weights may have sampled: as in Yao et al. (2025) and in verl."""

CANARY_FLOAT32, CANARY_ROUNDED = 0.01, 0.2
"""What `canary: auto` is: nats between the logprobs of engine and trainer, in float32 and in types of fewer bits."""
ALARM_SHARE = 0.5
"""Value of `mismatch_alarm: auto`, as a share of `canary`."""


class OptimizerConfig(Section):
    """The AdamW optimizer and its schedule."""

    lr: float = key(1e-6, "Learning rate.", ge=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = key(
        "constant", "How the learning rate changes after the warm-up."
    )
    lr_warmup_steps: int = key(
        0, "Number of training steps in which the learning rate rises from 0; 0 or less: none.", ge=-1
    )
    min_lr_ratio: float = key(0.0, "Final value of the linear and cosine schedules, as a share of `lr`.", ge=0, le=1)
    weight_decay: float = key(0.0, "Decoupled weight decay.", ge=0)
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = key(
        [0.9, 0.95], "Decay rates of AdamW's two moments, each at least 0 and below 1.", min_length=2, max_length=2
    )
    eps: float = key(1e-8, "Term added to AdamW's denominator (epsilon).", gt=0)
    grad_clip: float | None = key(1.0, "Largest norm of the gradient; null: no clipping.", gt=0)


class AdapterConfig(Section):
    """A named adapter among several. Omitted keys take the values of `lora`."""

    rank: int | None = key(None, "Rank.", ge=1)
    alpha: float | None = key(None, "Scale: updates are multiplied by alpha / rank.", gt=0)
    target_modules: str | list[str] | None = key(None, "Modules that get this adapter.")
    agents: list[str] | None = key(
        None,
        "Agents that use this adapter: target tags or agents' names, with `*` and `?`; null: the agents with "
        "the adapter's name.",
        min_length=1,
    )


class LoraConfig(Section):
    """Train low-rank adapters instead of all weights."""

    rank: int = key(0, "Rank of the adapter; 0: train all weights, unless there are `adapters`.", ge=0)
    alpha: float = key(16, "Scale: updates are multiplied by alpha / rank.", gt=0)
    target_modules: str | list[str] = key("all-linear", "Modules that get adapters.")
    adapters: dict[str, AdapterConfig] = key(
        {},
        "Several adapters, by name, each for its own agents: `{solver: {rank: 8}, critic: {rank: 4, agents: "
        "[critic-*]}}`. See docs/lora.md.",
    )

    @property
    def trains_adapters(self) -> bool:
        """True if adapters are trained, so that the model's own weights stay unchanged."""
        return self.rank > 0 or bool(self.adapters)

    @property
    def total_rank(self) -> int:
        """Sum of the ranks of all adapters."""
        return sum(self.resolve_adapter(name).rank for name in self.adapters) if self.adapters else self.rank

    def resolve_adapter(self, name: str) -> LoraConfig:
        """Return the settings of one of several adapters, with keys that it omits taken from `lora`."""
        adapter = self.adapters[name]
        return LoraConfig(
            rank=adapter.rank or self.rank,
            alpha=adapter.alpha or self.alpha,
            target_modules=adapter.target_modules or self.target_modules,
        )


class FsdpConfig(Section):
    """Offloading to main memory on the verl backbone, for any `strategy`."""

    param_offload: bool = key(True, "Keep parameters in main memory between uses.", training=False)
    optimizer_offload: bool = key(True, "Keep the optimizer's state in main memory between uses.", training=False)


class MegatronConfig(Section):
    """How Megatron splits the model on the verl backbone, with `strategy: megatron`."""

    tensor_model_parallel_size: int = key(1, "Number of GPUs over which each layer is split.", training=False, ge=1)
    pipeline_model_parallel_size: int = key(
        1, "Number of GPUs over which the layers are distributed.", training=False, ge=1
    )
    context_parallel_size: int = key(1, "Number of GPUs over which one sequence is split.", training=False, ge=1)
    expert_model_parallel_size: int = key(
        1, "Number of GPUs over which the experts are distributed.", training=False, ge=1
    )


class TrainerConfig(Section):
    """How the policy is updated, validated and saved."""

    mode: Literal["sync", "async", "colocate_async", "separate_async"] = key(
        "sync",
        "sync: sample a batch, then train on it. On local also async: samplers in separate processes work while "
        "the trainer trains; unfinished episodes continue with the new weights (--from-store sets it, also on "
        "verl). On verl also colocate_async: unfinished episodes continue with the new weights; separate_async: "
        "engines and trainer work at the same time on separate GPUs.",
        idle={SERVE: "clients run episodes while the server trains"},
        needs={"async": "decouples", "colocate_async": "streams", "separate_async": "streams"},
    )
    max_staleness: int | None = key(
        4,
        "Largest age of an episode when it is trained, in training steps since the weights that sampled its "
        "first token; null: no limit (in the asynchronous modes and ajet serve; on local and in ajet serve, "
        "older groups are dropped).",
        idle={SERVE: None},
        unless=("trainer_common.mode", "async"),
        ge=0,
    )
    max_staleness_strategy: Literal["drop", "wait"] = key(
        "drop",
        "What to do with a group that is about to exceed it: drop the group and run another task, or let "
        "training wait for the group (verl, in its asynchronous modes).",
    )
    algorithm: AlgorithmConfig = section(AlgorithmConfig, "Settings of the policy gradient.")
    optim: OptimizerConfig = section(OptimizerConfig, "AdamW.")
    lora: LoraConfig = section(LoraConfig, "Train low-rank adapters instead of all weights.")
    mini_batch_num: int = key(1, "Optimizer steps per training step.", ge=1)
    micro_batch_tokens: int = key(
        4096,
        "Largest number of tokens of one forward and backward pass, which limits the memory. On verl per GPU; a "
        "longer sequence gets its own pass.",
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
        "Largest average difference in nats between the log-probabilities of engine and trainer for the same "
        "tokens. A larger one after two weight transfers in a row stops the run (local and verl). auto: 0.01 in "
        "float32, 0.2 in bfloat16; null: no limit.",
        training=False,
    )
    total_epochs: int = key(
        50,
        "Passes over the training tasks.",
        training=False,
        idle={SERVE: "`ajet serve` ends after `total_training_steps`, or never"},
        ge=1,
    )
    total_training_steps: int | None = key(
        None,
        "Number of training steps after which the run stops, whatever the epochs; null: no limit.",
        training=False,
        ge=1,
    )
    stop_after_idle_steps: int = key(
        50,
        "End the run after this many consecutive steps without a training signal (equal rewards, no reward, a "
        "learning rate of 0), with a checkpoint and the reason; `ajet serve` warns and continues; 0: never.",
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
        "Keep the checkpoint with the best validation too. A later one replaces it only if it is better by more "
        "than chance explains.",
        training=False,
    )
    keep_episodes: int | None = key(
        None,
        "Number of recent training steps whose episodes stay recorded, in addition to those after the oldest "
        "checkpoint; null: all.",
        training=False,
        ge=0,
    )
    keep_arrays: int | None = key(
        None,
        "As `keep_episodes`, for the token arrays only. An episode without them is still shown and counted, but "
        "cannot be proven; null: all.",
        training=False,
        ge=0,
    )
    resume: str = key(
        "auto", "auto: resume a run of the same configuration; never; or the path of a checkpoint.", training=False
    )
    grace: float = key(
        60.0,
        "Seconds after SIGTERM in which the current step (in `ajet serve` also the clients' episodes) may end "
        "before a checkpoint is saved and the run ends with exit code 75, so that a scheduler starts it again; "
        "0: save at once.",
        training=False,
        idle={SERVE: None},
        ge=0,
    )
    checkpoint_base_dir: str | None = key(
        None, "Folder for checkpoints; null: the run folder's `checkpoints/`.", training=False
    )
    logger: str | list[str] = key(
        "console",
        "Tracker, or list of trackers: {names}, one that an installed package adds, or a reference to your own. "
        "metrics.jsonl is always written. A tracker that fails is left out with a warning.",
        training=False,
        part="tracker",
    )
    log_freq: int = key(1, "Report metrics every n steps.", training=False, ge=1)
    device: str = key(
        "auto",
        "Device: auto, cpu, cuda, cuda:N or mps; on verl auto, cuda, npu or cpu (for tests).",
        training=False,
    )
    threads: Annotated[int, Field(ge=1)] | Literal["auto"] = key(
        "auto",
        "Threads of torch on a CPU. auto: as many as other processes leave cores free, during a run too; with "
        "`rollout.deterministic` all cores.",
        training=False,
    )
    nnodes: int = key(1, "Number of machines (verl and trinity).", training=False, ge=1)
    n_gpus_per_node: int = key(8, "Number of GPUs on each machine (verl and trinity).", training=False, ge=0)
    strategy: Literal["fsdp", "fsdp2", "megatron"] = key(
        "fsdp", "How weights and optimizer are distributed over the GPUs (verl)."
    )
    fsdp_config: FsdpConfig = section(
        FsdpConfig,
        "What the verl backbone keeps in main memory, for every `strategy`.",
        training=False,
    )
    ulysses_sequence_parallel_size: int = key(
        1, "Number of GPUs over which one sequence is split (verl, with FSDP).", training=False, ge=1
    )
    megatron: MegatronConfig = section(
        MegatronConfig,
        "How Megatron distributes the model (verl).",
        training=False,
        when=("trainer_common.strategy", "megatron"),
    )
    trinity_only__n_vllm_engine: int = key(1, "Number of engines (trinity).", training=False, ge=1)

    @property
    def importance_cap(self) -> float | None:
        """`algorithm.is_cap`, with `auto` replaced by the value for the mode: no cap unless tokens can be stale.

        `ajet serve` replaces `auto` itself.
        """
        cap = self.algorithm.is_cap
        if cap == "auto":
            needs_no_cap = self.mode == "sync" or self.algorithm.old_policy == "behaviour"
            return None if needs_no_cap else STALE_CAP
        return cap

    def canary_tolerance(self, *, rounded: bool) -> float | None:
        """Return `canary` in nats per token, with `auto` replaced by its value, or None if the check is off.

        Args:
            rounded: True if the trainer's number type is coarser than float32.
        """
        if isinstance(self.canary, str):
            return CANARY_ROUNDED if rounded else CANARY_FLOAT32
        return self.canary

    def mismatch_alarm(self, *, rounded: bool) -> float | None:
        """Return `algorithm.mismatch_alarm` in nats per token, with `auto` replaced by its value, or None if off.

        Args:
            rounded: True if the trainer's number type is coarser than float32.
        """
        alarm, tolerance = self.algorithm.mismatch_alarm, self.canary_tolerance(rounded=rounded)
        if isinstance(alarm, str):
            return None if tolerance is None else ALARM_SHARE * tolerance
        return alarm
