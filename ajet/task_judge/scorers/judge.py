"""ScorerJudge: selects the scorers of each episode and combines their scores to a reward.

Invariant: the last matching stage (`task_judge.stages`: other scorers from a step on, or for certain tasks) selects.
Otherwise it is the row's `scorer`, else the configured scorers, else the task reader's. Scorers of a YAML are opened
before the run. A row may only name registered scorers, never code.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.config.plugins import find_part
from ajet.config.references import parse_reference
from ajet.config.schema.choices import is_reference
from ajet.record.attempts import tags_of
from ajet.schema.episode import Verdict
from ajet.schema.errors import BoundaryError, ConfigError, JudgeFailure, TaskError, UserError
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge.judge import check_verdict
from ajet.task_judge.scorers.bound import BoundScorer
from ajet.task_judge.scorers.call import ScorerCall
from ajet.task_judge.scorers.names import find_scorer, is_scorer, list_scorers

if TYPE_CHECKING:
    from ajet.config import Experiment

KEY = "ajet.task_judge"
Wanted = tuple[str, float, Mapping[str, Any]]  # name, weight, arguments


class ScorerJudge:
    """Scores attempts with the chosen scorers; created by `open_scorers`."""

    def __init__(self, experiment: Experiment, readers_own: str = "", *, named_by: str = f"{KEY}.scorer") -> None:
        """Open the scorers of the settings.

        Args:
            readers_own: default scorer of the task reader, opened on first use.
            named_by: key of the only scorer.

        Raises:
            UserError: a ConfigError, an UnresolvedReferenceError, or an error of a scorer's constructor.
        """
        judge, workflow_reference = experiment.ajet.task_judge, experiment.ajet.rollout.user_workflow
        self._experiment, self._schema = experiment, judge.answer_schema
        self._other_references = (
            (workflow_reference,) if isinstance(workflow_reference, str) and is_reference(workflow_reference) else ()
        )
        self._is_strict, self._readers_own = bool(readers_own), readers_own
        self._by_name: dict[str, ScorerPanel] = {}
        self._unknown_names: set[str] = set()
        self._lock = threading.Lock()
        self._stages = [
            (stage, self._make_panel([(stage.scorer, 1.0, stage.arguments)], f"{KEY}.stages[{index}].scorer"))
            for index, stage in enumerate(judge.stages)
        ]
        configured: list[Wanted] = [(scorer.name, scorer.weight, scorer.arguments) for scorer in judge.scorers]
        key = f"{KEY}.scorers"
        if judge.scorer:
            configured, key = [(judge.scorer, 1.0, {})], named_by
        self._default_panel = self._make_panel(configured, key) if configured else None
        default_name = self._default_panel.name if self._default_panel else readers_own
        stage_names = [f"{panel.name} from step {stage.from_step}" for stage, panel in self._stages]
        self.said = "scorer " + "; ".join([name for name in [default_name] if name] + stage_names)

    async def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Verdict:
        """Return the verdict of the scorers selected for this attempt; without a scorer, a verdict without reward.

        Raises:
            JudgeFailure: a scorer failed.
            BoundaryError: as raised by a scorer.
        """
        panel = self._choose_panel(workflow_task)
        if panel is None:
            return Verdict(None, workflow_output.is_success, "no score: no scorer is set for this task")
        call = ScorerCall(workflow_task, workflow_output, self._experiment.config, self._schema)
        return await panel.verdict(call)

    def require_for(self, tasks: Iterable[Task]) -> None:
        """Refuse tasks with an unknown scorer, for readers whose rows name scorers. Raises TaskError."""
        if not self._is_strict:
            return
        for task in tasks:
            scorer_name = task.metadata.get("scorer")
            if scorer_name and not is_scorer(
                str(scorer_name), base=self._experiment.base, user_references=self._other_references
            ):
                raise TaskError(
                    f"A task names an unknown scorer: {scorer_name!r:.80}.",
                    where=f"task {task.task_id}",
                    expected=f"one of {', '.join(list_scorers())}; a row cannot refer to code",
                    do='register the scorer with @scorer("NAME") in the file of the workflow, or correct the row',
                )

    def let_go(self) -> None:
        """Close the connections and processes of all opened scorers."""
        with self._lock:
            panels = [panel for _, panel in self._stages] + [*self._by_name.values()]
        for panel in [*panels, *([self._default_panel] if self._default_panel is not None else [])]:
            panel.let_go()

    def _choose_panel(self, workflow_task: WorkflowTask) -> ScorerPanel | None:
        """Return the scorers of a task: of the last matching stage, else of the row, else the configured default.

        Without these, it is the task reader's own scorer, or None. Raises JudgeFailure for an unknown scorer.
        """
        metadata = workflow_task.task.metadata
        tags = tags_of(metadata)
        for stage, panel in reversed(self._stages):
            if workflow_task.step >= stage.from_step and (stage.tag is None or stage.tag in tags):
                return panel
        scorer_name = metadata.get("scorer")
        if isinstance(scorer_name, str) and scorer_name and (row_panel := self._row_panel(scorer_name)) is not None:
            return row_panel
        if self._default_panel is not None or not self._readers_own:
            return self._default_panel
        return self._named_panel(self._readers_own, "ajet.task_reader.type")

    def _row_panel(self, named: str) -> ScorerPanel | None:
        """Return the scorer that a row names, or None (logged once) if the name is unknown.

        If the task reader has its own scorer, its rows' `scorer` fields name scorers: an unknown one is a JudgeFailure.
        """
        if self._is_strict or named in self._by_name:
            return self._named_panel(named, "the row's scorer")
        if named in self._unknown_names:
            return None
        if is_scorer(named, base=self._experiment.base, user_references=self._other_references):
            return self._named_panel(named, "the row's scorer")
        self._unknown_names.add(named)
        logger.warning(
            "the field `scorer` of a row is {!r:.80}, which is not a known scorer: ajet ignores the field", named
        )
        return None

    def _named_panel(self, named: str, key: str) -> ScorerPanel:
        """Return the panel of one scorer, opened on the first use of its name.

        Args:
            named: Name of a scorer, from a row or a task reader.
            key: Where the name stands, for errors.

        Raises:
            JudgeFailure: the name is unknown or a reference to code.
        """
        with self._lock:
            if named not in self._by_name:
                if is_reference(named):
                    raise JudgeFailure(f"{key} is {named!r:.80}; a row cannot refer to code")
                try:
                    self._by_name[named] = self._make_panel([(named, 1.0, {})], key)
                except UserError as error:
                    raise JudgeFailure(f"{error.what} ({key}) {error.do}".strip()) from error
            return self._by_name[named]

    def _make_panel(self, wanted_scorers: Sequence[Wanted], key: str) -> ScorerPanel:
        """Open scorers and return them as a panel. A name that appears again gets a number: `exact`, `exact_2`.

        Args:
            wanted_scorers: (name or reference, weight, arguments) of each scorer.
            key: Configuration key of the scorers, for errors.
        """
        label_counts: Counter[str] = Counter()
        members = []
        for scorer_name, weight, arguments in wanted_scorers:
            label = parse_reference(scorer_name, key=key).name if is_reference(scorer_name) else scorer_name
            label_counts[label] += 1
            label = label if label_counts[label] == 1 else f"{label}_{label_counts[label]}"
            scorer = find_scorer(
                scorer_name, base=self._experiment.base, key=key, user_references=self._other_references
            )
            members.append(ScorerMember(BoundScorer(scorer, label, arguments, self._experiment, key=key), weight))
        return ScorerPanel(members)


def open_scorers(experiment: Experiment) -> ScorerJudge | None:
    """Return the judge of the configured scorers or of the task reader's own scorer; None without either.

    Raises:
        UserError: settings exclude each other, or a scorer cannot be opened.
    """
    judge = experiment.ajet.task_judge
    reader = find_part("reader", experiment.ajet.task_reader.type)
    is_configured = bool(judge.scorer or judge.scorers or judge.stages)
    if judge.scorer and judge.scorers:
        raise ConfigError("task_judge.scorer and task_judge.scorers are both set.", where=f"{KEY}.scorers",
                          do="move task_judge.scorer into task_judge.scorers")  # fmt: skip
    if is_configured and judge.judge_protocol:
        raise ConfigError(
            "task_judge.judge_protocol and scorers are both set.",
            where=f"{KEY}.judge_protocol",
            do="remove one; `scorer` or `scorers` can also refer to your own judge",
        )
    readers_own = reader.scorer if reader is not None else ""
    return ScorerJudge(experiment, readers_own) if is_configured or readers_own else None


@dataclass(frozen=True, slots=True)
class ScorerMember:
    """One scorer of a panel with its weight."""

    scorer: BoundScorer
    weight: float = 1.0


class ScorerPanel:
    """The weighted scorers of an episode.

    Invariant: the reward is the sum of weight times score. If a scorer gives no score, the panel gives none, unless the
    scorer's weight is 0. A weight of 0 only records the score, also on a failure.
    """

    def __init__(self, members: Sequence[ScorerMember]) -> None:
        self._members = list(members)
        self.name = "+".join(member.scorer.name for member in self._members)

    async def verdict(self, call: ScorerCall) -> Verdict:
        """Return the weighted verdict, with each scorer's own score in `parts`.

        Raises JudgeFailure, or the exception of a scorer whose weight is not 0.
        """
        verdicts = await asyncio.gather(*(_score_member(member, call) for member in self._members))
        parts: dict[str, float | None] = {}
        for member, verdict in zip(self._members, verdicts, strict=True):
            is_only_scorer = len(self._members) == 1
            parts |= {member.scorer.name: verdict.reward}
            # With several scorers, the parts of one get its name as a prefix.
            parts |= {
                name if is_only_scorer else f"{member.scorer.name}/{name}": score
                for name, score in verdict.parts.items()
            }
        if len(verdicts) == 1 and self._members[0].weight == 1:
            return replace(verdicts[0], scorer=self.name, parts=parts)
        weighted_verdicts = [
            (member.weight, verdict) for member, verdict in zip(self._members, verdicts, strict=True) if member.weight
        ]
        is_undecided = not weighted_verdicts or any(verdict.reward is None for _, verdict in weighted_verdicts)
        reward = (
            None if is_undecided else sum(weight * (verdict.reward or 0.0) for weight, verdict in weighted_verdicts)
        )
        process = tuple(
            process_reward.model_copy(update={"reward": process_reward.reward * weight})
            for weight, verdict in weighted_verdicts
            for process_reward in verdict.process
        )
        success = _combine_success([member_verdict.success for _, member_verdict in weighted_verdicts])
        verdict = Verdict(
            reward, success, self._explain_scores(verdicts), process=process, scorer=self.name, parts=parts
        )
        turn_counts = {len(member_verdict.turns) for _, member_verdict in weighted_verdicts}
        if not is_undecided and len(turn_counts) == 1:
            turns = zip(
                *([weight * turn for turn in member_verdict.turns] for weight, member_verdict in weighted_verdicts),
                strict=True,
            )
            verdict.turns = tuple(map(sum, turns))
        has_several_reports = (
            sum(bool(member_verdict.metrics or member_verdict.details) for member_verdict in verdicts) > 1
        )
        for member, member_verdict in zip(self._members, verdicts, strict=True):
            prefix = f"{member.scorer.name}/" if has_several_reports else ""
            verdict.metrics |= {f"{prefix}{name}": value for name, value in member_verdict.metrics.items()}
            verdict.details |= {f"{prefix}{name}": value for name, value in member_verdict.details.items()}
        return check_verdict(verdict, f"the score of {self.name}")

    def let_go(self) -> None:
        """Close the connections and processes of the panel's scorers."""
        for member in self._members:
            member.scorer.let_go()

    def _explain_scores(self, verdicts: Sequence[Verdict]) -> str:
        """Return the name, score and reason of each scorer as one text."""
        parts = []
        for member, verdict in zip(self._members, verdicts, strict=True):
            score = "no score" if verdict.reward is None else f"{verdict.reward:g}"
            reason = verdict.reason.removeprefix("no score: ")
            parts.append(f"{member.scorer.name} {score}" + (f" ({reason})" if reason else ""))
        return "; ".join(parts)


async def _score_member(member: ScorerMember, call: ScorerCall) -> Verdict:
    """Return a scorer's verdict. A scorer of weight 0 only records its score, so its failure gives no score."""
    try:
        return await member.scorer.score(call)
    except (BoundaryError, UserError) as error:
        if member.weight:
            raise
        return Verdict(None, None, f"failed: {error}")


def _combine_success(successes: Sequence[bool | None]) -> bool | None:
    """Return False if any scorer reports a failure, else None if any is undecided, else True."""
    if False in successes:
        return False
    return None if None in successes or not successes else True
