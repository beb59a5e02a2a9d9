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
        "A second model, loaded next to the policy. It must have the policy's tokenizer. Written like `model.path`.",
        kind="path",
        when=(ESTIMATOR, "distillation", "gkd"),
        or_own=True,
    )
    base_url: str | None = key(
        None,
        "Instead of a loaded model: the URL of an OpenAI-compatible server that returns `prompt_logprobs`, such "
        "as vLLM, `http://HOST:PORT/v1`.",
        training=False,
        when=(ESTIMATOR, "distillation", "gkd"),
        or_own=True,
    )
    model: str | None = key(None, "Name of the teacher model on that server.")
    api_key_env: str = key("OPENAI_API_KEY", "Environment variable that contains the server's API key.", training=False)
    weight: float = key(1.0, "Weight of the teacher's log-probabilities in the advantage.", gt=0)
    reward_weight: float = key(
        0.0, "Weight of the rewards in the advantage, computed as in GRPO; 0: only the teacher counts.", ge=0
    )
    bound: float | None = key(
        None,
        "Largest difference in nats that the teacher can add for one token; null: no limit.",
        gt=0,
        when=(ESTIMATOR, "distillation", "opsd"),
        or_own=True,
    )
    top_k: int | None = key(
        None,
        "gkd: number of the teacher's likeliest tokens that are compared one by one, with all others as one token; "
        "null: the complete vocabulary.",
        ge=1,
        when=(ESTIMATOR, "gkd"),
    )
    field: str = key(
        "answer",
        "opsd: field of the task that the teacher may read, such as the answer or a demonstration.",
        when=(ESTIMATOR, "opsd"),
    )
    template: str = key(
        "Here is an example of an expert response:\n<demonstration>\n{answer}\n</demonstration>",
        "opsd: system message before the attempt, with `{answer}` for that field.",
        when=(ESTIMATOR, "opsd"),
    )
    timeout: float = key(120.0, "Seconds until a request to the server times out.", training=False, gt=0)
    max_retries: int = key(3, "Number of retries when the server does not answer.", training=False, ge=0)
    max_parallel: int = key(16, "Largest number of concurrent requests to the server.", training=False, ge=1)


class CriticConfig(Section):
    """PPO's critic: a linear value head on the policy's last hidden states, with an optimizer of its own."""

    lr: float = key(
        0.2,
        "Learning rate of the value head's AdamW. It is the largest change of a value in one optimizer step, in "
        "units of reward, for any model size.",
        gt=0,
    )
    epochs: int = key(
        8,
        "Optimizer steps of the value head for each one of the policy, on the same hidden states (ppo_epochs).",
        ge=1,
    )
    cliprange_value: float | None = key(
        0.5, "Largest change of a value that counts within one training step; null: no limit.", gt=0
    )
    warmup: int = key(
        0, "Training steps at the beginning in which only the value head is trained (critic_warmup).", ge=0
    )
    vf_coef: float = key(
        0.0,
        "Share of the value loss from which the policy's own weights learn; 0: the value head does not change "
        "the policy.",
        ge=0,
    )


class CovarianceConfig(Section):
    """The tokens that reduce entropy most, for `policy_loss: clip_cov` and `kl_cov`."""

    share: float = key(2e-4, "Share of all trained tokens that is chosen.", gt=0, le=1)
    low: float = key(1.0, "Clip-Cov: chosen tokens have a covariance above this value,", when=(LOSS, "clip_cov"))
    high: float = key(5.0, "and below this value.", when=(LOSS, "clip_cov"))
    beta: float = key(1.0, "KL-Cov: weight of the penalty on the chosen tokens.", gt=0, when=(LOSS, "kl_cov"))


class OverlongConfig(Section):
    """DAPO's soft length penalty for long attempts."""

    length: int | None = key(
        None,
        "Number of sampled tokens from which an attempt loses the complete `penalty`; null: length costs nothing.",
        ge=1,
    )
    buffer: int = key(
        0,
        ("Number of tokens before that over which the penalty grows from 0; 0: the complete penalty applies at once."),
        ge=0,
    )
    penalty: float = key(1.0, "Largest reward that length can cost.", gt=0)


class AlgorithmConfig(Section):
    """The policy gradient: advantages, loss and regularization."""

    adv_estimator: str = key(
        "grpo",
        "How rewards become advantages: one of {names}, or a reference to your own algorithm.",
        part="algorithm",
        needs={"distillation": "distils", "gkd": "distils", "opsd": "distils", "gae": "values", "echo": "observes"},
    )
    preset: Literal["minirl", "grpo"] | None = key(
        None,
        "Recommended settings of AgentRL for MINIRL or GRPO. Keys in the YAML override them.",
    )
    norm_adv_by_std: bool = key(
        True,
        "GRPO: divide by the group's standard deviation (Dr.GRPO: false). gae: subtract the batch's mean, and "
        "divide by its standard deviation.",
        when=(ESTIMATOR, "grpo", "gigpo", "gdpo", "echo", "gae", "distillation", "gkd", "opsd"),
        or_own=True,
    )
    gamma: float = key(
        1.0,
        "gae: how strongly the rewards and values after a token count for the token (gamma).",
        ge=0,
        le=1,
        when=(ESTIMATOR, "gae"),
        or_own=True,
    )
    lam: float = key(
        1.0,
        "gae: weight of the observed rewards against the value head (lambda); 1: rewards only, 0: only the value "
        "of the next token.",
        ge=0,
        le=1,
        when=(ESTIMATOR, "gae"),
        or_own=True,
    )
    clip_low: float = key(
        0.2,
        "The importance ratio is clipped below at 1 - clip_low. DPPO: largest divergence for negative advantages.",
        ge=0,
        le=1,
    )
    clip_high: float = key(
        0.2,
        "The importance ratio is clipped above at 1 + clip_high. DPPO: largest divergence for positive advantages.",
        ge=0,
    )
    clip_dual: float | None = key(
        None,
        "Dual clip: bounds the loss of negative advantages at this ratio; null: no bound. DPPO: largest ratio that "
        "counts.",
        gt=1,
        when=(LOSS, "null", "clipped", "clip_cov", "dppo_tv", "dppo_kl"),
        or_own=True,
    )
    loss_aggregation: Literal["sequence", "token", "sequence-sum"] = key(
        "sequence",
        "Mean over episodes of their mean token loss; mean over all tokens; or mean over episodes of the sum over "
        "tokens divided by the maximal length.",
    )
    policy_loss: str | None = key(
        None,
        "Loss of a token: one of {names}, or a reference to your own; null: the algorithm's default, which is "
        "clipped for all algorithms of ajet.",
        part="loss",
        needs={"clip_cov": "chooses", "kl_cov": "chooses"},
    )
    old_policy: Literal["proximal", "behaviour"] = key(
        "proximal",
        "Policy that the importance ratio refers to. proximal: the policy before the update, recomputed by the "
        "trainer (with `is_cap`: decoupled PPO). behaviour: the policy that sampled, as recorded (AgentRL); then "
        "`is_cap` must not be a number.",
    )
    tau_positive: float = key(
        1.0,
        "SAPO: how fast the gate closes for positive advantages.",
        gt=0,
        when=(LOSS, "sapo"),
        or_own=True,
    )
    tau_negative: float = key(
        1.05, "SAPO: how fast the gate closes for negative advantages.", gt=0, when=(LOSS, "sapo"), or_own=True
    )
    is_cap: Annotated[float, Field(gt=0)] | Literal["auto"] | None = key(
        "auto",
        "Truncate the importance weights, computed from the engine's log-probabilities, at this value; null: no "
        "weights. auto: 2.0 where earlier weights may have sampled (ajet serve, samplers, verl's asynchronous "
        "modes), null otherwise.",
    )
    is_mode: Literal[
        "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_truncate", "geometric_mask"
    ] = key(
        "token_truncate",
        "Unit of an importance weight: a token, its complete reply (product), or the reply's geometric mean. "
        "truncate limits the weight to `is_cap`; mask leaves tokens beyond it untrained. Has an effect only with "
        "`is_cap`.",
    )
    is_floor: float = key(
        0.0, "With mask: tokens whose importance weight is below this value are left untrained too.", ge=0
    )
    mismatch_alarm: Annotated[float, Field(gt=0)] | Literal["auto"] | None = key(
        "auto",
        "Average difference in nats between the log-probabilities of engine and trainer, for the same weights, "
        "above which the run logs a warning and lowers `is_cap` towards 1, to (cap - 1) * alarm / gap above it. "
        "auto: half of what `trainer_common.canary` allows; null: never.",
    )
    importance_weight_cap_ratio: Annotated[float, Field(gt=0)] | None = key(
        None,
        "AgentRL: do not train tokens with a ratio above 1 + clip_high * this value (positive advantage) or "
        "below 1 - clip_low * this value (negative advantage); null: no limit.",
    )
    strict_in_bound: bool = key(False, "AgentRL: use 1 + clip_high and 1 - clip_low as the bounds.")
    out_of_date_decay: float | None = key(
        None,
        "AgentRL: the bounds narrow by exp(-this value * age), where age is a token's age in policy versions; "
        "null: no narrowing.",
        ge=0,
    )
    max_trained_count: int = key(
        1,
        "AgentRL: maximum number of steps that train on a group, if new groups do not fill a batch and the group is no "
        "older than `max_staleness` (--from-store, and `mode: async` on local; otherwise 1).",
        idle={SERVE: "ajet trains once on each group of `ajet serve`"},
        unless=("trainer_common.mode", "async"),
        ge=1,
    )
    retrained_interval: int = key(
        1,
        "AgentRL: minimum number of steps between two trainings on the same group.",
        idle={SERVE: "ajet trains once on each group of `ajet serve`"},
        unless=("trainer_common.mode", "async"),
        ge=1,
    )
    balance_sample: bool = key(
        False,
        "AgentRL: limit how many attempts of a group are trained: of those with reward 0 at most one more than "
        "of the others, of the others at most two more than of those with reward 0. The baseline uses all of "
        "them.",
    )
    adv_scaling: float = key(1.0, "Factor on all advantages.", gt=0)
    dynamic_sampling: bool = key(
        False,
        "Leave groups without a training signal, such as groups with equal rewards, out of the batch (DAPO); with "
        "`rollout.enable_oversample` other groups replace them.",
    )
    equal_rewards: float = key(
        1e-4,
        "Rewards of a group count as equal up to this difference. Without it, dividing by the standard deviation "
        "would turn a judge's rounding into a strong signal.",
        ge=0,
    )
    process_weight: float = key(
        1.0,
        "Weight of process rewards (of steps, agents, tool uses or texts) in the advantages of their own tokens; "
        "0: only the attempt's reward counts.",
        ge=0,
    )
    step_discount: float = key(
        0.95,
        "GiGPO: how strongly the reward of a step counts for the step before it (discount).",
        ge=0,
        le=1,
        when=(ESTIMATOR, "gigpo"),
        or_own=True,
    )
    observation_weight: float = key(
        0.1,
        "ECHO: weight of the mean cross-entropy of the tokens that the environment wrote.",
        gt=0,
        when=(ESTIMATOR, "echo"),
        or_own=True,
    )
    use_kl_in_reward: bool = key(False, "Subtract the KL divergence from the reference model from the reward.")
    kl_in_reward_coef: float = key(
        0.001, "Its coefficient.", ge=0, when=("trainer_common.algorithm.use_kl_in_reward", "true")
    )
    covariance: CovarianceConfig = section(
        CovarianceConfig,
        "The tokens that reduce entropy most, for `policy_loss: clip_cov` and `kl_cov`.",
        when=(LOSS, "clip_cov", "kl_cov"),
    )
    overlong: OverlongConfig = section(OverlongConfig, "DAPO's soft penalty for attempts that grow too long.")
    reward_weights: dict[str, float] = key(
        {},
        "GDPO: weight of each scorer of `task_judge.scorers`, by its name (1 for the others), or of any number "
        "that the judge returns; `reward`, `overlong`: weight of the total reward, and of the length penalty.",
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
        "The model that scores sampled tokens with log-probabilities, with `adv_estimator: distillation` and `gkd`; "
        "for `opsd` the policy itself.",
        when=(ESTIMATOR, "distillation", "gkd", "opsd"),
        or_own=True,
    )
