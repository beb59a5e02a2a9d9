"""Where traces lie: which reader a path needs, and the spans or episodes of it.

Invariant: a source is told by what it holds and not by its name. A file that cannot be read at all is a TaskError; a
row in it that cannot is a bad row, with its place.
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
from ajet.task_reader.contract import being_read
from ajet.task_reader.jsonl import line_rows
from ajet.task_reader.rows import BadRow, finite, kind_of
from ajet_datagen.tracing.spans import Span, flat, traces_of
from ajet_datagen.tracing.trace import Rating, Trace, last_of_each

KEY = "ajet.task_reader.tracing.sources"
_SQLITE = b"SQLite format 3\x00"
_LATE = "feedback.jsonl"
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading a row raises that is of another shape, or nested too deeply."""


@dataclass(slots=True)
class Found:
    """What sources held. `bad`: (place, why) of rows that could not be read; `silent`: spans that tell nothing."""

    traces: list[Trace] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)
    silent: int = 0
    loose: int = 0
    """Words of feedback that belong to nothing that was read."""
    failed: int = 0
    """Calls of observed agents that got no reply."""


@dataclass(slots=True)
class Words:
    """Feedback that came apart from what it is about."""

    by_reply: dict[str, Rating] = field(default_factory=dict)
    by_session: dict[str, Rating] = field(default_factory=dict)
    by_episode: dict[str, Rating] = field(default_factory=dict)
    """Of sessions, where it is known which of those with one name is meant."""

    def read(self, file: Path, bad: list[tuple[str, str]], *, ends: bool = False) -> None:
        """All of a file of JSON lines. `ends`: each line with its newline; a last one without was being written when
        its process died, and is not read."""
        with being_read(file):
            whole = file.read_bytes().count(b"\n") if ends else None
        for number, row in line_rows(file):
            if whole is not None and number > whole:
                return
            try:
                if isinstance(row, BadRow):
                    raise row
                self._take(row, _rating(row))
            except DAMAGED as problem:
                bad.append((f"{file}:{number}", f"no feedback: {problem}"))

    def _take(self, row: Mapping[str, Any], rating: Rating) -> None:
        names = (("reply", self.by_reply), ("episode", self.by_episode), ("session", self.by_session))
        name, into = next(((name, into) for name, into in names if row.get(name)), ("session", self.by_session))
        whose = row.get(name)
        if not isinstance(whose, str) or not whose:
            raise BadRow(f"`{name}` is {kind_of(whose)}, expected whose it is")
        into[whose] = into.get(whose, Rating()).then(rating)


def read_sources(paths: Sequence[Path], feedback: Sequence[Path] = ()) -> Found:
    """Everything in them. Raises TaskError, UserError."""
    found = Found()
    words = Words()
    for file in feedback:
        if not file.is_file():
            raise TaskError(
                f"The feedback {file.name} is a folder.",
                where=f"ajet.task_reader.tracing.feedback: {file}",
                expected="a file of JSON lines; what observed runs hold is read with them",
            )
        words.read(file, found.bad)
    for file in (
        file for path in paths if path.is_dir() for file in sorted(path.rglob(_LATE)) if has_record_file(file)
    ):
        words.read(file, found.bad, ends=True)
    for path in paths:
        with being_read(path):
            if path.is_dir():
                _read_folder(path, found, words)
                continue
            spans = _sqlite_spans(path, found.bad) if _begins(path) == _SQLITE else _otlp_spans(path, found.bad)
            traces, silent = traces_of(spans, found.bad)
            found.traces += traces
            found.silent += silent
    rated, found.loose = _rated(found.traces, words)
    found.traces = []
    for trace in rated:
        try:
            found.traces.append(trace.settled())
        except (ValueError, RecursionError) as problem:
            found.bad.append((trace.where, str(problem)))
    found.bad = [(repair_text(where), repair_text(why)) for where, why in found.bad]
    return found


def _begins(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(_SQLITE))


def _sqlite_spans(path: Path, bad: list[tuple[str, str]]) -> Iterator[Span]:
    """The spans of AgentScope Studio's `span_table`, of any of its versions."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            rows = database.execute("SELECT rowid AS place, * FROM span_table").fetchall()
    except sqlite3.Error as problem:
        raise TaskError(
            f"This is no database of spans: {problem}.",
            where=str(path),
            expected="AgentScope Studio's, with span_table",
        ) from None
    for row in rows:
        where = f"{path}:{row['place']}"
        told: dict[str, Any] = {name: row[name] for name in row.keys()}  # noqa: SIM118 - a Row is no mapping
        try:
            attributes = json.loads(told["attributes"])
            events = json.loads(_column(told, "events") or "[]")
            yield Span(
                where,
                str(told["name"]),
                str(_column(told, "traceId", "trace_id", "place")),
                int(_column(told, "startTimeUnixNano", "place")),
                flat(attributes),
                [(str(each.get("name")), flat(each.get("attributes") or {})) for each in events],
            )
        except DAMAGED as problem:
            bad.append((where, f"no span: {problem}"))


def _otlp_spans(path: Path, bad: list[tuple[str, str]]) -> Iterator[Span]:
    """The spans of OTLP JSON: one document, or one a line as the collector's file exporter writes them."""
    with path.open("rb") as file:
        first, rest = file.readline(), file.read(1)
    documents = _lines(path, bad) if rest and _is_json(first) else _whole(path, bad)
    for where, document in documents:
        if not isinstance(document, Mapping) or not isinstance(document.get("resourceSpans"), list):
            bad.append((where, "no `resourceSpans`: not OTLP JSON"))
            continue
        for resource in document["resourceSpans"]:
            for scope in _listed(resource, "scopeSpans", where, bad):
                for at, span in enumerate(_listed(scope, "spans", where, bad)):
                    try:
                        yield _otlp_span(span, where)
                    except DAMAGED as problem:
                        bad.append((f"{where}, span {at}", f"no span: {type(problem).__name__}: {problem}"))


def _listed(tree: Any, name: str, where: str, bad: list[tuple[str, str]]) -> Sequence[Any]:
    """What an object lists under a name, nothing where it has none; one that lists nothing is a bad row."""
    found = tree.get(name) if isinstance(tree, Mapping) else tree
    if isinstance(tree, Mapping) and found is None:
        return ()
    if not isinstance(tree, Mapping) or not isinstance(found, list):
        bad.append((where, f"{kind_of(found)} in the place of `{name}`, expected a list: not OTLP JSON"))
        return ()
    return found


def _whole(path: Path, bad: list[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    try:
        yield str(path), json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        bad.append((str(path), "neither SQLite nor JSON"))


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _lines(path: Path, bad: list[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield f"{path}:{number}", json.loads(line)
            except (ValueError, RecursionError):
                bad.append((f"{path}:{number}", "no JSON"))


def _column(row: Mapping[str, Any], *names: str) -> Any:
    """The first that is there: columns were called otherwise in earlier versions."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def _otlp_span(span: Mapping[str, Any], where: str) -> Span:
    events = [(str(each["name"]), _attributes(each.get("attributes") or ())) for each in span.get("events") or ()]
    return Span(
        f"{where}, span {span['spanId']}",
        str(span.get("name") or ""),
        str(span["traceId"]),
        int(span.get("startTimeUnixNano") or 0),
        _attributes(span.get("attributes") or ()),
        events,
    )


def _attributes(listed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return flat({each["key"]: _plain(each["value"]) for each in listed})


def _plain(value: Mapping[str, Any]) -> Any:
    """OTLP's AnyValue."""
    if not value:
        return None
    [(kind, said)] = value.items()
    if kind == "arrayValue":
        return [_plain(each) for each in said.get("values") or ()]
    if kind == "kvlistValue":
        return {each["key"]: _plain(each["value"]) for each in said.get("values") or ()}
    return int(said) if kind == "intValue" else said


def _read_folder(folder: Path, found: Found, words: Words) -> None:
    """Runs in it, of `ajet observe` and others."""
    files = sorted(path for path in folder.rglob("step-*.jsonl") if NAME.fullmatch(path.name))
    if not files:
        raise TaskError("There are no recorded episodes in this folder.", where=f"{KEY}: {folder}")
    seen = set[str]()
    for file in files:
        try:
            for episode, _ in read_recorded(file):
                if episode.uuid in seen:
                    continue  # several steps may have trained on it
                seen.add(episode.uuid)
                found.failed += sum(call.reply is None or bool(call.error) for call in episode.calls)
                where = f"{file} {episode.uuid}"
                try:
                    found.traces += _of_episode(episode, where, words)
                except DAMAGED as problem:
                    found.bad.append((where, f"no episode: {type(problem).__name__}: {problem}"))
        except UserError as problem:
            found.bad.append((str(file), problem.what))


def _of_episode(episode: Episode, where: str, words: Words) -> list[Trace]:
    own, whole = _said_of(episode)
    traces = []
    for call in episode.calls:
        if call.reply is None or call.error:
            continue
        name = str(call.extra.get("id") or "")
        traces.append(
            Trace(
                f"{where}, call {call.index}",
                tuple(episode.messages[at] for at in call.messages),
                episode.messages[call.reply],
                tuple(episode.tools[call.tools]) if call.tools is not None else (),
                call.agent,
                str(call.extra.get("model") or ""),
                episode.task.task_id,
                name,
                own.get(name, whole),
                alone=name in own or name in words.by_reply,
                episode=episode.uuid,
            )
        )
    return last_of_each(traces)


def _said_of(episode: Episode) -> tuple[dict[str, Rating], Rating]:
    """(by reply, of all of it)."""
    own: dict[str, Rating] = {}
    whole = Rating()
    verdict = episode.verdict
    if verdict is None:
        return own, whole
    rows = verdict.details.get("feedback")
    if not isinstance(rows, list):
        return own, Rating(verdict.reward, verdict.success)
    for row in rows:
        if not isinstance(row, Mapping):
            raise BadRow(f"feedback that is {kind_of(row)}, expected an object")
        if row.get("reply"):
            own[row["reply"]] = own.get(row["reply"], Rating()).then(_rating(row))
        else:
            whole = whole.then(_rating(row))
    return own, whole


def _rating(row: Mapping[str, Any]) -> Rating:
    """Raises BadRow for one of other kinds."""
    reward, liked = row.get("reward"), row.get("liked")
    if not isinstance(liked, (bool, type(None))):
        raise BadRow(f"`liked` is {kind_of(liked)}, expected true or false")
    for name in ("corrected", "comment"):
        if not isinstance(row.get(name), (str, type(None))):
            raise BadRow(f"`{name}` is {kind_of(row[name])}, expected text")
    number = None if reward is None else finite(reward, "reward")
    return Rating(number, liked, row.get("corrected"), row.get("comment"))


def _rated(traces: Sequence[Trace], words: Words) -> tuple[list[Trace], int]:
    """The sessions with what was said later of a reply, or of a session; and how many words belong to none of them."""
    used: set[str] = set()
    found = []
    for trace in traces:
        rating = trace.rating
        if trace.session in words.by_session and not trace.alone:
            rating = rating.then(words.by_session[trace.session])
            used.add(f"session {trace.session}")
        if trace.episode in words.by_episode and not trace.alone:
            rating = rating.then(words.by_episode[trace.episode])
            used.add(f"episode {trace.episode}")
        own = words.by_reply.get(trace.id) if trace.id else None
        if own is not None:
            rating = rating.then(own)
            used.add(f"reply {trace.id}")
        found.append(replace(trace, rating=rating, alone=trace.alone or own is not None))
    return found, len(words.by_reply) + len(words.by_session) + len(words.by_episode) - len(used)
