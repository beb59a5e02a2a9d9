"""One episode for its page: turns, calls, branches, and tokens in pieces.

Invariant: tokens are those of the recorded timelines. An episode without timelines (not scored, or a chat engine) shows
the last call of each branch as unmasked tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ajet.record.episode_codec import encode_verdict, leaf_calls
from ajet.record.episodes import decode_recorded, open_arrays
from ajet.record.files import parse_object, read_json
from ajet.schema.bounded_json import plain
from ajet.schema.call import Call, full_ids
from ajet.schema.episode import NO_OUTCOME, Episode, Outcome, Timeline
from ajet_viewer.episode_table import EpisodeLinePlace, read_line

Spell = Callable[[Sequence[int]], list[str]]
"""Token ids -> text of each."""

PIECE = 4096
"""Maximum tokens of one response."""


def read_episode(place: EpisodeLinePlace) -> tuple[Episode, Outcome]:
    """Return the episode of a line and its outcome. Raises OSError for a removed file, UserError for damage, ValueError
    for a broken line."""
    row = parse_object(read_line(place))
    with open_arrays(place.path) as blobs:
        return decode_recorded(row, blobs, f"{place.path.name}, byte {place.offset}")


def build_episode_page(episode: Episode, outcome: Outcome = NO_OUTCOME, *, step: int | None = None) -> dict[str, Any]:
    """Return the episode without tokens. `step`: step of its file; None: step of its rollout."""
    lines = list_token_lines(episode)
    return {
        "uuid": episode.uuid,
        "step": episode.step if step is None else step,
        "played_for": episode.step,
        "policy": episode.policy,
        "sampler": episode.sampler,
        "split": episode.split,
        "repeat": episode.repeat,
        "status": episode.status,
        "ending": episode.ending,
        "discarded": outcome.discarded,
        "attempts": episode.attempts,
        "started": episode.started,
        "ended": episode.ended,
        "advantage": outcome.advantage,
        "task": plain(episode.task),
        "verdict": encode_verdict(episode.verdict) if episode.verdict else None,
        "failure": asdict(episode.failure) if episode.failure else None,
        "checks": episode.checks,
        "untrained": dict(episode.untrained_with(outcome)),
        "metadata": plain(episode.metadata),
        "printed": episode.printed,
        "metrics": plain(episode.metrics),
        "messages": plain(episode.messages),
        "tools": plain(episode.tools),
        "tool_uses": [asdict(use) for use in episode.tool_uses],
        "calls": [_encode_call(call) for call in episode.calls],
        "lines": [
            {"leaf": line.leaf, "agent": line.agent, "length": len(line.ids), "trained": line.sampled} for line in lines
        ],
    }


def _encode_call(call: Call) -> dict[str, Any]:
    return {
        "index": call.index,
        "agent": call.agent,
        "target": call.target,
        "trained": call.trained,
        "parent": call.parent,
        "prefix": call.prefix,
        "suffix": len(call.suffix_ids),
        "reply_tokens": len(call.response_ids),
        "versions": [list(run) for run in call.versions],
        "finish": call.finish,
        "fork": call.fork,
        "messages": list(call.messages),
        "reply": call.reply,
        "tools": call.tools,
        "temperature": call.temperature,
        "started": call.started,
        "ended": call.ended,
        "error": call.error,
        "stop": call.stop,
        "rejected": call.rejected,
        "resumed": call.resumed,
        "checks": list(call.checks),
        "terms": asdict(call.terms),
        "extra": plain(call.extra),
    }


def list_token_lines(episode: Episode) -> list[Timeline]:
    """Return the timelines; without timelines, the last calls of the branches as unmasked lines."""
    if episode.timelines:
        return episode.timelines
    lines = []
    for call in (episode.calls[at] for at in leaf_calls(episode.calls)):
        ids = full_ids(episode.calls, call.index)
        none, zeros = np.zeros(len(ids), np.bool_), np.zeros(len(ids), np.float32)
        lines.append(
            Timeline(call.index, call.agent, call.target, ids, none, zeros, zeros, np.full(len(ids), -1, np.int32), ())
        )
    return lines


def build_token_window(
    episode: Episode, timeline: Timeline, start: int, stop: int, spell: Spell | None, *, most: int = PIECE
) -> dict[str, Any]:
    """Return tokens [start, stop) of a line, at most `most`, column by column, with the `borders` of calls and replies.

    `text` is None without a speller.
    """
    part = slice(max(start, 0), min(stop, start + most, len(timeline.ids)))
    ids = timeline.ids[part].tolist()
    return {
        "start": part.start,
        "ids": ids,
        "text": spell(ids) if spell is not None else None,
        "mask": timeline.mask[part].astype(int).tolist(),
        "logprobs": [round(float(value), 5) for value in timeline.logprobs[part]],
        "unit": [round(float(value), 5) for value in timeline.logprobs_unit[part]],
        "versions": timeline.versions[part].tolist(),
        "borders": find_borders(episode, timeline, part.start, part.stop),
    }


def find_borders(episode: Episode, timeline: Timeline, start: int, stop: int) -> list[dict[str, Any]]:
    """Return the places in [start, stop) where calls along the line's branch begin their prompt and reply."""
    found: list[dict[str, Any]] = []
    index: int | None = timeline.leaf
    until = len(timeline.ids)
    while index is not None and start < stop and until > start:
        call = episode.calls[index]
        reply = call.prefix + len(call.suffix_ids)
        for at, what in ((reply, "reply"), (call.prefix, "prompt")):
            if at < until and start <= at < stop:
                found.append({"at": at, "call": index, "what": what})
        until, index = call.prefix, call.parent
    return found[::-1]


def read_proof(folder: Path) -> dict[str, Any] | None:
    """Return the result of the run's last `ajet prove`, or None."""
    try:
        return read_json(folder / "proof.json")
    except (OSError, ValueError):
        return None
