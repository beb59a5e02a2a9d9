"""From what an attempt left behind to an `Episode`, filled in full.

Invariant: sampled tokens = tokens with mask 1 over its timelines + the counted reasons, asserted for every episode.
Only a scored episode keeps timelines (its tokens may be trained on); of any other each sampled token is counted.
What user code says of it (metadata, errors, a judge's reason) is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ajet import context_tracker
from ajet.rollout import bounds
from ajet.rollout.attempt import AttemptResult, Identity
from ajet.rollout.failure import score_failure
from ajet.rollout.own_metrics import metadata_of, numbers_of, warn_of_near_names
from ajet.schema.episode import Episode, Verdict
from ajet.schema.local_time import utc_offset
from ajet.schema.timeline import Timeline

if TYPE_CHECKING:
    from ajet.config import AjetConfig


def build_episode(identity: Identity, played: AttemptResult, verdict: Verdict | None, settings: AjetConfig) -> Episode:
    """Build the episode, its tokens accounted for."""
    capture, output = played.capture, played.output
    if output:
        warn_of_near_names(output)
    if played.aborted or played.failure:
        verdict = score_failure(played, settings.rollout.policy_failure_reward)
    episode = Episode(
        uuid=identity.uuid,
        task=identity.task,
        repeat=identity.repeat,
        step=identity.step,
        split=identity.split,
        group=identity.group,
        order=identity.order,
        run=identity.run,
        status="aborted" if played.aborted else "failed" if played.failure else "completed",
        ending=played.aborted or "",
        failure=bounds.failure(played.failure) if played.failure else None,
        verdict=None if verdict is None else _bounded(verdict),
        calls=list(capture.calls) if capture else [],
        messages=capture.messages if capture else [],
        tools=capture.tools if capture else [],
        tool_uses=list(capture.tool_uses) if capture else [],
        checks=list(capture.checks) if capture else [],
        metadata=bounds.metadata(metadata_of(output)) if output else {},
        metrics=numbers_of(output) if output else {},
        printed=played.printed,
        attempts=played.attempts,
        started=played.started,
        ended=played.ended,
        utc_offset=utc_offset(played.started),
    )
    timelines, untrained = account(episode, settings)
    episode = replace(episode, timelines=timelines, untrained=untrained)
    sampled = sum(timeline.sampled for timeline in episode.timelines) + sum(episode.untrained.values())
    assert sampled == episode.sampled_tokens, (
        f"episode {episode.uuid}: {episode.sampled_tokens} tokens sampled, {sampled} accounted for: {episode.untrained}"
    )
    return episode


def _bounded(verdict: Verdict) -> Verdict:
    return replace(verdict, reason=bounds.beginning(verdict.reason), details=bounds.metadata(verdict.details))


def account(episode: Episode, settings: AjetConfig) -> tuple[list[Timeline], Counter[str]]:
    """The timelines that may be trained on, and the sampled tokens that are in none of them by reason."""
    policy = settings.context_tracker.timeline_merging_policy
    lines: Sequence[Timeline]
    lines, untrained = context_tracker.timelines(episode.calls, ignore_tools=policy.ignore_tools)
    if not episode.scored:
        rest = sum(timeline.sampled for timeline in lines)
        untrained["no_score" if episode.status == "completed" else "failed"] += rest
        return [], +untrained
    longest = settings.data.max_prompt_length + settings.data.max_response_length
    lines, too_long = context_tracker.cut_over_length(lines, longest)
    lines, too_many = context_tracker.choose(
        lines, settings.rollout.multi_turn.max_sample_per_task, seed=settings.seed, episode=episode.uuid
    )
    return list(lines), untrained + too_long + too_many
