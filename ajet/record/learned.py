"""Decides from the metrics rows if a run learned anything.

Invariant: the reason comes from recorded numbers. A run learned if at least one token was trained with a learning rate
above 0 and with more than the distance to a reference model in the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ajet.schema.commands import format_command

if TYPE_CHECKING:
    from ajet.config import AjetConfig

LEARNED_NOTHING = "learned_nothing"
"""Key of `status.json` with the reason."""


def why_nothing(rows: Iterable[Mapping[str, Any]]) -> str | None:
    """Return why a run learned nothing, or None if it learned something or made no step.

    Args:
        rows: The metrics rows of the run.
    """
    steps = [row for row in rows if "tasks" in row]
    if not steps or not all(is_idle(row) for row in steps):
        return None
    episodes, failed, scored = (sum(_numeric_metric(row, f"train/{name}") for row in steps) for name in _COUNTED)
    if any(_numeric_metric(row, "train/trained_tokens") > 0 and not _is_without_advantage(row) for row in steps):
        return "the learning rate was 0 in every step"
    if episodes and failed == episodes:
        return "every episode failed"
    if not scored:
        return "no episode had a reward: neither the workflow nor a judge returned one"
    if all(row.get("credit/zero_variance_groups") == row.get("credit/groups") for row in steps):
        failures = f"; {failed:.0f} of {episodes:.0f} episodes failed" if failed else ""
        reward = _format_last_reward(steps)
        return f"the attempts at each task had equal rewards in every step (mean of the last step: {reward}){failures}"
    return "no sampled token could be trained: the keys train/untrained/… in metrics.jsonl give the reasons"


def is_never_right(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if attempts of training steps were scored and none succeeded.

    A step without a success rate counts as without success if its mean reward is not above 0.
    """
    steps = [row for row in rows if "tasks" in row and row.get("train/reward") is not None]
    return bool(steps) and all(
        row["train/success_rate"] == 0 if "train/success_rate" in row else row["train/reward"] <= 0 for row in steps
    )


def advise_given_answers(settings: AjetConfig) -> str:
    """Return advice for a run in which no attempt was right: first train on given answers, else change the task."""
    sft_command = format_command("sft", "--model", settings.model.path, "--data", "ROWS.jsonl")
    return (
        "no attempt is right. If you have right answers, learn from them first (docs/sft.md):\n  "
        f"{sft_command}\nOtherwise try easier tasks, a worked example in the prompt, longer replies, or "
        "ajet.rollout.num_repeat of 4 or more at a temperature above 0. Check some answers by hand: the judge "
        "may be wrong"
    )


def is_idle(row: Mapping[str, Any]) -> bool:
    """Return True if a training step had no learning signal: no trained token, learning rate 0, or no advantage.

    Without an advantage, a KL term (`use_kl_loss`) is the only loss, and nothing is learned from rewards.
    """
    return row.get("train/trained_tokens") == 0 or row.get("lr") == 0 or _is_without_advantage(row)


def _is_without_advantage(row: Mapping[str, Any]) -> bool:
    """Return True if no token of the step had an advantage, because the scores of each group were equal.

    Equal scores alone do not imply this: a critic, a teacher or separately rewarded parts can still give an advantage.
    """
    equal = row.get("credit/groups", 0) > 0 and row.get("credit/zero_variance_groups") == row["credit/groups"]
    return equal and row.get("credit/advantage_abs_mean") == 0 and not row.get("credit/parts")


def idle_steps(rows: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of training steps without a learning signal that directly precede the end of the rows."""
    count = 0
    for row in rows:
        if "tasks" in row:
            count = count + 1 if is_idle(row) else 0
    return count


_COUNTED = ("episodes", "failed", "scored")


def _numeric_metric(row: Mapping[str, Any], name: str) -> float:
    """Return the metric of a row, or 0 if it is missing or not a number."""
    value = row.get(name)
    return value if isinstance(value, int | float) else 0.0


def _format_last_reward(steps: list[Mapping[str, Any]]) -> str:
    """Return the last recorded mean reward of the steps as text, or "none"."""
    last = next((row["train/reward"] for row in reversed(steps) if row.get("train/reward") is not None), None)
    return "none" if last is None else f"{last:.3g}"
