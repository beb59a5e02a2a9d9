"""Measurement: the rewards of a validation, compared with other validations and formatted as text.

Invariant: means are over all tasks, not over scored attempts. A failed attempt counts no more than the lowest score.
Only failures of ajet itself are left out, and a measurement with too many of them is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, get_args

from ajet.record.intervals import exceeds_noise, plus_minus
from ajet.schema.errors import Boundary

BOUNDARIES: tuple[str, ...] = get_args(Boundary)
MOST_LEFT_OUT = 0.05
"""Maximum share of attempts lost to failures of ajet itself in a comparable measurement."""

Attempts = Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True, slots=True)
class Measurement:
    """The rewards of one validation by task, for choosing the best checkpoint."""

    attempts: Attempts
    """Reward of each counted attempt by task; None for a failed attempt."""
    left_out: float = 0.0
    """Share of attempts left out because ajet itself failed, 0 to 1."""
    judge: str = ""
    """Name of the judge; measurements of different judges are not compared. "": unknown."""

    @property
    def is_comparable(self) -> bool:
        """True if the measurement may select the best checkpoint.

        At least one attempt has a reward, and ajet itself failed in at most `MOST_LEFT_OUT` of the attempts.
        """
        return self.left_out <= MOST_LEFT_OUT and self._lowest_reward() is not None

    @property
    def score(self) -> float | None:
        """Mean reward over tasks, or None if the measurement is not comparable.

        A failed attempt counts as 0, or as the lowest reward if that is below 0.
        """
        lowest_reward = self._lowest_reward()
        if lowest_reward is None or not self.is_comparable:
            return None
        return fmean(self._task_means(min(0.0, lowest_reward)).values())

    def beats(self, other: Measurement) -> bool:
        """Return True if this measurement is better than `other` on their common tasks, by more than the noise of both.

        A failed attempt counts as 0, or as the lowest reward of both if that is below 0.
        """
        lowest_rewards = [
            lowest_reward
            for measurement in (self, other)
            if (lowest_reward := measurement._lowest_reward()) is not None
        ]
        own_means, other_means = (each._task_means(min([0.0, *lowest_rewards])) for each in (self, other))
        return exceeds_noise([own_means[task] - other_means[task] for task in own_means if task in other_means])

    def as_json(self) -> dict[str, Any]:
        """Return the measurement as JSON values, for `from_json`."""
        attempts = {task: list(rewards) for task, rewards in self.attempts.items()}
        return {"attempts": attempts, "left_out": self.left_out, "judge": self.judge}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Measurement | None:
        """Return the measurement stored by `as_json`, or None for None."""
        if value is None:
            return None
        attempts = {task: tuple(rewards) for task, rewards in value["attempts"].items()}
        return cls(attempts, value["left_out"], str(value.get("judge", "")))

    def _lowest_reward(self) -> float | None:
        """Return the lowest reward of all scored attempts, or None if none was scored."""
        return min(
            (value for attempt in self.attempts.values() for value in attempt if value is not None), default=None
        )

    def _task_means(self, failed: float) -> dict[str, float]:
        """Return the mean reward by task, where a failed attempt counts as `failed`."""
        return {
            task: fmean(failed if value is None else value for value in rewards)
            for task, rewards in self.attempts.items()
        }


def rows_of_last_judge(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the metrics rows after the last row with another judge than the newest one, or all rows."""
    judge, first_index = next((row["judge"] for row in reversed(rows) if row.get("judge")), None), 0
    for index, row in enumerate(rows):
        if row.get("judge") and row["judge"] != judge:
            first_index = index + 1
    return list(rows[first_index:])


NUMBERS = (
    "validation/tasks", "validation/episodes", "validation/scored", "validation/failed", "validation/left_out",
    "validation/reward", "validation/reward_error", "validation/success_rate", "validation/success_low",
    "validation/success_high", "validation/no_score", "validation/aborted",
    *(f"validation/failed/{name}" for name in BOUNDARIES),
)  # fmt: skip
"""Metrics read by `format_validation`."""


def format_validation(numbers: Mapping[str, Any], digits: int = 3) -> str:
    """Return a validation as text for one line: reward and success with 95 % intervals, counts and failures.

    Args:
        numbers: A metrics row of the validation.
        digits: Decimals of the reward.
    """
    parts = [_format_reward(numbers, digits)]
    if numbers.get("validation/success_rate") is not None:
        success = f"success {numbers['validation/success_rate']:.0%}"
        if numbers.get("validation/success_low") is not None:
            success += f" ({numbers['validation/success_low']:.0%} to {numbers['validation/success_high']:.0%})"
        parts.append(success)
    if numbers.get("validation/failed"):
        unscored = format_unscored(numbers, "validation")
        parts.append(f"{numbers['validation/failed']:.0f} failed" + (f" ({unscored})" if unscored else ""))
    if numbers.get("validation/left_out"):
        share = numbers["validation/left_out"] / numbers["validation/episodes"]
        parts.append(f"{share:.1%} left out (not caused by the model)")
    return ", ".join(parts)


FEWEST_TASKS = 5
"""Minimum number of tasks for a meaningful interval."""


def format_short_validation(numbers: Mapping[str, Any]) -> str | None:
    """Return a validation as text for a table column ("0.71 ±0.17 (31/32)"), or None without a measurement.

    The numbers are reward, half of its 95 % interval, and the scored among all attempts.
    """
    if numbers.get("validation/tasks") is None:
        return None
    if numbers.get("validation/scored") == 0:
        return f"none of {numbers['validation/episodes']:.0f}"
    if numbers.get("validation/reward") is None:
        return None
    text = f"{numbers['validation/reward']:.3g}"
    if numbers.get("validation/reward_error") is not None:
        text += plus_minus(numbers["validation/reward_error"], ".2g").replace(" ± ", " ±")
    if numbers.get("validation/scored") is not None:
        text += f" ({numbers['validation/scored']:.0f}/{numbers['validation/episodes']:.0f})"
    return text


def _format_reward(numbers: Mapping[str, Any], digits: int) -> str:
    """Return the mean reward with its 95 % interval and the number of scored attempts, as text."""
    if numbers.get("validation/reward") is None or numbers.get("validation/scored") == 0:
        return "no episode was scored"
    reward = f"reward {numbers['validation/reward']:.{digits}f}"
    if numbers.get("validation/reward_error") is not None and numbers.get("validation/tasks", 0) >= FEWEST_TASKS:
        reward += plus_minus(numbers["validation/reward_error"], f".{digits}f")
    if numbers.get("validation/scored") is not None:
        reward += f" ({numbers['validation/scored']:.0f} of {numbers['validation/episodes']:.0f} scored)"
    return reward


def scored_count_metrics(prefix: str) -> tuple[str, ...]:
    """Return the names of the metrics that `format_scored_count` reads, below `prefix`."""
    counts = ("episodes", "scored", "failed", "aborted", "no_score", *(f"failed/{name}" for name in BOUNDARIES))
    return tuple(f"{prefix}/{name}" for name in counts)


def format_scored_count(numbers: Mapping[str, Any], prefix: str) -> str:
    """Return how many episodes a mean covers ("over 31 of 32; 1 agent"), or "" if the row does not record it.

    Args:
        numbers: A metrics row.
        prefix: "train", "validation" or "debug".
    """
    scored, episodes = numbers.get(f"{prefix}/scored"), numbers.get(f"{prefix}/episodes")
    if scored is None or episodes is None:
        return ""
    unscored = format_unscored(numbers, prefix)
    return f"over {scored:.0f} of {episodes:.0f}" + (f"; {unscored}" if unscored else "")


def format_unscored(numbers: Mapping[str, Any], prefix: str) -> str:
    """Return why episodes have no reward ("2 agent, 1 no score"), or "" if all have one.

    Args:
        numbers: A metrics row.
        prefix: "train", "validation" or "debug".
    """
    counts = {name: int(numbers.get(f"{prefix}/{name}") or 0) for name in ("episodes", "scored", "failed", "aborted")}
    undecided = int(numbers.get(f"{prefix}/no_score") or 0)
    failed_by_boundary = {name: int(numbers.get(f"{prefix}/failed/{name}") or 0) for name in BOUNDARIES}
    # Failures with a reward (rollout.policy_failure_reward) count as scored: subtract them from the agent's.
    failed_by_boundary["agent"] -= max(
        0, counts["scored"] - (counts["episodes"] - counts["failed"] - counts["aborted"] - undecided)
    )
    parts = [f"{number} {name}" for name, number in failed_by_boundary.items() if number > 0]
    parts += [f"{undecided} no score"] if undecided else []
    parts += [f"{counts['aborted']} aborted"] if counts["aborted"] else []
    return ", ".join(parts)
