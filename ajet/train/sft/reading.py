"""What an experiment gives to learn from, read, tokenized and bounded, before a model is loaded.

Invariant: what is left out is said, with where it is; a run that nothing is left for does not begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loguru import logger

from ajet.record.console import counted
from ajet.schema.errors import TaskError
from ajet.schema.messages import text_of
from ajet.train.sft.lessons import Lesson, lesson_of
from ajet.train.sft.recorded import find_source_run, lessons_of_run, require_same_words
from ajet.train.sft.rows import find_files, read_files

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
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
