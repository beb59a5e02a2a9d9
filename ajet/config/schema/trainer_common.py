"""`trainer_common`: how the policy is updated, validated and saved."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ajet.config.schema.base import SERVE, Section, key, section
from ajet.config.schema.reasons import NO_VALIDATION

STALE_CAP = 2.0
"""What `is_cap: auto` is where older weights may have sampled: that of Yao et al. (2025), and verl's own."""

CANARY_FLOAT32, CANARY_ROUNDED = 0.01, 0.2
"""What `canary: auto` is: nats between the logprobs of engine and trainer, in float32 and in types of fewer bits."""
ALARM = 0.5
"""What `mismatch_alarm: auto` is of that."""


ESTIMATOR = "trainer_common.algorithm.adv_estimator"
LOSS = "trainer_common.algorithm.policy_loss"


class Teacher(Section):
    """Who is asked for the log-probabilities of what the policy sampled."""

    path: str | None = key(
        None,
        "A model that is loaded beside the policy, named as `model.path` is; it must have the policy's tokenizer.",
        kind="path",
    )
    base_url: str | None = key(
        None,
        "In its place: an OpenAI-compatible server that answers `prompt_logprobs`, such as vLLM, `http://HOST:PORT/v1`.",
        training=False,
    )
    model: str | None = key(None, "The teacher's name at that server.")
    api_key_env: str = key("OPENAI_API_KEY", "Environment variable that holds the server's key.", training=False)
    weight: float = key(1.0, "Weight of what the teacher says.", gt=0)
    reward_weight: float = key(
        0.0, "Weight of what the rewards say, as GRPO has it; 0: the teacher alone counts.", ge=0
    )
    bound: float | None = key(
        None, "Most nats that the teacher can say of one token; null: as many as there are.", gt=0
    )
    timeout: float = key(120.0, "Seconds of one request to the server.", training=False, gt=0)
    max_retries: int = key(3, "Further requests where the server does not answer.", training=False, ge=0)
    max_parallel: int = key(16, "Requests to it at once.", training=False, ge=1)


class Critic(Section):
    """PPO's critic: a linear value head on the policy's last hidden states, with an optimizer of its own."""

    lr: float = key(
        0.2,
        "Learning rate of the head's AdamW: the most that a value changes in one of its steps, in units of reward, "
        "whatever the size of the model.",
        gt=0,
    )
    epochs: int = key(
        8,
        "Optimizer steps of the head for each of the policy's, over the hidden states that are there (ppo_epochs).",
        ge=1,
    )
    cliprange_value: float | None = key(
        0.5, "Within a training step a value is believed to move no further than this; null: any.", gt=0
    )
    warmup: int = key(
        0, "Training steps at the beginning in which the head learns and the policy does not (critic_warmup).", ge=0
    )
    vf_coef: float = key(
        0.0,
        "How much of the value loss the policy's own weights learn from; 0: the head takes the hidden states as they "
        "are.",
        ge=0,
    )


class Covariance(Section):
    """The tokens that take most of the entropy away, for `policy_loss: clip_cov` and `kl_cov`."""

    share: float = key(2e-4, "Of all trained tokens, how many are chosen.", gt=0, le=1)
    low: float = key(1.0, "Clip-Cov: among tokens of a larger covariance,", when=(LOSS, "clip_cov"))
    high: float = key(5.0, "and of a smaller one.", when=(LOSS, "clip_cov"))
    beta: float = key(1.0, "KL-Cov: weight of the penalty on the chosen ones.", gt=0, when=(LOSS, "kl_cov"))


class Overlong(Section):
    """DAPO's soft punishment of attempts that grow too long."""

    length: int | None = key(
        None,
        "Sampled tokens of an attempt beyond which it loses the whole `penalty`; null: length costs nothing.",
        ge=1,
    )
    buffer: int = key(0, "Tokens before that in which the penalty grows from 0; 0: it comes at once.", ge=0)
    penalty: float = key(1.0, "Most reward that length can cost.", gt=0)


class Algorithm(Section):
    """The policy gradient."""

    adv_estimator: str = key(
        "grpo",
        "How rewards become advantages: one of {names}, or a reference to an algorithm of your own.",
        part="algorithm",
        needs={"distillation": "distils", "gae": "values"},
    )
    preset: Literal["minirl", "grpo"] | None = key(
        None,
        "Settings to lay under the YAML, which wins: AgentRL's recommended ones for MINIRL or GRPO.",
    )
    norm_adv_by_std: bool = key(
        True,
        "GRPO: divide by the group's standard deviation (Dr.GRPO: false). gae: subtract the batch's mean, and "
        "divide by its standard deviation.",
    )
    gamma: float = key(
        1.0,
        "gae: how much of what the next token leads to counts for a token.",
        ge=0,
        le=1,
        when=(ESTIMATOR, "gae"),
        or_own=True,
    )
    lam: float = key(
        1.0,
        "gae: how much is believed of the rewards that came, against the value head; 1: they alone, 0: the head's "
        "value of the next token.",
        ge=0,
        le=1,
        when=(ESTIMATOR, "gae"),
        or_own=True,
    )
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
    policy_loss: str | None = key(
        None,
        "The loss of a token: one of {names}, or a reference to one of your own; null: the algorithm's own, which is "
        "clipped for all that come with ajet.",
        part="loss",
        needs={"clip_cov": "chooses", "kl_cov": "chooses"},
    )
    old_policy: Literal["proximal", "behaviour"] = key(
        "proximal",
        "What the ratio refers to: proximal, the policy before the update, computed again by the trainer (with "
        "`is_cap` decoupled PPO); behaviour, the one that sampled, as it was recorded (AgentRL): then `is_cap` must "
        "not be a number.",
    )
    tau_positive: float = key(1.0, "SAPO: how fast the gate closes where the advantage is positive.", gt=0)
    tau_negative: float = key(1.05, "SAPO: the same where it is negative.", gt=0)
    is_cap: Annotated[float, Field(gt=0)] | Literal["auto"] | None = key(
        "auto",
        "Truncate the importance weights against the engine's logprobs at this value; null: no weights. auto: 2.0 "
        "where earlier weights may have sampled (ajet serve, samplers, verl's asynchronous modes), null elsewhere.",
    )
    is_mode: Literal[
        "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_truncate", "geometric_mask"
    ] = key(
        "token_truncate",
        "Of what an importance weight is: a token, its whole reply (product), or the reply's geometric mean; truncate "
        "holds it at `is_cap`, mask does not train tokens beyond it. Read with `is_cap`.",
    )
    is_floor: float = key(0.0, "With a mask: a lower importance weight is not trained, either.", ge=0)
    mismatch_alarm: Annotated[float, Field(gt=0)] | Literal["auto"] | None = key(
        "auto",
        "Nats between the logprobs of engine and trainer of the same weights, on average: beyond, a run says so and "
        "brings `is_cap` closer to 1, to (cap - 1) * alarm / gap above it. auto: half of what `trainer_common.canary` "
        "allows; null: never.",
    )
    importance_weight_cap_ratio: Annotated[float, Field(gt=0)] | None = key(
        None,
        "AgentRL: tokens whose ratio is beyond 1 + clip_high * this (and advantage positive) or 1 - clip_low * this "
        "(negative) are not trained; null: all are.",
    )
    strict_in_bound: bool = key(False, "AgentRL: those bounds are 1 + clip_high and 1 - clip_low.")
    out_of_date_decay: float | None = key(
        None,
        "AgentRL: the bounds narrow by exp(-this * age), the age of a token in policy versions; null: they do not.",
        ge=0,
    )
    max_trained_count: int = key(
        1,
        "AgentRL: a group is trained on in up to so many steps, once in each, where new ones do not fill a batch and "
        "it is no older than `max_staleness` (--from-store, and `mode: async` on local; elsewhere 1).",
        idle={SERVE: "what clients play is trained on once"},
        unless=("trainer_common.mode", "async"),
        ge=1,
    )
    retrained_interval: int = key(
        1,
        "AgentRL: steps from one of these to the next, at least.",
        idle={SERVE: "what clients play is trained on once"},
        unless=("trainer_common.mode", "async"),
        ge=1,
    )
    balance_sample: bool = key(
        False,
        "AgentRL: of a group's attempts of reward 0 train at most one more than there are others, of the others at "
        "most two more than there are of reward 0; all of them are in the baseline.",
    )
    adv_scaling: float = key(1.0, "Advantages are multiplied by it.", gt=0)
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
    process_weight: float = key(
        1.0,
        "Weight of what rewards of parts (steps, agents, uses of tools, texts) add to the advantages of their own "
        "tokens; 0: only the attempt's reward counts.",
        ge=0,
    )
    step_discount: float = key(0.95, "GiGPO: how much of a step's reward counts for the step before it.", ge=0, le=1)
    use_kl_in_reward: bool = key(False, "Subtract the KL divergence from the reference model from the reward.")
    kl_in_reward_coef: float = key(0.001, "Its coefficient.", ge=0)
    covariance: Covariance = section(
        Covariance,
        "The tokens that take most of the entropy away, for `policy_loss: clip_cov` and `kl_cov`.",
        when=(LOSS, "clip_cov", "kl_cov"),
    )
    overlong: Overlong = section(Overlong, "DAPO's soft punishment of attempts that grow too long.")
    reward_weights: dict[str, float] = key(
        {},
        "GDPO: the weight of each scorer of `task_judge.scorers`, by its name (1 for the others), or of any number "
        "that the judge tells; `reward`, `overlong`: of the whole reward, and of what length costs.",
    )
    critic: Critic = section(
        Critic,
        "The value head that says what an attempt is worth at each token, with `adv_estimator: gae`.",
        when=(ESTIMATOR, "gae"),
        or_own=True,
    )
    teacher: Teacher = section(
        Teacher,
        "Who is asked for the log-probabilities of what the policy sampled, with `adv_estimator: distillation`.",
        when=(ESTIMATOR, "distillation"),
        or_own=True,
    )


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


class Adapter(Section):
    """One of several adapters. What it leaves out is that of `lora`."""

    rank: int | None = key(None, "Rank.", ge=1)
    alpha: float | None = key(None, "Scale: updates are multiplied by alpha / rank.", gt=0)
    target_modules: str | list[str] | None = key(None, "Modules that get it.")
    agents: list[str] | None = key(
        None, "Whose it is: target tags or agents' names, with `*` and `?`; null: those of its own name.", min_length=1
    )


class Lora(Section):
    """Train low-rank adapters instead of all weights."""

    rank: int = key(0, "Rank; 0 trains all weights, unless there are `adapters`.", ge=0)
    alpha: float = key(16, "Scale: updates are multiplied by alpha / rank.", gt=0)
    target_modules: str | list[str] = key("all-linear", "Modules that get adapters.")
    adapters: dict[str, Adapter] = key(
        {},
        "Several, each for agents of its own, by name: `{solver: {rank: 8}, critic: {rank: 4, agents: [critic-*]}}`. "
        "See docs/lora.md.",
    )

    @property
    def trains_adapters(self) -> bool:
        """Whether the model's own weights stay as they are."""
        return self.rank > 0 or bool(self.adapters)

    @property
    def total_rank(self) -> int:
        """Of all adapters together."""
        return sum(self.of(name).rank for name in self.adapters) if self.adapters else self.rank

    def of(self, name: str) -> Lora:
        """What one of `adapters` is trained with."""
        own = self.adapters[name]
        return Lora(
            rank=own.rank or self.rank,
            alpha=own.alpha or self.alpha,
            target_modules=own.target_modules or self.target_modules,
        )


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


class TrainerCommon(Section):
    """How the policy is updated, validated and saved."""

    mode: Literal["sync", "async", "colocate_async", "separate_async"] = key(
        "sync",
        "sync: play a batch, then train on it, in turns. On local also async: samplers play, in processes of their "
        "own, while it trains; unfinished episodes go on with the new weights (--from-store sets it, on verl too). On "
        "verl also colocate_async: unfinished episodes go on with the new weights; separate_async: engines and trainer "
        "at once, on GPUs of their own.",
        idle={SERVE: "clients play while it trains"},
        needs={"async": "decouples", "colocate_async": "streams", "separate_async": "streams"},
    )
    max_staleness: int | None = key(
        4,
        "Training steps between an episode's first weights and those that it trains, at most; null: any number (in "
        "the asynchronous modes; ajet serve; on local and there older groups are dropped).",
        idle={SERVE: None},
        unless=("trainer_common.mode", "async"),
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
    keep_episodes: int | None = key(
        None,
        "Training steps whose episodes stay in the record, beside those after the oldest checkpoint; null: all.",
        training=False,
        ge=0,
    )
    keep_arrays: int | None = key(
        None,
        "The same for token arrays alone: without them an episode is shown and counted, and not proven; null: all.",
        training=False,
        ge=0,
    )
    resume: str = key(
        "auto", "auto goes on with a run of the same configuration; never; or the path of a checkpoint.", training=False
    )
    grace: float = key(
        60.0,
        "Seconds after SIGTERM in which the present step may end (in `ajet serve` also episodes of clients), before a "
        "checkpoint is saved and the run ends with exit code 75, as to be started again; 0: at once.",
        training=False,
        idle={SERVE: None},
        ge=0,
    )
    checkpoint_base_dir: str | None = key(
        None, "Folder for checkpoints; null is the run directory's `checkpoints/`.", training=False
    )
    logger: str | list[str] = key(
        "console",
        "Trackers, one or a list: {names}, one that an installed package brings, or a reference to one of your own. "
        "metrics.jsonl is always written. One that cannot be opened, or fails, warns and is left out.",
        training=False,
        part="tracker",
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
    trinity_only__n_vllm_engine: int = key(1, "Number of engines (trinity).", training=False, ge=1)

    @property
    def importance_cap(self) -> float | None:
        """`algorithm.is_cap`, with what `auto` is in this mode. (`ajet serve` settles it for itself.)"""
        cap = self.algorithm.is_cap
        if cap == "auto":
            in_turns = self.mode == "sync" or self.algorithm.old_policy == "behaviour"
            return None if in_turns else STALE_CAP
        return cap

    def canary_tolerance(self, *, rounded: bool) -> float | None:
        """`canary`, with what `auto` is. `rounded`: the trainer computes in a type of fewer bits than float32."""
        if isinstance(self.canary, str):
            return CANARY_ROUNDED if rounded else CANARY_FLOAT32
        return self.canary

    def mismatch_alarm(self, *, rounded: bool) -> float | None:
        """`algorithm.mismatch_alarm`, likewise."""
        alarm, tolerance = self.algorithm.mismatch_alarm, self.canary_tolerance(rounded=rounded)
        if isinstance(alarm, str):
            return None if tolerance is None else ALARM * tolerance
        return alarm
