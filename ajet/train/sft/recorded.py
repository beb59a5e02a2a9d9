"""What a recorded run said, as lessons: the best episodes of its groups, or the best against the worst.

Invariants: only episodes that were scored and have tokens to learn are taken, in the order in which they were trained;
equal rewards are told apart by the episodes' names, so that another reading gives the same. No token is encoded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.record.episodes import EpisodeFiles
from ajet.record.find_run import known_run
from ajet.schema.errors import UserError
from ajet.schema.messages import text_of
from ajet.train.sft.lessons import Lesson, of_record

if TYPE_CHECKING:
    from ajet.config.schema.sft import Sft
    from ajet.schema.episode import Episode
    from ajet.tokens import Renderer

KEY = "ajet.sft.from_run"
LOOKED_AT = 16
"""Replies that are read again, to see whose tokens they are."""


def lessons_of_run(settings: Sft, root: Path) -> list[Lesson]:
    """Raises UserError where the run is not there, or has nothing to learn from."""
    folder = find_source_run(settings, root)
    pick = _pairs if settings.objective == "dpo" else _best
    found = [lesson for group in _groups(folder) for lesson in pick(group, settings)]
    if not found:
        wanted = "groups whose episodes have different rewards" if settings.objective == "dpo" else "scored episodes"
        least = f", of a reward of at least {settings.min_reward:g}" if settings.min_reward is not None else ""
        raise UserError("This run has nothing to learn from.", where=str(folder), expected=f"{wanted}{least}")
    return found


def find_source_run(settings: Sft, root: Path) -> Path:
    """Return the folder of the run whose episodes are learned. Raises UserError if it is not there."""
    assert settings.from_run is not None
    expected = f"a run with recorded episodes ({KEY}: its name or folder)"
    return known_run(settings.from_run, root, holding="episodes", expected=expected)


def require_same_words(lessons: Sequence[Lesson], words: Renderer, run: str) -> None:
    """Raises UserError where the ids of a record are another tokenizer's: none of its first replies reads as it was
    recorded."""
    replies = (
        (text, words.decode(call.response_ids))
        for lesson in lessons
        for given in lesson.given
        for call in given.calls
        if call.trained and call.reply is not None and (text := text_of(given.messages[call.reply]).strip())
    )
    looked = [text in read for text, read in islice(replies, LOOKED_AT)]
    if looked and not any(looked):
        raise UserError(
            "The tokens of this run are no words of the model to tune: another tokenizer made them.",
            where=f"{KEY}: {run}",
            expected="a run of a model with the same tokenizer",
            do="set ajet.model.path to such a model, or write the replies to a file of rows (sft.train_files)",
        )


def _groups(folder: Path) -> Iterator[list[Episode]]:
    """The usable episodes of each group, the best first."""
    files, seen = EpisodeFiles(folder / "episodes"), set[str]()
    for step in files.steps():
        groups: dict[str, list[Episode]] = {}
        for episode in files.read(step):
            if episode.uuid in seen:
                continue  # several steps may have trained on it
            seen.add(episode.uuid)
            if episode.scored and any(line.sampled for line in episode.timelines):
                groups.setdefault(episode.group, []).append(episode)
        for members in groups.values():
            yield sorted(members, key=lambda each: (-(each.reward or 0.0), each.uuid))


def _best(group: list[Episode], settings: Sft) -> Iterator[Lesson]:
    for episode in group[: settings.best_of_group]:
        if settings.min_reward is None or (episode.reward or 0.0) >= settings.min_reward:
            yield _lesson(episode)


def _pairs(group: list[Episode], settings: Sft) -> Iterator[Lesson]:
    best, worst = group[0], group[-1]
    enough = settings.min_reward is None or (best.reward or 0.0) >= settings.min_reward
    if enough and (best.reward or 0.0) > (worst.reward or 0.0):
        yield _lesson(best, worst)


def _lesson(*episodes: Episode) -> Lesson:
    first = episodes[0]
    task = first.task.model_copy(update={"task_id": f"{first.task.task_id}@{first.uuid}"})
    return Lesson(task, tuple(of_record(episode) for episode in episodes), f"episode {first.uuid}")
