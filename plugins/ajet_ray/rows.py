"""Converts episodes to verl's rows, and rows back into episodes.

Invariant: the advantages computed from the result of `rebuild_groups` equal those computed from the groups passed to
`build_rows`. A row holds a timeline, one token sequence of the episode: the tokens before its first sampled token are
the prompt, the rest up to its last sampled token the response. The episode itself travels once, as bytes in its first
row (`extra_fields["ajet"]`), read only by `rebuild_groups`. Neither torch nor verl is imported.

A scored episode without a trainable token belongs to its group's baseline, too, and travels as an untrained row. Failed
or unscored episodes have no row, and travel with the group's first row.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ajet.context_tracker import timelines
from ajet.record.episode_codec import decode, encode
from ajet.record.plain_json import dumps
from ajet.schema.call import Call, PolicySpan
from ajet.schema.episode import Episode, Group, Timeline
from ajet.tokens.image_tokens import image_urls, picture
from ajet_ray.routed_experts import read_experts

FIELDS = ("prompts", "responses", "response_mask", "rollout_log_probs", "extra_fields")
"""Fields of a row read by `rebuild_groups`, by verl's names."""
NO_TOKEN = 0
"""The token id that fills the row of an episode without trainable tokens. It is never trained."""


def build_rows(
    episode: Episode,
    *,
    group_order: int,
    policy_version: int = 0,
    others: Sequence[Episode] = (),
    routed_shape: tuple[int, int] | None = None,
) -> list[dict[str, Any]]:
    """Convert an episode to keyword arguments of verl's `AgentLoopOutput`, one dict per timeline with sampled tokens.

    A scored episode without sampled tokens becomes one untrained row. An unscored episode returns [].

    Raises ValueError for a timeline with a sampled first token, since no token predicts the first, and for a call
    without the experts that the trainer shall replay.

    Args:
        group_order: place of the group's task in the training order.
        policy_version: version of the row's tokens if the episode's calls have no versions.
        others: failed or unscored episodes of the group. They have no rows and travel in the first row returned here.
        routed_shape: (layers, experts per token) of a model with replayed experts; None: the trainer replays none.
    """
    if not episode.scored:
        return []
    trained = [timeline for timeline in episode.timelines if timeline.sampled]
    packed = {"episodes": [pack_episode(packable) for packable in (episode, *others)]}
    ajet_fields = {"uuid": episode.uuid, "order": group_order, "count": len(trained)}
    if not trained:
        return [build_empty_row(episode, ajet_fields | packed, policy_version, routed_shape)]
    rows = _build_timeline_rows(episode, trained, ajet_fields, packed, policy_version)
    return _add_experts(rows, episode, trained) if routed_shape else rows


def build_unscored_rows(
    episode: Episode, *, policy_version: int = 0, routed_shape: tuple[int, int] | None = None
) -> list[dict[str, Any]]:
    """Convert an episode to rows for verl's own reward function: without a reward and without the packed episode.

    The timeline with the latest end comes last, since verl scores an episode by its last output.

    Args:
        policy_version: version of the row's tokens if the episode's calls have no versions.
        routed_shape: (layers, experts per token) of a model with replayed experts; None: the trainer replays none.

    Returns:
        Keyword arguments of verl's `AgentLoopOutput`, one dict per timeline with sampled tokens.

    Raises:
        ValueError: a timeline begins with a sampled token, or a call has no experts to replay.
    """
    end_times = {call.index: call.ended for call in episode.calls}
    # Only a scored episode has timelines, so they are built from the calls.
    built_timelines, _ = timelines(episode.calls)
    trained = sorted(
        (timeline for timeline in built_timelines if timeline.sampled),
        key=lambda timeline: end_times.get(timeline.leaf, 0.0),
    )
    rows = _build_timeline_rows(episode, trained, {"uuid": episode.uuid, "count": len(trained)}, {}, policy_version)
    return _add_experts(rows, episode, trained) if routed_shape else rows


def _add_experts(rows: list[dict[str, Any]], episode: Episode, trained: Sequence[Timeline]) -> list[dict[str, Any]]:
    """Add to each row of verl the routed experts of all its tokens but the last, for a trainer that replays them.

    Args:
        rows: the rows of the timelines, changed in place and returned.
        trained: the rows' timelines, in the same order. A row ends with its timeline's last sampled token.
    """
    for row, timeline in zip(rows, trained, strict=True):
        row["routed_experts"] = read_experts(episode, timeline)[: len(row["prompt_ids"]) + len(row["response_ids"]) - 1]
    return rows


def _build_timeline_rows(
    episode: Episode,
    trained: Sequence[Timeline],
    ajet_fields: dict[str, Any],
    packed: dict[str, Any],
    policy_version: int,
) -> list[dict[str, Any]]:
    """Build one row of verl per timeline (token sequence of the episode).

    Args:
        trained: the episode's timelines with sampled tokens.
        ajet_fields: values for `extra_fields["ajet"]` of every row.
        packed: further values for the first row only: the packed episodes, which travel once.
        policy_version: version of the row's tokens if the episode's calls have no versions.
    """
    calls = {call.index: call for call in episode.calls}
    return [
        _build_row(
            episode, ajet_fields | {"index": index} | (packed if index == 0 else {}), timeline, calls, policy_version
        )
        for index, timeline in enumerate(trained)
    ]


@dataclass(slots=True)
class RebuiltBatch:
    """The episodes of a training batch, and the timelines (token sequences) of its rows."""

    groups: list[Group]
    """The groups in training order, with episodes in the order of their repeats."""
    timelines: list[Timeline | None] = field(default_factory=list)
    """The timeline of each row, or None for an untrained row."""


def rebuild_groups(keys: Sequence[str], fields: Mapping[str, Sequence[Any]]) -> RebuiltBatch:
    """Rebuild the groups of episodes from the rows of a training batch.

    Args:
        keys: the rows' keys `{uid}_{session}_{index}`, without padding rows, in any order.
        fields: a sequence per name in `FIELDS`, with one entry per row: a one-dimensional array (or CPU tensor), for
            `extra_fields` a dict.

    Raises:
        ValueError: a row is missing, or its tokens differ from those of its episode.
    """
    # (uid, session) identifies an episode. The inner dict maps the index of a timeline to the number of its row.
    rows_by_episode: dict[tuple[str, str], dict[int, int]] = {}
    for row, key in enumerate(keys):
        uid, session, _ = key.rsplit("_", 2)
        rows_by_episode.setdefault((uid, session), {})[fields["extra_fields"][row]["ajet"].get("index", 0)] = row
    timelines: list[Timeline | None] = [None] * len(keys)
    episodes_by_group: dict[tuple[int, str], list[Episode]] = {}
    for (uid, _), row_by_index in rows_by_episode.items():
        ajet_fields = fields["extra_fields"][next(iter(row_by_index.values()))]["ajet"]
        indices = list(range(max(ajet_fields["count"], 1)))  # an episode without timelines has one untrained row
        if sorted(row_by_index) != indices:
            raise ValueError(
                f"episode {ajet_fields['uuid']}: of {ajet_fields['count']} timelines only "
                f"{sorted(row_by_index)} arrived"
            )
        rows = [{name: fields[name][row_by_index[index]] for name in FIELDS} for index in indices]
        # The first row carries its episode, and failed or unscored episodes of the group, which have no rows.
        row_episodes = [unpack_episode(packed) for packed in rows[0]["extra_fields"]["ajet"]["episodes"]]
        row_episodes[0] = _cut_episode(row_episodes[0], rows, ajet_fields["count"])
        for index, timeline in enumerate(row_episodes[0].timelines):
            timelines[row_by_index[index]] = timeline
        episodes_by_group.setdefault((ajet_fields["order"], uid), []).extend(row_episodes)
    groups = []
    for order, uid in sorted(episodes_by_group):
        episodes = sorted(episodes_by_group[order, uid], key=lambda episode: episode.repeat)
        groups.append(Group(episodes[0].task, order, episodes))
    return RebuiltBatch(groups, timelines)


def _cut_episode(episode: Episode, rows: Sequence[Mapping[str, Any]], count: int) -> Episode:
    """Return the episode with only the timelines (token sequences) that are rows, each cut as its row is.

    A row ends with the last sampled token.

    Args:
        rows: the episode's rows, in the order of its timelines.
        count: number of timelines that the rows say the episode has.

    Raises:
        ValueError: the rows and the timelines differ in number or in tokens.
    """
    trained = [timeline for timeline in episode.timelines if timeline.sampled]
    if len(trained) != count:
        raise ValueError(f"episode {episode.uuid}: {count} rows for {len(trained)} timelines")
    cut_timelines = [_cut_timeline(timeline) for timeline in trained]
    for index, timeline in enumerate(cut_timelines):
        row_ids = np.concatenate([np.asarray(rows[index]["prompts"]), np.asarray(rows[index]["responses"])])
        if not np.array_equal(row_ids, timeline.ids):
            raise ValueError(
                f"episode {episode.uuid}: row {index} contains other tokens than its timeline (token sequence)"
            )
    return replace(episode, timelines=cut_timelines)


def _cut_timeline(timeline: Timeline) -> Timeline:
    """Return a timeline (token sequence of an episode) without the tokens after its last sampled token."""
    stop = int(np.flatnonzero(timeline.mask)[-1]) + 1
    arrays = ("ids", "mask", "logprobs", "logprobs_unit", "versions")
    return replace(timeline, **{name: getattr(timeline, name)[:stop] for name in arrays})


def _build_row(
    episode: Episode, ajet_fields: dict[str, Any], timeline: Timeline, calls: Mapping[int, Call], policy_version: int
) -> dict[str, Any]:
    """Build the row of a timeline (token sequence of the episode): keyword arguments of verl's `AgentLoopOutput`.

    The prompt is all tokens before the first sampled token, the response the tokens up to the last sampled one.

    Args:
        ajet_fields: values for `extra_fields["ajet"]`.
        calls: the episode's calls by index.
        policy_version: version of the row's tokens if the timeline's calls have no versions.

    Raises:
        ValueError: the timeline begins with a sampled token, which no token predicts.
    """
    sampled = np.flatnonzero(timeline.mask)
    start, stop = int(sampled[0]), int(sampled[-1]) + 1
    if start == 0:
        raise ValueError(f"timeline {ajet_fields['index']} of episode {episode.uuid} begins with a sampled token")
    timeline_calls = [calls[span.call] for span in timeline.spans if span.call in calls]
    leaf = calls.get(timeline.leaf)
    urls = _list_images(episode, timeline_calls)
    return {
        "prompt_ids": timeline.ids[:start].tolist(),
        "response_ids": timeline.ids[start:stop].tolist(),
        "response_mask": timeline.mask[start:stop].astype(int).tolist(),
        "response_logprobs": np.where(timeline.mask, timeline.logprobs, 0)[start:stop].tolist(),
        "num_turns": len(leaf.messages) + (leaf.reply is not None) if leaf else 0,
        "metrics": {"generate_sequences": sum(call.ended - call.started for call in timeline_calls)},
        **({"multi_modal_data": {"images": [picture(url) for url in urls]}} if urls else {}),
        **_build_verdict_fields(episode, ajet_fields, timeline_calls, policy_version),
    }


def _list_images(episode: Episode, calls: Sequence[Call]) -> tuple[str, ...]:
    """Return the URLs of all images in a token sequence of the episode.

    These are the images in the request of its last call, which repeats those of earlier calls.

    Args:
        calls: the calls whose tokens the sequence contains, in order.
    """
    return image_urls([episode.messages[index] for index in calls[-1].messages]) if calls else ()


def build_empty_row(
    episode: Episode, about: dict[str, Any], policy_version: int, routed_shape: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Build a row with a single untrained token for an episode without sampled tokens.

    Args:
        about: values for `extra_fields["ajet"]`.
        routed_shape: (layers, experts per token) of zeros that stand for the experts, or None without replay.
    """
    return {
        "prompt_ids": [NO_TOKEN],
        "response_ids": [NO_TOKEN],
        "response_mask": [0],
        "response_logprobs": [0.0],
        "num_turns": 0,
        "metrics": {},
        **({"routed_experts": np.zeros((1, *routed_shape), np.int16)} if routed_shape else {}),
        **_build_verdict_fields(episode, about, episode.calls, policy_version),
    }


def _build_verdict_fields(
    episode: Episode, ajet_fields: dict[str, Any], calls: Sequence[Call], policy_version: int
) -> dict[str, Any]:
    """Build a row's reward and `extra_fields`.

    `reward_extra_info` leaves out the reward: verl adds it there itself, and a second one would count twice.

    Args:
        ajet_fields: values for `extra_fields["ajet"]`, read by `rebuild_groups`.
        calls: the calls that sampled the row's tokens.
        policy_version: version of the row's tokens if the calls have no versions.
    """
    success = episode.verdict.success if episode.verdict else None
    span = PolicySpan.of(run for call in calls for run in call.versions) or PolicySpan(policy_version, policy_version)
    return {
        "reward_score": episode.reward,
        "extra_fields": {
            "reward_extra_info": {"success": None if success is None else float(success)},
            "min_global_steps": span.low,  # verl's names of the oldest and newest policy version
            "max_global_steps": span.high,
            "ajet": ajet_fields,
        },
    }


# An episode as a single bytes value, for other processes: a JSON line and the arrays, as the run's folder stores them.
# Invariant: `unpack_episode(pack_episode(episode))` equals the episode read back from the run's folder.
_HEAD = 8
"""Number of bytes that hold the length of the JSON line."""


def pack_episode(episode: Episode) -> bytes:
    """Return an episode as compressed bytes: the length of its JSON line, the line, and its arrays."""
    json_values, arrays = encode(episode)
    line = dumps(json_values).encode()
    return zlib.compress(len(line).to_bytes(_HEAD, "little") + line + arrays, 1)  # level 1: fastest


def unpack_episode(data: bytes) -> Episode:
    """Return an episode from the compressed bytes that `pack_episode` made.

    Use this only for bytes from ajet's own processes, because the uncompressed size is not limited.
    """
    raw = zlib.decompress(data)
    end = _HEAD + int.from_bytes(raw[:_HEAD], "little")
    return decode(json.loads(raw[_HEAD:end]), raw[end:])
