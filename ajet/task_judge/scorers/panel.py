"""ScorerPanel: one scorer or several, weighted, that score an episode together.

Invariant: the reward is the sum of weight times score. A scorer that gives none leaves the whole without a score,
unless its weight is 0: then it is recorded beside the others and decides nothing, also where it fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ajet.schema.episode import Verdict
from ajet.schema.errors import BoundaryError, UserError
from ajet.task_judge.judgement import checked
from ajet.task_judge.scorers.bound import BoundScorer
from ajet.task_judge.scorers.call import ScorerCall


@dataclass(frozen=True, slots=True)
class Member:
    """A scorer of a panel."""

    scorer: BoundScorer
    weight: float = 1.0


class ScorerPanel:
    """See the module."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = list(members)
        self.name = "+".join(member.scorer.name for member in self._members)

    async def verdict(self, call: ScorerCall) -> Verdict:
        """The weighted verdict, with each scorer's in `parts`. Raises JudgeFailure, or what a scorer of weight
        raised."""
        found = await asyncio.gather(*(_of(member, call) for member in self._members))
        parts: dict[str, float | None] = {}
        for member, verdict in zip(self._members, found, strict=True):
            alone = len(self._members) == 1
            parts |= {member.scorer.name: verdict.reward}
            parts |= {name if alone else f"{member.scorer.name}/{name}": part for name, part in verdict.parts.items()}
        if len(found) == 1 and self._members[0].weight == 1:
            return replace(found[0], scorer=self.name, parts=parts)
        counted = [
            (member.weight, verdict) for member, verdict in zip(self._members, found, strict=True) if member.weight
        ]
        undecided = not counted or any(verdict.reward is None for _, verdict in counted)
        reward = None if undecided else sum(weight * (verdict.reward or 0.0) for weight, verdict in counted)
        process = tuple(
            part.model_copy(update={"reward": part.reward * weight})
            for weight, verdict in counted
            for part in verdict.process
        )
        success = _together([each.success for _, each in counted])
        verdict = Verdict(reward, success, self._why(found), process=process, scorer=self.name, parts=parts)
        lengths = {len(each.turns) for _, each in counted}
        if not undecided and len(lengths) == 1:
            turns = zip(*([weight * turn for turn in each.turns] for weight, each in counted), strict=True)
            verdict.turns = tuple(map(sum, turns))
        several = sum(bool(each.metrics or each.details) for each in found) > 1
        for member, each in zip(self._members, found, strict=True):
            before = f"{member.scorer.name}/" if several else ""
            verdict.metrics |= {f"{before}{name}": value for name, value in each.metrics.items()}
            verdict.details |= {f"{before}{name}": value for name, value in each.details.items()}
        return checked(verdict, f"the score of {self.name}")

    def let_go(self) -> None:
        """See `Judge.let_go`."""
        for member in self._members:
            member.scorer.let_go()

    def _why(self, found: Sequence[Verdict]) -> str:
        said = []
        for member, verdict in zip(self._members, found, strict=True):
            score = "no score" if verdict.reward is None else f"{verdict.reward:g}"
            reason = verdict.reason.removeprefix("no score: ")
            said.append(f"{member.scorer.name} {score}" + (f" ({reason})" if reason else ""))
        return "; ".join(said)


async def _of(member: Member, call: ScorerCall) -> Verdict:
    try:
        return await member.scorer.score(call)
    except (BoundaryError, UserError) as problem:
        if member.weight:
            raise
        return Verdict(None, None, f"failed: {problem}")


def _together(said: Sequence[bool | None]) -> bool | None:
    """A success where all that count say so; None where one of them does not say."""
    if False in said:
        return False
    return None if None in said or not said else True
