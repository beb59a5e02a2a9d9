"""Steps held to their episodes: what a step says it did must follow from what it recorded.

Invariant: nothing is taken on trust that can be computed again, by the functions that trained (`algorithm.credit`,
`run.accounting`, the names of episodes, the order of tasks), from the numbers that critic, teacher and reference model
left in the record. What cannot be is counted by reason: credit under a `verl:` section of the user's needs verl, an
algorithm of the user's own is code.
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
from ajet.rollout.components import split_repeats
from ajet.schema.episode import NO_OUTCOME, Group, episodes_of
from ajet.schema.errors import UserError
from ajet.task_reader.order import rank
from ajet.train.accounting import episode_metrics
from ajet_proof.auditing.chain_index import ChainIndex
from ajet_proof.recorded.draws import HeldDraws
from ajet_proof.recorded.losses import OTHERS, HeldLosses
from ajet_proof.recorded.validations import CLOSE, NAMED_BY_RUN, HeldValidations

if TYPE_CHECKING:
    from ajet.backbone.contract import RecordedScorer
    from ajet.config import AjetConfig, Experiment
    from ajet.schema.batch import TrainingBatch
    from ajet.schema.call import Floats
    from ajet.schema.episode import Episode, Outcome, UntrainedReason

HELD = (
    *("episodes", "scored", "failed", "aborted", "no_score", "calls", "sampled_tokens", "forks", "reward"),
    *("success_rate", "reply_tokens", "turns", "left_out", "untrained/", "checks/", "fork_rate/", "workflow/"),
)
"""Numbers of a row of metrics.jsonl that are computed again, with those of the credit: the ones whose meaning does not
change from version to version."""
REMOVED = "their episodes or arrays were removed (ajet gc, or the run's bounds)"


@dataclass(frozen=True, slots=True)
class WrongStep:
    """Something that does not follow."""

    step: int
    split: str
    what: str

    def __str__(self) -> str:
        """A sentence for a person."""
        of = f"step {self.step}" if self.split == "train" else f"{self.split}, step {self.step}"
        return f"{of}: {self.what}"


class HeldSteps:
    """Holds one run's steps, file by file, in their order."""

    def __init__(
        self, experiment: Experiment, run: Path, removed: Collection[str] = (), *, finished: bool = False
    ) -> None:
        """`removed`: files that are known as let go, below the run's folder; `finished`: the run came to its end."""
        self._run, self._removed, self._finished = run, removed, finished
        self._settings, self._backbone = experiment.ajet, experiment.backbone
        self._streams = "streams" in self._backbone.can or self._settings.trainer_common.mode == "async"
        self._replaces = "replaces" in self._backbone.can
        self._foreign = bool(self._backbone.roots and experiment.backbone_overrides)
        self._trains = (run / RUN_IDENTITY).exists()
        all_rows = list(read_rows(run / METRICS)) if self._trains else []
        self._rows = _last_rows(run / METRICS)
        self._doubled = sorted(
            step for step, count in Counter(row["step"] for row in all_rows if "tasks" in row).items() if count > 1
        )
        self._stray = [row["step"] for row in all_rows if "tasks" not in row and not _is_validation(row)]
        self._unfinished = _is_unfinished_evaluation(run)
        self._other_settings = _other_settings(run)
        frontier = _frontier(run, self._settings)
        self._count = _tasks_an_epoch(frontier)
        self.draws = HeldDraws(self._settings, frontier, self._rows)
        self.losses = HeldLosses()
        self.validations = HeldValidations(
            all_rows, finished=finished, in_order=not self._streams, same_settings=_has_one_setting(run)
        )
        self._seen: dict[str, list[int]] = defaultdict(list)
        """The steps of each episode."""
        self._tasks: dict[tuple[str, int], tuple[str, str]] = {}
        self.held = 0
        """Steps whose credit was computed again."""
        self.unheld: Counter[str] = Counter()
        """Steps whose credit was not, by reason."""

    def hold(
        self, step: int, split: str, found: Sequence[tuple[Episode, Outcome]], *, sound: bool = True
    ) -> list[WrongStep]:
        """What is wrong with one file. `sound`: its tokens are right; else nothing is computed from them."""
        if split != "train" and any(not episode.group for episode, _ in found):
            return []  # clients played them, of no group
        said = [*self._names(step, found), *self._groups(split, found), *self._order(split, found)]
        if split == "train":
            said += self.draws.hold(step, _groups_of(found))
        if split == "train" and sound and not said:
            said += self._credit(step, found)
        if split == "validation" and sound and not said and self._trains:
            said += self.validations.hold(step, [episode for episode, _ in found])
        return [WrongStep(step, split, what) for what in said]

    def _names(self, step: int, found: Sequence[tuple[Episode, Outcome]]) -> Iterator[str]:
        times = Counter(episode.uuid for episode, _ in found)
        row, algorithm = self._rows.get(step, {}), self._settings.trainer_common.algorithm
        again, bounds = row.get("again", ()), row.get("bounds", {})  # the step's own; a resumed run may have others now
        interval = bounds.get("retrained_interval", algorithm.retrained_interval)
        most = bounds.get("max_trained_count", algorithm.max_trained_count)
        for episode, _ in found:
            seen = self._seen[episode.uuid]
            if times[episode.uuid] > 1 or (seen and episode.order not in again):
                yield f"episode {episode.uuid} is recorded twice"
            elif seen and step < seen[-1] + interval:
                yield f"episode {episode.uuid} was trained on again after {step - seen[-1]} steps"
            elif len(seen) >= most:
                yield f"episode {episode.uuid} was trained on more than {most} times"
            seen.append(step)
            own = Identity(
                episode.run, episode.split, episode.step, episode.task, episode.order, 0, episode.repeat
            )  # fmt: skip
            named = episode.uuid[12:13] == NAMED_BY_RUN
            claims_place = named or episode.group == own.group
            if claims_place and (own.uuid, own.group) != (episode.uuid, episode.group):
                yield f"episode {episode.uuid} has not the name of the attempt that it says it is"
            ahead = (
                self._streams or not named
            )  # it may be played before the step that takes it, or left over at the end
            if episode.step > step + (not named) or (not ahead and episode.step != step):
                yield f"episode {episode.uuid} was played for step {episode.step}"
            if episode.ending and episode.status != "aborted":
                yield f"episode {episode.uuid} ended by itself and names a reason ({episode.ending})"

    def _groups(self, split: str, found: Sequence[tuple[Episode, Outcome]]) -> Iterator[str]:
        wanted = split_repeats(self._settings, split)  # type: ignore[arg-type] # a file's name says a split
        for name, members in _by_group(found).items():
            repeats = sorted(episode.repeat for episode, _ in members)
            whole = members[0][0].uuid[12:13] == NAMED_BY_RUN and not self._unfinished
            if repeats != list(range(wanted)) if whole else len({*repeats}) != len(repeats):
                yield f"group {name} has the attempts {repeats}, not 0 to {wanted - 1}"
            if {(episode.order, episode.split) for episode, _ in members} != {(members[0][0].order, split)}:
                yield f"group {name} stands at several places"
            if any(episode.task != members[0][0].task for episode, _ in members):
                yield f"group {name} has several tasks"

    def _order(self, split: str, found: Sequence[tuple[Episode, Outcome]]) -> Iterator[str]:
        for episode, _ in found:
            if episode.order < 0:
                continue
            count = self._count if split == "train" and self._count else episode.order + 1
            epoch, place = divmod(episode.order, count)
            told = (episode.task.task_id, episode.task.main_query)  # an agent may write into the rest
            if self._tasks.setdefault((f"{split} {epoch}", place), told) != told:
                yield f"position {episode.order} has another task in episode {episode.uuid}"

    def _ranks(self) -> Iterator[str]:
        if not self._count or not self._settings.data.shuffle or self._settings.data.curriculum.prefer:
            return
        epochs: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for (epoch, place), (task_id, _) in self._tasks.items():
            if epoch.startswith("train "):
                epochs[epoch].append((place, task_id))
        for epoch, placed in epochs.items():
            placed.sort()
            ranks = [rank(self._settings.seed, int(epoch.partition(" ")[2]), task_id) for _, task_id in placed]
            for (place, task_id), one, other in zip(placed[1:], ranks, ranks[1:], strict=False):
                if one >= other:
                    yield f"task {task_id} does not stand at place {place} of epoch {int(epoch[6:]) + 1} by this seed"

    def _credit(self, step: int, found: Sequence[tuple[Episode, Outcome]]) -> Iterator[str]:
        outcomes = {episode.uuid: outcome for episode, outcome in found}
        groups = _groups_of(found)
        left = _left(groups, outcomes)
        trained = _trained(groups, outcomes)
        row = self._rows.get(step)
        if row is None:
            last = max(self._rows, default=step)
            if step < last or step > last + 1 or self._finished:
                yield "its row in metrics.jsonl is missing"
            else:
                self.unheld["the step is not over, or was cut off"] += 1
            return
        yield from self._accounts(row, trained, groups, outcomes)
        reason = self._why_no_credit()
        if reason:
            self.unheld[reason] += 1
            return
        self.held += 1
        try:
            batch = self._batch(step, trained, outcomes)
        except NotRecordedError as lacking:
            yield f"{lacking.what} of episode {lacking} are not in the record"
            return
        expected: dict[str, Outcome] = dict(batch.outcomes)
        for group in groups:
            if (why := left[group.order]) is not None:
                expected |= build_discarded_outcomes([group], why)
        wrong = list(self._compared(row, batch, expected, outcomes))
        if wrong and self._other_settings(step):
            self.held -= 1
            self.unheld[OTHERS] += 1
            return
        yield from wrong
        self.losses.expect(step, batch, row, self._settings)

    def _compared(
        self,
        row: Mapping[str, Any],
        batch: TrainingBatch,
        expected: Mapping[str, Outcome],
        outcomes: Mapping[str, Outcome],
    ) -> Iterator[str]:
        for uuid, outcome in outcomes.items():
            if not _alike(again := expected.get(uuid, NO_OUTCOME), outcome):
                yield f"the credit of episode {uuid} is {_words(outcome)}; its group gives {_words(again)}"
        for name, value in {"train/trained_tokens": batch.trained_tokens, **batch.metrics}.items():
            if name in row and not _close(row[name], value):
                yield f"{name} is {row[name]:g} in metrics.jsonl, {value:g} by the episodes"

    def hold_loss(
        self,
        scorer: RecordedScorer,
        step: int,
        found: Sequence[tuple[Episode, Outcome]],
        reference: Callable[[TrainingBatch], Sequence[Floats] | None],
    ) -> list[WrongStep]:
        """What of the loss of a step, which was held and is one of `losses.begun_with`, does not follow."""
        outcomes = {episode.uuid: outcome for episode, outcome in found}
        batch = self._batch(step, _trained(_groups_of(found), outcomes), outcomes)
        others = self._other_settings(step)
        said = self.losses.hold(scorer, step, batch, self._rows[step], reference(batch), others=others)
        return [WrongStep(step, "train", what) for what in said]

    def _accounts(
        self, row: Mapping[str, Any], trained: Sequence[Group], groups: Sequence[Group], outcomes: Mapping[str, Outcome]
    ) -> Iterator[str]:
        counted = groups if self._replaces else trained
        again = episode_metrics(episodes_of(counted), "train", outcomes)
        said = {name: value for name, value in row.items() if name.startswith("train/")}
        for name in sorted(again.keys() | said.keys()):
            own = name.removeprefix("train/")
            if (name in said and name in again) or (own.startswith(HELD) and (name in said or "/" in own)):
                there, value = said.get(name, 0), again.get(name, 0)
                if not _close(there, value):
                    yield f"{name} is {there} in metrics.jsonl, {value:g} by the episodes"
        used = sorted(group.order for group in trained if group.scored or not self._replaces)
        if (told := sorted([*row.get("tasks", ()), *row.get("again", ())])) != used:
            yield f"metrics.jsonl says that it trained the positions {told}, the episodes {used}"
        if lost := {*row.get("discarded", ())} - {group.order for group in groups}:
            yield f"the episodes of the positions {sorted(lost)} are missing"

    def _batch(self, step: int, trained: Sequence[Group], outcomes: Mapping[str, Outcome]) -> TrainingBatch:
        """The batch by the function that trained, the recorded numbers in the models' place. Raises
        NotRecordedError."""
        settings, reference = self._settings, make_recorded_reference(outcomes)
        if settings.sft.objective == "dpo":
            return build_pairs_batch(trained, settings, reference, step=step)
        if settings.sft.objective is not None:
            return build_likelihood_batch(trained, settings, step=step)
        return assign_credit(trained, settings, step=step, reference=reference, critic=make_recorded_critic(outcomes))

    def _why_no_credit(self) -> str:
        if self._settings.sft.objective is not None:
            return ""
        if is_reference(self._settings.trainer_common.algorithm.adv_estimator):
            return "an algorithm of their own decides over their credit, and a record's code is not run"
        return f"a {self._backbone.name}: section decides over their credit" if self._foreign else ""

    def together(self, files: Sequence[tuple[int, str]] | None) -> list[WrongStep]:
        """What is wrong over all that was held. `files`: all that the run has; None: some were left out."""
        last = max(self._rows, default=0)
        said = [WrongStep(last, "train", what) for what in self._ranks()]
        said += [WrongStep(step, "train", "it has several rows in metrics.jsonl") for step in self._doubled]
        said += [
            WrongStep(step, "train", "a row in metrics.jsonl is of no step and no validation") for step in self._stray
        ]
        if files is None:
            return said
        there = {step for step, split in files if split == "train"}
        validated = {step for step, split in files if split == "validation"}
        said += [
            WrongStep(step, "validation", what)
            for step, what in self.validations.find_missing(validated, self._removed)
            if not self._has_file(f"step-{step}.validation.jsonl")
        ]
        lost = [step for step, row in self._rows.items() if (row["tasks"] or row.get("again")) and step not in there]
        gone = [step for step in lost if f"episodes/step-{step}.bin" not in self._removed]
        self.unheld[REMOVED] += sum(f"episodes/step-{step}.jsonl" in self._removed for step in lost)
        return said + [
            WrongStep(step, "train", "its episodes are missing")
            for step in gone
            if not self._has_file(f"step-{step}.jsonl")
        ]

    def _has_file(self, name: str) -> bool:
        """True if a live run has recorded these episodes since its files were listed."""
        return (self._run / "episodes" / name).exists()


def _by_group(found: Sequence[tuple[Episode, Outcome]]) -> dict[str, list[tuple[Episode, Outcome]]]:
    groups: dict[str, list[tuple[Episode, Outcome]]] = defaultdict(list)
    for episode, outcome in found:
        groups[episode.group].append((episode, outcome))
    for members in groups.values():
        members.sort(key=lambda each: each[0].repeat)
    return groups


def _groups_of(found: Sequence[tuple[Episode, Outcome]]) -> list[Group]:
    return [
        Group(members[0][0].task, members[0][0].order, [episode for episode, _ in members])
        for members in _by_group(found).values()
    ]


def _left(groups: Sequence[Group], outcomes: Mapping[str, Outcome]) -> dict[int, UntrainedReason | None]:
    """Why each group is in no batch; None: it is in the step's."""
    return {group.order: outcomes[group.episodes[0].uuid].discarded for group in groups}


def _trained(groups: Sequence[Group], outcomes: Mapping[str, Outcome]) -> list[Group]:
    left = _left(groups, outcomes)
    return sorted((group for group in groups if left[group.order] is None), key=lambda group: group.order)


def _is_unfinished_evaluation(run: Path) -> bool:
    """An evaluation records attempt by attempt, and one that was ended goes on later."""
    status = read_status(run) or {}
    return status.get("kind") == "eval" and status.get("outcome") != "finished"


def _is_validation(row: Mapping[str, Any]) -> bool:
    return any(name.startswith("validation/") for name in row)


def _has_one_setting(run: Path) -> bool:
    """True if all starts of the run had the same settings."""
    with ChainIndex(run) as chain:
        return len({digest for _, digest in chain.settings()}) <= 1


def _last_rows(path: Path) -> dict[int, dict[str, Any]]:
    """The last row of each training step; `tasks` tells them from a validation's."""
    return {row["step"]: row for row in read_rows(path) if "tasks" in row} if path.exists() else {}


def _other_settings(run: Path) -> Callable[[int], bool]:
    """Whether a step was trained under other settings than those that the run has now: it went on with changed
    values, and what they were before no file has."""
    with ChainIndex(run) as chain:
        starts = chain.settings()

    def other(step: int) -> bool:
        return any(digest != starts[-1][1] for at, digest in [each for each in starts if each[0] < step][-1:])

    return other


def _frontier(run: Path, settings: AjetConfig) -> dict[str, Any]:
    """The order of tasks as the newest checkpoint holds it; nothing where there is none."""
    folder = checkpoints_folder(run, settings.trainer_common.checkpoint_base_dir)
    try:
        latest = Checkpoints(folder).latest()
    except UserError:
        return {}
    state = latest.state if latest is not None else {}
    return dict(state.get("frontier") or state.get("order") or {})


def _tasks_an_epoch(frontier: Mapping[str, Any]) -> int | None:
    """The tasks of an epoch, as the checkpoint says; None where none does."""
    told = frontier.get("count")
    return told if isinstance(told, int) and told > 0 else None


def _alike(one: Outcome, other: Outcome) -> bool:
    same = (one.step, dict(one.untrained), one.discarded) == (other.step, dict(other.untrained), other.discarded)
    if one.advantage is None or other.advantage is None:
        return same and one.advantage is other.advantage
    return same and _close(one.advantage, other.advantage)


def _close(one: Any, other: float) -> bool:
    return isinstance(one, int | float) and math.isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE)


def _words(outcome: Outcome) -> str:
    parts = [f"trained in step {outcome.step}"] if outcome.step is not None else ["not trained"]
    parts += [f"advantage {outcome.advantage:.4g}"] if outcome.advantage is not None else []
    parts += [f"{count} tokens {reason}" for reason, count in outcome.untrained.items()]
    parts += [f"discarded ({outcome.discarded})"] if outcome.discarded else []
    return ", ".join(parts)
