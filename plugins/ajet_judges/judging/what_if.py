"""Computes what a run's rewards and advantages would be under other verdicts on its recorded episodes.

Invariant: both sides use the recorded episodes and the training functions `algorithm.credit` and
`Algorithm.learns_from` with the run's settings. Only the verdict differs. The episodes were sampled by the recorded
policy: training on other rewards would have sampled others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from ajet.algorithm import Algorithm, assign_credit, open_algorithm
from ajet.algorithm.recorded_models import NotRecordedError, make_recorded_critic, make_recorded_reference
from ajet.config.schema.choices import is_reference
from ajet.gateway import Capture
from ajet.rollout.process_rewards import Decode, locate_rewards
from ajet.schema.episode import Episode, Group, Outcome, Verdict
from ajet.schema.errors import JudgeFailure

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment

OWN = "an algorithm of the user computes their credit, and code of a record is not run"


@dataclass(frozen=True, slots=True)
class StepRewards:
    """Rewards of one step under the recorded or under the new verdicts."""

    reward: float | None
    """Mean over scored episodes; None without scores."""
    scored: int
    learns: int | None
    """Groups with a learning signal; None if only the record's code could decide."""


@dataclass(frozen=True, slots=True)
class StepWhatIf:
    """One episode file: rewards under recorded and new verdicts, and the advantages that differ."""

    step: int
    split: str
    episodes: int
    groups: int
    recorded: StepRewards
    judged: StepRewards
    credited: int
    """Episodes with an advantage on both sides."""
    flipped: int
    """Episodes whose advantage changes its sign."""


class WhatIfCredit:
    """Computes the advantages of a recorded run under other verdicts."""

    def __init__(self, experiment: Experiment) -> None:
        """Open the run's algorithm.

        Args:
            experiment: the recorded experiment.

        Raises:
            UserError: the algorithm cannot be created.
        """
        self._experiment, self._settings = experiment, experiment.ajet
        self._decode: Decode | None = None
        algorithm = self._settings.trainer_common.algorithm
        # A section of the backbone may contain settings of its own for advantages.
        changes_credit = bool(experiment.backbone.roots and experiment.backbone_overrides)
        is_users = is_reference(algorithm.adv_estimator)
        self.why_no_advantages = (
            f"a {experiment.backbone.name}: section changes their credit" if changes_credit
            else OWN if is_users else ""
        )  # fmt: skip
        """Why some steps have no advantages, as known so far; "" otherwise."""
        self._never = bool(self.why_no_advantages)
        self._algorithm: Algorithm | None = (
            None if is_users or changes_credit else open_algorithm(self._copy_credit_settings(), base=experiment.base)
        )

    def _copy_credit_settings(self) -> AjetConfig:
        """Return the settings without the policy loss, which may be code of the record.

        The loss has no influence on advantages.
        """
        settings = self._settings.model_copy(deep=True)
        settings.trainer_common.algorithm.policy_loss = None
        return settings

    def locate_verdict_rewards(self, episode: Episode, verdict: Verdict) -> Verdict:
        """Return the verdict with rewards of single turns or texts assigned to tokens of the episode.

        Raises:
            JudgeFailure: a turn or text of the verdict is not in the episode.
        """
        if not verdict.turns and not verdict.process:
            return verdict
        capture = Capture(calls=episode.calls, messages=episode.messages, tool_uses=episode.tool_uses)
        if all(not part.text for part in verdict.process):
            return locate_rewards(verdict, capture, lambda ids: "")
        self._decode = self._decode or _open_decoder(self._experiment)
        return locate_rewards(verdict, capture, self._decode)

    def compute_step(
        self,
        step: int,
        split: str,
        recorded: Sequence[tuple[Episode, Outcome]],
        judged_episodes: Sequence[Episode],
    ) -> tuple[StepWhatIf, dict[str, tuple[float | None, float | None]]]:
        """Compute rewards and advantages of one step under the recorded and the new verdicts.

        Args:
            recorded: the step's episodes with their recorded outcomes.
            judged_episodes: the same episodes with new verdicts.

        Returns:
            The step's summary, and per episode id the advantages under both verdicts (None: none computed).
        """
        before = _build_groups([episode for episode, _ in recorded])
        after = _build_groups(judged_episodes)
        discarded = {episode.uuid for episode, outcome in recorded if outcome.discarded is not None}
        advantages: dict[str, tuple[float | None, float | None]] = {}
        if split == "train" and not self._never:
            outcomes = {episode.uuid: outcome for episode, outcome in recorded}
            try:
                sides = [self._compute_advantages(step, groups, discarded, outcomes) for groups in (before, after)]
            except NotRecordedError as missing:
                self.why_no_advantages = f"{missing.what} of episode {missing} are not in the record of step {step}"
            else:
                advantages = {
                    episode.uuid: (sides[0].get(episode.uuid), sides[1].get(episode.uuid)) for episode, _ in recorded
                }
        compared = [
            (recorded_value, new_value)
            for recorded_value, new_value in advantages.values()
            if recorded_value is not None and new_value is not None
        ]
        summary = StepWhatIf(
            step,
            split,
            len(recorded),
            len(before),
            self._summarize_rewards(before),
            self._summarize_rewards(after),
            len(compared),
            sum(recorded_value * new_value < 0 for recorded_value, new_value in compared),
        )
        return summary, advantages

    def _summarize_rewards(self, groups: Sequence[Group]) -> StepRewards:
        """Return the mean reward and the number of groups with a learning signal."""
        rewards = [episode.reward or 0.0 for group in groups for episode in group.scored]
        algorithm = self._algorithm
        learns = None if algorithm is None else sum(algorithm.learns_from(group) for group in groups)
        return StepRewards(fmean(rewards) if rewards else None, len(rewards), learns)

    def _compute_advantages(
        self, step: int, groups: Sequence[Group], left_out: set[str], outcomes: Mapping[str, Outcome]
    ) -> dict[str, float]:
        """Return the advantage of each scored episode, with the recorded values of critic and reference model.

        Groups with an episode in `left_out`, or without a value that the algorithm needs, are left out.

        Args:
            groups: the step's episodes, under the recorded or the new verdicts.
            left_out: ids of the episodes that training discarded.
            outcomes: recorded outcome by episode id.

        Raises:
            NotRecordedError: a needed value is in no record of the step.
        """
        scored_ids = {episode.uuid for group in groups for episode in group.scored}
        # An episode without recorded critic values cannot get an advantage, so its group is left out.
        if self._algorithm is not None and "critic" in self._algorithm.needs:
            left_out = left_out | {uuid for uuid in scored_ids if outcomes[uuid].values is None}
        needs_privileged_model = self._algorithm is not None and "privileged" in self._algorithm.needs
        if (self._settings.trainer_common.algorithm.use_kl_in_reward or needs_privileged_model) and any(
            outcome.reference_gap is not None for outcome in outcomes.values()
        ):
            left_out = left_out | {uuid for uuid in scored_ids if outcomes[uuid].reference_gap is None}
        reference, critic = make_recorded_reference(outcomes), make_recorded_critic(outcomes)
        trained = [group for group in groups if not any(episode.uuid in left_out for episode in group.episodes)]
        batch = assign_credit(trained, self._settings, self._algorithm, step=step, reference=reference, critic=critic)
        scored = [episode for group in trained for episode in group.scored]
        return {episode.uuid: batch.outcomes[episode.uuid].advantage or 0.0 for episode in scored}


def replace_verdict(episode: Episode, verdict: Verdict | None) -> Episode:
    """Return the episode with another verdict, even if its judge had failed. None removes the score."""
    if verdict is None:
        return replace(episode, verdict=Verdict(None, None, "no score"))
    return replace(episode, verdict=verdict, status="completed", failure=None)


def _build_groups(episodes: Sequence[Episode]) -> list[Group]:
    """Return the episodes by group, in the order of the groups and of the repeats in each."""
    episodes_by_group: dict[str, list[Episode]] = {}
    for episode in episodes:
        episodes_by_group.setdefault(episode.group or episode.task.task_id, []).append(episode)
    groups = [
        Group(members[0].task, members[0].order, sorted(members, key=lambda member: member.repeat))
        for members in episodes_by_group.values()
    ]
    return sorted(groups, key=lambda group: group.order)


def _open_decoder(experiment: Experiment) -> Decode:
    """Return a function that decodes token ids by the run's tokenizer, which is never downloaded.

    Raises:
        JudgeFailure: the tokenizer is not on this machine.
    """
    from ajet.engine.model_source import find_local_model, locate_model
    from ajet.engine.models import load_tokenizer
    from ajet.rollout.components import make_renderer

    model_path = experiment.ajet.model.path
    if model_path is None or find_local_model(model_path, base=experiment.base, weights=False) is None:
        raise JudgeFailure("a reward for a text needs the run's tokenizer, which is not on this machine")
    return make_renderer(
        experiment.ajet, load_tokenizer(locate_model(model_path, base=experiment.base, weights=False))
    ).decode
