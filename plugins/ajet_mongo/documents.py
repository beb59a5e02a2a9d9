"""Converts episodes to MongoDB documents, and back.

Invariants: `parse_documents(build_documents(...))` is the episode, as in `episode_codec`. Every value has one place:
messages in the record (`traj`; elsewhere by index), requests and responses in the calls, sequences in `DBRecordData`,
tokens and logprobs in one compressed blob. Scores and logprobs also appear in other documents for other readers, and
are never read back from there. A key with a meaning in MongoDB (`$ref`) gets a prefix. Values impossible in a document
(numbers over 64 bits, invalid Unicode, too much data) are stored as compressed JSON in blobs, with the same readable
fields.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ajet.record.episode_codec import decode, encode
from ajet.record.secrets import Redactor
from ajet.schema.call import Call, Floats
from ajet.schema.episode import Episode
from ajet.store.contract import Kept, Lease
from ajet.store.digest import AlteredEpisodeError, digest_episode

LARGEST = 8 << 20
"""Maximum size of a document written by ajet, in bytes; MongoDB's limit is 16 MiB."""
SHOWN = 2000
"""Maximum number of characters of a task's text in its position's document; the episode's record has the full text."""
MARK = "＄"
"""Prefix of a stored key that begins with `$` or with this character, since MongoDB gives `$` keys a meaning."""
READY, ABANDONED = "ready", "abandoned"
"""States of a record (main document of an episode): trainable, or ended without being trainable."""
_VECTOR, _FLOAT32 = 9, bytes([0x27, 0])
"""BSON's subtype of a vector, and the header of a float32 vector."""
_METADATA_FIELDS = {"scorer": "scorer", "answer_schema": "answer_schema", "answer": "task_answer"}
"""Maps optional keys of a task's metadata to the names that AgentRL gives them in a position's document."""
_REQUEST = (
    *("messages", "tools", "agent", "target", "trained", "temperature", "terms", "stop"),
    *("parent", "prefix", "suffix_ids"),
)
"""Fields of a model call that are stored as its request; the other fields are stored as its response."""
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of one episode, in the order of writing."""

    blobs: list[Document] = field(default_factory=list)
    calls: list[Document] = field(default_factory=list)
    data: list[Document] = field(default_factory=list)
    record: Document = field(default_factory=dict)


def build_documents(entry: Kept, name: str, lease: Lease, redact: Redactor, *, as_text: bool = False) -> Documents:
    """Build the documents of an episode.

    Args:
        entry: the episode, with facts added by the store.
        name: unique name of the record, the episode's main document.
        lease: the lease under which the episode is written.
        redact: removes secrets.
        as_text: True to store the episode as compressed JSON, because the server refused the readable form. It is also
            stored so if a value cannot be a field of a document.
    """
    json_values, arrays = encode(entry.episode)
    line = redact.row(json_values)  # JSON text without secrets
    json_values = json.loads(line)
    packed_arrays = zlib.compress(arrays, 1)
    record_fields = {
        "_id": name,
        **_build_record_fields(entry.episode, json_values, lease),
        "alone": entry.alone,
        "ended_by": entry.ended_by,
    }
    record_fields["digest"] = _digest_row(
        lease.order, entry.episode.uuid, entry.alone, entry.ended_by, json_values, arrays
    )
    if not as_text:
        native = _build_native(record_fields, json_values, packed_arrays, line, entry.episode.calls)
        if native is not None and all(map(_is_storable, (*native.calls, *native.data, native.record))):
            return native
    # Compressed JSON in binary documents, as `parse_documents` reads it.
    blobs = _split_chunks(name, "row", zlib.compress(json.dumps(json_values).encode()))
    blobs += _split_chunks(name, "arrays", packed_arrays)
    return Documents(blobs, record={**record_fields, "traj": [], "as_text": True, "blobs": len(blobs)})


def parse_documents(
    record: Document,
    calls: Iterable[Document],
    data: Iterable[Document],
    blobs: Sequence[Document],
    order: int,
) -> Kept:
    """Rebuild an episode from its documents.

    Args:
        record: the episode's main document.
        calls: documents of its model calls.
        data: documents of its training sequences.
        blobs: documents with binary chunks.
        order: the position (place in the training order) of the episode's task.

    Raises:
        AlteredEpisodeError: the documents were changed since they were written.
        ValueError: documents are missing or malformed.
    """
    joined_blobs = {kind: _join_chunks(blobs, kind) for kind in ("row", "arrays")}
    packed_arrays = bytes(record["arrays"]) if "arrays" in record else joined_blobs["arrays"]
    if record.get("as_text"):
        json_values = json.loads(zlib.decompress(joined_blobs["row"]))
    else:
        json_values = {**record["meta"], "messages": record["traj"], "tools": record["tools"]}
        json_values["calls"] = [{**call["request"], **call["response"]} for call in sorted(calls, key=_read_index)]
        json_values["timelines"] = [sequence["timeline"] for sequence in sorted(data, key=_read_index)]
        if record.get("marked"):
            json_values = _unmark_keys(json_values)
        if (len(json_values["calls"]), len(json_values["timelines"])) != (record["calls"], record["timelines"]):
            raise ValueError(f"the database lacks some of the documents of the episode {record['_id']}")
    alone, ended_by, arrays = record["alone"], record["ended_by"], zlib.decompress(packed_arrays)
    if record.get("digest") != _digest_row(order, record["traj_id"], alone, ended_by, json_values, arrays):
        raise AlteredEpisodeError
    return Kept(decode(json_values, arrays), alone, ended_by)


def _digest_row(order: int, uuid: str, alone: bool, ended_by: str, json_values: Document, arrays: bytes) -> str:
    """Return the digest by which a reader detects that an episode was changed in the database.

    Args:
        order: the position of the episode's task.
        alone: True if the episode belongs to no group.
        ended_by: name of the sampler, or on a server the cause of the episode's end.
        json_values: the episode as JSON values.
        arrays: the episode's arrays, uncompressed.
    """
    # Keys are sorted, because MongoDB does not preserve their order.
    line = json.dumps(json_values, sort_keys=True).encode()
    return digest_episode(order, uuid, alone, ended_by, line, arrays)


def describe_task(episode: Episode, redact: Redactor, count: int | None = None) -> Document:
    """Return the fields about the task for a task position's document, for readers of the database.

    Texts are redacted and cut after 2,000 characters, and metadata that is no text is left out.

    Args:
        count: number of tasks per epoch, or None if unknown.
    """
    optional_texts: Document = {"system_prompt": _find_system_prompt(episode)}
    optional_texts |= {name: episode.task.metadata.get(key) for key, name in _METADATA_FIELDS.items()}
    return {
        "tid": redact(_clean_text(episode.task.task_id)),
        "split": episode.split,
        **({"epoch": episode.order // count} if count and episode.order >= 0 else {}),
        "env_type": redact(_clean_text(episode.task.env_type)),
        "description": redact(_clean_text(episode.task.main_query))[:SHOWN],
        **{
            name: redact(_clean_text(value))[:SHOWN] for name, value in optional_texts.items() if isinstance(value, str)
        },
    }


def _find_system_prompt(episode: Episode) -> str | None:
    """Return the system prompt of the episode's first call, or None if it has none or it is no plain text."""
    first_message = (
        episode.messages[episode.calls[0].messages[0]] if episode.calls and episode.calls[0].messages else {}
    )
    content = first_message.get("content") if first_message.get("role") == "system" else None
    return content if isinstance(content, str) else None


def read_score(episode: Episode) -> float | None:
    """Return the reward of an episode as a float, or None for an episode without a reward."""
    return None if episode.reward is None else float(episode.reward)


def _build_record_fields(episode: Episode, json_values: Mapping[str, Any], lease: Lease) -> Document:
    """Return the record fields by which other readers of the database select episodes.

    Args:
        json_values: the episode as JSON values, without secrets.
        lease: the lease under which the episode is written.
    """
    states = {"completed": "completed", "failed": "failed"}  # of an unscored episode
    return {
        "traj_id": episode.uuid,
        "task": lease.order,
        "fence": lease.fence,
        "tid": _clean_text(json_values["task"]["task_id"]),
        "status": READY if episode.scored else states.get(episode.status, ABANDONED),
        "score": read_score(episode),
        "trained_count": 0,
        "last_trained_step": None,
        "created_at_step": episode.step,
        "schema": json_values["schema"],
    }


def _build_native(
    record_fields: Document, json_values: dict[str, Any], packed_arrays: bytes, line: str, episode_calls: Sequence[Call]
) -> Documents | None:
    """Return the documents of an episode with its fields as MongoDB fields, so that queries can select by them.

    Args:
        record_fields: fields of the record that are the same in every form.
        json_values: the episode as JSON values.
        packed_arrays: the episode's arrays, compressed.
        line: `json_values` as JSON text.
        episode_calls: the episode's model calls, whose log-probabilities are shown to other readers.
    """
    name, score = record_fields["_id"], record_fields["score"]
    has_marked_keys = '"$' in line or f'"{MARK}' in line
    if has_marked_keys:
        json_values = _mark_keys(json_values)
    calls = [
        {
            "_id": f"{name}/{number}",
            "record": name,
            "at": number,
            "status": "completed" if call["error"] in (None, "") else "failed",
            "priority": 0,
            "created_at_step": min((run[1] for run in call["versions"]), default=None),
            "created_at": _to_date(call["started"]),
            "completed_at": _to_date(call["ended"]),
            "score": score,
            "request": {name: call[name] for name in _REQUEST if name in call},
            "response": {name: value for name, value in call.items() if name not in _REQUEST},
        }
        for number, call in enumerate(json_values["calls"])
    ]
    # A span is (index of the call, ...): a part of the sequence that this call sampled.
    data = [
        {
            "_id": f"{name}/{number}",
            "record": name,
            "at": number,
            "messages": _list_dialog(json_values["calls"][timeline["leaf"]]),
            "tools": json_values["calls"][timeline["leaf"]]["tools"],
            "scores": {str(span[0]): score for span in timeline["spans"]},
            "created_at_step": {
                str(span[0]): calls[span[0]]["created_at_step"] for span in timeline["spans"]
            },
            "logprobs": {str(span[0]): _pack_vector(episode_calls[span[0]].logprobs) for span in timeline["spans"]},
            "reward": score,
            "timeline": timeline,
        }
        for number, timeline in enumerate(json_values["timelines"])
    ]  # fmt: skip
    stored_separately = {"messages", "tools", "calls", "timelines"}
    record = {
        **record_fields,
        "traj": json_values["messages"],
        "tools": json_values["tools"],
        "calls": len(calls),
        "timelines": len(data),
        "meta": {name: value for name, value in json_values.items() if name not in stored_separately},
    }
    if has_marked_keys:
        record["marked"] = True
    if len(packed_arrays) <= LARGEST // 2:  # the arrays fit into the record together with the messages
        return Documents([], calls, data, {**record, "arrays": packed_arrays, "blobs": 0})
    blobs = _split_chunks(name, "arrays", packed_arrays)
    return Documents(blobs, calls, data, {**record, "blobs": len(blobs)})


def _pack_vector(numbers: Floats) -> Any:
    """Pack numbers as a BSON vector of float32, which MongoDB's drivers can read."""
    from bson.binary import Binary

    return Binary(_FLOAT32 + numbers.astype("<f4").tobytes(), _VECTOR)


def _list_dialog(leaf: Mapping[str, Any]) -> list[int]:
    """Return the indices of the messages of a sequence: those of its last call's request, and the call's reply."""
    return [*leaf["messages"], *([] if leaf["reply"] is None else [leaf["reply"]])]


def _is_storable(document: Document) -> bool:
    """True if a document can be encoded as BSON and has at most 8 MiB."""
    import bson
    from bson.errors import BSONError

    try:
        return len(bson.encode(document)) <= LARGEST
    except (BSONError, OverflowError, UnicodeError, RecursionError):
        return False


def _split_chunks(name: str, kind: str, packed: bytes) -> list[Document]:
    """Return documents of at most 8 MiB that together hold some bytes; one document for no bytes.

    Args:
        name: name of the episode's record.
        kind: "row" (JSON values) or "arrays".
    """
    starts = range(0, max(len(packed), 1), LARGEST)
    return [
        {
            "_id": f"{name}/{kind}/{number}",
            "record": name,
            "kind": kind,
            "at": number,
            "data": packed[start : start + LARGEST],
        }
        for number, start in enumerate(starts)
    ]


def _join_chunks(blobs: Iterable[Document], kind: str) -> bytes:
    """Return the bytes that documents of a kind ("row" or "arrays") hold together, or b"" without such documents."""
    return b"".join(bytes(blob["data"]) for blob in sorted(blobs, key=_read_index) if blob["kind"] == kind)


def _read_index(document: Document) -> int:
    return int(document["at"])


def _mark_keys(value: Any) -> Any:
    """Return JSON values with a prefix before each key that begins with `$`, since MongoDB gives it a meaning.

    Keys that begin with the prefix get another one, so that `_unmark_keys` restores every key.
    """
    if isinstance(value, dict):
        return {f"{MARK}{key}" if key[:1] in ("$", MARK) else key: _mark_keys(item) for key, item in value.items()}
    return [_mark_keys(item) for item in value] if isinstance(value, list) else value


def _unmark_keys(value: Any) -> Any:
    """Return JSON values without the prefixes added by `_mark_keys`."""
    if isinstance(value, dict):
        return {key[1:] if key[:1] == MARK else key: _unmark_keys(item) for key, item in value.items()}
    return [_unmark_keys(item) for item in value] if isinstance(value, list) else value


def _clean_text(text: str) -> str:
    """Return a text with invalid Unicode (lone surrogates), which BSON cannot store, replaced by question marks."""
    return text.encode("utf-8", "replace").decode()


def _to_date(seconds: float) -> datetime | None:
    """Convert seconds since the epoch to a date, or to None if the date is not between 1970 and 2096."""
    return datetime.fromtimestamp(seconds, UTC) if 0 < seconds < 4e9 else None
