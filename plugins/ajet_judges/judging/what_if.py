"""What a run's steps would have been worth under other verdicts: rewards, advantages, groups with something to learn.

Invariant: both sides of each number are computed from the recorded episodes by `algorithm.credit` and
`Algorithm.learns_from`, which trained them, with the run's own settings; only the verdict differs. It tells of the
episodes that were played: under other rewards the model would have become another one and played others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from ajet.algorithm import Algorithm, credit, opened
from ajet.algorithm.recorded_models import NotRecorded, recorded_critic, recorded_reference
from ajet.config.schema.choices import is_reference
from ajet.gateway import Capture
from ajet.rollout.process_rewards import Decode, tie_rewards
from ajet.schema.episode import Episode, Group, Outcome, Verdict
from ajet.schema.errors import JudgeFailure

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment

OWN = "an algorithm of their own decides over their credit, and a record's code is not run"


@dataclass(frozen=True, slots=True)
class Under:
    """A step under one side's verdicts."""

    reward: float | None
    """Mean over the scored; None where none is."""
    scored: int
    learns: int | None
    """Groups with something to learn from; None where only code of the record's could say."""


@dataclass(frozen=True, slots=True)
class StepWhatIf:
    """The credit of one episode file under other settings."""

    step: int
    split: str
    episodes: int
    groups: int
    recorded: Under
    judged: Under
    credited: int
    """Episodes with an advantage on both sides."""
    flipped: int
    """Of them, those that were made more likely and would have been made less so, or the other way round."""


class WhatIf:
    """The credit of one run under other settings."""

    def __init__(self, experiment: Experiment) -> None:
        """`experiment`: the run's own, as recorded. Raises the UserError of an algorithm that cannot be made."""
        self._experiment, self._settings = experiment, experiment.ajet
        self._decode: Decode | None = None
        chosen = self._settings.trainer_common.algorithm
        foreign = bool(experiment.backbone.roots and experiment.backbone_overrides)
        own = is_reference(chosen.adv_estimator)
        self.why_no_advantages = (
            f"a {experiment.backbone.name}: section decides over their credit" if foreign
            else OWN if own else ""
        )  # fmt: skip
        """Why some have none, as far as that is known by now; "" where all have one."""
        self._never = bool(self.why_no_advantages)
        self._algorithm: Algorithm | None = None if own or foreign else opened(self._credited(), base=experiment.base)

    def _credited(self) -> AjetConfig:
        """Without the loss, which bears on no credit and may be code of the record's."""
        settings = self._settings.model_copy(deep=True)
        settings.trainer_common.algorithm.policy_loss = None
        return settings

    def tied(self, episode: Episode, verdict: Verdict) -> Verdict:
        """The verdict, rewards of parts with their tokens. Raises JudgeFailure for a part that the episode lacks."""
        if not verdict.turns and not verdict.process:
            return verdict
        capture = Capture(calls=episode.calls, messages=episode.messages, tool_uses=episode.tool_uses)
        if all(not part.text for part in verdict.process):
            return tie_rewards(verdict, capture, lambda ids: "")
        self._decode = self._decode or _decode_of(self._experiment)
        return tie_rewards(verdict, capture, self._decode)

    def step(
        self,
        step: int,
        split: str,
        recorded: Sequence[tuple[Episode, Outcome]],
        judged: Sequence[Episode],
    ) -> tuple[StepWhatIf, dict[str, tuple[float | None, float | None]]]:
        """The step, and by uuid the advantages on both sides (None: not credited). `judged`: the same episodes with
        other verdicts."""
        before = _groups([episode for episode, _ in recorded])
        after = _groups(judged)
        left = {episode.uuid for episode, outcome in recorded if outcome.discarded is not None}
        advantages: dict[str, tuple[float | None, float | None]] = {}
        if split == "train" and not self._never:
            outcomes = {episode.uuid: outcome for episode, outcome in recorded}
            try:
                sides = [self._advantages(step, groups, left, outcomes) for groups in (before, after)]
            except NotRecorded as lacking:
                self.why_no_advantages = f"{lacking.what} of episode {lacking} are not in the record of step {step}"
            else:
                advantages = {
                    episode.uuid: (sides[0].get(episode.uuid), sides[1].get(episode.uuid)) for episode, _ in recorded
                }
        both = [(one, other) for one, other in advantages.values() if one is not None and other is not None]
        found = StepWhatIf(
            step,
            split,
            len(recorded),
            len(before),
            self._under(before),
            self._under(after),
            len(both),
            sum(one * other < 0 for one, other in both),
        )
        return found, advantages

    def _under(self, groups: Sequence[Group]) -> Under:
        rewards = [episode.reward or 0.0 for group in groups for episode in group.scored]
        by = self._algorithm
        learns = None if by is None else sum(by.learns_from(group) for group in groups)
        return Under(fmean(rewards) if rewards else None, len(rewards), learns)

    def _advantages(
        self, step: int, groups: Sequence[Group], left: set[str], outcomes: Mapping[str, Outcome]
    ) -> dict[str, float]:
        asked = {e.uuid for group in groups for e in group.scored}  # the models saw what had a score then
        if self._algorithm is not None and "critic" in self._algorithm.needs:
            left = left | {uuid for uuid in asked if outcomes[uuid].values is None}
        if self._settings.trainer_common.algorithm.use_kl_in_reward and any(
            outcome.reference_gap is not None for outcome in outcomes.values()
        ):
            left = left | {uuid for uuid in asked if outcomes[uuid].reference_gap is None}
        reference, critic = recorded_reference(outcomes), recorded_critic(outcomes)
        trained = [group for group in groups if not any(episode.uuid in left for episode in group.episodes)]
        batch = credit(trained, self._settings, self._algorithm, step=step, reference=reference, critic=critic)
        scored = [episode for group in trained for episode in group.scored]
        return {episode.uuid: batch.outcomes[episode.uuid].advantage or 0.0 for episode in scored}


def with_verdict(episode: Episode, verdict: Verdict | None) -> Episode:
    """The episode as that judge has it, whatever another judge failed at; None: it has no score."""
    if verdict is None:
        return replace(episode, verdict=Verdict(None, None, "no score"))
    return replace(episode, verdict=verdict, status="completed", failure=None)


def _groups(episodes: Sequence[Episode]) -> list[Group]:
    found: dict[str, list[Episode]] = {}
    for episode in episodes:
        found.setdefault(episode.group or episode.task.task_id, []).append(episode)
    groups = [Group(each[0].task, each[0].order, sorted(each, key=lambda e: e.repeat)) for each in found.values()]
    return sorted(groups, key=lambda group: group.order)


def _decode_of(experiment: Experiment) -> Decode:
    """The text of ids, by the run's own tokenizer, which is never fetched. Raises JudgeFailure where it is not here."""
    from ajet.engine.model_source import at_hand, locate
    from ajet.engine.models import load_tokenizer
    from ajet.rollout.components import make_renderer

    named = experiment.ajet.model.path
    if named is None or at_hand(named, base=experiment.base, weights=False) is None:
        raise JudgeFailure("a reward for a text needs the run's tokenizer, which is not on this machine")
    return make_renderer(experiment.ajet, load_tokenizer(locate(named, base=experiment.base, weights=False))).decode
