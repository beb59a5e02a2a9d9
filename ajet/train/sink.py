"""The record of a run's steps and validations: accounting, observers, files, metrics and screen.

Invariant: every training ends a step in `commit` and a validation in `commit_validation`, in the process started by the
user. Backbones with training processes of their own do the same. Each sampled token is trained or counted under a
reason, the plug-ins' observers have seen the step, and episodes with their outcomes are on the disk before their row of
metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.algorithm.staleness import compute_staleness_metrics
from ajet.record.held_out import MOST_LEFT_OUT, Measurement
from ajet.schema.episode import NO_OUTCOME, Episode, Group, list_episodes
from ajet.train.accounting import check_tokens, episode_metrics, log_formats, measurement_of, validation_metrics
from ajet.train.remarks import describe_remarks
from ajet.train.reward_hacking_watch import GamingWatch
from ajet.train.step import OnStep, StepObservers, TrainedStep

if TYPE_CHECKING:
    from ajet.algorithm import Algorithm
    from ajet.config import Experiment
    from ajet.record import RunDirectory
    from ajet.task_reader.contamination import TaskOverlap
    from ajet.tokens import Renderer
    from ajet.workflow import Workflow


def _ignore_episode(episode: Episode) -> None: ...


class RunSink:
    """Record the steps and validations of a run, and show them."""

    def __init__(
        self,
        experiment: Experiment,
        run: RunDirectory,
        on_step: OnStep,
        on_episode: Callable[[Episode], None] = _ignore_episode,
    ) -> None:
        """Record into `run`. `on_episode` is called at the end of an episode, from any thread."""
        self.experiment, self.run = experiment, run
        self.on_step, self.on_episode = on_step, on_episode
        self._total_steps = 0
        self._observers: StepObservers | None = None
        self._gaming_watch: GamingWatch | None = None

    def review(
        self,
        algorithm: Algorithm,
        *,
        train: int,
        validates: bool,
        overlap: TaskOverlap | None,
        workflow: type[Workflow] | None = None,
        is_colocated: bool = True,
    ) -> None:
        """Log a warning with all settings of a training that are allowed, but probably not intended.

        Args:
            algorithm: The algorithm of the training.
            train: The number of training tasks.
            validates: True if held-out tasks exist.
            overlap: Held-out tasks that are also training tasks. None: no overlap is known.
            workflow: The class responsible for rewards. None: a judge is responsible.
            is_colocated: True if, with `mode: async`, a sampler runs on this machine, too.
        """
        if remarks := describe_remarks(
            self.experiment, algorithm, train=train, validates=validates, workflow=workflow, overlap=overlap,
            is_colocated=is_colocated,
        ):  # fmt: skip
            logger.warning("{}", remarks)

    def begin(self, renderer: Renderer | None, *, total: int) -> None:
        """Prepare the observers and the screen for the first step.

        Args:
            renderer: the run's renderer. None: a model without tokens.
            total: Number of the last step.
        """
        self._total_steps = total
        self._observers = StepObservers(self.experiment.ajet, renderer)
        self._gaming_watch = GamingWatch(self.run, upto=self.run.resumed.step if self.run.resumed is not None else 0)

    @property
    def observers(self) -> StepObservers:
        """The plug-ins' observers, which add metrics to each step."""
        assert self._observers is not None, "`begin` comes first"
        return self._observers

    def show(self, step: int, metrics: dict[str, float]) -> None:
        """Show the metrics of a step or a validation."""
        self.on_step(step, self._total_steps, metrics)

    def commit(self, trained: TrainedStep) -> dict[str, float]:
        """Record a step and return its metrics.

        Args:
            trained: The step with its groups and outcomes.

        Raises:
            AssertionError: a sampled token is neither trained nor counted.
            UserError: the record cannot be written.
        """
        run = self.run
        settings = self.experiment.ajet
        step = trained.step
        outcomes = trained.outcomes
        episodes, unused = list_episodes(trained.groups), list_episodes(trained.unused)
        log_formats(episodes, settings.context_tracker)
        check_tokens([*episodes, *unused], outcomes, trained.tokens)
        metrics = episode_metrics(episodes, "train", outcomes)
        used_episodes = [episode for episode in episodes if outcomes.get(episode.uuid, NO_OUTCOME).discarded is None]
        metrics |= compute_staleness_metrics(used_episodes, trained.version)
        metrics |= self.observers.metrics(episodes, step, trained.newest_version)
        metrics["train/trained_tokens"] = sum(trained.tokens.values())
        metrics |= trained.metrics
        run.episodes.write(step, "train", [*episodes, *unused], outcomes)
        self.show(step, metrics)
        extra_fields: dict[str, Any] = {"waiting": sorted(trained.waiting)} if trained.waiting else {}
        if trained.retrained:
            extra_fields["again"] = sorted(trained.retrained)
            metrics |= _count_retrained(trained)
            algorithm = settings.trainer_common.algorithm
            extra_fields["bounds"] = {
                name: getattr(algorithm, name) for name in ("max_trained_count", "retrained_interval")
            }
        if trained.given_up:
            extra_fields["given_up"] = {
                str(order): list(reasons) for order, reasons in sorted(trained.given_up.items())
            }
        if trained.dead:
            metrics["train/given_up"] = trained.dead
        if trained.quarantined:
            metrics["train/quarantined"] = sum(trained.quarantined.values())
            metrics |= {f"train/quarantined/{kind}": count for kind, count in sorted(trained.quarantined.items())}
        run.metrics.log(step, metrics, tasks=list(trained.tasks), discarded=list(trained.discarded), **extra_fields)
        assert self._gaming_watch is not None, "`begin` comes first"
        self._gaming_watch.look(episodes, step)
        return metrics

    def commit_validation(
        self, groups: Sequence[Group], *, step: int, seconds: float, recorded: Collection[str] = ()
    ) -> tuple[dict[str, float], Measurement]:
        """Record the held-out episodes of a step, and return their metrics and measurement.

        Args:
            groups: a group per task.
            recorded: uuids of attempts recorded by an earlier process.
        """
        run, episodes = self.run, list_episodes(groups)
        new_episodes = [episode for episode in episodes if episode.uuid not in recorded]
        if new_episodes:
            run.episodes.write(step, "validation", new_episodes)
        judge = run.metrics.judge
        if recorded and run.judge_change == step:
            judge += " and the one before"  # an earlier process was interrupted in this validation
        metrics, measured = validation_metrics(groups), replace(measurement_of(groups), judge=judge)
        metrics["seconds/validation"] = seconds
        if measured.left_out > MOST_LEFT_OUT:
            logger.warning(
                "{:.1%} of this validation's attempts are left out, because engine, judge, environment or ajet "
                "failed: above {:.0%} a validation does not choose the best checkpoint",
                measured.left_out,
                MOST_LEFT_OUT,
            )
        self.show(step, metrics)
        if failures := [episode.failure for episode in episodes if episode.failure and not episode.scored]:
            most_frequent, count = Counter(
                (failure.boundary, failure.kind, failure.message) for failure in failures
            ).most_common(1)[0]
            logger.warning(
                "{} of {} held-out episodes failed because of the {}: {}: {}", count, len(episodes), *most_frequent
            )
        if new_episodes or not any(row["step"] == step and "validation/tasks" in row for row in run.metrics.rows()):
            run.metrics.log(step, metrics, **({"judge": judge} if judge else {}))
        return metrics, measured

    def commit_held_out(self, episodes: Sequence[Episode], step: int) -> None:
        """Record the attempts that clients made at held-out tasks since the last step, if any.

        The result never selects a checkpoint, because weights were updated during the attempts.
        """
        if episodes:
            self.commit_validation(group_by_task(episodes), step=step, seconds=measure_span(episodes))


def _count_retrained(trained: TrainedStep) -> dict[str, float]:
    """Return how many groups, failures and forks of the step an earlier step has counted already."""
    retrained_orders = {*trained.retrained}
    counted = episode_metrics(
        list_episodes(group for group in trained.groups if group.order in retrained_orders), "train", {}
    )
    metrics: dict[str, float] = {
        "train/retrained": len(trained.retrained),
        "train/retrained_failed": counted["train/failed"],
        "train/retrained_forks": counted["train/forks"],
    }
    return {name: number for name, number in metrics.items() if number}


def measure_span(episodes: Sequence[Episode]) -> float:
    """Return the seconds from the start of the first episode to the end of the last."""
    return max((episode.ended for episode in episodes), default=0.0) - min(
        (episode.started for episode in episodes), default=0.0
    )


def group_by_task(episodes: Sequence[Episode]) -> list[Group]:
    """Return a group per task for attempts that arrived separately, in order of arrival."""
    groups: list[Group] = []
    for episode in episodes:
        group = next((known_group for known_group in groups if known_group.task == episode.task), None)
        if group is None:
            group = Group(episode.task, len(groups), [])
            groups.append(group)
        group.episodes.append(replace(episode, repeat=len(group.episodes)))
    return groups
