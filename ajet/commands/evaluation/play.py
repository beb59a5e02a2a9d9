"""Evaluates models: runs each model's missing attempts, and compares the scores.

Invariant: an ended attempt is on the disk, whatever ends the command. The same command runs only missing attempts. A
model without missing attempts is not loaded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.commands.evaluation import record
from ajet.commands.evaluation.judge_comparison import PLAYED, JudgeComparison, compare_judges
from ajet.commands.evaluation.judged import open_judges, score_by_judge
from ajet.commands.evaluation.models import BASE_NAMES, EvaluatedModel
from ajet.commands.evaluation.record import Evaluation
from ajet.commands.services import enter_run_hooks, list_services, require_answers
from ajet.engine.endpoint import ENDPOINT_KEY
from ajet.engine.endpoint import services_of as model_servers
from ajet.record.attempts import AttemptRecord
from ajet.record.console import format_age, print_line
from ajet.record.episodes import EpisodeWriter
from ajet.record.progress import Progress, ProgressBar
from ajet.record.scores import Comparison, Scores, compare, failure_reward
from ajet.schema.episode import Episode
from ajet.schema.errors import UserError
from ajet.task_judge.registry import prepare_judge
from ajet.train.footprint import render_with_tools
from ajet.train.interrupts import Interrupts

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record import RunDirectory
    from ajet.schema.task import Task
    from ajet.task_reader import OpenedReader
    from ajet.task_reader.contamination import TaskOverlap


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """Flags of `ajet eval`, without the experiment and the models."""

    tasks: Path | None = None
    """A JSON Lines file in place of the validation tasks."""
    at_most: int | None = None
    repeats: int | None = None
    temperature: float | None = None
    judges: Sequence[str] = ()
    """References or YAMLs of further judges, in addition to the experiment's own."""
    fresh: bool = False
    training: bool = False
    """The training tasks in place of the validation tasks."""
    writes_tasks: bool = False
    """True if the tasks are exported as JSON. Tasks that JSON cannot represent are then refused before playing."""


@dataclass(frozen=True, slots=True)
class ModelScores:
    """The scores of one evaluated model, with the folder of its record."""

    model: EvaluatedModel
    folder: Path
    """Folder of the record of the evaluation."""
    scores: Scores
    judged: Mapping[str, Scores]
    """Scores of further judges, by reference."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The scores of all models of one `ajet eval`, over the same tasks."""

    evaluated: tuple[ModelScores, ...]
    """Scores in the order of the models. The first model is the baseline of the comparison."""
    tasks: int
    repeats: int
    sampling: str
    """How replies are sampled, in words."""
    seed: int
    played: Sequence[Task] = ()
    known: TaskOverlap | None = None
    """Overlap with the training tasks, if the reader has training tasks."""

    def compare_with_first(self) -> list[tuple[ModelScores, Comparison]]:
        """Return (scores, comparison) of each further model with the first one, over the tasks that both played."""
        first, *others = self.evaluated
        pairs = [(other, compare(first.scores, other.scores, seed=self.seed)) for other in others]
        return [(model_scores, comparison) for model_scores, comparison in pairs if comparison is not None]

    def list_unscored(self) -> list[str]:
        """Return the labels of models without any scored attempt, and those "MODEL by JUDGE" of a further judge."""
        labels = [model_scores.model.label for model_scores in self.evaluated if not model_scores.scores.scored]
        return labels + [
            f"{model_scores.model.label} by {judge}"
            for model_scores in self.evaluated
            for judge, scores in model_scores.judged.items()
            if model_scores.scores.scored and not scores.scored
        ]

    def compare_by_judge(self) -> JudgeComparison | None:
        """Return the comparison of the evaluation's own judge with the further judges, over the attempts of all models.

        None if there are no further judges.
        """
        names = list(self.evaluated[0].judged)
        if not names:
            return None
        by_judge = {PLAYED: [attempt for model_scores in self.evaluated for attempt in model_scores.scores.attempts]}
        return compare_judges(
            by_judge
            | {
                name: [attempt for model_scores in self.evaluated for attempt in model_scores.judged[name].attempts]
                for name in names
            }
        )


def evaluate_models(
    experiment: Experiment, models: Sequence[EvaluatedModel], options: EvaluationOptions
) -> EvaluationResult:
    """Run the missing attempts of each model in turn, and return all scores.

    Raises:
        UserError: The evaluation cannot be run.
        KeyboardInterrupt: At Ctrl-C, after ended attempts are recorded.
    """
    experiment = prepare_experiment(experiment, options)
    with Interrupts().install(), enter_run_hooks(experiment, experiment.root / experiment.name / "eval"):
        return _play_models(experiment, models, options)


def _play_models(
    experiment: Experiment, models: Sequence[EvaluatedModel], options: EvaluationOptions
) -> EvaluationResult:
    """Play the missing attempts of each model, and return the scores of all models over the same tasks."""
    from ajet.task_reader.registry import TrainingAsValidation, open_reader

    require_answers([service for service in list_services(experiment) if service.key != ENDPOINT_KEY])
    prepare_judge(experiment)
    judges = open_judges(experiment, options.judges)
    reader = open_reader(experiment)
    if options.training:
        reader = TrainingAsValidation(reader)
    if options.writes_tasks:
        reader.json_tasks("validation")
    evaluations = _make_evaluations(experiment, models, options, reader)
    for evaluation in evaluations:
        if options.fresh or not _is_played(evaluation, record.find_earlier(evaluation)):
            _require_model_server(evaluation)
    results: list[tuple[EvaluatedModel, Path, list[AttemptRecord]]] = []
    for evaluation in evaluations:
        folder = _complete_record(evaluation, fresh=options.fresh)
        results.append((evaluation.model, folder, record.read_recorded(evaluation, folder, for_judges=bool(judges))))
    lowest_reward = failure_reward(attempt for _, _, attempts in results for attempt in attempts)
    first_evaluation = evaluations[0]
    tasks = dict(first_evaluation.tasks)
    return EvaluationResult(
        tuple(
            ModelScores(model, folder, Scores(attempts, lowest_reward), score_by_judge(judges, attempts, tasks))
            for model, folder, attempts in results
        ),
        tasks=first_evaluation.count,
        repeats=first_evaluation.repeats,
        sampling=describe_sampling(experiment),
        seed=experiment.ajet.seed,
        played=[task for _, task in first_evaluation.tasks[: first_evaluation.count]],
        known=None
        if options.training
        else _find_overlap(reader, [task for _, task in first_evaluation.tasks[: first_evaluation.count]]),
    )


def _is_played(evaluation: Evaluation, earlier: Path | None) -> bool:
    """Return True if the earlier record has all attempts of the evaluation."""
    return earlier is not None and record.count_missing(evaluation, earlier) == 0


def _require_model_server(evaluation: Evaluation) -> None:
    """Raise UserError if the evaluated model is an endpoint that does not answer."""
    model = evaluation.model
    if model.url is None:
        return
    services = list(model_servers(evaluation.experiment))
    if "@" in model.label or "://" in model.label:  # the model comes from --model, not from the YAML
        advice = f"start the server at {model.url}, or choose another one (--model NAME@URL)"
        services = [replace(service, key=f"--model {model.label}", do=advice) for service in services]
    require_answers(services)


def _find_overlap(reader: OpenedReader, held_out: Sequence[Task]) -> TaskOverlap | None:
    """Return how many held-out tasks are also training tasks, or None if the training tasks are unknown."""
    from ajet.task_reader.contamination import find_overlap

    try:
        return find_overlap(reader.tasks("train"), held_out) if reader.has("train") else None
    except UserError as error:  # the evaluation does not depend on the overlap
        _print_note(f"ajet cannot tell whether the tasks overlap with the training tasks: {error.what}")
        return None


def prepare_experiment(experiment: Experiment, options: EvaluationOptions) -> Experiment:
    """Return the experiment for an evaluation: without training, with the tasks and the sampling of the options.

    Raises:
        UserError: The options or settings cannot be used.
    """
    settings = experiment.ajet.model_copy(deep=True)
    settings.backbone = "debug"
    reader, sampling = settings.task_reader, settings.rollout.val_kwargs
    if options.tasks is not None:
        file = options.tasks.expanduser()
        if file.is_dir():
            raise UserError(
                f"{options.tasks} is a folder, not a file of tasks.", where="--tasks", expected="a JSON Lines file"
            )
        if not file.is_file():
            raise UserError(
                f"The file {options.tasks} does not exist.",
                where="--tasks",
                expected="a JSON Lines file with one task per line",
            )
        if not hasattr(getattr(reader, str(reader.type), None), "validation"):  # its files are of another kind
            reader.type = "jsonl_dataset_file"
        getattr(reader, reader.type).validation.file_path = str(file.absolute())
    repeats = settings.validation_repeats if options.repeats is None else options.repeats
    if options.temperature is not None:
        sampling.do_sample, sampling.temperature = options.temperature > 0, options.temperature
    elif repeats > 1 and not sampling.do_sample:  # greedy attempts would all be equal
        sampling.do_sample, sampling.temperature = True, sampling.temperature or settings.rollout.temperature
    sampling.num_repeat = settings.trainer_common.val_pass_n = repeats
    prepared = replace(experiment, ajet=settings)
    prepared.require_ready(evaluating=True)
    return prepared


def describe_sampling(experiment: Experiment) -> str:
    """Return how replies are sampled in an evaluation, in words: "greedy", or temperature and truncation."""
    sampling = experiment.ajet.rollout.val_kwargs
    if not sampling.do_sample or sampling.temperature == 0:
        return "greedy"
    truncation = [f"top_p {sampling.top_p:g}"] if sampling.top_p < 1 else []
    return ", ".join(
        [
            f"temperature {sampling.temperature:g}",
            *truncation,
            *([f"top_k {sampling.top_k}"] if sampling.top_k > 0 else []),
        ]
    )


def _make_evaluations(
    experiment: Experiment, models: Sequence[EvaluatedModel], options: EvaluationOptions, reader: OpenedReader
) -> list[Evaluation]:
    """Return what to play for each model: the same held-out tasks and number of attempts.

    Raises:
        UserError: The task reader has no held-out tasks.
    """
    if not reader.has("validation"):
        raise UserError(
            "The task reader has no validation tasks.",
            where=str(experiment.yaml_path),
            expected="tasks that the run does not train on",
            do="pass a file with --tasks FILE.jsonl, or set the reader's validation split in the YAML",
        )
    tasks = list(enumerate(reader.tasks("validation")))
    count = len(tasks) if options.at_most is None else min(options.at_most, len(tasks))
    repeats = experiment.ajet.validation_repeats
    return [Evaluation(model, model.apply_to(experiment), tasks, count, repeats, reader) for model in models]


def _complete_record(evaluation: Evaluation, *, fresh: bool) -> Path:
    """Run the missing attempts of one model, and return the folder of its complete record.

    Args:
        fresh: True to ignore earlier records.
    """
    from ajet.commands.launch import close_with_outcome, warn_of_unconfined

    earlier = None if fresh else record.find_earlier(evaluation)
    if earlier is not None and _is_played(evaluation, earlier):
        recorded_at = record.find_episode_file(earlier, evaluation.model.step).stat().st_mtime
        _print_note(
            f"{evaluation.model.label}: evaluated {format_age(recorded_at)}, results read from {earlier}; --fresh "
            "evaluates again"
        )
        return earlier
    run = record.open_record(evaluation, earlier)
    warn_of_unconfined(evaluation.experiment)
    with close_with_outcome(run):
        try:
            _play_missing(evaluation, run)
        except UserError as error:
            if error.where == "model.path" and evaluation.model.label not in BASE_NAMES:  # the YAML's own is another
                error.where = f"--model {evaluation.model.label}"
            raise
    return run.path


def _play_missing(evaluation: Evaluation, run: RunDirectory) -> None:
    """Play the attempts that the evaluation's record lacks, and write the metrics over all its attempts."""
    from ajet.train.accounting import group_by_order, validation_metrics
    from ajet.train.parts import assemble, pins_of

    label, step = evaluation.model.label, evaluation.model.step
    run.status.set(phase="loading", step=step)
    finished = record.list_finished(record.read_recorded(evaluation, run.path))
    with Progress() as bars, EpisodeWriter(run.episodes, step, record.SPLIT) as writer:
        bar = _AttemptBar(label, bars)

        def on_episode(episode: Episode) -> None:
            writer.put(episode)
            bar.count_end(episode)

        with assemble(
            evaluation.experiment,
            run_id=run.run_id,
            on_episode=on_episode,
            split="validation",
            pins=pins_of(run),
            reader=evaluation.reader,
        ) as run_parts:
            fitting_ids = {task.task_id for task in run_parts.tasks("validation")}
            fitting_tasks = [(order, task) for order, task in evaluation.tasks if task.task_id in fitting_ids]
            record.write_orders(run.path, [order for order, _ in fitting_tasks])
            requested_tasks = [(order, task) for order, task in fitting_tasks if order < evaluation.count]
            if requested_tasks and run_parts.backbone.tokenizer is not None:
                render_with_tools(run_parts.experiment, requested_tasks[0][1], run_parts.backbone.tokenizer)
            bar.begin(len(requested_tasks) * evaluation.repeats, len(finished))
            run.status.set(phase="validation", step=step)
            started = time.monotonic()
            groups = list(
                run_parts.rollout.play(
                    requested_tasks, step=step, split="validation", repeats=evaluation.repeats, finished=finished
                )
            )
            seconds = time.monotonic() - started
        bar.close()
    if finished:
        recorded = run.episodes.read(step, record.SPLIT)
        groups = group_by_order(
            episode for episode in recorded if episode.order < evaluation.count and episode.repeat < evaluation.repeats
        )
    run.metrics.log(step, validation_metrics(groups) | {"seconds/validation": seconds})


class _AttemptBar:
    """A progress bar over the attempts of one model, with their mean reward so far."""

    def __init__(self, label: str, bars: Progress) -> None:
        self._label, self._bars = label, bars
        self._bar: ProgressBar | None = None
        self._scored_count = self._reward_sum = 0.0

    def begin(self, total: int, done: int) -> None:
        """Show the bar. Attempts that are recorded already count as done."""
        if done:
            _print_note(f"{self._label}: {done} of {total} attempts are recorded already, {total - done} remain")
        self._bar = self._bars.bar(self._label, total, "attempts", done=done)

    def count_end(self, episode: Episode) -> None:
        """Advance the bar by an ended attempt, and show the mean reward."""
        self._scored_count += 1
        self._reward_sum += episode.reward or 0.0
        if self._bar is not None:
            self._bar.advance(note=f"reward {self._reward_sum / self._scored_count:.3g}")

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()


def _print_note(line: str) -> None:
    print_line(line, style="dim")
