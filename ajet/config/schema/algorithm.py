"""The section `trainer_common.algorithm`: advantages from rewards, and the loss."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ajet.config.schema.base import SERVE, Section, key, section

ESTIMATOR = "trainer_common.algorithm.adv_estimator"
LOSS = "trainer_common.algorithm.policy_loss"


class TeacherConfig(Section):
    """The model that scores the policy's samples with log-probabilities."""

    path: str | None = key(
        None,
        "A model loaded in addition to the policy, named as in `model.path`, with the policy's tokenizer.",
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


class CriticConfig(Section):
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


class CovarianceConfig(Section):
    """The tokens that reduce entropy most, for `policy_loss: clip_cov` and `kl_cov`."""

    share: float = key(2e-4, "Of all trained tokens, how many are chosen.", gt=0, le=1)
    low: float = key(1.0, "Clip-Cov: among tokens of a larger covariance,", when=(LOSS, "clip_cov"))
    high: float = key(5.0, "and of a smaller one.", when=(LOSS, "clip_cov"))
    beta: float = key(1.0, "KL-Cov: weight of the penalty on the chosen ones.", gt=0, when=(LOSS, "kl_cov"))


class OverlongConfig(Section):
    """DAPO's soft length penalty for long attempts."""

    length: int | None = key(
        None,
        "Sampled tokens of an attempt beyond which it loses the whole `penalty`; null: length costs nothing.",
        ge=1,
    )
    buffer: int = key(0, "Tokens before that in which the penalty grows from 0; 0: it comes at once.", ge=0)
    penalty: float = key(1.0, "Most reward that length can cost.", gt=0)


class AlgorithmConfig(Section):
    """The policy gradient: advantages, loss and regularization."""

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
        when=(ESTIMATOR, "grpo", "gigpo", "gdpo", "gae", "distillation"),
        or_own=True,
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
        None,
        "Dual clip: bounds the loss of negative advantages at this ratio; null: no bound.",
        gt=1,
        when=(LOSS, "null", "clipped", "clip_cov"),
        or_own=True,
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
    tau_positive: float = key(
        1.0,
        "SAPO: how fast the gate closes where the advantage is positive.",
        gt=0,
        when=(LOSS, "sapo"),
        or_own=True,
    )
    tau_negative: float = key(1.05, "SAPO: the same where it is negative.", gt=0, when=(LOSS, "sapo"), or_own=True)
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
        "AgentRL: tokens with a ratio above 1 + clip_high * this (positive advantage) or below 1 - clip_low * this "
        "(negative) are not trained; null: no limit.",
    )
    strict_in_bound: bool = key(False, "AgentRL: those bounds are 1 + clip_high and 1 - clip_low.")
    out_of_date_decay: float | None = key(
        None,
        "AgentRL: the bounds narrow by exp(-this * age), the age of a token in policy versions; null: no narrowing.",
        ge=0,
    )
    max_trained_count: int = key(
        1,
        "AgentRL: maximum number of steps that train on a group, if new groups do not fill a batch and the group is no "
        "older than `max_staleness` (--from-store, and `mode: async` on local; otherwise 1).",
        idle={SERVE: "what clients play is trained on once"},
        unless=("trainer_common.mode", "async"),
        ge=1,
    )
    retrained_interval: int = key(
        1,
        "AgentRL: minimum number of steps between two trainings on the same group.",
        idle={SERVE: "what clients play is trained on once"},
        unless=("trainer_common.mode", "async"),
        ge=1,
    )
    balance_sample: bool = key(
        False,
        "AgentRL: of a group's attempts of reward 0 train at most one more than there are others, of the others at "
        "most two more than there are of reward 0; all of them are in the baseline.",
    )
    adv_scaling: float = key(1.0, "Factor on all advantages.", gt=0)
    dynamic_sampling: bool = key(
        False,
        "Leave groups without a training signal, such as groups with equal rewards, out of the batch (DAPO); with "
        "`rollout.enable_oversample` other groups replace them.",
    )
    equal_rewards: float = key(
        1e-4,
        "Rewards of a group count as equal up to this difference. Otherwise, divided by the standard deviation, a "
        "judge's rounding would count as much as right and wrong.",
        ge=0,
    )
    process_weight: float = key(
        1.0,
        "Weight of what rewards of parts (steps, agents, uses of tools, texts) add to the advantages of their own "
        "tokens; 0: only the attempt's reward counts.",
        ge=0,
    )
    step_discount: float = key(
        0.95,
        "GiGPO: how much of a step's reward counts for the step before it.",
        ge=0,
        le=1,
        when=(ESTIMATOR, "gigpo"),
        or_own=True,
    )
    use_kl_in_reward: bool = key(False, "Subtract the KL divergence from the reference model from the reward.")
    kl_in_reward_coef: float = key(
        0.001, "Its coefficient.", ge=0, when=("trainer_common.algorithm.use_kl_in_reward", "true")
    )
    covariance: CovarianceConfig = section(
        CovarianceConfig,
        "The tokens that take most of the entropy away, for `policy_loss: clip_cov` and `kl_cov`.",
        when=(LOSS, "clip_cov", "kl_cov"),
    )
    overlong: OverlongConfig = section(OverlongConfig, "DAPO's soft punishment of attempts that grow too long.")
    reward_weights: dict[str, float] = key(
        {},
        "GDPO: the weight of each scorer of `task_judge.scorers`, by its name (1 for the others), or of any number "
        "that the judge tells; `reward`, `overlong`: of the whole reward, and of what length costs.",
        when=(ESTIMATOR, "gdpo"),
        or_own=True,
    )
    critic: CriticConfig = section(
        CriticConfig,
        "The value head for the expected return at each token, with `adv_estimator: gae`.",
        when=(ESTIMATOR, "gae"),
        or_own=True,
    )
    teacher: TeacherConfig = section(
        TeacherConfig,
        "The model that scores sampled tokens with log-probabilities, with `adv_estimator: distillation`.",
        when=(ESTIMATOR, "distillation"),
        or_own=True,
    )
