"""Encodes Episode and Outcome as one JSON line and one blob of arrays, and decodes both.

Invariant: `decode(*encode(episode))` equals the episode bit for bit, except that workflow metadata comes back as plain
JSON. Token arrays are stored once, in the calls. A timeline is stored as leaf and spans and rebuilt from the calls;
only if the rebuilt bits differ are its own arrays stored.

The blob holds all int32 values, then all float32 values, in the order of the calls. A field is a [start, stop] range in
its part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from ajet.record.tool_uses import decode_uses, encode_uses
from ajet.schema.call import Call, Ids, RawPrompt, Terms, VersionRun, full_ids
from ajet.schema.episode import NO_OUTCOME, SCHEMA, Episode, Failure, Outcome, SampledSpan, Timeline, Verdict
from ajet.schema.errors import UserError
from ajet.schema.process_reward import ProcessReward
from ajet.schema.task import Task
from ajet.schema.tool_use import ToolUse

MOST_NUMBERS = 1 << 26
"""Maximum numbers in an episode's arrays and maximum tokens of its timelines: 256 MiB each."""
MOST_WALKED = 1 << 25
"""Maximum number of ancestors of an episode's calls and timeline ends: 8,000 consecutive calls.

Each ancestor may cost a step of rebuilding a prompt, about half a microsecond.
"""
CALL_IDS = ("suffix_ids", "response_ids")
CALL_FLOATS = ("logprobs", "logprobs_unit")
CALL_PLAIN = (
    *("index", "agent", "target", "trained", "parent", "prefix", "finish", "tools", "reply", "fork"),
    *("temperature", "started", "ended", "error", "extra"),
)
CALL_OPTIONAL = ("stop", "rejected", "resumed", "turned_down")
"""Of most calls the default: only in the lines of the others."""
EPISODE_PLAIN = (
    *("uuid", "repeat", "step", "split", "group", "order", "run", "status", "ending", "messages", "tools"),
    *("metadata", "printed", "metrics", "checks", "attempts", "started", "ended", "utc_offset"),
)
OUTCOME_FLOATS = ("values", "reference_gap")
"""Optional float arrays of an outcome."""
DEFAULTS = Terms()


DAY_S = 24 * 3600


class _ArrayWriter:
    """Collects the int32 and float32 arrays of an episode for its blob."""

    def __init__(self) -> None:
        self._parts: dict[str, list[np.ndarray[Any, Any]]] = {"ints": [], "floats": []}
        self.sizes = {"ints": 0, "floats": 0}

    def ints(self, array: np.ndarray[Any, Any]) -> list[int]:
        """Append an array of integers, and return its [start, stop) among all int32 values of the blob."""
        return self._append_array("ints", np.asarray(array, dtype="<i4"))

    def floats(self, array: np.ndarray[Any, Any]) -> list[int]:
        """Append an array of floats, and return its [start, stop) among all float32 values of the blob."""
        return self._append_array("floats", np.asarray(array, dtype="<f4"))

    def _append_array(self, kind: str, array: np.ndarray[Any, Any]) -> list[int]:
        start = self.sizes[kind]
        self._parts[kind].append(array)
        self.sizes[kind] = start + len(array)
        return [start, self.sizes[kind]]

    def blob(self) -> bytes:
        """Return the bytes of all arrays, little-endian: first the int32 values, then the float32 values."""
        return b"".join(array.tobytes() for kind in ("ints", "floats") for array in self._parts[kind])


def encode(episode: Episode, outcome: Outcome | None = None) -> tuple[dict[str, Any], bytes]:
    """Return (JSON values of the episode's line, blob of its arrays).

    The caller adds the blob's position to the line.

    Args:
        outcome: What a training step did with the episode. None if no step has used it.
    """
    arrays = _ArrayWriter()
    row: dict[str, Any] = {"schema": SCHEMA}
    row |= {name: getattr(episode, name) for name in EPISODE_PLAIN}
    row["task"] = episode.task.model_dump()
    row["failure"] = asdict(episode.failure) if episode.failure else None
    row["verdict"] = encode_verdict(episode.verdict) if episode.verdict else None
    row["untrained"] = dict(episode.untrained)
    if (span := episode.policy) is not None:
        row["policy"] = list(span)
    if episode.sampler:
        row["sampler"] = episode.sampler
    if episode.tool_uses:
        row["tool_uses"] = encode_uses(episode.tool_uses)
    if outcome is not None:
        row["outcome"] = {name: getattr(outcome, name) for name in _OUTCOME} | {"untrained": dict(outcome.untrained)}
        optional_arrays = {name: getattr(outcome, name) for name in OUTCOME_FLOATS}
        row["outcome"] |= {name: arrays.floats(array) for name, array in optional_arrays.items() if array is not None}
    row["calls"] = [_encode_call(call, arrays) for call in episode.calls]
    row["timelines"] = [_encode_timeline(timeline, episode.calls, arrays) for timeline in episode.timelines]
    row["arrays"] = dict(arrays.sizes)
    return row, arrays.blob()


def decode(row: dict[str, Any], blob: bytes) -> Episode:
    """Return the episode of a parsed line and its blob of arrays.

    Raises:
        UserError: The line has another schema.
        ValueError, KeyError, TypeError: The line or the blob is damaged.
    """
    require_schema(row)
    counts = row["arrays"]
    ints = _ArrayReader(np.frombuffer(blob, dtype="<i4", count=counts["ints"]))
    floats = _ArrayReader(np.frombuffer(blob, dtype="<f4", offset=4 * counts["ints"], count=counts["floats"]))
    _check_fields(row)
    calls = [_decode_call(call, ints, floats) for call in row["calls"]]
    _check_lengths(row["timelines"], calls)
    episode = Episode(
        **{name: row[name] for name in EPISODE_PLAIN},
        sampler=row.get("sampler", ""),
        task=Task(**row["task"]),
        failure=Failure(**row["failure"]) if row["failure"] else None,
        verdict=decode_verdict(row["verdict"]) if row["verdict"] else None,
        untrained=Counter(row["untrained"]),
        tool_uses=decode_uses(row.get("tool_uses", [])),
        calls=calls,
        timelines=[_decode_timeline(timeline, calls, ints, floats) for timeline in row["timelines"]],
    )
    if (recorded := row.get("policy", [])) != list(episode.policy or ()):
        raise ValueError(f"its policy versions are recorded as {recorded}, but its calls have others")
    return episode


def decode_tool_uses(row: dict[str, Any]) -> tuple[Task, int, tuple[ToolUse, ...]]:
    """Return (task, repeat, tool uses) of a parsed line without its arrays. Raises UserError for another schema."""
    require_schema(row)
    return Task(**row["task"]), int(row["repeat"]), tuple(decode_uses(row.get("tool_uses", [])))


def decode_outcome(row: dict[str, Any], blob: bytes) -> Outcome:
    """Return the outcome stored in a parsed line and its blob, or `NO_OUTCOME` if no step has used the episode.

    Raises:
        ValueError, KeyError, TypeError: The outcome is damaged.
    """
    if (stored := row.get("outcome")) is None:
        return NO_OUTCOME
    counts, outcome = row["arrays"], Outcome(**{name: stored[name] for name in _OUTCOME})
    if any(name in stored for name in OUTCOME_FLOATS):
        floats = _ArrayReader(np.frombuffer(blob, dtype="<f4", offset=4 * counts["ints"], count=counts["floats"]))
        optional: dict[str, Any] = {
            name: floats.take_span(stored[name]).astype(np.float32) for name in OUTCOME_FLOATS if name in stored
        }
        outcome = replace(outcome, **optional)
    if not isinstance(outcome.untrained, dict) or not isinstance(outcome.advantage, (int, float, type(None))):
        raise ValueError("its outcome is invalid")
    return outcome


_OUTCOME = tuple(field.name for field in fields(Outcome) if field.name not in OUTCOME_FLOATS)


class _ArrayReader:
    """Reads ranges of one array of a blob. The ranges of a sound line do not overlap."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array, self._remaining = array, len(array)

    def take_span(self, span: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return the values in [start, stop). Raise ValueError for a range outside, or if ranges surely overlap.

        Ranges that together are longer than the array overlap; a damaged line could otherwise claim any amount of
        memory.
        """
        start, stop = span
        if not 0 <= start <= stop <= len(self._array) or stop - start > self._remaining:
            raise ValueError(f"the range {start} to {stop} is outside its arrays, or overlaps another field")
        self._remaining -= stop - start
        return self._array[start:stop]


_KINDS: dict[str, Any] = {
    **dict.fromkeys(("uuid", "split", "status", "run", "group", "ending", "printed", "sampler"), str),
    **dict.fromkeys(("messages", "tools", "checks", "calls", "timelines"), list),
    **dict.fromkeys(("metadata", "metrics", "task"), dict),
    **dict.fromkeys(("repeat", "step", "attempts", "order", "utc_offset"), int),
    **dict.fromkeys(("started", "ended"), (int, float)),
}


def _check_fields(row: dict[str, Any]) -> None:
    """Raise ValueError if a line's fields have wrong types, or its calls refer to missing messages or later calls."""
    for name, expected_type in _KINDS.items():
        if name in row and not isinstance(row[name], expected_type):
            raise ValueError(f"its field {name} is a {type(row[name]).__name__}")
    if abs(row["utc_offset"]) >= DAY_S:
        raise ValueError("its UTC offset is a day or more")
    if not all(isinstance(message, dict) for message in row["messages"]):
        raise ValueError("a message is not a JSON object")
    for number, call in enumerate(row["calls"]):
        parent, message_indices = (
            call["parent"],
            [*call["messages"], *([call["reply"]] if call["reply"] is not None else [])],
        )
        if parent is not None and not 0 <= parent < number:
            raise ValueError(f"call {number} continues call {parent}, which is not an earlier call")
        if not all(0 <= index < len(row["messages"]) for index in message_indices):
            raise ValueError(f"call {number} refers to a missing message")
        if call["tools"] is not None and not 0 <= call["tools"] < len(row["tools"]):
            raise ValueError(f"call {number} refers to missing tools")


def _check_lengths(timelines: list[dict[str, Any]], calls: Sequence[Call]) -> None:
    """Raise ValueError for calls that share more tokens than the parent has, and for timelines with too many tokens.

    Checked before timelines are rebuilt, so that a damaged line cannot claim any amount of memory or time.
    """
    lengths: list[int] = []
    depths: list[int] = []
    for number, call in enumerate(calls):
        parent_length = 0 if call.parent is None else lengths[call.parent]
        if not 0 <= call.prefix <= parent_length:
            raise ValueError(
                f"call {number} shares {call.prefix} tokens with an earlier call that has only {parent_length}"
            )
        lengths.append(call.prefix + len(call.suffix_ids) + len(call.response_ids))
        depths.append(1 + depths[call.parent] if call.parent is not None else 0)
    ancestor_count = sum(depths)
    if not timelines:
        _check_total(ancestor_count, sum(lengths[number] for number in leaf_calls(calls)))
    total = 0
    for timeline_row in timelines:
        if not 0 <= timeline_row["leaf"] < len(calls):
            raise ValueError(f"a timeline ends in the missing call {timeline_row['leaf']}")
        length = lengths[timeline_row["leaf"]]
        spans = [SampledSpan(*span) for span in timeline_row["spans"]]
        if sum(span.stop - span.start for span in spans) > length or any(
            not (0 <= span.call < len(calls) and 0 <= span.start <= span.stop) for span in spans
        ):
            raise ValueError("a timeline has spans outside of its range")
        total += length
        ancestor_count += depths[timeline_row["leaf"]]
    _check_total(ancestor_count, total)


def _check_total(walked: int, tokens: int) -> None:
    """Raise ValueError if rebuilding an episode's timelines would take too much memory or time.

    Args:
        walked: Number of ancestors of all calls and timeline ends, each a step of rebuilding a prompt.
        tokens: Number of tokens of all timelines.
    """
    if tokens > MOST_NUMBERS:
        raise ValueError(f"its timelines claim {tokens} tokens, which is too many")
    if walked > MOST_WALKED:
        raise ValueError(f"its calls have {walked} ancestors in total, the limit is {MOST_WALKED}")


def leaf_calls(calls: Sequence[Call]) -> list[int]:
    """Return the indices of the calls that no other call extends, and that have prompt tokens."""
    extended_calls = {call.parent for call in calls if call.parent is not None and call.fork is None}
    return [
        number
        for number, call in enumerate(calls)
        if number not in extended_calls and len(call.suffix_ids) + call.prefix
    ]


def _encode_call(call: Call, arrays: _ArrayWriter) -> dict[str, Any]:
    """Return the JSON row of a call. Token ids and log-probabilities go to `arrays`; the row has their positions."""
    row = {name: getattr(call, name) for name in CALL_PLAIN}
    row["messages"] = list(call.messages)
    row["versions"] = [list(run) for run in call.versions]
    row |= {name: value for name in CALL_OPTIONAL if (value := getattr(call, name)) not in (None, 0)}
    row |= {"checks": list(call.checks)} if call.checks else {}
    if call.terms != DEFAULTS:
        # Only what differs from the defaults.
        row["terms"] = {k: v for k, v in asdict(call.terms).items() if v != getattr(DEFAULTS, k)}
    row |= {name: arrays.ints(getattr(call, name)) for name in CALL_IDS}
    row |= {name: arrays.floats(getattr(call, name)) for name in CALL_FLOATS}
    if call.teacher is not None:
        row["teacher"] = arrays.floats(call.teacher)
    return row


def _decode_call(row: dict[str, Any], ints: _ArrayReader, floats: _ArrayReader) -> Call:
    """Return a call from its JSON row and the arrays to which the row's ranges refer."""
    call_fields: dict[str, Any] = {name: row[name] for name in CALL_PLAIN}
    call_fields |= {name: row[name] for name in CALL_OPTIONAL if name in row}
    call_fields["messages"] = tuple(row["messages"])
    call_fields["versions"] = tuple(VersionRun(*run) for run in row["versions"])
    call_fields["checks"] = tuple(row.get("checks", ()))
    call_fields["terms"] = _decode_terms(row.get("terms", {}))
    call_fields |= {name: ints.take_span(row[name]).astype(np.int32) for name in CALL_IDS}
    call_fields |= {name: floats.take_span(row[name]).astype(np.float32) for name in CALL_FLOATS}
    if "teacher" in row:
        call_fields["teacher"] = floats.take_span(row["teacher"]).astype(np.float32)
    return Call(**call_fields)


def _decode_terms(terms: dict[str, Any]) -> Terms:
    """Return a call's sampling settings from their JSON form; settings that are missing there have the default."""
    if raw_prompt := terms.get("raw_prompt"):
        terms = terms | {"raw_prompt": RawPrompt(raw_prompt["text"], raw_prompt["after"])}
    return Terms(**terms)


def _encode_timeline(timeline: Timeline, calls: Sequence[Call], arrays: _ArrayWriter) -> dict[str, Any]:
    """Return the JSON row of a timeline: its last call and its spans.

    Arrays are added only if they differ from those that `rebuild` makes from calls and spans.
    """
    row: dict[str, Any] = {"leaf": timeline.leaf, "agent": timeline.agent, "target": timeline.target}
    row["spans"] = [list(span) for span in timeline.spans]
    if _has_equal_arrays(timeline, rebuild(calls, timeline.leaf, timeline.agent, timeline.target, timeline.spans)):
        return row
    row |= {name: arrays.ints(getattr(timeline, name)) for name in ("ids", "mask", "versions")}
    row |= {name: arrays.floats(getattr(timeline, name)) for name in CALL_FLOATS}
    return row


def _decode_timeline(row: dict[str, Any], calls: Sequence[Call], ints: _ArrayReader, floats: _ArrayReader) -> Timeline:
    """Return a timeline, from its own arrays if the line has them, otherwise rebuilt from the calls."""
    spans = tuple(SampledSpan(*span) for span in row["spans"])
    if "ids" not in row:
        return rebuild(calls, row["leaf"], row["agent"], row["target"], spans)
    return Timeline(
        row["leaf"],
        row["agent"],
        row["target"],
        ids=ints.take_span(row["ids"]).astype(np.int32),
        mask=ints.take_span(row["mask"]).astype(np.bool_),
        logprobs=floats.take_span(row["logprobs"]).astype(np.float32),
        logprobs_unit=floats.take_span(row["logprobs_unit"]).astype(np.float32),
        versions=ints.take_span(row["versions"]).astype(np.int32),
        spans=spans,
        adapter=calls[row["leaf"]].terms.adapter,
    )


def rebuild(calls: Sequence[Call], leaf: int, agent: str, target: str, spans: Sequence[SampledSpan]) -> Timeline:
    """Return the timeline that ends in call `leaf`.

    Its ids come from the leaf and its ancestors, and logprobs and versions from the calls that the spans name.

    Args:
        spans: The sampled parts of the timeline.
    """
    ids = full_ids(calls, leaf)
    mask = np.zeros(len(ids), dtype=np.bool_)
    logprobs = np.zeros(len(ids), dtype=np.float32)
    logprobs_unit = np.zeros(len(ids), dtype=np.float32)
    versions = np.full(len(ids), -1, dtype=np.int32)
    for span in spans:
        call = calls[span.call]
        reply_start = span.start - call.prefix - len(call.suffix_ids)
        in_timeline, in_call = slice(span.start, span.stop), slice(reply_start, reply_start + span.stop - span.start)
        if reply_start < 0 or in_call.stop > len(call.response_ids) or span.stop > len(ids):
            continue  # the span is not the call's reply: the encoder sees the difference and stores arrays
        mask[in_timeline] = True
        logprobs[in_timeline], logprobs_unit[in_timeline] = call.logprobs[in_call], call.logprobs_unit[in_call]
        versions[in_timeline] = _lowest_versions(call)[in_call]
    adapter = calls[leaf].terms.adapter
    return Timeline(leaf, agent, target, ids, mask, logprobs, logprobs_unit, versions, tuple(spans), adapter)


def _lowest_versions(call: Call) -> Ids:
    """Return [R] the lowest policy step of each response token of a call, -1 if unknown."""
    versions = np.full(len(call.response_ids), -1, dtype=np.int32)
    for run in call.versions:
        versions[run.first :] = run.low
    return versions


def _has_equal_arrays(one: Timeline, other: Timeline) -> bool:
    """Return True if all arrays of two timelines are equal bit for bit, so that NaN equals NaN."""
    names = ("ids", "mask", "logprobs", "logprobs_unit", "versions")
    return all(
        len(getattr(one, name)) == len(getattr(other, name))
        and getattr(one, name).tobytes() == getattr(other, name).tobytes()
        for name in names
    )


def encode_verdict(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict as JSON values; empty optional fields are left out."""
    row: dict[str, Any] = {"reward": verdict.reward, "success": verdict.success, "reason": verdict.reason}
    if verdict.scorer or verdict.parts:
        row |= {"scorer": verdict.scorer, "parts": dict(verdict.parts)}
    if verdict.process:
        row["process"] = [part.model_dump(exclude_defaults=True) for part in verdict.process]
    if verdict.metrics:
        row["metrics"] = dict(verdict.metrics)
    if verdict.details:
        row["details"] = dict(verdict.details)
    return row


def decode_verdict(row: Mapping[str, Any]) -> Verdict:
    """Return the verdict stored by `encode_verdict`. Raises TypeError, ValueError or KeyError for invalid values."""
    process = tuple(ProcessReward.model_validate(part) for part in row.get("process", ()))
    return Verdict(**{**row, "process": process})


def require_schema(row: Mapping[str, Any]) -> None:
    """Raise UserError if an episode's line was written with another schema version.

    Raises:
        KeyError: The line has no schema number, so it is no episode.
    """
    if row["schema"] != SCHEMA:
        raise UserError(
            f"This episode was recorded with schema version {row['schema']}; this ajet reads version {SCHEMA}.",
            where=f"episode {row.get('uuid', '?')}",
            do="read the episode with the version of ajet that recorded it",
        )
