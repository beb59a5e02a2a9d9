"""What an experiment gives to learn from, read, tokenized and bounded, before a model is loaded.

Invariant: what is left out is said, with where it is; a run that nothing is left for does not begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from ajet.record.console import counted
from ajet.record.episodes import EpisodeFiles
from ajet.record.find_run import known_run
from ajet.schema.errors import TaskError, UserError
from ajet.schema.messages import text_of
from ajet.train.sft.lessons import Lesson, lesson_of, of_record
from ajet.train.sft.rows import find_files, read_files

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.config.schema.sft import Sft
    from ajet.schema.episode import Episode
    from ajet.tokens import Renderer

NAMED = 3
"""Lessons that are left out and named."""


def require_sources(experiment: Experiment) -> None:
    """Raise UserError if a file of rows, or the run whose episodes are learned, is not there."""
    given = experiment.ajet.sft
    for key, files in (("train_files", given.train_files), ("val_files", given.val_files)):
        find_files(files or (), experiment.base, key=f"ajet.sft.{key}")
    if given.from_run is not None:
        find_source_run(given, experiment.root)


def lessons_of(experiment: Experiment, words: Renderer) -> list[Lesson]:
    """The lessons to learn. Raises UserError."""
    given = experiment.ajet.sft
    if given.from_run is not None:
        found = lessons_of_run(given, experiment.root)
        require_same_words(found, words, given.from_run)
        return _within(found, experiment)
    assert given.train_files is not None, "a run does not begin without"
    return _of_files(given.train_files, experiment, words, key="ajet.sft.train_files")


def held_out(experiment: Experiment, words: Renderer) -> list[Lesson]:
    """The lessons of which only the loss is measured; empty where nothing is named."""
    files = experiment.ajet.sft.val_files
    return _of_files(files, experiment, words, key="ajet.sft.val_files") if files else []


def tell(settings: AjetConfig, lessons: Sequence[Lesson], apart: Sequence[Lesson], total: int) -> None:
    """Before the first step: what will be learned. `apart`: the held-out ones."""
    calls = [call for lesson in lessons for given in lesson.given for call in given.calls]
    learned = sum(call.response_ids.size for call in calls if call.trained)
    forks = sum(call.fork is not None for call in calls)
    size = settings.data.train_batch_size
    rows = counted(len(lessons), "pair" if settings.sft.objective == "dpo" else "row")
    said = [f"{rows} with {learned:,} tokens to learn"]
    if apart:
        said.append(f"{counted(len(apart), 'row')} held out")
    if forks:
        said.append(f"{counted(forks, 'turn')} in a context of their own (the template shows earlier turns otherwise)")
    passes = total * size / len(lessons)
    times = "once" if passes == 1 else f"{passes:.3g} times"
    logger.info("{}; {} of {}: each {}", "; ".join(said), counted(total, "step"), size, times)
    given = lessons[0].given[0]
    spoken = (given.messages[call.reply] for call in given.calls if call.trained and call.reply is not None)
    if (reply := next(spoken, None)) is not None:  # a recorded one may be ids alone
        logger.info("The first reply to learn: {!r:.160}", text_of(reply) or reply.get("tool_calls") or "")


def _of_files(files: str | list[str], experiment: Experiment, words: Renderer, *, key: str) -> list[Lesson]:
    rows = read_files(files, experiment.base, pairs=experiment.ajet.sft.objective == "dpo", key=key)
    return _within([lesson_of(row, words) for row in rows], experiment)


def _within(lessons: list[Lesson], experiment: Experiment) -> list[Lesson]:
    most = experiment.ajet.rollout.max_model_len
    kept = [lesson for lesson in lessons if max(given.tokens for given in lesson.given) <= most]
    if len(kept) == len(lessons):
        return kept
    here = {id(lesson) for lesson in kept}
    long = [lesson for lesson in lessons if id(lesson) not in here]
    named = ", ".join(lesson.where for lesson in long[:NAMED]) + (" …" if len(long) > NAMED else "")
    said = f"{len(long)} of {counted(len(lessons), 'row')} are longer than rollout.max_model_len ({most} tokens)"
    if not kept:
        raise TaskError(f"There is nothing to learn from: {said}.", where=named, do="set ajet.rollout.max_model_len")
    logger.warning("{} and left out: {}", said, named)
    return kept


KEY = "ajet.sft.from_run"
LOOKED_AT = 16
"""Replies that are read again, to see whose tokens they are."""


def lessons_of_run(settings: Sft, root: Path) -> list[Lesson]:
    """Return the best episodes of each group of a recorded run, or the best and the worst, as lessons.

    Only episodes that were scored and have tokens to learn are taken, in the order in which they were trained; equal
    rewards are told apart by the episodes' names. No token is encoded again. Raises UserError if the run is not there,
    or has nothing to learn from.
    """
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
