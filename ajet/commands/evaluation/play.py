"""The verb: each model plays what no record of it has, and their scores are put side by side.

Invariant: an attempt that has ended is on the disk, whatever ends the command; given again, it plays what is missing
and no more. A model of which nothing is missing is not loaded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.commands.evaluation import record
from ajet.commands.evaluation.judge_comparison import PLAYED, JudgeComparison, compared
from ajet.commands.evaluation.judged import open_judges, scores_by_judge
from ajet.commands.evaluation.models import BASE, Model
from ajet.commands.evaluation.record import Evaluation
from ajet.commands.run_hooks import enter_run_hooks
from ajet.commands.services import require_answers, services_of
from ajet.engine.endpoint import ENDPOINT_KEY
from ajet.engine.endpoint import services_of as model_servers
from ajet.record.attempts import Attempt
from ajet.record.console import console, format_age
from ajet.record.episodes import EpisodeWriter
from ajet.record.progress import Bar, Progress
from ajet.record.scores import Comparison, Scores, compare, worth_of_failure
from ajet.schema.episode import Group
from ajet.schema.errors import UserError
from ajet.task_judge.registry import prepare_judge
from ajet.train.footprint import render_with_tools
from ajet.train.interrupts import Interrupts

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record import RunDirectory
    from ajet.schema.episode import Episode
    from ajet.schema.task import Task
    from ajet.task_reader import OpenedReader
    from ajet.task_reader.contamination import Overlap


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """The command line's options of an evaluation beyond experiment and models."""

    tasks: Path | None = None
    """A JSON Lines file in place of the validation tasks."""
    at_most: int | None = None
    repeats: int | None = None
    temperature: float | None = None
    judges: Sequence[str] = ()
    """References to judges, or YAMLs of some, that see what was played besides the experiment's own."""
    fresh: bool = False
    training: bool = False
    """The training tasks in place of the validation tasks."""
    writes_tasks: bool = False
    """The tasks are written as JSON afterwards: those that cannot be are refused first."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The attempts and scores of one model."""

    model: Model
    folder: Path
    """Its record."""
    scores: Scores
    judged: Mapping[str, Scores]
    """By other judges, by reference."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an evaluation."""

    evaluated: tuple[Evaluated, ...]
    """As they were named; the first is what the others are compared with."""
    tasks: int
    """That were asked for."""
    repeats: int
    sampling: str
    """In words."""
    seed: int
    played: Sequence[Task] = ()
    """Those tasks."""
    known: Overlap | None = None
    """Which of the tasks are trained on, where the reader has training tasks."""

    def comparisons(self) -> list[tuple[Evaluated, Comparison]]:
        """Each of the others with the first."""
        first, *others = self.evaluated
        pairs = [(each, compare(first.scores, each.scores, seed=self.seed)) for each in others]
        return [(each, compared) for each, compared in pairs if compared is not None]

    def untold(self) -> list[str]:
        """The models, or models under a further judge, of which nothing is known after all: nothing was scored. A
        training, and a debug run, end in an error there."""
        found = [each.model.label for each in self.evaluated if not each.scores.scored]
        return found + [
            f"{each.model.label} by {judge}"
            for each in self.evaluated
            for judge, scores in each.judged.items()
            if each.scores.scored and not scores.scored
        ]

    def judges(self) -> JudgeComparison | None:
        """The judge of the play and the further ones, over what all models played; None without further ones."""
        names = list(self.evaluated[0].judged)
        if not names:
            return None
        played = {PLAYED: [attempt for each in self.evaluated for attempt in each.scores.attempts]}
        return compared(
            played | {name: [a for each in self.evaluated for a in each.judged[name].attempts] for name in names}
        )


def evaluate_models(experiment: Experiment, models: Sequence[Model], asked: EvaluationOptions) -> Result:
    """Play the models, one after the other. Raises UserError; KeyboardInterrupt after what has ended is recorded."""
    experiment = prepared(experiment, asked)
    with Interrupts().installed(), enter_run_hooks(experiment, experiment.root / experiment.name / "eval"):
        return _evaluated(experiment, models, asked)


def _evaluated(experiment: Experiment, models: Sequence[Model], asked: EvaluationOptions) -> Result:
    from ajet.task_reader.registry import OfTraining, open_reader

    require_answers([each for each in services_of(experiment) if each.key != ENDPOINT_KEY])
    prepare_judge(experiment)
    judges = open_judges(experiment, asked.judges)
    reader = open_reader(experiment)
    if asked.training:
        reader = OfTraining(reader)
    if asked.writes_tasks:
        reader.json_tasks("validation")
    evaluations = _evaluations(experiment, models, asked, reader)
    for evaluation in evaluations:
        if asked.fresh or not _is_played(evaluation, record.earlier(evaluation)):
            _require_model_server(evaluation)
    played: list[tuple[Model, Path, list[Attempt]]] = []
    for evaluation in evaluations:
        folder = _played(evaluation, fresh=asked.fresh)
        played.append((evaluation.model, folder, record.recorded(evaluation, folder, told=bool(judges))))
    lowest = worth_of_failure(attempt for _, _, attempts in played for attempt in attempts)
    first = evaluations[0]
    tasks = dict(first.tasks)
    return Result(
        tuple(
            Evaluated(model, folder, Scores(attempts, lowest), scores_by_judge(judges, attempts, tasks))
            for model, folder, attempts in played
        ),
        tasks=first.count,
        repeats=first.repeats,
        sampling=sampling_words(experiment),
        seed=experiment.ajet.seed,
        played=[task for _, task in first.tasks[: first.count]],
        known=None if asked.training else _known(reader, [task for _, task in first.tasks[: first.count]]),
    )


def _is_played(evaluation: Evaluation, again: Path | None) -> bool:
    return again is not None and record.missing(evaluation, again) == 0


def _require_model_server(evaluation: Evaluation) -> None:
    """Ask the model's endpoint, if it is one. Raises UserError."""
    model = evaluation.model
    if model.url is None:
        return
    services = list(model_servers(evaluation.experiment))
    if "@" in model.label or "://" in model.label:  # by --model, and not by the YAML
        do = f"start the server at {model.url}, or name another one (--model NAME@URL)"
        services = [replace(each, key=f"--model {model.label}", do=do) for each in services]
    require_answers(services)


def _known(reader: OpenedReader, held_out: Sequence[Task]) -> Overlap | None:
    from ajet.task_reader.contamination import overlap

    try:
        return overlap(reader.tasks("train"), held_out) if reader.has("train") else None
    except UserError as problem:  # it is not what the evaluation stands on
        _say(f"whether a task is trained on is not known: {problem.what}")
        return None


def prepared(experiment: Experiment, asked: EvaluationOptions) -> Experiment:
    """The experiment as it is evaluated: on an engine that trains nothing, over these tasks, drawn so. Raises
    UserError."""
    settings = experiment.ajet.model_copy(deep=True)
    settings.backbone = "debug"
    reader, val = settings.task_reader, settings.rollout.val_kwargs
    if asked.tasks is not None:
        file = asked.tasks.expanduser()
        if file.is_dir():
            raise UserError(f"{asked.tasks} is a folder.", where="--tasks", expected="a file of JSON Lines")
        if not file.is_file():
            raise UserError(f"There is no file {asked.tasks}.", where="--tasks", expected="JSON Lines, one task a line")
        if not hasattr(getattr(reader, str(reader.type), None), "validation"):  # its files are of another kind
            reader.type = "jsonl_dataset_file"
        getattr(reader, reader.type).validation.file_path = str(file.absolute())
    repeats = settings.validation_repeats if asked.repeats is None else asked.repeats
    if asked.temperature is not None:
        val.do_sample, val.temperature = asked.temperature > 0, asked.temperature
    elif repeats > 1 and not val.do_sample:  # greedy attempts would all be one
        val.do_sample, val.temperature = True, val.temperature or settings.rollout.temperature
    val.num_repeat = settings.trainer_common.val_pass_n = repeats
    found = replace(experiment, ajet=settings)
    found.require_ready(evaluating=True)
    return found


def sampling_words(experiment: Experiment) -> str:
    """The words for how replies are drawn."""
    val = experiment.ajet.rollout.val_kwargs
    if not val.do_sample or val.temperature == 0:
        return "greedy"
    more = [f"top_p {val.top_p:g}"] if val.top_p < 1 else []
    return ", ".join([f"temperature {val.temperature:g}", *more, *([f"top_k {val.top_k}"] if val.top_k > 0 else [])])


def _evaluations(
    experiment: Experiment, models: Sequence[Model], asked: EvaluationOptions, reader: OpenedReader
) -> list[Evaluation]:
    if not reader.has("validation"):
        raise UserError(
            "There are no validation tasks.",
            where=str(experiment.yaml_path),
            expected="tasks that are not trained on",
            do="name a file with --tasks FILE.jsonl, or set the reader's validation in the YAML",
        )
    tasks = list(enumerate(reader.tasks("validation")))
    count = len(tasks) if asked.at_most is None else min(asked.at_most, len(tasks))
    repeats = experiment.ajet.validation_repeats
    return [Evaluation(model, model.of(experiment), tasks, count, repeats, reader) for model in models]


def _played(evaluation: Evaluation, *, fresh: bool) -> Path:
    """The record that has all that was asked for, after playing what was missing."""
    from ajet.commands.launch import closed_by_outcome, warn_of_unconfined

    again = None if fresh else record.earlier(evaluation)
    if again is not None and _is_played(evaluation, again):
        then = record.file_of(again, evaluation.model.step).stat().st_mtime
        _say(f"{evaluation.model.label}: played {format_age(then)}, read from {again}; --fresh plays it again")
        return again
    run = record.begin(evaluation, again)
    warn_of_unconfined(evaluation.experiment)
    with closed_by_outcome(run):
        try:
            _play(evaluation, run)
        except UserError as error:
            if error.where == "model.path" and evaluation.model.label not in BASE:  # the YAML's own is another
                error.where = f"--model {evaluation.model.label}"
            raise
    return run.path


def _play(evaluation: Evaluation, run: RunDirectory) -> None:
    from ajet.train.parts import assemble, pins_of
    from ajet.train.validation import validation_metrics

    label, step = evaluation.model.label, evaluation.model.step
    run.status.set(phase="loading", step=step)
    before = record.over(record.recorded(evaluation, run.path))
    with Progress() as bars, EpisodeWriter(run.episodes, step, record.SPLIT) as writer:
        shown = _Shown(label, bars)

        def on_episode(episode: Episode) -> None:
            writer.put(episode)
            shown.ended(episode)

        with assemble(
            evaluation.experiment,
            run_id=run.run_id,
            on_episode=on_episode,
            split="validation",
            pins=pins_of(run),
            reader=evaluation.reader,
        ) as parts:
            fitting = {task.task_id for task in parts.tasks("validation")}
            played = [(order, task) for order, task in evaluation.tasks if task.task_id in fitting]
            record.say_left(run.path, [order for order, _ in played])
            asked = [(order, task) for order, task in played if order < evaluation.count]
            if asked and parts.backbone.tokenizer is not None:
                render_with_tools(parts.experiment, asked[0][1], parts.backbone.tokenizer)
            shown.begin(len(asked) * evaluation.repeats, len(before))
            run.status.set(phase="validation", step=step)
            began = time.monotonic()
            groups = list(
                parts.rollout.play(asked, step=step, split="validation", repeats=evaluation.repeats, over=before)
            )
            seconds = time.monotonic() - began
        shown.close()
    if before:
        groups = _groups(evaluation, run)
    run.metrics.log(step, validation_metrics(groups) | {"seconds/validation": seconds})


def _groups(evaluation: Evaluation, run: RunDirectory) -> list[Group]:
    """The recorded groups of what was asked for."""
    found: dict[int, Group] = {}
    for episode in run.episodes.read(evaluation.model.step, record.SPLIT):
        if episode.order < evaluation.count and episode.repeat < evaluation.repeats:
            found.setdefault(episode.order, Group(episode.task, episode.order, [])).episodes.append(episode)
    return [found[order] for order in sorted(found)]


class _Shown:
    """The bar of one model."""

    def __init__(self, label: str, bars: Progress) -> None:
        self._label, self._bars = label, bars
        self._bar: Bar | None = None
        self._count = self._worth = 0.0

    def begin(self, total: int, done: int) -> None:
        if done:
            _say(f"{self._label}: {done} of {total} attempts are recorded, {total - done} are played")
        self._bar = self._bars.bar(self._label, total, "attempts", done=done)

    def ended(self, episode: Episode) -> None:
        self._count += 1
        self._worth += episode.reward or 0.0
        if self._bar is not None:
            self._bar.advance(note=f"reward {self._worth / self._count:.3g}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _say(line: str) -> None:
    console.print(line, markup=False, soft_wrap=True, style="dim")
