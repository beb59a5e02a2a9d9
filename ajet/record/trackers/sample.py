"""Some episodes of a step as rows of a table, for trackers that can show one.

Invariant: at most `MOST` rows of short text, chosen without chance from the worst reward to the best, and without
secrets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ajet.record.image_text import last_words
from ajet.record.secrets import Redactor
from ajet.schema.episode import Episode, Outcome

MOST = 16  # rows a step
LONGEST = 500  # characters of a cell
COLUMNS = ("task", "repeat", "status", "reward", "advantage", "question", "answer", "reason")
Cell = str | float | None


def sample_rows(episodes: Sequence[Episode], outcomes: Mapping[str, Outcome], redact: Redactor) -> list[list[Cell]]:
    """Return table rows of up to `MOST` episodes, spread evenly from the worst reward to the best.

    Returns:
        A row per chosen episode, with a cell for each of `COLUMNS`.
    """
    worst_first = sorted(episodes, key=lambda episode: (episode.reward is not None, episode.reward or 0.0))
    count = min(MOST, len(worst_first))
    selected = [worst_first[round(index * (len(worst_first) - 1) / max(count - 1, 1))] for index in range(count)]
    return [_episode_row(episode, outcomes.get(episode.uuid), redact) for episode in selected]


def _episode_row(episode: Episode, outcome: Outcome | None, redact: Redactor) -> list[Cell]:
    """Return the cells of an episode in the order of `COLUMNS`, with texts shortened and without secrets."""

    def short(text: str) -> str:
        redacted = redact(text)
        return redacted if len(redacted) <= LONGEST else redacted[: LONGEST - 1] + "…"

    reason = episode.verdict.reason if episode.verdict else str(episode.failure or episode.ending)
    return [
        short(episode.task.task_id),
        episode.repeat,
        episode.status,
        episode.reward,
        outcome.advantage if outcome else None,
        short(episode.task.main_query),
        short(last_words(episode.messages)),
        short(reason),
    ]
