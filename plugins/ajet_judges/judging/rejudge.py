"""`ajet rejudge`: scores the recorded episodes of a run again, without inference or environment.

Invariant: a judge gets the recorded task, workflow output and tool results. A judge that ranks gets all attempts at a
task together. The record is only read, and the run's judge budget is not spent. A failed episode is scored again only
if its judge had failed. An episode whose judge fails now has no reward.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from ajet.commands.evaluation.judge_comparison import PLAYED, JudgeComparison, compare_judges
from ajet.commands.evaluation.judged import (
    RejudgedAttempt,
    open_judges,
    record_failure,
    rejudge_attempts,
    rejudge_group,
)
from ajet.config import Experiment, load_experiment, load_recorded_experiment
from ajet.config.dotenv import load_project_dotenv
from ajet.config.record_file import list_record_folder
from ajet.record.attempts import AttemptRecord, decode_attempt
from ajet.record.episodes import NAME, decode_recorded, open_arrays
from ajet.record.files import read_rows
from ajet.record.find_run import newest_run, run_folder, suggest_run
from ajet.record.run_directory import CONFIG
from ajet.schema.episode import Episode, Outcome
from ajet.schema.errors import JudgeFailure, UserError
from ajet.schema.task import Task
from ajet.task_judge import Judge, open_judge
from ajet_judges.judging.what_if import StepWhatIf, WhatIfCredit, replace_verdict


@dataclass(frozen=True, slots=True)
class RejudgedEpisode:
    """One recorded episode with its recorded verdict and its new one."""

    file: str
    before: AttemptRecord
    after: AttemptRecord
    advantages: tuple[float | None, float | None] = (None, None)
    """Advantages under both judges; None without credit."""

    @property
    def changed(self) -> bool:
        """True if the rewards differ, or only one judge gives a reward."""
        return self.before.reward != self.after.reward


@dataclass(frozen=True, slots=True)
class RejudgedRun:
    """All episodes of a run with their recorded and their new verdicts."""

    run: Path
    judge: str
    episodes: Sequence[RejudgedEpisode]
    steps: Sequence[StepWhatIf]
    """One entry for each episode file, in order."""
    why_no_advantages: str = ""
    """Empty if there are advantages."""

    @property
    def why_undecided(self) -> str:
        """Reason why no episode has a new verdict, or ""."""
        if any(episode.after.reward is not None for episode in self.episodes):
            return ""
        reasons = Counter(episode.after.failure or episode.after.reason for episode in self.episodes)
        most_common = next((text for text, _ in reasons.most_common() if text), "")
        return (
            "no episode got a score" + (f", mostly: {most_common}" if most_common else "")
            if self.episodes
            else "no episodes"
        )


@contextmanager
def open_run_judge(folder: Path, *, reference: str | None = None, conf: Path | None = None) -> Iterator[Judge]:
    """Open a judge for the run in `folder`, within a block.

    Args:
        reference: a judge as `file.py->NAME`, or the name of a scorer.
        conf: a YAML with a judge or scorers. Without both, it is the run's own judge.

    Raises:
        UserError: the judge cannot be opened.
    """
    experiment = _isolate_budget(
        load_experiment(conf) if conf is not None else load_recorded_experiment(folder / CONFIG)
    )
    judge = open_judges(experiment, [reference])[reference] if reference else open_judge(experiment)
    if not judge.judges:
        raise UserError(
            "The run has no judge: its workflow sets the rewards, and rejudge does not run the workflow again.",
            where=str(conf or folder / CONFIG),
            do="use --judge FILE.py->NAME for a judge, or --judge NAME for a scorer",
        )
    try:
        yield judge
    finally:
        judge.let_go()


def rejudge_run(folder: Path, judge: Judge) -> RejudgedRun:
    """Judge all episodes of a recorded run. Raises UserError."""
    return asyncio.run(_rejudge_files(folder, load_recorded_experiment(folder / CONFIG), judge))


def compare_judges_on_run(named: str, root: Path, references: Sequence[str]) -> JudgeComparison:
    """Score a run's recorded episodes with several judges and return their agreement.

    Each episode is scored by itself, without a ranking.

    Args:
        named: the run's name or folder.
        root: folder of all runs.
        references: judges as `file.py->NAME`, scorers, or YAML files.

    Raises:
        UserError: the run or a judge cannot be used.
    """
    folder = find_recorded_run(named, root)
    judges = open_judges(_isolate_budget(load_recorded_experiment(folder / CONFIG)), references)
    recorded = list(
        {
            row.get("uuid", f"{path}:{number}"): _parse_attempt(row, f"{path}:{number}")
            for _, _, path in list_episode_files(folder)
            for number, row in enumerate(read_rows(path), 1)
        }.values()  # an episode on which several steps trained is in the file of each step
    )

    async def judge_all() -> dict[str, list[AttemptRecord]]:
        """Score all recorded episodes with each judge."""
        return {
            name: [rejudged.attempt for rejudged in await rejudge_attempts(judge, recorded)]
            for name, judge in judges.items()
        }

    try:
        return compare_judges({PLAYED: [attempt for attempt, _ in recorded]} | asyncio.run(judge_all()))
    finally:
        for judge in judges.values():
            judge.let_go()


def _isolate_budget(experiment: Experiment) -> Experiment:
    """Return the experiment under another name, since budgets of judge calls are counted by name."""
    return replace(experiment, name=f"{experiment.name} rejudged {uuid4().hex[:12]}")


def find_recorded_run(named: str, root: Path) -> Path:
    """Return the folder of a run that has episodes, and load its project's .env file. Raises UserError."""
    folder = newest_run(named, root, holding="episodes") or run_folder(named, root, holding="episodes")
    if not (folder / "episodes").is_dir() or not (folder / CONFIG).exists():
        raise UserError(
            f"There are no episodes of a run named {named}.",
            where=str(folder / "episodes"),
            expected="a run folder",
            do=suggest_run(named, root),
        )
    load_project_dotenv(record=folder)
    return folder


def list_episode_files(folder: Path) -> list[tuple[int, str, Path]]:
    """Return (step, split, file) of all episode files of a run, ordered by step."""
    matches = [match for name in list_record_folder(folder / "episodes") if (match := NAME.fullmatch(name))]
    return sorted((int(match[1]), match[2] or "train", folder / "episodes" / match[0]) for match in matches)


async def _rejudge_files(folder: Path, experiment: Experiment, judge: Judge) -> RejudgedRun:
    """Judge each recorded episode again, once, and compute the advantages of each step under the new verdicts.

    Args:
        folder: folder of the run.
        experiment: the run's recorded experiment.
        judge: the judge to use.
    """
    what_if = WhatIfCredit(experiment)
    episodes: list[RejudgedEpisode] = []
    steps = []
    results: dict[str, tuple[AttemptRecord, RejudgedAttempt]] = {}
    """Episode uuid -> recorded and rejudged attempt; once, however many steps trained on the episode."""
    for step, split, path in list_episode_files(folder):
        recorded, attempts = _read_episodes(path)
        new_indices = [index for index, (episode, _) in enumerate(recorded) if episode.uuid not in results]
        rejudged_new = await _rejudge_episodes(
            judge,
            split,
            [recorded[index] for index in new_indices],
            [attempts[index] for index in new_indices],
            experiment.ajet.seed,
        )
        results |= {
            recorded[index][0].uuid: (attempts[index][0], rejudged_attempt)
            for index, rejudged_attempt in zip(new_indices, rejudged_new, strict=True)
        }
        judged = []
        for episode, _ in recorded:
            before, rejudged = results[episode.uuid]
            if rejudged.verdict is None:  # an episode that was not judged is unchanged; after a failure it has no score
                judged.append(episode if rejudged.attempt is before else replace_verdict(episode, None))
                continue
            try:
                judged.append(replace_verdict(episode, what_if.locate_verdict_rewards(episode, rejudged.verdict)))
            except JudgeFailure as problem:
                results[episode.uuid] = before, record_failure(before, problem)
                judged.append(replace_verdict(episode, None))
        curve, advantages = what_if.compute_step(step, split, recorded, judged)
        steps.append(curve)
        no_advantages = (None, None)
        episodes += [
            RejudgedEpisode(path.name, before, rejudged.attempt, advantages.get(before.uuid, no_advantages))
            for before, rejudged in (results[recorded[index][0].uuid] for index in new_indices)
        ]
    return RejudgedRun(folder, str(judge), episodes, steps, what_if.why_no_advantages)


async def _rejudge_episodes(
    judge: Judge,
    split: str,
    recorded: Sequence[tuple[Episode, Outcome]],
    attempts: Sequence[tuple[AttemptRecord, Task]],
    seed: int,
) -> list[RejudgedAttempt]:
    """Judge the episodes of one file again, and return the results in their order.

    A judge that ranks gets the training episodes of a group together; an episode alone in its group, and validation,
    are judged one by one.

    Args:
        recorded: the episodes with their outcomes.
        attempts: the same episodes as input of a judge.
        seed: fixes the order in which attempts are shown to a ranking judge.
    """
    groups: dict[str, list[int]] = {}
    for index, (episode, _) in enumerate(recorded):
        groups.setdefault(episode.group or episode.uuid, []).append(index)
    if judge.ranks is None or split == "validation":
        return await rejudge_attempts(judge, attempts)
    by_index: dict[int, RejudgedAttempt] = {}
    alone = [members[0] for members in groups.values() if len(members) < 2]
    by_index |= zip(alone, await rejudge_attempts(judge, [attempts[index] for index in alone]), strict=True)
    ranked = [members for members in groups.values() if len(members) > 1]
    rankings = await asyncio.gather(
        *(rejudge_group(judge, [attempts[index] for index in members], seed) for members in ranked)
    )
    for members, verdicts in zip(ranked, rankings, strict=True):
        by_index |= zip(members, verdicts, strict=True)
    return [by_index[index] for index in range(len(attempts))]


def _read_episodes(path: Path) -> tuple[list[tuple[Episode, Outcome]], list[tuple[AttemptRecord, Task]]]:
    """Return a file's episodes with their outcomes, and the same attempts as input of a judge.

    Raises UserError for a damaged file.
    """
    recorded, attempts = [], []
    with open_arrays(path) as blobs:
        for line_number, row in enumerate(read_rows(path), 1):
            attempts.append(_parse_attempt(row, f"{path}:{line_number}"))
            recorded.append(decode_recorded(row, blobs, f"{path}:{line_number}"))
    return recorded, attempts


def _parse_attempt(row: dict[str, Any], where: str) -> tuple[AttemptRecord, Task]:
    """Convert a recorded row to the attempt and task that a judge gets. Raises UserError that names the line."""
    try:
        return decode_attempt(row, judge_inputs=True), Task(**row["task"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise UserError("A line of the record cannot be read as an episode.", where=where) from error
