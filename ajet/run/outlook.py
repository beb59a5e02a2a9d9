"""What training would make of the episodes that debug played: which tasks can teach, how long a step would take.

Invariant: counted and measured, never assumed: what can teach is the algorithm's to say, and a number of seconds comes
from this machine's own episodes, as a range where the run would play more of them at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ajet.record.console import counted, label
from ajet.schema.commands import command
from ajet.schema.episode import Episode, Group

if TYPE_CHECKING:
    from ajet.config import AjetConfig

SHOWN_TASKS = 12
"""Tasks that get a line of their own."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace at which episodes were played here."""

    episodes: int
    """That ended."""
    seconds: float
    """Of the whole play."""
    tokens: int
    """Sampled, those of unfinished episodes too."""
    at_once: int
    """Episodes that ran at the same time, at most."""
    longest: float
    """Seconds of the longest episode."""

    @property
    def tokens_per_second(self) -> float:
        """0 where nothing was sampled."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    def metrics(self) -> dict[str, float]:
        """For the run's record: a plan reads them back."""
        return {
            "debug/seconds": self.seconds,
            "debug/at_once": self.at_once,
            "debug/longest": self.longest,
            "debug/all_tokens": self.tokens,
        }

    @classmethod
    def of_metrics(cls, row: Mapping[str, float]) -> Pace | None:
        """The pace that a debug run recorded; None where it did not, or no episode ended."""
        if not row.get("debug/episodes") or "debug/seconds" not in row:
            return None
        numbers = (row["debug/seconds"], row["debug/all_tokens"], row["debug/at_once"], row["debug/longest"])
        seconds, tokens, at_once, longest = numbers
        return cls(int(row["debug/episodes"]), seconds, int(tokens), int(at_once), longest)


def step_seconds(pace: Pace, settings: AjetConfig) -> tuple[float, float]:
    """Seconds in which the episodes of one training step are played, at best and at worst: if the engine gets as much
    faster as more episodes run at once, and if it gets no faster at all."""
    episodes = settings.data.train_batch_size * settings.rollout.num_repeat
    worst = pace.seconds / pace.episodes * episodes
    at_once = min(settings.rollout.max_env_worker, settings.rollout.max_num_seqs, episodes)
    best = max(worst * min(1.0, pace.at_once / max(at_once, 1)), min(pace.longest, worst))
    return best, worst


def step_line(pace: Pace, settings: AjetConfig) -> str:
    """A line for a person on how long a step would take."""
    best, worst = step_seconds(pace, settings)
    seconds = span(worst) if worst < 1.5 * best else f"{span(best)} to {span(worst)}"
    episodes = settings.data.train_batch_size * settings.rollout.num_repeat
    measured = f"at {pace.tokens_per_second:.0f} tokens a second with {pace.at_once} at once"
    return (
        f"about {seconds} to play {counted(episodes, 'episode')} ({measured}), and as long again, more or less, for "
        "the update"
    )


def span(seconds: float) -> str:
    """A time for a person: "0.02 s", "40 s", "3 min", "2.5 h"."""
    if seconds < 0.1:
        return f"{seconds:.1g} s"
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def task_lines(groups: Sequence[Group], learns: Callable[[Group], bool]) -> list[str]:
    """A line a task, and what follows."""
    shown = [f"  {label(group.task.task_id)}: {_of_group(group, learns(group))}" for group in groups[:SHOWN_TASKS]]
    if len(groups) > SHOWN_TASKS:
        shown.append(f"  … and {counted(len(groups) - SHOWN_TASKS, 'more task')}")
    return shown


def _of_group(group: Group, teaches: bool) -> str:
    rewards = [episode.reward or 0.0 for episode in group.scored]
    total = len(group.episodes)
    if not rewards:
        failed = sum(episode.failure is not None for episode in group.episodes)
        return f"0 of {total} scored ({failed} failed): nothing to learn from"
    positive = sum(reward > 0 for reward in rewards)
    told = f"{positive} of {total} above 0"
    told += f", {total - len(rewards)} without a score" if len(rewards) < total else ""
    low, high = min(rewards), max(rewards)
    if teaches:
        return f"{told} (rewards {low:g} to {high:g}): training can learn from it"
    return f"{told} (all {low:g}): nothing to prefer" if low == high else f"{told} ({low:g} to {high:g}): too alike"


def _replies(count: int) -> str:
    return "1 reply" if count == 1 else f"{count} replies"


def cut_line(episodes: Sequence[Episode]) -> str:
    """Return how many replies a limit on tokens cut, by which limit, and what to do; "" if none was cut."""
    calls = [call for episode in episodes for call in episode.calls if call.is_delivered]
    cut = [call for call in calls if call.is_cut]
    if not cut:
        return ""
    limits = Counter(str(call.extra.get("cut_by", "a limit on tokens")) for call in cut)
    named = ", ".join(f"{count} by {limit}" for limit, count in limits.most_common())
    return f"{len(cut)} of {_replies(len(calls))} cut ({named}): raise that limit, or ask for shorter replies"


def advice(groups: Sequence[Group], settings: AjetConfig) -> str:
    """Advice on what to change where none of the groups can teach."""
    episodes = [episode for group in groups for episode in group.episodes]
    scored = [episode for group in groups for episode in group.scored]
    if not scored:
        if all(episode.failure for episode in episodes):
            return "correct what the hints above name"
        if any(settings.task_judge.named()):
            return (
                "no episode has a reward: the judge decided none. One that a function or class leaves at None is left "
                "out; a wrong answer is 0"
            )
        return (
            "no episode has a reward: name a judge (ajet.task_judge.judge_protocol), models that rank attempts "
            "(ajet.task_judge.judges), or return one in WorkflowOutput"
        )
    failed = sum(episode.failure is not None for episode in episodes)
    if 2 * failed >= len(episodes):
        return f"{failed} of {counted(len(episodes), 'episode')} failed: correct what the hints above name"
    if told := _all_cut(episodes, settings):
        return told
    if is_never_right(scored):
        return given_answers(settings)
    if settings.rollout.num_repeat == 1:
        return "attempts at a task are compared with each other: set ajet.rollout.num_repeat to 4 or more"
    if settings.rollout.temperature == 0:
        return "at temperature 0 all attempts say the same: set ajet.rollout.temperature to 1.0"
    return _by_rewards(scored)


def _all_cut(episodes: Sequence[Episode], settings: AjetConfig) -> str:
    """Return advice where a limit cut every reply; "" otherwise."""
    calls = [call for episode in episodes for call in episode.calls if call.is_delivered]
    if not calls or not all(call.is_cut for call in calls):
        return ""
    limits = {str(call.extra.get("cut_by", "a limit on tokens")) for call in calls}
    limit = limits.pop() if len(limits) == 1 else ""
    value = getattr(settings.rollout, limit.removeprefix("rollout."), None) if limit.startswith("rollout.") else None
    name = f"ajet.{limit} (now {value})" if isinstance(value, int) else limit or "those limits"
    return f"every reply was cut, so that no answer can be right: raise {name}"


def is_never_right(scored: Sequence[Episode]) -> bool:
    """True if no attempt succeeded; where nothing says what success is, if none has a reward above 0."""
    successes = [each.verdict.success for each in scored if each.verdict and each.verdict.success is not None]
    return not any(successes) if successes else all((each.reward or 0.0) <= 0 for each in scored)


def given_answers(settings: AjetConfig) -> str:
    """Return what to do where no attempt is ever right: learn given answers first, then the other ways."""
    learn = command("sft", "--model", settings.model.path, "--data", "ROWS.jsonl")
    return (
        f"no attempt is right. If you have right answers, learn from them first (docs/sft.md):\n  {learn}\n"
        "Otherwise try easier tasks, a worked example in the prompt, longer replies, ajet.rollout.num_repeat of 4 or "
        "more at a temperature above 0. Is the judge right? Look at the answers"
    )


def _by_rewards(scored: Sequence[Episode]) -> str:
    positive = sum((episode.reward or 0.0) > 0 for episode in scored)
    if positive == len(scored):
        return "all attempts at a task have the same reward, above 0: harder tasks, or a judge that tells them apart"
    return "try more tasks (ajet.debug.debug_first_n_tasks) or more attempts (ajet.rollout.num_repeat)"
