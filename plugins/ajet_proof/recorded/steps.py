"""Checks that the numbers of training steps follow from the recorded episodes.

Credit means the advantages and untrained tokens of a step's episodes. A position is a task's place in the training
order. Invariant: every number is recomputed with the functions of training (`algorithm.credit`, `train.accounting`,
episode names, task order) from recorded outputs of critic, teacher and reference model. Steps that need verl (a `verl:`
section) or a user's algorithm are not checked but counted, by reason.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.algorithm import assign_credit, build_discarded_outcomes
from ajet.algorithm.recorded_models import NotRecordedError, make_recorded_critic, make_recorded_reference
from ajet.algorithm.supervised_batch import build_likelihood_batch, build_pairs_batch
from ajet.config.schema.choices import is_reference
from ajet.record import Checkpoints
from ajet.record.chain import METRICS
from ajet.record.checkpoints import checkpoints_folder
from ajet.record.files import read_rows
from ajet.record.resume import FILE as RUN_IDENTITY
from ajet.record.status import read_status
from ajet.rollout.attempt import Identity
from ajet.rollout.components import choose_repeats
from ajet.schema.episode import NO_OUTCOME, Group, list_episodes
from ajet.schema.errors import UserError
from ajet.task_reader.order import shuffle_key
from ajet.train.accounting import episode_metrics
from ajet_proof.auditing.chain_index import ChainIndex
from ajet_proof.recorded.draws import DrawChecker
from ajet_proof.recorded.losses import OTHERS, LossChecker
from ajet_proof.recorded.validations import CLOSE, NAMED_BY_RUN, ValidationChecker

if TYPE_CHECKING:
    from ajet.backbone.local.scorer import LocalScorer
    from ajet.config import AjetConfig, Experiment
    from ajet.schema.batch import TrainingBatch
    from ajet.schema.call import Floats
    from ajet.schema.episode import Episode, Outcome, UntrainedReason

HELD = (
    *("episodes", "scored", "failed", "aborted", "no_score", "calls", "sampled_tokens", "forks", "reward"),
    *("success_rate", "reply_tokens", "turns", "left_out", "untrained/", "checks/", "fork_rate/", "workflow/"),
)
"""Metrics that are recomputed in addition to the credit: only those with the same meaning in all ajet versions."""
REMOVED = "their episodes or arrays were removed (ajet gc, or the run's bounds)"


@dataclass(frozen=True, slots=True)
class WrongStep:
    """A number or a field of a training step or validation that differs from the recomputed one."""

    step: int
    split: str
    what: str

    def __str__(self) -> str:
        source = f"step {self.step}" if self.split == "train" else f"{self.split}, step {self.step}"
        return f"{source}: {self.what}"


class StepChecker:
    """Checks the training steps and validations of one run. Files must be passed in order of their steps."""

    def __init__(
        self, experiment: Experiment, run: Path, removed: Collection[str] = (), *, finished: bool = False
    ) -> None:
        """Read the run's metrics, settings and task order.

        Args:
            run: The run's folder.
            removed: Files below the folder that `ajet gc` or the run removed, according to the chain.
            finished: True if the run has ended normally.
        """
        self._run = run
        self._removed = removed
        self._finished = finished
        self._settings, self._backbone = experiment.ajet, experiment.backbone
        self._has_no_fixed_order = "streams" in self._backbone.can or self._settings.trainer_common.mode == "async"
        self._may_replace_groups = "replaces" in self._backbone.can
        self._has_foreign_settings = bool(self._backbone.roots and experiment.backbone_overrides)
        self._is_training_run = (run / RUN_IDENTITY).exists()
        all_rows = list(read_rows(run / METRICS)) if self._is_training_run else []
        self._row_of_step = _read_last_rows(run / METRICS)
        self._doubled_steps = sorted(
            step for step, count in Counter(row["step"] for row in all_rows if "tasks" in row).items() if count > 1
        )
        self._stray_steps = [row["step"] for row in all_rows if "tasks" not in row and not _is_validation(row)]
        self._is_unfinished = _is_unfinished_evaluation(run)
        self._has_other_settings = _make_settings_check(run)
        frontier = _read_frontier(run, self._settings)
        self._epoch_size = _read_epoch_size(frontier)
        self.draws = DrawChecker(self._settings, frontier, self._row_of_step)
        self.losses = LossChecker()
        self.validations = ValidationChecker(
            all_rows, finished=finished, in_order=not self._has_no_fixed_order, same_settings=_has_one_setting(run)
        )
        self._steps_of_episode: dict[str, list[int]] = defaultdict(list)
        """Episode uuid -> its steps."""
        self._tasks: dict[tuple[str, int], tuple[str, str]] = {}
        self.held = 0
        """Number of steps with recomputed credit."""
        self.unheld: Counter[str] = Counter()
        """Number of steps without recomputed credit, by reason."""

    def check_file(
        self, step: int, split: str, found: Sequence[tuple[Episode, Outcome]], *, sound: bool = True
    ) -> list[WrongStep]:
        """Check one episode file and return its problems.

        Args:
            found: The file's episodes, each with its use in the step.
            sound: True if the file's tokens are right; otherwise its numbers are not recomputed.
        """
        if split != "train" and any(not episode.group for episode, _ in found):
            return []  # clients played them, of no group
        problems = [
            *self.check_names(step, found),
            *self._check_groups(split, found),
            *self._check_positions(split, found),
        ]
        if split == "train":
            problems += self.draws.check_step(step, _build_groups(found))
        if split == "train" and sound and not problems:
            problems += self._check_credit(step, found)
        if split == "validation" and sound and not problems and self._is_training_run:
            problems += self.validations.check_file(step, [episode for episode, _ in found])
        return [WrongStep(step, split, problem) for problem in problems]

    def check_names(self, step: int, found: Sequence[tuple[Episode, Outcome]]) -> Iterator[str]:
        """Yield a message for each episode with a wrong uuid, group or step, or trained too often.

        The uuid of the run's own episodes is derived from run, task, position and repeat.
        """
        record_counts = Counter(episode.uuid for episode, _ in found)
        row, algorithm = self._row_of_step.get(step, {}), self._settings.trainer_common.algorithm
        repeated_orders, bounds = (
            row.get("again", ()),
            row.get("bounds", {}),
        )  # the step's own; a resumed run may have others now
        interval = bounds.get("retrained_interval", algorithm.retrained_interval)
        use_limit = bounds.get("max_trained_count", algorithm.max_trained_count)
        for episode, _ in found:
            trained_steps = self._steps_of_episode[episode.uuid]
            if record_counts[episode.uuid] > 1 or (trained_steps and episode.order not in repeated_orders):
                yield f"episode {episode.uuid} is recorded twice"
            elif trained_steps and step < trained_steps[-1] + interval:
                yield f"episode {episode.uuid} was trained on again after {step - trained_steps[-1]} steps"
            elif len(trained_steps) >= use_limit:
                yield f"episode {episode.uuid} was trained on more than {use_limit} times"
            trained_steps.append(step)
            own_identity = Identity(
                episode.run, episode.split, episode.step, episode.task, episode.order, 0, episode.repeat
            )  # fmt: skip
            # Ids made by the run are uuid5, whose version digit stands at index 12; clients' ids are uuid4.
            is_named_by_run = episode.uuid[12:13] == NAMED_BY_RUN
            claims_place = is_named_by_run or episode.group == own_identity.group
            if claims_place and (own_identity.uuid, own_identity.group) != (episode.uuid, episode.group):
                yield f"episode {episode.uuid} does not have the name of its attempt"
            may_run_early = (
                self._has_no_fixed_order or not is_named_by_run
            )  # it may be played before the step that takes it, or left over at the end
            if episode.step > step + (not is_named_by_run) or (not may_run_early and episode.step != step):
                yield f"episode {episode.uuid} was sampled for step {episode.step}"
            if episode.ending and episode.status != "aborted":
                yield f"episode {episode.uuid} ended normally but has a reason ({episode.ending})"

    def _check_groups(self, split: str, recorded: Sequence[tuple[Episode, Outcome]]) -> Iterator[str]:
        """Yield a message for each group with missing or repeated attempts, several positions or several tasks.

        A group may be incomplete if clients sampled it, or if the evaluation can still continue.
        """
        expected = choose_repeats(self._settings, split)  # type: ignore[arg-type] # a file's name says a split
        for name, members in _group_episodes(recorded).items():
            # A complete group has each attempt once, an incomplete one none twice.
            repeats = sorted(episode.repeat for episode, _ in members)
            is_complete = members[0][0].uuid[12:13] == NAMED_BY_RUN and not self._is_unfinished
            if repeats != list(range(expected)) if is_complete else len({*repeats}) != len(repeats):
                yield f"group {name} has the attempts {repeats}, not 0 to {expected - 1}"
            if {(episode.order, episode.split) for episode, _ in members} != {(members[0][0].order, split)}:
                yield f"group {name} is at several positions"
            if any(episode.task != members[0][0].task for episode, _ in members):
                yield f"group {name} has several tasks"

    def _check_positions(self, split: str, recorded: Sequence[tuple[Episode, Outcome]]) -> Iterator[str]:
        """Yield a message for each episode whose task differs from an earlier episode at the same position of its
        epoch."""
        for episode, _ in recorded:
            if episode.order < 0:
                continue
            count = self._epoch_size if split == "train" and self._epoch_size else episode.order + 1
            epoch, index = divmod(episode.order, count)
            task = (episode.task.task_id, episode.task.main_query)  # an agent may write into the rest
            if self._tasks.setdefault((f"{split} {epoch}", index), task) != task:
                yield f"position {episode.order} has another task in episode {episode.uuid}"

    def _check_shuffle(self) -> Iterator[str]:
        """Yield a message for each task that is not where the run's seed shuffles it in its epoch.

        An epoch's tasks are sorted by `shuffle_key`, so the keys of the recorded tasks must ascend. A curriculum has
        another
        order, which `DrawChecker` checks.
        """
        if not self._epoch_size or not self._settings.data.shuffle or self._settings.data.curriculum.prefer:
            return
        tasks_by_epoch: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for (epoch, index), (task_id, _) in self._tasks.items():
            if epoch.startswith("train "):
                tasks_by_epoch[epoch].append((index, task_id))
        for epoch, indexed_tasks in tasks_by_epoch.items():
            indexed_tasks.sort()
            ranks = [
                shuffle_key(self._settings.seed, int(epoch.partition(" ")[2]), task_id) for _, task_id in indexed_tasks
            ]
            for (index, task_id), rank, next_rank in zip(indexed_tasks[1:], ranks, ranks[1:], strict=False):
                if rank >= next_rank:
                    yield f"task {task_id} is not at place {index} of epoch {int(epoch[6:]) + 1} by this seed"

    def _check_credit(self, step: int, recorded: Sequence[tuple[Episode, Outcome]]) -> Iterator[str]:
        """Yield a message for each number of a step's credit and metrics that does not follow from its episodes.

        A step that cannot be recomputed is counted in `unheld` by reason. A right step is registered for the check of
        its loss.
        """
        outcomes = {episode.uuid: outcome for episode, outcome in recorded}
        groups = _build_groups(recorded)
        discard_reasons = _list_discard_reasons(groups, outcomes)
        trained_groups = _select_trained_groups(groups, outcomes)
        row = self._row_of_step.get(step)
        if row is None:
            last_step = max(self._row_of_step, default=step)
            # Only the step after the last row may lack a row: it is running, or its process was killed.
            if step < last_step or step > last_step + 1 or self._finished:
                yield "its row in metrics.jsonl is missing"
            else:
                self.unheld["the step is unfinished"] += 1
            return
        yield from self._check_metrics(row, trained_groups, groups, outcomes)
        reason = self._explain_missing_credit()
        if reason:
            self.unheld[reason] += 1
            return
        self.held += 1
        try:
            batch = self._rebuild_batch(step, trained_groups, outcomes)
        except NotRecordedError as missing:
            yield f"{missing.what} of episode {missing} are not in the record"
            return
        expected: dict[str, Outcome] = dict(batch.outcomes)
        for group in groups:
            if (discard_reason := discard_reasons[group.order]) is not None:
                expected |= build_discarded_outcomes([group], discard_reason)
        problems = list(self._compare_credit(row, batch, expected, outcomes))
        # A difference is expected if the settings were changed since; the chain has only the digest of the earlier
        # ones.
        if problems and self._has_other_settings(step):
            self.held -= 1
            self.unheld[OTHERS] += 1
            return
        yield from problems
        self.losses.expect_step(step, batch, row, self._settings)

    def _compare_credit(
        self,
        row: Mapping[str, Any],
        batch: TrainingBatch,
        expected: Mapping[str, Outcome],
        outcomes: Mapping[str, Outcome],
    ) -> Iterator[str]:
        """Yield a message for each difference between recorded and recomputed credit.

        Args:
            row: the step's row of metrics.jsonl.
            batch: the rebuilt training batch.
            expected: recomputed outcome of each episode, by uuid.
            outcomes: recorded outcome of each episode, by uuid.
        """
        for uuid, outcome in outcomes.items():
            if not _is_same_outcome(recomputed := expected.get(uuid, NO_OUTCOME), outcome):
                yield (
                    f"the credit of episode {uuid} is {_describe_outcome(outcome)}; its group gives "
                    f"{_describe_outcome(recomputed)}"
                )
        for name, value in {"train/trained_tokens": batch.trained_tokens, **batch.metrics}.items():
            if name in row and not _is_close(row[name], value):
                yield f"{name} is {row[name]:g} in metrics.jsonl, {value:g} by the episodes"

    def check_loss(
        self,
        scorer: LocalScorer,
        step: int,
        found: Sequence[tuple[Episode, Outcome]],
        reference: Callable[[TrainingBatch], Sequence[Floats] | None],
    ) -> list[WrongStep]:
        """Recompute the loss of a step and return its problems.

        Args:
            scorer: Forward pass with the weights before the step's update.
            step: One of the steps returned by `losses.list_steps_from` for these weights.
            found: The step's episodes, each with its use in the step.
            reference: Returns the reference model's log-probabilities of a batch, or None without a KL term.
        """
        outcomes = {episode.uuid: outcome for episode, outcome in found}
        batch = self._rebuild_batch(step, _select_trained_groups(_build_groups(found), outcomes), outcomes)
        # A step before a resume may have been trained with settings that the run does not have now.
        has_changed_settings = self._has_other_settings(step)
        row = self._row_of_step[step]
        problems = self.losses.check_step(
            scorer, step, batch, row, reference(batch), has_changed_settings=has_changed_settings
        )
        return [WrongStep(step, "train", problem) for problem in problems]

    def _check_metrics(
        self, row: Mapping[str, Any], trained: Sequence[Group], groups: Sequence[Group], outcomes: Mapping[str, Outcome]
    ) -> Iterator[str]:
        # If discarded groups are replaced by others, the metrics count both.
        """Yield a message for each metric or list of positions in a step's row that differs from the episodes.

        Args:
            trained: the groups that the step trained.
            groups: all groups of the step, discarded ones included.
            outcomes: recorded outcome of each episode, by uuid.
        """
        counted_groups = groups if self._may_replace_groups else trained
        recomputed = episode_metrics(list_episodes(counted_groups), "train", outcomes)
        recorded = {name: value for name, value in row.items() if name.startswith("train/")}
        for name in sorted(recomputed.keys() | recorded.keys()):
            short_name = name.removeprefix("train/")
            # Metrics in one of the two only are compared if HELD names them; a missing counter (with "/") means 0.
            if (name in recorded and name in recomputed) or (
                short_name.startswith(HELD) and (name in recorded or "/" in short_name)
            ):
                recorded_value, value = recorded.get(name, 0), recomputed.get(name, 0)
                if not _is_close(recorded_value, value):
                    yield f"{name} is {recorded_value} in metrics.jsonl, {value:g} by the episodes"
        used_orders = sorted(group.order for group in trained if group.scored or not self._may_replace_groups)
        if (positions := sorted([*row.get("tasks", ()), *row.get("again", ())])) != used_orders:
            yield f"metrics.jsonl lists the trained positions {positions}, the episodes {used_orders}"
        if missing := {*row.get("discarded", ())} - {group.order for group in groups}:
            yield f"the episodes of the positions {sorted(missing)} are missing"

    def _rebuild_batch(self, step: int, trained: Sequence[Group], outcomes: Mapping[str, Outcome]) -> TrainingBatch:
        """Rebuild the training batch of a step, with the recorded outputs of critic and reference model.

        Raises:
            NotRecordedError: a needed output is not recorded.
        """
        settings, reference = self._settings, make_recorded_reference(outcomes)
        if settings.sft.objective == "dpo":
            return build_pairs_batch(trained, settings, reference, step=step)
        if settings.sft.objective is not None:
            return build_likelihood_batch(trained, settings, step=step)
        return assign_credit(trained, settings, step=step, reference=reference, critic=make_recorded_critic(outcomes))

    def _explain_missing_credit(self) -> str:
        """Return why the credit of this run's steps cannot be recomputed, or "" if it can."""
        if self._settings.sft.objective is not None:
            return ""
        if is_reference(self._settings.trainer_common.algorithm.adv_estimator):
            return "an algorithm of the user computed their credit, and code of a record is not run"
        return f"a {self._backbone.name}: section changed their credit" if self._has_foreign_settings else ""

    def check_run(self, files: Sequence[tuple[int, str]] | None) -> list[WrongStep]:
        """Return the problems that no single file shows: shuffled order, doubled rows and missing files.

        Args:
            files: (step, split) of all episode files of the run, or None if some were not checked.
        """
        last_step = max(self._row_of_step, default=0)
        problems = [WrongStep(last_step, "train", problem) for problem in self._check_shuffle()]
        problems += [WrongStep(step, "train", "it has several rows in metrics.jsonl") for step in self._doubled_steps]
        problems += [
            WrongStep(step, "train", "a row in metrics.jsonl belongs to no step and no validation")
            for step in self._stray_steps
        ]
        if files is None:
            return problems
        steps_with_files = {step for step, split in files if split == "train"}
        validated_steps = {step for step, split in files if split == "validation"}
        problems += [
            WrongStep(step, "validation", problem)
            for step, problem in self.validations.find_missing(validated_steps, self._removed)
            if not self._has_file(f"step-{step}.validation.jsonl")
        ]
        steps_without_files = [
            step
            for step, row in self._row_of_step.items()
            if (row["tasks"] or row.get("again")) and step not in steps_with_files
        ]
        unexplained = [step for step in steps_without_files if f"episodes/step-{step}.bin" not in self._removed]
        self.unheld[REMOVED] += sum(f"episodes/step-{step}.jsonl" in self._removed for step in steps_without_files)
        return problems + [
            WrongStep(step, "train", "its episodes are missing")
            for step in unexplained
            if not self._has_file(f"step-{step}.jsonl")
        ]

    def _has_file(self, name: str) -> bool:
        """True if an episode file exists by now: a live run may have written it after the files were listed."""
        return (self._run / "episodes" / name).exists()


def _group_episodes(recorded: Sequence[tuple[Episode, Outcome]]) -> dict[str, list[tuple[Episode, Outcome]]]:
    """Group the episodes of a file by group name, and sort each group by repeat number."""
    groups: dict[str, list[tuple[Episode, Outcome]]] = defaultdict(list)
    for episode, outcome in recorded:
        groups[episode.group].append((episode, outcome))
    for members in groups.values():
        members.sort(key=lambda member: member[0].repeat)
    return groups


def _build_groups(recorded: Sequence[tuple[Episode, Outcome]]) -> list[Group]:
    """Build the groups of a file's episodes as in training, each with its task and position."""
    return [
        Group(members[0][0].task, members[0][0].order, [episode for episode, _ in members])
        for members in _group_episodes(recorded).values()
    ]


def _list_discard_reasons(
    groups: Sequence[Group], outcomes: Mapping[str, Outcome]
) -> dict[int, UntrainedReason | None]:
    """Return why each group was discarded, by position. None for a trained group."""
    return {group.order: outcomes[group.episodes[0].uuid].discarded for group in groups}


def _select_trained_groups(groups: Sequence[Group], outcomes: Mapping[str, Outcome]) -> list[Group]:
    """Return the groups that were not discarded, in the order of their positions."""
    discard_reasons = _list_discard_reasons(groups, outcomes)
    return sorted((group for group in groups if discard_reasons[group.order] is None), key=lambda group: group.order)


def _is_unfinished_evaluation(run: Path) -> bool:
    """True for an evaluation that can still continue."""
    status = read_status(run) or {}
    return status.get("kind") == "eval" and status.get("outcome") != "finished"


def _is_validation(row: Mapping[str, Any]) -> bool:
    """True if a row of metrics.jsonl holds the numbers of a validation."""
    return any(name.startswith("validation/") for name in row)


def _has_one_setting(run: Path) -> bool:
    """True if all launches of the run had the same settings, by their digests in the chain."""
    with ChainIndex(run) as chain:
        return len({digest for _, digest in chain.list_settings()}) <= 1


def _read_last_rows(path: Path) -> dict[int, dict[str, Any]]:
    """Return the last row of metrics.jsonl for each training step, without rows of validations."""
    return {row["step"]: row for row in read_rows(path) if "tasks" in row} if path.exists() else {}


def _make_settings_check(run: Path) -> Callable[[int], bool]:
    """Return a function that tells whether a step was trained under other settings than the run's last ones.

    The chain has only the digests of earlier settings, so such a step cannot be recomputed.
    """
    with ChainIndex(run) as chain:
        starts = chain.list_settings()

    def has_other_settings(step: int) -> bool:
        """True if the last launch before the step had other settings than the run's last launch."""
        # The last launch before the step is the one that trained it.
        return any(
            digest != starts[-1][1] for start_step, digest in [start for start in starts if start[0] < step][-1:]
        )

    return has_other_settings


def _read_frontier(run: Path, settings: AjetConfig) -> dict[str, Any]:
    """Return the state of the task order in the newest checkpoint, or {} without one."""
    folder = checkpoints_folder(run, settings.trainer_common.checkpoint_base_dir)
    try:
        latest = Checkpoints(folder).latest()
    except UserError:
        return {}
    state = latest.state if latest is not None else {}
    return dict(state.get("frontier") or state.get("order") or {})


def _read_epoch_size(frontier: Mapping[str, Any]) -> int | None:
    """Return the number of tasks of an epoch, or None if the state of the task order does not have it."""
    count = frontier.get("count")
    return count if isinstance(count, int) and count > 0 else None


def _is_same_outcome(one: Outcome, other: Outcome) -> bool:
    """True if two outcomes have the same step, reasons and counts, and the same advantage up to rounding."""
    same = (one.step, dict(one.untrained), one.discarded) == (other.step, dict(other.untrained), other.discarded)
    if one.advantage is None or other.advantage is None:
        return same and one.advantage is other.advantage
    return same and _is_close(one.advantage, other.advantage)


def _is_close(recorded: Any, recomputed: float) -> bool:
    """True if a recorded value is a number that equals the recomputed one up to rounding."""
    return isinstance(recorded, int | float) and math.isclose(recorded, recomputed, rel_tol=CLOSE, abs_tol=CLOSE)


def _describe_outcome(outcome: Outcome) -> str:
    """Describe an episode's credit in words: step, advantage, untrained tokens, reason of a discard."""
    parts = [f"trained in step {outcome.step}"] if outcome.step is not None else ["not trained"]
    parts += [f"advantage {outcome.advantage:.4g}"] if outcome.advantage is not None else []
    parts += [f"{count} tokens {reason}" for reason, count in outcome.untrained.items()]
    parts += [f"discarded ({outcome.discarded})"] if outcome.discarded else []
    return ", ".join(parts)
