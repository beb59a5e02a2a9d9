"""Attempt: what a recorded episode says of how a task was solved, without its tokens.

Invariant: it is read from the episode's line alone, so that a hundred thousand of them cost seconds and no arrays; it
counts by the same rules as the episode itself (`scored`, `succeeded`, `left_out`). Of an attempt that was recorded
twice the later line counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ajet.record.episode_codec import decode_verdict, require_schema
from ajet.record.files import read_rows
from ajet.schema.call import UNDELIVERED
from ajet.schema.episode import Episode, Failure
from ajet.schema.errors import UserError
from ajet.schema.messages import extract_text
from ajet.schema.task import Task

TAG_KEYS = ("tag", "tags")
"""Keys of a task's metadata that hold its tags, unless others are named."""


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt at one task."""

    uuid: str
    task: str
    """Its `task_id`."""
    order: int
    repeat: int
    status: str
    reward: float | None
    """None where it was not scored."""
    success: bool
    judged: bool
    """Whether anything says that it succeeded or not: a verdict did, or it failed."""
    left_out: bool
    """ajet itself failed at it: it says nothing about the model."""
    failure: str = ""
    """boundary: kind: message; "" for none."""
    reason: str = ""
    """The verdict's, in words."""
    tokens: int = 0
    """That the model sampled."""
    replies: int = 0
    """Model calls."""
    cut: int = 0
    """Replies that a limit on tokens ended."""
    seconds: float = 0.0
    metadata: dict[str, Any] = field(default_factory=dict)
    """The task's."""
    output: dict[str, Any] = field(default_factory=dict)
    """The metadata that the workflow returned."""
    question: str = ""
    step: int = 0
    """Training step that it was played for."""
    scorer: str = ""
    """Which scorers were chosen for it; "" where none was asked."""
    parts: dict[str, float | None] = field(default_factory=dict)
    """What each of them gave, by name."""
    spent: dict[str, float] = field(default_factory=dict)
    """The judge's own numbers: calls, cost, seconds."""
    tools: tuple[str, ...] = ()
    """What tools answered it, as its judge is told; only where that was asked for."""
    last_reply: str | None = None
    """What the model said last; likewise."""

    @property
    def lacks_verdict(self) -> bool:
        """Whether it was played to its end and only its judge failed at it."""
        played = bool(self.output) or self.last_reply is not None
        return self.status == "failed" and self.failure.startswith("judge: ") and played

    def tags(self, keys: Sequence[str] = TAG_KEYS) -> list[str]:
        """The tags of its task: see `tags_of`."""
        return tags_of(self.metadata, keys)


def tags_of(metadata: Mapping[str, Any], keys: Sequence[str] = TAG_KEYS) -> list[str]:
    """A task's tags: what its metadata has under these keys, a list as several; with keys of the person's own, each as
    key=value."""
    found = []
    for key in keys:
        value = metadata.get(key)
        named = "" if key in TAG_KEYS else f"{key}="
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(each, (str, int, float, bool)):
                found.append(f"{named}{each}")
    return list(dict.fromkeys(found))


def read_attempts(path: Path, *, judge_inputs: bool = False) -> list[AttemptRecord]:
    """Read the attempts of one episode file, by order and repeat; [] if there is no file.

    Args:
        judge_inputs: read tool results and the last reply too, which a judge gets besides the workflow's output.

    Raises:
        UserError: a line is damaged.
    """
    found: dict[str, AttemptRecord] = {}
    for number, row in enumerate(read_rows(path), 1):
        try:
            attempt = decode_attempt(row, judge_inputs=judge_inputs)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"A line of the record is no episode ({type(error).__name__}: {error}).",
                where=f"{path}:{number}",
                do="restore the file from a copy",
            ) from error
        found[attempt.uuid] = attempt
    return sorted(found.values(), key=lambda attempt: (attempt.order, attempt.repeat))


def decode_attempt(row: dict[str, Any], *, judge_inputs: bool = False) -> AttemptRecord:
    """The attempt that an episode's line tells of. Raises KeyError and kin for what is no such line."""
    require_schema(row)
    calls = row["calls"]
    is_delivered = bool(calls) and calls[-1]["finish"] not in UNDELIVERED
    reply = calls[-1].get("reply") if is_delivered and judge_inputs else None
    failure = Failure(**row["failure"]) if row["failure"] else None
    verdict = decode_verdict(row["verdict"]) if row["verdict"] else None
    task = Task(**row["task"])
    episode = Episode(
        uuid=row["uuid"], task=task, repeat=row["repeat"], step=row["step"], split=row["split"],
        order=row.get("order", -1), status=row["status"], ending=row.get("ending", ""), failure=failure,
        verdict=verdict,
    )  # fmt: skip
    return AttemptRecord(
        uuid=episode.uuid,
        task=task.task_id,
        order=episode.order,
        repeat=episode.repeat,
        status=episode.status,
        reward=episode.reward if episode.scored else None,
        success=episode.succeeded,
        judged=failure is not None or (verdict is not None and verdict.success is not None),
        left_out=episode.left_out,
        failure=f"{failure.boundary}: {failure.kind}: {failure.message}" if failure else "",
        reason=verdict.reason if verdict else "",
        tokens=sum(stop - start for start, stop in (call["response_ids"] for call in row["calls"])),
        replies=len(calls),
        cut=sum(call["finish"] == "length" for call in calls),
        seconds=row.get("ended", 0.0) - row.get("started", 0.0),
        metadata=task.metadata,
        output=row.get("metadata", {}),
        question=task.main_query,
        step=row["step"],
        scorer=verdict.scorer if verdict else "",
        parts=dict(verdict.parts) if verdict else {},
        spent=dict(verdict.metrics) if verdict else {},
        tools=tuple(f"{use['name']}: {use['result']}" for use in row.get("tool_uses", ())) if judge_inputs else (),
        last_reply=extract_text(row["messages"][reply]) if reply is not None else None,
    )


def has_success_verdicts(attempts: Iterable[AttemptRecord]) -> bool:
    """Whether success was judged at all: a reward alone says of no task that it was solved."""
    counted = [attempt for attempt in attempts if not attempt.left_out]
    return any(attempt.judged and not attempt.failure for attempt in counted) or (
        bool(counted) and all(attempt.failure for attempt in counted)
    )
