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
READY, ABANDONED = "ready", "abandoned"
"""States of a record (main document of an episode): trainable, or ended without being trainable."""
_VECTOR, _FLOAT32 = 9, bytes([0x27, 0])
"""BSON's subtype of a vector, and the header of a float32 vector."""
_OF_ROWS = {"scorer": "scorer", "answer_schema": "answer_schema", "answer": "task_answer"}
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
        as_text: True to store the episode as compressed JSON, because the server refused the readable form.
    """
    row, arrays = encode(entry.episode)
    line = redact.row(row)
    row = json.loads(line)
    packed = zlib.compress(arrays, 1)
    about = {"_id": name, **_build_about(entry.episode, row, lease), "alone": entry.alone, "ended_by": entry.ended_by}
    about["digest"] = _digest_row(lease.order, entry.episode.uuid, entry.alone, entry.ended_by, row, arrays)
    if not as_text:
        native = _build_native(about, row, packed, line, entry.episode.calls)
        if native is not None and all(map(_is_storable, (*native.calls, *native.data, native.record))):
            return native
    blobs = _split_chunks(name, "row", zlib.compress(json.dumps(row).encode()))
    blobs += _split_chunks(name, "arrays", packed)
    return Documents(blobs, record={**about, "traj": [], "as_text": True, "blobs": len(blobs)})


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
    parts = {kind: _join_chunks(blobs, kind) for kind in ("row", "arrays")}
    packed = bytes(record["arrays"]) if "arrays" in record else parts["arrays"]
    if record.get("as_text"):
        row = json.loads(zlib.decompress(parts["row"]))
    else:
        row = {**record["meta"], "messages": record["traj"], "tools": record["tools"]}
        row["calls"] = [{**call["request"], **call["response"]} for call in sorted(calls, key=_read_index)]
        row["timelines"] = [each["timeline"] for each in sorted(data, key=_read_index)]
        if record.get("marked"):
            row = _unmark_keys(row)
        if (len(row["calls"]), len(row["timelines"])) != (record["calls"], record["timelines"]):
            raise ValueError(f"the database lacks some of the documents of the episode {record['_id']}")
    alone, ended_by, arrays = record["alone"], record["ended_by"], zlib.decompress(packed)
    if record.get("digest") != _digest_row(order, record["traj_id"], alone, ended_by, row, arrays):
        raise AlteredEpisodeError
    return Kept(decode(row, arrays), alone, ended_by)


def _digest_row(order: int, uuid: str, alone: bool, ended_by: str, row: Document, arrays: bytes) -> str:
    line = json.dumps(row, sort_keys=True).encode()  # MongoDB keeps keys in no order
    return digest_episode(order, uuid, alone, ended_by, line, arrays)


def describe_task(episode: Episode, redact: Redactor, count: int | None = None) -> Document:
    """Return the fields about the task for a position's document.

    Args:
        count: number of tasks per epoch, or None if unknown.
    """
    row: Document = {"system_prompt": _find_system_prompt(episode)}
    row |= {name: episode.task.metadata.get(key) for key, name in _OF_ROWS.items()}
    return {
        "tid": redact(_clean_text(episode.task.task_id)),
        "split": episode.split,
        **({"epoch": episode.order // count} if count and episode.order >= 0 else {}),
        "env_type": redact(_clean_text(episode.task.env_type)),
        "description": redact(_clean_text(episode.task.main_query))[:SHOWN],
        **{name: redact(_clean_text(value))[:SHOWN] for name, value in row.items() if isinstance(value, str)},
    }


def _find_system_prompt(episode: Episode) -> str | None:
    """Return the system prompt of the episode's first call, or None if it has none or it is no plain text."""
    first = episode.messages[episode.calls[0].messages[0]] if episode.calls and episode.calls[0].messages else {}
    content = first.get("content") if first.get("role") == "system" else None
    return content if isinstance(content, str) else None


def read_score(episode: Episode) -> float | None:
    """Return the reward of the episode's verdict, or None."""
    return None if episode.reward is None else float(episode.reward)


def _build_about(episode: Episode, row: Mapping[str, Any], lease: Lease) -> Document:
    states = {"completed": "completed", "failed": "failed"}
    return {
        "traj_id": episode.uuid,
        "task": lease.order,
        "fence": lease.fence,
        "tid": _clean_text(row["task"]["task_id"]),
        "status": READY if episode.scored else states.get(episode.status, ABANDONED),
        "score": read_score(episode),
        "trained_count": 0,
        "last_trained_step": None,
        "created_at_step": episode.step,
        "schema": row["schema"],
    }


def _build_native(
    about: Document, row: dict[str, Any], packed: bytes, line: str, played: Sequence[Call]
) -> Documents | None:
    """Return the documents of an episode with its fields as MongoDB fields, so that queries can select by them."""
    name, score = about["_id"], about["score"]
    marked = '"$' in line or f'"{MARK}' in line
    if marked:
        row = _mark_keys(row)
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
        for number, call in enumerate(row["calls"])
    ]
    data = [
        {
            "_id": f"{name}/{number}",
            "record": name,
            "at": number,
            "messages": _list_dialog(row["calls"][timeline["leaf"]]),
            "tools": row["calls"][timeline["leaf"]]["tools"],
            "scores": {str(span[0]): score for span in timeline["spans"]},
            "created_at_step": {
                str(span[0]): calls[span[0]]["created_at_step"] for span in timeline["spans"]
            },
            "logprobs": {str(span[0]): _pack_vector(played[span[0]].logprobs) for span in timeline["spans"]},
            "reward": score,
            "timeline": timeline,
        }
        for number, timeline in enumerate(row["timelines"])
    ]  # fmt: skip
    separate = {"messages", "tools", "calls", "timelines"}
    record = {
        **about,
        "traj": row["messages"],
        "tools": row["tools"],
        "calls": len(calls),
        "timelines": len(data),
        "meta": {name: value for name, value in row.items() if name not in separate},
    }
    if marked:
        record["marked"] = True
    if len(packed) <= LARGEST // 2:
        return Documents([], calls, data, {**record, "arrays": packed, "blobs": 0})
    blobs = _split_chunks(name, "arrays", packed)
    return Documents(blobs, calls, data, {**record, "blobs": len(blobs)})


def _pack_vector(numbers: Floats) -> Any:
    """Pack numbers as a BSON vector of float32, which MongoDB's drivers can read."""
    from bson.binary import Binary

    return Binary(_FLOAT32 + numbers.astype("<f4").tobytes(), _VECTOR)


def _list_dialog(leaf: Mapping[str, Any]) -> list[int]:
    return [*leaf["messages"], *([] if leaf["reply"] is None else [leaf["reply"]])]


def _is_storable(document: Document) -> bool:
    import bson
    from bson.errors import BSONError

    try:
        return len(bson.encode(document)) <= LARGEST
    except (BSONError, OverflowError, UnicodeError, RecursionError):
        return False


def _split_chunks(name: str, kind: str, packed: bytes) -> list[Document]:
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
    return b"".join(bytes(blob["data"]) for blob in sorted(blobs, key=_read_index) if blob["kind"] == kind)


def _read_index(document: Document) -> int:
    return int(document["at"])


def _mark_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {f"{MARK}{key}" if key[:1] in ("$", MARK) else key: _mark_keys(each) for key, each in value.items()}
    return [_mark_keys(item) for item in value] if isinstance(value, list) else value


def _unmark_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key[1:] if key[:1] == MARK else key: _unmark_keys(each) for key, each in value.items()}
    return [_unmark_keys(item) for item in value] if isinstance(value, list) else value


def _clean_text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _to_date(seconds: float) -> datetime | None:
    """Convert seconds since the epoch to a date, or to None if they are implausible."""
    return datetime.fromtimestamp(seconds, UTC) if 0 < seconds < 4e9 else None
