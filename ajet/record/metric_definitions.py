"""The name, unit and meaning of every metric that a run writes.

docs/reference/metrics.md and the viewer's definitions are generated from this list. Invariant: each name is one that
code writes, and each written name is here (tests/docs/test_metrics_page.py). Words in capitals stand for any name, and
`train/` for each of `train/`, `validation/` and `debug/`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MetricDefinition:
    """The unit and meaning of one or several metrics. `about` is Markdown with links relative to docs/reference."""

    names: tuple[str, ...]
    unit: str
    about: str


@dataclass(frozen=True)
class MetricGroup:
    """A section of the reference page of metrics: heading, text before the table, metrics, text after it."""

    title: str
    about: str
    metrics: tuple[MetricDefinition, ...] = ()
    notes: str = ""


def _define_metric(names: str, unit: str, about: str) -> MetricDefinition:
    return MetricDefinition(tuple(names.split()), unit, about)


_PLAYED = MetricGroup(
    "Episodes: `train/…`, `validation/…`, `debug/…`",
    "",
    (
        _define_metric("train/episodes", "count", "episodes of the step"),
        _define_metric(
            "train/scored",
            "count",
            "episodes with a reward; if `rollout.policy_failure_reward` is set, failed ones count too",
        ),
        _define_metric(
            "train/failed train/aborted train/no_score",
            "count",
            "episodes that failed, were stopped, or ended without a score",
        ),
        _define_metric(
            "train/failed/BOUNDARY",
            "count",
            "failed episodes by the component that caused the failure: `engine`, `agent`, `tool`, `environment`, "
            "`judge`, `ajet`",
        ),
        _define_metric("train/reward", "reward", "mean over scored episodes"),
        _define_metric(
            "train/success_rate",
            "0 to 1",
            "share of attempts with `is_success` true among all attempts except those left out; a failure or a "
            "missing score counts as no success. Missing if neither judge nor workflow defines success",
        ),
        _define_metric(
            "train/left_out",
            "count",
            "share of attempts that do not measure the model: a server, a judge model, an environment or ajet "
            "failed, or ajet stopped them",
        ),
        _define_metric("train/turns", "calls", "model calls per scored episode whose reply the agent received"),
        _define_metric("train/reply_tokens", "tokens", "sampled tokens per scored episode, over all its calls"),
        _define_metric("train/calls", "count", "model calls"),
        _define_metric("train/sampled_tokens", "tokens", "tokens sampled in all episodes"),
        _define_metric("train/trained_tokens", "tokens", "tokens of the batch that are trained (mask 1)"),
        _define_metric(
            "train/untrained/REASON",
            "tokens",
            "sampled tokens that were not trained; together with `trained_tokens` they equal `sampled_tokens`",
        ),
        _define_metric("train/retrained", "groups", "groups that an earlier step had trained on already"),
        _define_metric(
            "train/retrained_failed train/retrained_forks",
            "count",
            "the part of `train/failed` and `train/forks` that belongs to such groups, which an earlier row has "
            "counted",
        ),
        _define_metric(
            "train/given_up",
            "positions",
            ("tasks that ajet has given up so far, because they failed too often with [samplers](../samplers.md)"),
        ),
        _define_metric(
            "train/quarantined train/quarantined/KIND",
            "groups",
            "the part of `train/given_up` that are groups with invalid episodes, in total and by kind",
        ),
        _define_metric(
            "train/staleness_max train/staleness_mean",
            "policy versions",
            "age of the weights that sampled the scored calls, in steps; above 0 only in `ajet serve`, with "
            "samplers and in asynchronous modes",
        ),
        _define_metric(
            "train/forks",
            "calls",
            ("calls that could not [extend](../glossary.md) an earlier one, so that their prompt was tokenized anew"),
        ),
        _define_metric("train/fork_rate/REASON", "0 to 1", "such calls per call, by reason"),
        _define_metric(
            "train/checks/CHECK:RULE", "count", "output checks that found abnormal output, e.g. `nonsense:loop`"
        ),
        _define_metric(
            "train/cut_replies",
            "calls",
            "replies ended by a token limit: the request's `max_tokens`, `rollout.max_response_length_in_one_turn` or "
            "`rollout.max_model_len`",
        ),
        _define_metric(
            "train/scorer/NAME", "score", "mean score of this [scorer](../scorers.md) over the episodes it scored"
        ),
        _define_metric("train/scored_by/NAMES", "episodes", "episodes scored by these scorers"),
        _define_metric(
            "train/workflow/NAME", "yours", "mean of `WorkflowOutput.log_metrics[NAME]` over scored episodes"
        ),
        _define_metric("validation/tasks", "count", "held-out tasks"),
        _define_metric("validation/success_low validation/success_high", "0 to 1", "95 % interval of the success rate"),
        _define_metric(
            "validation/reward_error",
            "reward",
            "half of the 95 % interval of the mean reward; missing if all tasks had equal rewards",
        ),
        _define_metric("debug/seconds debug/longest", "seconds", "duration of the debug run; of its longest episode"),
        _define_metric(
            "debug/all_tokens debug/at_once",
            "count",
            "tokens that the engine sampled, including unfinished episodes; the largest number of episodes at "
            "the same time",
        ),
        _define_metric(
            "validation/pass@N validation/all@N",
            "0 to 1",
            "share of tasks with a success in at least one, or in all, of N attempts, each with its 95 % "
            "interval under the same name and `_low`, `_high`; only with `rollout.val_kwargs.do_sample` or "
            "`num_repeat` above 1",
        ),
    ),
    "Reasons of `untrained`: `failed`, `no_score`, `aborted_call` (truncated reply), `over_length`, "
    "`max_sample_per_task`, `zero_variance`, `balanced` (`algorithm.balance_sample`), `not_trainable` (an agent that "
    "is not trained), `stale` (older than `trainer_common.max_staleness` allows).",
)

_GIVEN = MetricGroup(
    "Given replies: `ajet sft`",
    "The counts above and the update metrics below exist here too: tokens of given replies count as sampled, and "
    "a row as `train/no_score`.",
    (
        _define_metric("train/rows", "count", "rows or pairs of the step"),
        _define_metric(
            "loss", "nats", "mean loss over tokens, or as `sft.loss_aggregation` says; for pairs the mean over pairs"
        ),
        _define_metric(
            "dpo/accuracy",
            "0 to 1",
            "share of pairs whose chosen reply the policy prefers more than the reference model does",
        ),
        _define_metric(
            "dpo/margin",
            "–",
            "mean of h: β times how much more likely, in nats, the chosen reply became",
        ),
        _define_metric(
            "dpo/chosen dpo/rejected", "–", "mean of β times the log-probability gain over the reference model, in nats"
        ),
        _define_metric("validation/rows", "count", "held-out rows or pairs"),
        _define_metric("validation/loss", "nats", "loss of the held-out rows or pairs, per token or per pair"),
        _define_metric("validation/dpo/accuracy validation/dpo/margin", "", "the same numbers for held-out pairs"),
    ),
)

_JUDGES = MetricGroup(
    "Judges",
    "For [models as judges](../judge_models.md), and for any judge whose `Verdict` has `metrics`; also below "
    "`validation/` and `debug/`.",
    (
        _define_metric("train/judge/calls train/judge/cost", "count, money", "requests to models, and their price"),
        _define_metric("train/judge/seconds", "seconds", "mean time of a verdict that was not cached"),
        _define_metric("train/judge/cached", "0 to 1", "share of votes read from the cache"),
        _define_metric(
            "train/judge/agreement",
            "0 to 1",
            "share of votes that agree with the decision; in a ranking, of pairs of attempts that two votes put "
            "in the same order",
        ),
        _define_metric(
            "train/judge/disagreed train/judge/refused train/judge/unreadable",
            "count",
            "share of verdicts with differing votes; of refusals; of replies without a valid verdict",
        ),
        _define_metric("train/judge/cut", "0 to 1", "share of verdicts for which the input was cut"),
        _define_metric(
            "train/judge/length_bias",
            "−1 to 1",
            "correlation of an answer's length with its reward; if high, training lengthens answers",
        ),
        _define_metric(
            "train/judge/position_bias",
            "−1 to 1",
            "correlation of an earlier place in a ranking's prompt with a better rank; should be 0",
        ),
        _define_metric("train/judge/NAME", "the judge's", "mean of `Verdict.metrics[NAME]`"),
    ),
)

_HELD_OUT = MetricGroup(
    "How to read a held-out number",
    """\
`step   20/20  held out: reward 0.710 ± 0.166 (31 of 32 scored), success 69% (51% to 82%), 1 failed (32 tasks, 2.4 s)`

- **All tasks count.** A failed attempt is no success, unless ajet, an engine, a judge model or an environment failed:
  those are left out, and the share is printed. An exception of workflow or judge is never left out. The mean reward
  covers scored episodes only.
- **Intervals** are 95 % over tasks: Wilson's for rates, Student's for rewards. With 32 tasks a rate of 0.7 is 0.52 to
  0.83, so of 20 validations of equal policies the best reads 0.84.
- **The best checkpoint** (`keep_best`, used by `ajet chat` and `ajet export`): a later checkpoint replaces an earlier
  one only if its mean reward is higher by more than chance, task by task (Student's t, 97.5 %). A failed attempt
  counts as 0, or as the lowest reward if that is less. A validation with more than 5 % left out selects none.""",
)

_CURVE = MetricGroup(
    "The curve",
    """\
At the end of a run the terminal and `metrics.png` show training and held-out numbers. Held out is the success rate
with its interval if success was judged, else the mean reward of scored episodes. Training is the success rate if
rewards equal successes, else the mean reward of scored episodes.""",
)

_CREDIT = MetricGroup(
    "Credit: `credit/…`",
    "",
    (
        _define_metric("credit/groups", "count", "groups of the step"),
        _define_metric(
            "credit/zero_variance_groups",
            "count",
            "groups without a gradient: equal scores, or nothing to compare with",
        ),
        _define_metric("credit/left_out_groups", "count", "groups that the update left out"),
        _define_metric("credit/samples", "count", "timelines (token sequences) in the batch"),
        _define_metric("credit/advantage_abs_mean", "", "mean absolute advantage of the trained episodes"),
        _define_metric("credit/parts", "count", "number of [process rewards](../judges.md#rewards-of-parts)"),
        _define_metric("credit/balanced_episodes", "count", "attempts removed by `algorithm.balance_sample`"),
        _define_metric(
            "critic/explained_variance",
            "share",
            "1 − Var(return − value) / Var(return) of the [value head](../algorithm_guides.md#ppo-with-a-value-head)",
        ),
        _define_metric("critic/value_mean critic/return_mean", "reward", "predicted and actual return"),
        _define_metric("critic/loss", "", "loss of the value head before the step"),
        _define_metric("critic/clip_fraction", "share", "share of tokens whose value `critic.cliprange_value` limited"),
        _define_metric("credit/kl_penalty_mean", "reward per token", "with `use_kl_in_reward`"),
        _define_metric("credit/overlong_penalty_mean", "reward", "mean penalty of `algorithm.overlong` per attempt"),
        _define_metric("credit/overlong_fraction", "share", "attempts with such a penalty"),
        _define_metric("credit/observed_tokens", "tokens", "tokens of the environment in the loss of `echo`"),
        _define_metric(
            "distillation/reverse_kl",
            "nats per token",
            "mean of log π − log π_teacher with a [teacher](../algorithm_guides.md#a-teacher)",
        ),
    ),
)

_UPDATE = MetricGroup(
    "The update",
    "Missing from a step without a gradient, except `mismatch_kl` and `logprob_gap_max`: there, and with `top_p` or "
    "`top_k`, they cover the sample below at temperature 1.",
    (
        _define_metric("loss", "", "loss of the batch; on-policy it says little, so watch the reward"),
        _define_metric(
            "grad_norm",
            "",
            "gradient norm before clipping, mean over the optimizer steps; with [several adapters](../lora.md), "
            "of all adapters together",
        ),
        _define_metric("adapters/NAME/trained_tokens", "tokens", "trained tokens of each of several adapters"),
        _define_metric("adapters/NAME/grad_norm", "", "gradient norm of each adapter before clipping"),
        _define_metric("lr", "", "learning rate (on verl that of the next step)"),
        _define_metric("entropy", "nats per token", "entropy of the policy at trained positions"),
        _define_metric("kl", "nats per token", "estimate against the reference model; 0 without a KL loss"),
        _define_metric(
            "observation_loss", "nats per token", "cross-entropy of the tokens of the environment, with `echo`"
        ),
        _define_metric("clip_fraction", "0 to 1", "share of trained tokens whose gradient was clipped"),
        _define_metric(
            "mismatch_kl", "nats per token", "mean of engine's minus trainer's log-probability over the trained tokens"
        ),
        _define_metric("logprob_gap_max", "nats", "largest difference of the two for one token"),
        _define_metric(
            "canary_gap",
            "nats per token",
            "mean difference of engine's and trainer's log-probabilities after an update ([canary](../models.md))",
        ),
        _define_metric(
            "sampler_gap",
            "nats per token",
            "the same difference for attempts of [samplers](../samplers.md) with the current version, on local",
        ),
        _define_metric("is_capped_fraction", "0 to 1", "share of tokens whose importance weight `is_cap` limited"),
        _define_metric(
            "is_tightened_gap is_tightened_cap",
            "nats per token; weight",
            "average difference above `algorithm.mismatch_alarm`, and the limit used instead of `is_cap` "
            "([mismatch alarm](../off_policy.md#the-mismatch-alarm))",
        ),
        _define_metric(
            "stale_fraction",
            "0 to 1",
            "share of trained tokens that an earlier policy version sampled; missing, like the next two, if "
            "there are none",
        ),
        _define_metric("stale_is_weight_mean", "", "mean importance weight of stale tokens; 1 without a cap"),
        _define_metric("stale_is_capped_fraction", "0 to 1", "share of stale tokens that `is_cap` limited"),
        _define_metric("steps_skipped", "count", "optimizer steps skipped because loss or gradient was not finite"),
        _define_metric(
            "computed_tokens",
            "tokens",
            "tokens that were computed; fewer than the batch's length if sequences share prefixes",
        ),
        _define_metric("version", "count", "policy version after the step"),
    ),
)

_PROOF = MetricGroup(
    "Checked sample: `proof/…`",
    "In each step ajet derives the tokens of `context_tracker.proof_sample` episodes (2) again "
    "([prove](../prove.md)). A wrong token is logged as an error with episode, call and position.",
    (
        _define_metric("proof/episodes", "count", "episodes of the sample"),
        _define_metric("proof/tokens", "tokens", "tokens whose id could be derived"),
        _define_metric(
            "proof/wrong_tokens",
            "tokens",
            "tokens whose derivation differs from the record; any number above 0 is a bug",
        ),
    ),
)

_TIME = MetricGroup(
    "Time: `seconds/…`",
    "",
    (
        _define_metric("seconds/rollout", "seconds", "running and judging the episodes"),
        _define_metric("seconds/update", "seconds", "credit, training, and writing weights"),
        _define_metric("seconds/train", "seconds", "the backbone's part of the update"),
        _define_metric("seconds/step", "seconds", "rollout and update together"),
        _define_metric("seconds/validation", "seconds", "one validation"),
        _define_metric(
            "seconds/processor",
            "seconds",
            "processor time of the run's processes since the last step's row, validations included; missing on verl",
        ),
    ),
)

_LAST_LINE = MetricGroup(
    "Last line of a run",
    "`160 tasks trained, 0 skipped, 0 doubled; 3 episodes failed, 12 calls tokenized anew` compares the `tasks` "
    "of all rows with the\ntraining order. Skipped and doubled are 0, also after a kill and a resume.",
)

GROUPS = (
    _PLAYED, _GIVEN, _JUDGES, _HELD_OUT, _CURVE, _CREDIT, _UPDATE, _PROOF, _TIME, _LAST_LINE,
)  # fmt: skip
"""The sections of the page, in order."""


def list_metric_definitions() -> list[MetricDefinition]:
    """Return the definitions of all metrics, in the order of the reference page."""
    return [metric for group in GROUPS for metric in group.metrics]
