"""An episode as verl's rows, and rows as episodes again: the two directions of one road.

Invariant: credit over what `rebuild` answers is credit over the episodes that were given to `rows`. A row holds one
timeline: everything before its first sampled token is the prompt, the rest up to its last one the response. What the
arrays do not say (which episode, which of its timelines, whose calls) lies in `extra_fields["ajet"]`. Neither torch nor
verl is imported: the agent loop's processes write rows, the trainer's reads them.

A scored episode without a token to train is part of its group's baseline, too: it travels as one row that trains
nothing. A failed or unscored one has no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ajet.schema.call import Call, Ids
from ajet.schema.episode import Episode, Group, Verdict
from ajet.schema.task import Task
from ajet.schema.timeline import SampledSpan, Timeline
from ajet.tokens.image_tokens import image_urls, picture

FIELDS = ("prompts", "responses", "response_mask", "rollout_log_probs", "extra_fields")
"""What `rebuild` reads of a row, by the names that verl stores them under."""
NO_TOKEN = 0
"""The id that a row without tokens of its own is made of; it is never trained on."""


def rows(episode: Episode, *, group_order: int, policy_version: int = 0) -> list[dict[str, Any]]:
    """The keyword arguments of verl's `AgentLoopOutput`, one dict per timeline with sampled tokens.

    `group_order`: the task's position in the training order. `policy_version`: that of an episode none of whose calls
    carries one. Answers [] for an episode that may not be trained on. Raises ValueError for a timeline that begins with
    a sampled token: nothing predicts it.
    """
    if not episode.scored:
        return []
    trained = [timeline for timeline in episode.timelines if timeline.sampled]
    about = {
        "uuid": episode.uuid,
        "run": episode.run,
        "task_id": episode.task.task_id,
        "order": group_order,
        "repeat": episode.repeat,
        "step": episode.step,
        "reward": episode.reward,
        "count": len(trained),
    }
    calls = {call.index: call for call in episode.calls}
    made = [
        _row(episode, about | _of_timeline(timeline, index), timeline, calls, policy_version)
        for index, timeline in enumerate(trained)
    ]
    return made or [_empty_row(episode, about, policy_version)]


@dataclass(slots=True)
class Rebuilt:
    """What a batch of rows holds."""

    groups: list[Group]
    """In training order; episodes in the order of their repeats, only scored ones."""
    timelines: list[Timeline | None] = field(default_factory=list)
    """The timeline of each row, in the order of the rows; None for a row that trains nothing."""


def rebuild(keys: Sequence[str], fields: Mapping[str, Sequence[Any]]) -> Rebuilt:
    """Rows to groups.

    `keys`: `{uid}_{session}_{index}`, without padding rows, in any order. `fields`: `FIELDS`, of each row a
    one-dimensional array (or a tensor on the CPU) and a dict. Raises ValueError where a row of an episode is missing.
    """
    timelines: list[Timeline | None] = []
    episodes: dict[tuple[str, str], dict[int, Timeline]] = {}
    abouts: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row, key in enumerate(keys):
        uid, session, _ = key.rsplit("_", 2)
        about: Mapping[str, Any] = fields["extra_fields"][row]["ajet"]
        abouts[uid, session] = about
        parts = episodes.setdefault((uid, session), {})
        timeline = None
        if about["count"]:
            timeline = _timeline(about, *(np.asarray(fields[name][row]) for name in FIELDS[:-1]))
            parts[about["index"]] = timeline
        timelines.append(timeline)
    members: dict[tuple[int, str], list[Episode]] = {}
    for (uid, session), parts in episodes.items():
        about = abouts[uid, session]
        if sorted(parts) != list(range(about["count"])):
            raise ValueError(f"episode {about['uuid']}: of {about['count']} timelines only {sorted(parts)} arrived")
        members.setdefault((about["order"], uid), []).append(_episode(about, parts))
    groups = []
    for order, uid in sorted(members):
        own = sorted(members[order, uid], key=lambda episode: episode.repeat)
        groups.append(Group(own[0].task, order, own))
    return Rebuilt(groups, timelines)


def _episode(about: Mapping[str, Any], parts: Mapping[int, Timeline]) -> Episode:
    return Episode(
        uuid=about["uuid"],
        task=Task(task_id=about["task_id"]),
        repeat=about["repeat"],
        step=about["step"],
        split="train",
        run=about["run"],
        verdict=Verdict(about["reward"]),
        timelines=[parts[index] for index in sorted(parts)],
    )


def _of_timeline(timeline: Timeline, index: int) -> dict[str, Any]:
    return {
        "index": index,
        "leaf": timeline.leaf,
        "agent": timeline.agent,
        "target": timeline.target,
        "spans": [list(span) for span in timeline.spans],
        "versions": _runs(timeline.versions[timeline.mask]),
    }


def _runs(versions: Ids) -> list[list[int]]:
    """[how many tokens, their version] of each run of equal ones."""
    starts = np.flatnonzero(np.diff(versions, prepend=-2))
    counts = np.diff(starts, append=versions.size)
    return [[int(count), int(versions[start])] for start, count in zip(starts, counts, strict=True)]


def _row(
    episode: Episode, about: dict[str, Any], timeline: Timeline, calls: Mapping[int, Call], policy_version: int
) -> dict[str, Any]:
    sampled = np.flatnonzero(timeline.mask)
    start, stop = int(sampled[0]), int(sampled[-1]) + 1
    if start == 0:
        raise ValueError(f"timeline {about['index']} of episode {episode.uuid} begins with a sampled token")
    own = [calls[span.call] for span in timeline.spans if span.call in calls]
    leaf = calls.get(timeline.leaf)
    urls = _images(episode, own)
    return {
        "prompt_ids": timeline.ids[:start].tolist(),
        "response_ids": timeline.ids[start:stop].tolist(),
        "response_mask": timeline.mask[start:stop].astype(int).tolist(),
        "response_logprobs": np.where(timeline.mask, timeline.logprobs, 0)[start:stop].tolist(),
        "num_turns": len(leaf.messages) + (leaf.reply is not None) if leaf else 0,
        "metrics": {"generate_sequences": sum(call.ended - call.started for call in own)},
        **({"multi_modal_data": {"images": [picture(url) for url in urls]}} if urls else {}),
        **_verdict(episode, about, own, policy_version),
    }


def _images(episode: Episode, own: Sequence[Call]) -> tuple[str, ...]:
    """Those that a timeline's ids hold up to its last sampled token: what its last call was shown."""
    return image_urls([episode.messages[index] for index in own[-1].messages]) if own else ()


def _empty_row(episode: Episode, about: dict[str, Any], policy_version: int) -> dict[str, Any]:
    return {
        "prompt_ids": [NO_TOKEN],
        "response_ids": [NO_TOKEN],
        "response_mask": [0],
        "response_logprobs": [0.0],
        "num_turns": 0,
        "metrics": {},
        **_verdict(episode, about, episode.calls, policy_version),
    }


def _verdict(episode: Episode, about: dict[str, Any], calls: Sequence[Call], policy_version: int) -> dict[str, Any]:
    """verl adds `reward` to `reward_extra_info` by itself; a second one would count twice in its validation."""
    success = episode.verdict.success if episode.verdict else None
    runs = [run for call in calls for run in call.versions]
    return {
        "reward_score": episode.reward,
        "extra_fields": {
            "reward_extra_info": {"success": None if success is None else float(success)},
            "min_global_steps": min((run.low for run in runs), default=policy_version),
            "max_global_steps": max((run.high for run in runs), default=policy_version),
            "ajet": about,
        },
    }


def _timeline(about: Mapping[str, Any], prompt: Any, response: Any, response_mask: Any, logprobs: Any) -> Timeline:
    none = np.zeros(prompt.size)
    mask = np.concatenate([none, response_mask]).astype(np.bool_)
    values = np.concatenate([none, logprobs]).astype(np.float32)
    versions = np.where(mask, 0, -1).astype(np.int32)
    if "versions" in about:  # a row that an earlier version of ajet left in a checkpoint does not say them
        counts, each = zip(*about["versions"], strict=True)
        versions[mask] = np.repeat(each, counts)
    return Timeline(
        leaf=about["leaf"],
        agent=about["agent"],
        target=about["target"],
        ids=np.concatenate([prompt, response]).astype(np.int32),
        mask=mask,
        logprobs=values,
        logprobs_unit=values,
        versions=versions,
        spans=tuple(SampledSpan(*span) for span in about["spans"]),
    )
