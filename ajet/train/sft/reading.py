"""Read, tokenize and length-check an experiment's lessons before a model is loaded.

Invariant: skipped lessons are logged with their places. A run without lessons does not begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from ajet.record.console import counted
from ajet.record.episodes import EpisodeFiles
from ajet.record.find_run import require_run
from ajet.schema.errors import TaskError, UserError
from ajet.schema.task import extract_text
from ajet.train.sft.lessons import Lesson, make_lesson, use_record
from ajet.train.sft.rows import find_files, read_files

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.config.schema.sft import SftConfig
    from ajet.schema.episode import Episode
    from ajet.tokens import Renderer

LEFT_OUT_SHOWN = 3
"""Number of skipped lessons named in a warning."""
KEY = "ajet.sft.from_run"
REPLIES_CHECKED = 16
"""Number of replies decoded to check the tokenizer."""


def require_sources(experiment: Experiment) -> None:
    """Raise UserError if a file of rows or the source run of the episodes is missing."""
    sft = experiment.ajet.sft
    for key, files in (("train_files", sft.train_files), ("val_files", sft.val_files)):
        find_files(files or (), experiment.base, key=f"ajet.sft.{key}")
    if sft.from_run is not None:
        find_source_run(sft, experiment.root)


def read_lessons(experiment: Experiment, renderer: Renderer) -> list[Lesson]:
    """Return the lessons to train on. Raise UserError for invalid or missing rows."""
    sft = experiment.ajet.sft
    if sft.from_run is not None:
        lessons = select_episodes(sft, experiment.root)
        require_same_tokenizer(lessons, renderer, sft.from_run)
        return _drop_long_lessons(lessons, experiment)
    assert sft.train_files is not None, "a run without sft.train_files is refused before"
    return _read_file_lessons(sft.train_files, experiment, renderer, key="ajet.sft.train_files")


def read_held_out_lessons(experiment: Experiment, renderer: Renderer) -> list[Lesson]:
    """Return the held-out lessons, which only measure the loss."""
    files = experiment.ajet.sft.val_files
    return _read_file_lessons(files, experiment, renderer, key="ajet.sft.val_files") if files else []


def log_lessons(settings: AjetConfig, lessons: Sequence[Lesson], held_out: Sequence[Lesson], total: int) -> None:
    """Log a summary of the lessons before the first of `total` steps."""
    calls = [call for lesson in lessons for talk in lesson.conversations for call in talk.calls]
    learned = sum(call.response_ids.size for call in calls if call.trained)
    forks = sum(call.fork is not None for call in calls)
    size = settings.data.train_batch_size
    rows = counted(len(lessons), "pair" if settings.sft.objective == "dpo" else "row")
    parts = [f"{rows} with {learned:,} tokens to learn"]
    if held_out:
        parts.append(f"{counted(len(held_out), 'row')} held out")
    if forks:
        parts.append(f"{counted(forks, 'turn')} in a separate context (the template renders earlier turns differently)")
    passes = total * size / len(lessons)
    times = "once" if passes == 1 else f"{passes:.3g} times"
    logger.info("{}; {} of {}: each {}", "; ".join(parts), counted(total, "step"), size, times)
    first_conversation = lessons[0].conversations[0]
    replies = (
        first_conversation.messages[call.reply]
        for call in first_conversation.calls
        if call.trained and call.reply is not None
    )
    if (reply := next(replies, None)) is not None:  # a recorded reply may be ids alone
        logger.info("the first reply to learn: {!r:.160}", extract_text(reply) or reply.get("tool_calls") or "")


def _read_file_lessons(files: str | list[str], experiment: Experiment, renderer: Renderer, *, key: str) -> list[Lesson]:
    """Return the lessons of files of rows, without those that are too long. Raises TaskError for an invalid row."""
    rows = read_files(files, experiment.base, pairs=experiment.ajet.sft.objective == "dpo", key=key)
    return _drop_long_lessons([make_lesson(row, renderer) for row in rows], experiment)


def _drop_long_lessons(lessons: list[Lesson], experiment: Experiment) -> list[Lesson]:
    """Return the lessons that fit `rollout.max_model_len`. Raises TaskError if none fits."""
    limit = experiment.ajet.rollout.max_model_len
    fitting: list[Lesson] = []
    too_long: list[Lesson] = []
    for lesson in lessons:
        (fitting if max(talk.tokens for talk in lesson.conversations) <= limit else too_long).append(lesson)
    if not too_long:
        return fitting
    places = ", ".join(lesson.where for lesson in too_long[:LEFT_OUT_SHOWN])
    places += " …" if len(too_long) > LEFT_OUT_SHOWN else ""
    text = f"{len(too_long)} of {counted(len(lessons), 'row')} are longer than rollout.max_model_len ({limit} tokens)"
    if not fitting:
        raise TaskError(f"No row is left to learn from: {text}.", where=places, do="set ajet.rollout.max_model_len")
    logger.warning("{} and are left out: {}", text, places)
    return fitting


def select_episodes(settings: SftConfig, root: Path) -> list[Lesson]:
    """Return the best episodes of each group of a recorded run, or the best and the worst, as lessons.

    Only scored episodes with trainable tokens are taken, in training order. Episodes of equal reward are ordered by
    name. No token is encoded a second time.

    Raises:
        UserError: the run is missing, or has no usable episodes.
    """
    folder = find_source_run(settings, root)
    select = _select_pair if settings.objective == "dpo" else _select_best
    lessons: list[Lesson] = []
    for group in _read_groups(folder):
        for episodes in select(group, settings):
            first_episode = episodes[0]
            task = first_episode.task.model_copy(
                update={"task_id": f"{first_episode.task.task_id}@{first_episode.uuid}"}
            )
            lessons.append(Lesson(task, tuple(map(use_record, episodes)), f"episode {first_episode.uuid}"))
    if not lessons:
        required = "groups whose episodes have different rewards" if settings.objective == "dpo" else "scored episodes"
        reward_limit = f", with a reward of at least {settings.min_reward:g}" if settings.min_reward is not None else ""
        raise UserError(
            "This run has no episodes to learn from.", where=str(folder), expected=f"{required}{reward_limit}"
        )
    return lessons


def find_source_run(settings: SftConfig, root: Path) -> Path:
    """Return the folder of the source run. Raise UserError if the run is missing."""
    assert settings.from_run is not None
    expected = f"a run with recorded episodes ({KEY}: its name or folder)"
    return require_run(settings.from_run, root, holding="episodes", expected=expected)


def require_same_tokenizer(lessons: Sequence[Lesson], renderer: Renderer, run: str) -> None:
    """Raise UserError if every checked reply decodes to a text different from the record."""
    replies = (
        (text, renderer.decode(call.response_ids))
        for lesson in lessons
        for talk in lesson.conversations
        for call in talk.calls
        if call.trained and call.reply is not None and (text := extract_text(talk.messages[call.reply]).strip())
    )
    checked = [text in decoded for text, decoded in islice(replies, REPLIES_CHECKED)]
    if checked and not any(checked):
        raise UserError(
            "The tokenizer of the model to train cannot decode this run's tokens: another tokenizer made them.",
            where=f"{KEY}: {run}",
            expected="a run of a model with the same tokenizer",
            do="set ajet.model.path to such a model, or write the replies to a file of rows (sft.train_files)",
        )


def _read_groups(folder: Path) -> Iterator[list[Episode]]:
    """Yield the usable episodes of each group, in descending order of reward."""
    files, read_uuids = EpisodeFiles(folder / "episodes"), set[str]()
    for step in files.steps():
        groups: dict[str, list[Episode]] = {}
        for episode in files.read(step):
            if episode.uuid in read_uuids:
                continue  # several steps may have trained on the same episode
            read_uuids.add(episode.uuid)
            if episode.scored and any(line.sampled for line in episode.timelines):
                groups.setdefault(episode.group, []).append(episode)
        for members in groups.values():
            yield sorted(members, key=lambda member: (-(member.reward or 0.0), member.uuid))


def _select_best(group: list[Episode], settings: SftConfig) -> list[tuple[Episode, ...]]:
    """Return the best episodes of a group, sorted by reward, each in a tuple of its own.

    Episodes below `sft.min_reward` are left out.
    """
    min_reward = settings.min_reward
    best_episodes = group[: settings.best_of_group]
    return [(episode,) for episode in best_episodes if min_reward is None or (episode.reward or 0.0) >= min_reward]


def _select_pair(group: list[Episode], settings: SftConfig) -> list[tuple[Episode, ...]]:
    """Return the best and the worst episode of a group, sorted by reward, as a list of one pair.

    The list is empty if their rewards are equal, or the best one's is below `sft.min_reward`.
    """
    best, worst = group[0], group[-1]
    reward = best.reward or 0.0
    is_enough = settings.min_reward is None or reward >= settings.min_reward
    return [(best, worst)] if is_enough and reward > (worst.reward or 0.0) else []
