"""Builds the page of an episode: messages, model calls, branches, and tokens in pieces.

A timeline is one token sequence of an episode, trained as one row. Invariant: tokens are those of the recorded
timelines. For an episode without timelines (not scored, or a chat engine) the page shows the tokens of the last call of
each branch, none of them trained.
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
from ajet.record.plain_json import plain
from ajet.schema.call import Call, full_ids
from ajet.schema.episode import NO_OUTCOME, Episode, Outcome, Timeline
from ajet_viewer.episode_table import EpisodeLinePlace, read_line

Spell = Callable[[Sequence[int]], list[str]]
"""Maps token ids to the text of each token."""

PIECE = 4096
"""Maximum number of tokens in one response."""


def read_episode(place: EpisodeLinePlace) -> tuple[Episode, Outcome]:
    """Read an episode and how a training step used it (its outcome).

    Args:
        place: where the episode's line is.

    Raises:
        OSError: the file was removed.
        UserError: the episode is damaged.
        ValueError: the line is no JSON object.
    """
    row = parse_object(read_line(place))
    with open_arrays(place.path) as blobs:
        return decode_recorded(row, blobs, f"{place.path.name}, byte {place.offset}")


def build_episode_page(episode: Episode, outcome: Outcome = NO_OUTCOME, *, step: int | None = None) -> dict[str, Any]:
    """Return an episode for its page, without its tokens.

    Args:
        outcome: how a training step used the episode.
        step: the step that trained it, by the name of its file, or None for the step that it was sampled for.
    """
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
    """Return a model call as JSON values, with numbers of tokens instead of their ids."""
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
    """Return the token sequences that the page shows.

    They are the episode's timelines, or without these the last call of each branch, without trained tokens.
    """
    if episode.timelines:
        return episode.timelines
    lines = []
    for call in (episode.calls[number] for number in leaf_calls(episode.calls)):
        ids = full_ids(episode.calls, call.index)
        no_mask, zeros = np.zeros(len(ids), np.bool_), np.zeros(len(ids), np.float32)
        lines.append(
            Timeline(
                call.index, call.agent, call.target, ids, no_mask, zeros, zeros, np.full(len(ids), -1, np.int32), ()
            )
        )
    return lines


def build_token_window(
    episode: Episode, timeline: Timeline, start: int, stop: int, spell: Spell | None, *, limit: int = PIECE
) -> dict[str, Any]:
    """Return a part of a token sequence for the page, as one list per column.

    Args:
        start: index of the first token.
        stop: index after the last token.
        spell: returns the text of token ids, or None if no tokenizer is available; `text` is None then.
        limit: maximum number of tokens.
    """
    window = slice(max(start, 0), min(stop, start + limit, len(timeline.ids)))
    ids = timeline.ids[window].tolist()
    return {
        "start": window.start,
        "ids": ids,
        "text": spell(ids) if spell is not None else None,
        "mask": timeline.mask[window].astype(int).tolist(),
        "logprobs": [round(float(value), 5) for value in timeline.logprobs[window]],
        "unit": [round(float(value), 5) for value in timeline.logprobs_unit[window]],
        "versions": timeline.versions[window].tolist(),
        "borders": find_borders(episode, timeline, window.start, window.stop),
    }


def find_borders(episode: Episode, timeline: Timeline, start: int, stop: int) -> list[dict[str, Any]]:
    """Find where the prompts and replies of a token sequence's calls begin.

    Args:
        start: index of the first token to consider.
        stop: index after the last token to consider.

    Returns:
        {at: index of the token, call: index of the call, what: "prompt" or "reply"}, in ascending order.
    """
    borders: list[dict[str, Any]] = []
    call_index: int | None = timeline.leaf
    end = len(timeline.ids)
    # Walk from the last call to the first: each shares the first `prefix` tokens with its parent call.
    while call_index is not None and start < stop and end > start:
        call = episode.calls[call_index]
        reply_start = call.prefix + len(call.suffix_ids)
        for position, border_kind in ((reply_start, "reply"), (call.prefix, "prompt")):
            if position < end and start <= position < stop:
                borders.append({"at": position, "call": call_index, "what": border_kind})
        end, call_index = call.prefix, call.parent
    return borders[::-1]


def read_proof(folder: Path) -> dict[str, Any] | None:
    """Return the result of the run's last `ajet prove`, or None if there is none or it cannot be read."""
    try:
        return read_json(folder / "proof.json")
    except (OSError, ValueError):
        return None
