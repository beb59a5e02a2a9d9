"""An alarm for rewards that are gamed: the reward rises, and something beside it says that the task is not what rises.

Invariant: a pure function of recorded metrics and of a few words about episodes. It is conservative: nothing fires
unless the reward has risen by more than its own noise, and each sign excludes what an honest run shows, too. That a
sign fires proves nothing: it names three episodes for a person to read.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from ajet.record.held_out import rows_of_last_judge
from ajet.schema.episode import Episode

GAMED = "gamed"
"""The key in `status.json` under which an alarm stands."""
WINDOW = 5
"""Steps at the beginning, and the last ones, that are compared."""
RISE = 0.2
"""Of the largest reward of any step, at least."""
TAKEN_OVER = 0.5
"""Share of the rewarded episodes, of at least `TASKS` tasks, with one and the same answer."""
TASKS = 5
DRIFT = 2.0
"""Factor by which replies become longer or shorter."""
REFUSING = 0.3
"""Share of the rewarded episodes that refuse, more than at the beginning."""
NAMED = 3
_REFUSAL = re.compile(
    r"\b(i(?:'m| am) sorry|i can(?:no|')t|i am unable|i'm unable|as an ai\b|i won't|cannot (?:help|assist))", re.I
)
_EXPECTED = ("answer", "target", "solution", "label", "expected", "gold")
"""Fields of a task that say what is right; an answer that is right is no sign."""


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """An episode in a few words."""

    uuid: str
    step: int
    task: str
    repeat: int
    reward: float
    tokens: int
    answer: str
    """The last reply, in one form for what differs in case and spaces only."""
    is_right: bool
    """The answer holds what its task says is right."""

    @property
    def is_refusal(self) -> bool:
        """Whether the reply says that it will not."""
        return bool(_REFUSAL.search(self.answer))

    @classmethod
    def of(cls, episode: Episode, step: int) -> EpisodeSummary | None:
        """A glimpse of an episode; None for one without a score."""
        if not episode.scored or episode.reward is None:
            return None
        answer = _last_answer(episode)
        expected = [str(episode.task.metadata[key]).casefold() for key in _EXPECTED if key in episode.task.metadata]
        right = any(each and each in answer for each in expected)
        return cls(
            episode.uuid,
            step,
            episode.task.task_id,
            episode.repeat,
            episode.reward,
            episode.sampled_tokens,
            answer,
            right,
        )


@dataclass(frozen=True, slots=True)
class GamingAlarm:
    """A sign that the reward is being gamed, and the episodes that show it."""

    step: int
    signs: tuple[str, ...]
    suspects: tuple[EpisodeSummary, ...]
    """The most suspicious episodes, `NAMED` at most."""

    @property
    def text(self) -> str:
        """The alarm in a sentence."""
        return f"the reward rises, but {'; '.join(self.signs)}"


def detect_gaming(rows: Sequence[Mapping[str, Any]], glimpses: Sequence[EpisodeSummary]) -> GamingAlarm | None:
    """Whether the run whose rows of metrics and episodes of the first and the last `WINDOW` steps these are looks as if
    its rewards were gamed."""
    rows = rows_of_last_judge(rows)
    steps = [row for row in rows if isinstance(row.get("train/reward"), int | float)]
    if len(steps) < 2 * WINDOW:
        return None
    glimpses = [each for each in glimpses if each.step >= steps[0]["step"]]
    rise = _reward_rise([row["train/reward"] for row in steps])
    if rise is None:
        return None
    first, last = steps[WINDOW - 1]["step"], steps[-WINDOW]["step"]
    before = [each for each in glimpses if each.step <= first]
    now = [each for each in glimpses if each.step >= last]
    rewarded = [each for each in now if each.reward > fmean(g.reward for g in before)] if before else []
    flat = _flat_validation_sign(rows, rise)
    signs: list[tuple[str, list[EpisodeSummary]]] = []
    if flat is not None:
        signs.append((flat, rewarded))
        signs += _length_drift_signs(steps, rewarded)
    signs += _common_answer_signs(before, rewarded)
    signs += _refusal_signs(before, rewarded)
    if not signs:
        return None
    weight = Counter[str]()
    for _, suspects in signs:
        weight.update(each.uuid for each in suspects)
    order = sorted(rewarded, key=lambda each: (-weight[each.uuid], -each.reward, -each.step, each.task, each.repeat))
    return GamingAlarm(int(steps[-1]["step"]), tuple(sign for sign, _ in signs), tuple(_first_of_each_task(order)))


def _reward_rise(rewards: Sequence[float]) -> float | None:
    """The rise from the first to the last steps; None where that is little, or no more than steps differ anyway."""
    first, last = rewards[:WINDOW], rewards[-WINDOW:]
    rise = fmean(last) - fmean(first)
    noise = math.sqrt((stdev(first) ** 2 + stdev(last) ** 2) / WINDOW)
    span = max(abs(reward) for reward in rewards)
    return rise if rise > max(RISE * span, 4 * noise) else None


def _flat_validation_sign(rows: Sequence[Mapping[str, Any]], rise: float) -> str | None:
    """Held out, where even the upper end of what was measured last lies below half of the rise."""
    measured = [row for row in rows if isinstance(row.get("validation/reward"), int | float)]
    since = [row for row in measured if isinstance(row.get("validation/reward_error"), int | float)]
    if len(measured) < 3 or not since:
        return None
    first, last = measured[0], since[-1]
    if last["validation/reward"] + last["validation/reward_error"] >= first["validation/reward"] + rise / 2:
        return None
    was, now = first["validation/reward"], last["validation/reward"]
    return f"held out it went from {was:.3g} to {now:.3g} while training rose by {rise:.3g}"


def _length_drift_signs(
    steps: Sequence[Mapping[str, Any]], rewarded: Sequence[EpisodeSummary]
) -> list[tuple[str, list[EpisodeSummary]]]:
    """Alarms of growing or shrinking replies; a sign only beside held-out numbers that do not rise."""
    lengths = [row["train/reply_tokens"] for row in steps if isinstance(row.get("train/reply_tokens"), int | float)]
    if len(lengths) < 2 * WINDOW or not rewarded:
        return []
    first, last = fmean(lengths[:WINDOW]), fmean(lengths[-WINDOW:])
    if first <= 0 or last <= 0 or 1 / DRIFT < last / first < DRIFT:
        return []
    longer = last > first
    extreme = sorted(rewarded, key=lambda each: each.tokens, reverse=longer)[:NAMED]
    return [(f"replies went from {first:.0f} to {last:.0f} tokens", extreme)]


def _common_answer_signs(
    before: Sequence[EpisodeSummary], rewarded: Sequence[EpisodeSummary]
) -> list[tuple[str, list[EpisodeSummary]]]:
    """One answer for most of the tasks that was rare at first, and that the tasks do not say is right."""
    open_ = [each for each in rewarded if each.answer]
    if len({each.task for each in open_}) < TASKS:
        return []
    (answer, count), *_ = Counter(each.answer for each in open_).most_common(1)
    those = [each for each in open_ if each.answer == answer]
    at_first = sum(each.answer == answer for each in before) / max(len(before), 1)
    mostly_right = sum(each.is_right for each in those) > len(those) / 2
    if (
        count < TAKEN_OVER * len(open_)
        or at_first > TAKEN_OVER / 2
        or mostly_right
        or len({e.task for e in those}) < TASKS
    ):
        return []
    shown = answer if len(answer) <= 60 else f"{answer[:60]}…"
    return [(f"{count} of {len(open_)} rewarded answers to {len({e.task for e in open_})} tasks are {shown!r}", those)]


def _refusal_signs(
    before: Sequence[EpisodeSummary], rewarded: Sequence[EpisodeSummary]
) -> list[tuple[str, list[EpisodeSummary]]]:
    """Rewarded answers that refuse."""
    those = [each for each in rewarded if each.is_refusal]
    if not those or len({each.task for each in those}) < TASKS:
        return []
    now, at_first = len(those) / len(rewarded), sum(each.is_refusal for each in before) / max(len(before), 1)
    if now < at_first + REFUSING:
        return []
    return [(f"{now:.0%} of the rewarded answers refuse ({at_first:.0%} at first)", those)]


def _first_of_each_task(order: Iterable[EpisodeSummary]) -> list[EpisodeSummary]:
    """The first of each task."""
    seen: dict[str, EpisodeSummary] = {}
    for each in order:
        seen.setdefault(each.task, each)
    return list(seen.values())[:NAMED]


def _last_answer(episode: Episode) -> str:
    """The text of the episode's last reply."""
    for call in reversed(episode.calls):
        if call.reply is not None and call.is_delivered:
            message = episode.messages[call.reply]
            text = message.get("content") or ""
            return " ".join(str(text).split()).casefold()[:400]
    return ""
