"""Reads traces and feedback from files and folders.

Invariant: the content of a source, not its name, decides how it is read. An unreadable file raises TaskError. An
unreadable row is recorded with its place and skipped.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ajet.config.record_file import has_record_file
from ajet.record.episodes import NAME, read_recorded
from ajet.schema.episode import Episode
from ajet.schema.errors import TaskError, UserError
from ajet.schema.settled import repair_text
from ajet.task_reader.contract import explain_read_errors
from ajet.task_reader.jsonl import line_rows
from ajet.task_reader.rows import BadRowError, json_kind, read_finite
from ajet_datagen.tracing.spans import Span, build_traces, flatten_attributes
from ajet_datagen.tracing.trace import AgentTrace, ReplyRating, select_last

KEY = "ajet.task_reader.tracing.sources"
_SQLITE = b"SQLite format 3\x00"
_LATE = "feedback.jsonl"
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions while reading a row of another shape, or nested too deeply."""


@dataclass(slots=True)
class SourceContent:
    """All traces of the sources, with the unreadable rows.

    `bad`: (place, reason) of each unreadable row. `silent`: number of spans without messages.
    """

    traces: list[AgentTrace] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)
    silent: int = 0
    loose: int = 0
    """Feedback without a matching trace."""
    failed: int = 0
    """Calls of observed agents without a reply."""


@dataclass(slots=True)
class FeedbackIndex:
    """Feedback of people that is stored in other files than its trace, by reply and session."""

    by_reply: dict[str, ReplyRating] = field(default_factory=dict)
    by_session: dict[str, ReplyRating] = field(default_factory=dict)
    by_episode: dict[str, ReplyRating] = field(default_factory=dict)
    """Session ratings with a known episode, for several sessions of one name."""

    def read_file(self, file: Path, bad: list[tuple[str, str]], *, complete_lines: bool = False) -> None:
        """Add the feedback in a JSON Lines file.

        Args:
            bad: receives (place, reason) of unreadable rows.
            complete_lines: True to skip a last line without newline, left by a killed process.
        """
        with explain_read_errors(file):
            complete = file.read_bytes().count(b"\n") if complete_lines else None
        for line_number, row in line_rows(file):
            if complete is not None and line_number > complete:
                return
            try:
                if isinstance(row, BadRowError):
                    raise row
                self._add_rating(row, _parse_rating(row))
            except DAMAGED as problem:
                bad.append((f"{file}:{line_number}", f"no feedback: {problem}"))

    def _add_rating(self, row: Mapping[str, Any], rating: ReplyRating) -> None:
        """Add a rating under the reply, else the episode, else the session that its row names.

        A later rating of the same id takes precedence. Raises BadRowError for an invalid id.
        """
        ratings_by_field = (("reply", self.by_reply), ("episode", self.by_episode), ("session", self.by_session))
        name, ratings = next(
            ((name, ratings) for name, ratings in ratings_by_field if row.get(name)), ("session", self.by_session)
        )
        rated_id = row.get(name)
        if not isinstance(rated_id, str) or not rated_id:
            raise BadRowError(f"`{name}` is {json_kind(rated_id)}, expected an id")
        ratings[rated_id] = ratings.get(rated_id, ReplyRating()).update_with(rating)


def read_sources(paths: Sequence[Path], feedback: Sequence[Path] = ()) -> SourceContent:
    """Read traces from all paths, and apply the feedback files to them.

    Unreadable rows are listed in the result's `bad`. Raises TaskError for an unreadable file.
    """
    content = SourceContent()
    feedback_index = FeedbackIndex()
    for file in feedback:
        if not file.is_file():
            raise TaskError(
                f"The feedback {file.name} is a folder.",
                where=f"ajet.task_reader.tracing.feedback: {file}",
                expected="a JSON Lines file; feedback of observed runs is read automatically",
            )
        feedback_index.read_file(file, content.bad)
    for file in (
        file for path in paths if path.is_dir() for file in sorted(path.rglob(_LATE)) if has_record_file(file)
    ):
        feedback_index.read_file(file, content.bad, complete_lines=True)
    for path in paths:
        with explain_read_errors(path):
            if path.is_dir():
                _read_folder(path, content, feedback_index)
                continue
            spans = (
                _read_sqlite_spans(path, content.bad)
                if _read_magic(path) == _SQLITE
                else _read_otlp_spans(path, content.bad)
            )
            traces, silent = build_traces(spans, content.bad)
            content.traces += traces
            content.silent += silent
    rated_traces, content.loose = _apply_feedback(content.traces, feedback_index)
    content.traces = []
    for trace in rated_traces:
        try:
            content.traces.append(trace.repair_text())
        except (ValueError, RecursionError) as problem:
            content.bad.append((trace.where, str(problem)))
    content.bad = [(repair_text(location), repair_text(reason)) for location, reason in content.bad]
    return content


def _read_magic(path: Path) -> bytes:
    """Return the first bytes of a file, which identify a SQLite database."""
    with path.open("rb") as file:
        return file.read(len(_SQLITE))


def _read_sqlite_spans(path: Path, bad: list[tuple[str, str]]) -> Iterator[Span]:
    """Yield the spans of AgentScope Studio's `span_table`, in any of its versions."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            rows = database.execute("SELECT rowid AS place, * FROM span_table").fetchall()
    except sqlite3.Error as problem:
        raise TaskError(
            f"This is not a database of spans: {problem}.",
            where=str(path),
            expected="AgentScope Studio's database with span_table",
        ) from None
    for row in rows:
        location = f"{path}:{row['place']}"
        columns: dict[str, Any] = {name: row[name] for name in row.keys()}  # noqa: SIM118 - a Row is no mapping
        try:
            attributes = json.loads(columns["attributes"])
            events = json.loads(_get_column(columns, "events") or "[]")
            # `place`, the row's number, stands for columns that a version lacks.
            yield Span(
                location,
                str(columns["name"]),
                str(_get_column(columns, "traceId", "trace_id", "place")),
                int(_get_column(columns, "startTimeUnixNano", "place")),
                flatten_attributes(attributes),
                [(str(event.get("name")), flatten_attributes(event.get("attributes") or {})) for event in events],
            )
        except DAMAGED as problem:
            bad.append((location, f"no span: {problem}"))


def _read_otlp_spans(path: Path, bad: list[tuple[str, str]]) -> Iterator[Span]:
    """Yield the spans of OTLP JSON: one document, or one a line as written by the collector's file exporter."""
    with path.open("rb") as file:
        first_line, next_byte = file.readline(), file.read(1)
    # A complete document in the first of several lines means one document per line.
    documents = _read_lines(path, bad) if next_byte and _is_json(first_line) else _read_document(path, bad)
    for location, document in documents:
        if not isinstance(document, Mapping) or not isinstance(document.get("resourceSpans"), list):
            bad.append((location, "no `resourceSpans`: not OTLP JSON"))
            continue
        for resource in document["resourceSpans"]:
            for scope in _get_list(resource, "scopeSpans", location, bad):
                for number, span in enumerate(_get_list(scope, "spans", location, bad)):
                    try:
                        yield _parse_span(span, location)
                    except DAMAGED as problem:
                        bad.append((f"{location}, span {number}", f"no span: {type(problem).__name__}: {problem}"))


def _get_list(tree: Any, name: str, where: str, bad: list[tuple[str, str]]) -> Sequence[Any]:
    """Return the list under a name in a JSON object; () if it is absent.

    Another type is recorded in `bad` with its place, and counts as an empty list.
    """
    value = tree.get(name) if isinstance(tree, Mapping) else tree
    if isinstance(tree, Mapping) and value is None:
        return ()
    if not isinstance(tree, Mapping) or not isinstance(value, list):
        bad.append((where, f"{json_kind(value)} in the place of `{name}`, expected a list: not OTLP JSON"))
        return ()
    return value


def _read_document(path: Path, bad: list[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """Yield (place, parsed JSON) of a file with one document, or record it as unreadable in `bad`."""
    try:
        yield str(path), json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        bad.append((str(path), "neither SQLite nor JSON"))


def _is_json(text: bytes) -> bool:
    """Return True if the text is JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _read_lines(path: Path, bad: list[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """Yield (place, parsed JSON) of each nonempty line; unreadable lines are recorded in `bad`."""
    with path.open("rb") as file:
        for line_number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield f"{path}:{line_number}", json.loads(line)
            except (ValueError, RecursionError):
                bad.append((f"{path}:{line_number}", "the line is not valid JSON"))


def _get_column(row: Mapping[str, Any], *names: str) -> Any:
    """Return the first present column: earlier versions used other names."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def _parse_span(span: Mapping[str, Any], where: str) -> Span:
    """Convert a span of OTLP JSON. A malformed span raises one of the exceptions in DAMAGED."""
    events = [
        (str(event["name"]), _parse_attributes(event.get("attributes") or ())) for event in span.get("events") or ()
    ]
    return Span(
        f"{where}, span {span['spanId']}",
        str(span.get("name") or ""),
        str(span["traceId"]),
        int(span.get("startTimeUnixNano") or 0),
        _parse_attributes(span.get("attributes") or ()),
        events,
    )


def _parse_attributes(listed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Convert OTLP's list of attributes to a flat dictionary."""
    return flatten_attributes({attribute["key"]: _parse_value(attribute["value"]) for attribute in listed})


def _parse_value(value: Mapping[str, Any]) -> Any:
    """Convert an OTLP AnyValue to a Python value."""
    if not value:
        return None
    [(kind, content)] = value.items()
    if kind == "arrayValue":
        return [_parse_value(item) for item in content.get("values") or ()]
    if kind == "kvlistValue":
        return {item["key"]: _parse_value(item["value"]) for item in content.get("values") or ()}
    return int(content) if kind == "intValue" else content


def _read_folder(folder: Path, content: SourceContent, feedback_index: FeedbackIndex) -> None:
    """Add the runs of `ajet observe` in a folder to `content`, and their feedback to the index."""
    files = sorted(path for path in folder.rglob("step-*.jsonl") if NAME.fullmatch(path.name))
    if not files:
        raise TaskError("There are no recorded episodes in this folder.", where=f"{KEY}: {folder}")
    read_uuids = set[str]()
    for file in files:
        try:
            for episode, _ in read_recorded(file):
                if episode.uuid in read_uuids:
                    continue  # several steps may have trained on it
                read_uuids.add(episode.uuid)
                content.failed += sum(call.reply is None or bool(call.error) for call in episode.calls)
                location = f"{file} {episode.uuid}"
                try:
                    content.traces += _read_episode(episode, location, feedback_index)
                except DAMAGED as problem:
                    content.bad.append((location, f"no episode: {type(problem).__name__}: {problem}"))
        except UserError as problem:
            content.bad.append((str(file), problem.what))


def _read_episode(episode: Episode, where: str, feedback_index: FeedbackIndex) -> list[AgentTrace]:
    """Return the traces of a recorded episode, one per model call with a reply, without those that others continue."""
    agent_ratings, overall = _read_ratings(episode)
    traces = []
    for call in episode.calls:
        if call.reply is None or call.error:
            continue
        reply_id = str(call.extra.get("id") or "")
        traces.append(
            AgentTrace(
                f"{where}, call {call.index}",
                tuple(episode.messages[index] for index in call.messages),
                episode.messages[call.reply],
                tuple(episode.tools[call.tools]) if call.tools is not None else (),
                call.agent,
                str(call.extra.get("model") or ""),
                episode.task.task_id,
                reply_id,
                agent_ratings.get(reply_id, overall),
                is_rated_alone=reply_id in agent_ratings or reply_id in feedback_index.by_reply,
                episode=episode.uuid,
            )
        )
    return select_last(traces)


def _read_ratings(episode: Episode) -> tuple[dict[str, ReplyRating], ReplyRating]:
    """Return (rating by reply id, rating of the complete episode) from the episode's verdict. Raises BadRowError."""
    agent_ratings: dict[str, ReplyRating] = {}
    overall = ReplyRating()
    verdict = episode.verdict
    if verdict is None:
        return agent_ratings, overall
    rows = verdict.details.get("feedback")
    if not isinstance(rows, list):
        return agent_ratings, ReplyRating(verdict.reward, verdict.success)
    for row in rows:
        if not isinstance(row, Mapping):
            raise BadRowError(f"feedback that is {json_kind(row)}, expected an object")
        if row.get("reply"):
            agent_ratings[row["reply"]] = agent_ratings.get(row["reply"], ReplyRating()).update_with(_parse_rating(row))
        else:
            overall = overall.update_with(_parse_rating(row))
    return agent_ratings, overall


def _parse_rating(row: Mapping[str, Any]) -> ReplyRating:
    """Return the rating of a feedback row. Raises BadRowError for other types."""
    reward, liked = row.get("reward"), row.get("liked")
    if not isinstance(liked, (bool, type(None))):
        raise BadRowError(f"`liked` is {json_kind(liked)}, expected true or false")
    for name in ("corrected", "comment"):
        if not isinstance(row.get(name), (str, type(None))):
            raise BadRowError(f"`{name}` is {json_kind(row[name])}, expected text")
    finite_reward = None if reward is None else read_finite(reward, "reward")
    return ReplyRating(finite_reward, liked, row.get("corrected"), row.get("comment"))


def _apply_feedback(traces: Sequence[AgentTrace], feedback_index: FeedbackIndex) -> tuple[list[AgentTrace], int]:
    """Return the traces with later feedback applied, and the number of feedback rows without a trace."""
    used_keys: set[str] = set()
    rated = []
    for trace in traces:
        rating = trace.rating
        if trace.session in feedback_index.by_session and not trace.is_rated_alone:
            rating = rating.update_with(feedback_index.by_session[trace.session])
            used_keys.add(f"session {trace.session}")
        if trace.episode in feedback_index.by_episode and not trace.is_rated_alone:
            rating = rating.update_with(feedback_index.by_episode[trace.episode])
            used_keys.add(f"episode {trace.episode}")
        reply_rating = feedback_index.by_reply.get(trace.id) if trace.id else None
        if reply_rating is not None:
            rating = rating.update_with(reply_rating)
            used_keys.add(f"reply {trace.id}")
        rated.append(replace(trace, rating=rating, is_rated_alone=trace.is_rated_alone or reply_rating is not None))
    return rated, len(feedback_index.by_reply) + len(feedback_index.by_session) + len(feedback_index.by_episode) - len(
        used_keys
    )
