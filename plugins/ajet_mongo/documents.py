"""An episode as documents, and back.

Invariant: `episode_of(documents_of(...))` is the episode, as `episode_codec` says it. Every value is in one place:
messages in the record (`traj`; elsewhere numbers of them), what was asked and answered in the calls, sequences in
`DBRecordData`, tokens and logprobs in one compressed blob. Scores and the logprobs of sampled tokens stand in other
documents too, for other readers; nothing is read back from there. A key that MongoDB reads as its own (`$ref`) is kept
with a mark before it. What no document can hold (numbers of over 64 bits, texts that are no Unicode, more than its
limit) is kept as compressed JSON in blobs, with the same fields for readers beside it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ajet.record.episode_codec import decode, encode
from ajet.record.secrets import Redactor
from ajet.schema.call import Call, Floats
from ajet.schema.episode import Episode
from ajet.store.contract import Kept, Lease
from ajet.store.digest import AlteredEpisodeError, digest_episode

LARGEST = 8 << 20
"""Bytes of a document of ours; MongoDB's limit is 16 MiB."""
SHOWN = 2000
"""Characters of a task in its document; the whole is in the record."""
MARK = "＄"
READY, ABANDONED = "ready", "abandoned"
"""States of a record: it may be trained on; it is not, though it was played."""
_VECTOR, _FLOAT32 = 9, bytes([0x27, 0])
"""BSON's subtype of a vector, and how one of float32 begins."""
_OF_ROWS = {"scorer": "scorer", "answer_schema": "answer_schema", "answer": "task_answer"}
"""What a task's row may have, and AgentRL's name of it in a position."""
_REQUEST = (
    *("messages", "tools", "agent", "target", "trained", "temperature", "terms", "stop"),
    *("parent", "prefix", "suffix_ids"),
)
"""What a call was asked; the rest of its row is what became of it."""
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of one episode, in the order in which they are written."""

    blobs: list[Document] = field(default_factory=list)
    calls: list[Document] = field(default_factory=list)
    data: list[Document] = field(default_factory=list)
    record: Document = field(default_factory=dict)


def documents_of(kept: Kept, name: str, lease: Lease, redact: Redactor, *, as_text: bool = False) -> Documents:
    """`name`: of the record, which no other put has. `as_text`: since the server refused it otherwise."""
    row, arrays = encode(kept.episode)
    line = redact.row(row)
    row = json.loads(line)
    packed = zlib.compress(arrays, 1)
    about = {"_id": name, **_about(kept.episode, row, lease), "alone": kept.alone, "ended_by": kept.ended_by}
    about["digest"] = _digest_row(lease.order, kept.episode.uuid, kept.alone, kept.ended_by, row, arrays)
    if not as_text:
        whole = _native(about, row, packed, line, kept.episode.calls)
        if whole is not None and all(map(_fits, (*whole.calls, *whole.data, whole.record))):
            return whole
    blobs = _chunks(name, "row", zlib.compress(json.dumps(row).encode()))
    blobs += _chunks(name, "arrays", packed)
    return Documents(blobs, record={**about, "traj": [], "as_text": True, "blobs": len(blobs)})


def kept_of(
    record: Document,
    calls: Iterable[Document],
    data: Iterable[Document],
    blobs: Sequence[Document],
    order: int,
) -> Kept:
    """What was put of the position `order`. Raises AlteredEpisodeError, or ValueError and kin, where documents are
    missing or changed."""
    parts = {kind: _joined(blobs, kind) for kind in ("row", "arrays")}
    packed = bytes(record["arrays"]) if "arrays" in record else parts["arrays"]
    if record.get("as_text"):
        row = json.loads(zlib.decompress(parts["row"]))
    else:
        row = {**record["meta"], "messages": record["traj"], "tools": record["tools"]}
        row["calls"] = [{**each["request"], **each["response"]} for each in sorted(calls, key=_at)]
        row["timelines"] = [each["timeline"] for each in sorted(data, key=_at)]
        if record.get("marked"):
            row = _unmarked(row)
        if (len(row["calls"]), len(row["timelines"])) != (record["calls"], record["timelines"]):
            raise ValueError(f"documents of the record {record['_id']} are missing")
    alone, ended_by, arrays = record["alone"], record["ended_by"], zlib.decompress(packed)
    if record.get("digest") != _digest_row(order, record["traj_id"], alone, ended_by, row, arrays):
        raise AlteredEpisodeError
    return Kept(decode(row, arrays), alone, ended_by)


def _digest_row(order: int, uuid: str, alone: bool, ended_by: str, row: Document, arrays: bytes) -> str:
    line = json.dumps(row, sort_keys=True).encode()  # MongoDB keeps keys in no order
    return digest_episode(order, uuid, alone, ended_by, line, arrays)


def task_of(episode: Episode, redact: Redactor, count: int | None = None) -> Document:
    """What the document of a position says of its task. `count`: how many an epoch has, where that is known."""
    row: Document = {"system_prompt": _system_prompt(episode)}
    row |= {name: episode.task.metadata.get(key) for key, name in _OF_ROWS.items()}
    return {
        "tid": redact(_clean(episode.task.task_id)),
        "split": episode.split,
        **({"epoch": episode.order // count} if count and episode.order >= 0 else {}),
        "env_type": redact(_clean(episode.task.env_type)),
        "description": redact(_clean(episode.task.main_query))[:SHOWN],
        **{name: redact(_clean(value))[:SHOWN] for name, value in row.items() if isinstance(value, str)},
    }


def _system_prompt(episode: Episode) -> str | None:
    """The system prompt that the episode began with; None: none, or one that is no text."""
    first = episode.messages[episode.calls[0].messages[0]] if episode.calls and episode.calls[0].messages else {}
    said = first.get("content") if first.get("role") == "system" else None
    return said if isinstance(said, str) else None


def score_of(episode: Episode) -> float | None:
    """The reward of the episode's verdict; None without one."""
    return None if episode.reward is None else float(episode.reward)


def _about(episode: Episode, row: Mapping[str, Any], lease: Lease) -> Document:
    ended = {"completed": "completed", "failed": "failed"}
    return {
        "traj_id": episode.uuid,
        "task": lease.order,
        "fence": lease.fence,
        "tid": _clean(row["task"]["task_id"]),
        "status": READY if episode.scored else ended.get(episode.status, ABANDONED),
        "score": score_of(episode),
        "trained_count": 0,
        "last_trained_step": None,
        "created_at_step": episode.step,
        "schema": row["schema"],
    }


def _native(about: Document, row: dict[str, Any], packed: bytes, line: str, played: Sequence[Call]) -> Documents | None:
    name, score = about["_id"], about["score"]
    marked = '"$' in line or f'"{MARK}' in line
    if marked:
        row = _marked(row)
    calls = [
        {
            "_id": f"{name}/{at}",
            "record": name,
            "at": at,
            "status": "completed" if call["error"] in (None, "") else "failed",
            "priority": 0,
            "created_at_step": min((run[1] for run in call["versions"]), default=None),
            "created_at": _date(call["started"]),
            "completed_at": _date(call["ended"]),
            "score": score,
            "request": {name: call[name] for name in _REQUEST if name in call},
            "response": {name: value for name, value in call.items() if name not in _REQUEST},
        }
        for at, call in enumerate(row["calls"])
    ]
    data = [
        {
            "_id": f"{name}/{at}",
            "record": name,
            "at": at,
            "messages": _dialog(row["calls"][timeline["leaf"]]),
            "tools": row["calls"][timeline["leaf"]]["tools"],
            "scores": {str(span[0]): score for span in timeline["spans"]},
            "created_at_step": {
                str(span[0]): calls[span[0]]["created_at_step"] for span in timeline["spans"]
            },
            "logprobs": {str(span[0]): _vector(played[span[0]].logprobs) for span in timeline["spans"]},
            "reward": score,
            "timeline": timeline,
        }
        for at, timeline in enumerate(row["timelines"])
    ]  # fmt: skip
    apart = {"messages", "tools", "calls", "timelines"}
    record = {
        **about,
        "traj": row["messages"],
        "tools": row["tools"],
        "calls": len(calls),
        "timelines": len(data),
        "meta": {name: value for name, value in row.items() if name not in apart},
    }
    if marked:
        record["marked"] = True
    if len(packed) <= LARGEST // 2:
        return Documents([], calls, data, {**record, "arrays": packed, "blobs": 0})
    blobs = _chunks(name, "arrays", packed)
    return Documents(blobs, calls, data, {**record, "blobs": len(blobs)})


def _vector(numbers: Floats) -> Any:
    """The numbers as a vector of floats that MongoDB's drivers read."""
    from bson.binary import Binary

    return Binary(_FLOAT32 + numbers.astype("<f4").tobytes(), _VECTOR)


def _dialog(leaf: Mapping[str, Any]) -> list[int]:
    return [*leaf["messages"], *([] if leaf["reply"] is None else [leaf["reply"]])]


def _fits(document: Document) -> bool:
    import bson
    from bson.errors import BSONError

    try:
        return len(bson.encode(document)) <= LARGEST
    except (BSONError, OverflowError, UnicodeError, RecursionError):
        return False


def _chunks(name: str, kind: str, packed: bytes) -> list[Document]:
    starts = range(0, max(len(packed), 1), LARGEST)
    return [
        {"_id": f"{name}/{kind}/{at}", "record": name, "kind": kind, "at": at, "data": packed[start : start + LARGEST]}
        for at, start in enumerate(starts)
    ]


def _joined(blobs: Iterable[Document], kind: str) -> bytes:
    return b"".join(bytes(each["data"]) for each in sorted(blobs, key=_at) if each["kind"] == kind)


def _at(document: Document) -> int:
    return int(document["at"])


def _marked(value: Any) -> Any:
    if isinstance(value, dict):
        return {f"{MARK}{key}" if key[:1] in ("$", MARK) else key: _marked(each) for key, each in value.items()}
    return [_marked(each) for each in value] if isinstance(value, list) else value


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key[1:] if key[:1] == MARK else key: _unmarked(each) for key, each in value.items()}
    return [_unmarked(each) for each in value] if isinstance(value, list) else value


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _date(seconds: float) -> datetime | None:
    """The time as a date; None where no clock says so."""
    return datetime.fromtimestamp(seconds, timezone.utc) if 0 < seconds < 4e9 else None
