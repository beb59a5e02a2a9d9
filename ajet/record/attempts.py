"""AttemptRecord: the result of one recorded episode without tokens.

Invariant: only the JSON line of an episode is read, so 100,000 records take seconds and no arrays. Counting follows the
rules of Episode (`scored`, `succeeded`, `left_out`). If an attempt was recorded twice, the later line counts.
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
from ajet.schema.task import Task, extract_text

TAG_KEYS = ("tag", "tags")
"""Default metadata keys of a task's tags."""


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """The result of one attempt at one task."""

    uuid: str
    task: str  # the task's `task_id`
    order: int
    repeat: int
    status: str
    reward: float | None
    """None if the attempt was not scored."""
    success: bool
    judged: bool
    """True if success was decided: by a verdict or by a failure."""
    left_out: bool
    """True if ajet itself failed; the result then says nothing about the model."""
    failure: str = ""
    """"boundary: kind: message"; "" without a failure."""
    reason: str = ""  # the verdict's reason
    tokens: int = 0  # number of sampled tokens
    replies: int = 0  # number of model calls
    cut: int = 0
    """Number of replies cut at a token limit."""
    seconds: float = 0.0
    metadata: dict[str, Any] = field(default_factory=dict)  # the task's metadata
    output: dict[str, Any] = field(default_factory=dict)
    """Metadata returned by the workflow."""
    question: str = ""
    step: int = 0
    """Training step of the attempt."""
    scorer: str = ""
    """Names of the chosen scorers; "" without scorers."""
    parts: dict[str, float | None] = field(default_factory=dict)
    """Score of each scorer, by name."""
    spent: dict[str, float] = field(default_factory=dict)
    """The judge's own numbers: calls, cost, seconds."""
    tools: tuple[str, ...] = ()
    """Tool results, as a judge gets them; empty unless requested."""
    last_reply: str | None = None
    """Text of the last reply; None unless requested."""

    @property
    def lacks_verdict(self) -> bool:
        """True if the workflow returned an answer and only the judge failed; another judge can score the attempt."""
        has_answer = bool(self.output) or self.last_reply is not None
        return self.status == "failed" and self.failure.startswith("judge: ") and has_answer

    def tags(self, keys: Sequence[str] = TAG_KEYS) -> list[str]:
        """Return the tags of the attempt's task: the values of these metadata keys."""
        return tags_of(self.metadata, keys)


def tags_of(metadata: Mapping[str, Any], keys: Sequence[str] = TAG_KEYS) -> list[str]:
    """Return a task's tags: the values of the metadata `keys`, each item of a list as a tag.

    Values of the default keys `tag` and `tags` are tags themselves; those of other keys become "KEY=VALUE".
    """
    tags = []
    for key in keys:
        value = metadata.get(key)
        prefix = "" if key in TAG_KEYS else f"{key}="
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, (str, int, float, bool)):
                tags.append(f"{prefix}{item}")
    return list(dict.fromkeys(tags))


def read_attempts(path: Path, *, judge_inputs: bool = False) -> list[AttemptRecord]:
    """Return the attempts of one episode file, sorted by order and repeat, or [] without a file.

    Args:
        judge_inputs: Read tool results and the last reply too, which a judge gets besides the workflow's output.

    Raises:
        UserError: A line is damaged.
    """
    by_uuid: dict[str, AttemptRecord] = {}
    for number, row in enumerate(read_rows(path), 1):
        try:
            attempt = decode_attempt(row, judge_inputs=judge_inputs)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"A line of the record cannot be read as an episode ({type(error).__name__}: {error}).",
                where=f"{path}:{number}",
                do="restore the file from a copy",
            ) from error
        by_uuid[attempt.uuid] = attempt  # an attempt may be recorded twice; the later line counts
    return sorted(by_uuid.values(), key=lambda attempt: (attempt.order, attempt.repeat))


def decode_attempt(row: dict[str, Any], *, judge_inputs: bool = False) -> AttemptRecord:
    """Return the attempt of an episode's JSON line, without its token arrays.

    Args:
        row: The parsed line.
        judge_inputs: Read tool results and the last reply too.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: The line is no episode.
    """
    require_schema(row)
    calls = row["calls"]
    is_delivered = bool(calls) and calls[-1]["finish"] not in UNDELIVERED
    reply = calls[-1].get("reply") if is_delivered and judge_inputs else None
    failure = Failure(**row["failure"]) if row["failure"] else None
    verdict = decode_verdict(row["verdict"]) if row["verdict"] else None
    task = Task(**row["task"])
    # The rules for scored, succeeded and left out are Episode's.
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
    """Return True if success was judged, so that a success rate can be reported.

    A reward alone does not decide success. If all attempts failed, each of them is no success.
    """
    counted = [attempt for attempt in attempts if not attempt.left_out]
    return any(attempt.judged and not attempt.failure for attempt in counted) or (
        bool(counted) and all(attempt.failure for attempt in counted)
    )
