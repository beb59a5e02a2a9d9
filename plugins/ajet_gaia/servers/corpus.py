"""Corpus: a folder of texts or a JSON Lines file, searched by SQLite's full-text index.

Invariants: an index is built once for a corpus's content, named by the content's digest, and appears completely or not
at all. A query consists of quoted words, so a model's words are never syntax of the index.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from .html_text import readable
from .settings import Settings
from .tool import ToolError

VERSION = "1"
"""Version of the index's layout, included in the digest."""
KINDS = (".txt", ".md", ".html", ".htm", ".jsonl", ".json")
MAX_WORDS = 32
MAX_TEXT = 20_000_000
"""Maximum bytes of a file, or of a line of a JSON Lines file."""


@dataclass(frozen=True)
class FoundDocument:
    """A document found for a query."""

    title: str
    url: str
    snippet: str


class Corpus:
    """Documents with title, text and address, searched by a full-text index on disk."""

    def __init__(self, path: Path, cache: Path) -> None:
        self.index = cache / f"corpus-{_digest_files(path)}.sqlite"
        if not self.index.exists():
            _build_index(path, self.index)

    @classmethod
    def of(cls, settings: Settings) -> Corpus | None:
        """Return the corpus that the settings configure, or None; a missing index is built."""
        return cls(settings.corpus, settings.cache) if settings.corpus is not None else None

    def search(self, query: str, limit: int, words: int = 24) -> list[FoundDocument]:
        """Return the best documents for a query: first documents with all words, then documents with some.

        Args:
            limit: largest number of documents.
            words: largest number of words in a snippet.

        Raises:
            ToolError: the query has no words.
        """
        query_words = re.findall(r"\w+", query)[:MAX_WORDS]
        if not query_words:
            raise ToolError("the query has no words")
        quoted = [f'"{word}"' for word in query_words]  # a quoted word is never an operator of the query language
        documents: list[FoundDocument] = []
        # First all words are required, then any of them.
        for match_query in (" ".join(quoted), " OR ".join(quoted)):
            documents += [
                document for document in self._match_documents(match_query, limit, words) if document not in documents
            ]
            if len(documents) >= limit or len(quoted) == 1:
                break
        # A document found twice, with two snippets, is returned once, with its first snippet.
        return list({document.title + document.url: document for document in reversed(documents)}.values())[::-1][
            :limit
        ]

    def text(self, title: str) -> tuple[str, str, str]:
        """Return title, address and text of a document by title or address, else the best match for its words."""
        with closing(self._open_index()) as database:
            row = database.execute(
                "SELECT title, url, body FROM documents WHERE lower(title) = lower(?) OR url = ? LIMIT 1",
                (title, title),
            ).fetchone()
            if row is None:
                best = self.search(title, 1)
                if not best:
                    raise ToolError(f"there is no document {title}")
                row = database.execute(
                    "SELECT title, url, body FROM documents WHERE title = ? AND url = ?", (best[0].title, best[0].url)
                ).fetchone()
        return str(row[0]), str(row[1]), str(row[2])

    def _match_documents(self, match: str, limit: int, words: int) -> list[FoundDocument]:
        """Return the documents that match an FTS5 query, best first by BM25; a match in the title counts four times."""
        with closing(self._open_index()) as database:
            rows = database.execute(
                "SELECT documents.title, documents.url, snippet(texts, 1, '', '', '…', ?) FROM texts JOIN documents "
                "ON documents.id = texts.rowid WHERE texts MATCH ? ORDER BY bm25(texts, 4.0, 1.0) LIMIT ?",
                (min(max(words, 1), 64), match, limit),
            ).fetchall()
        return [FoundDocument(str(title), str(url), " ".join(str(snippet).split())) for title, url, snippet in rows]

    def _open_index(self) -> sqlite3.Connection:
        """Open the index for reading only, without locks, since a finished index never changes."""
        return sqlite3.connect(f"file:{self.index}?mode=ro&immutable=1", uri=True)


def _list_files(path: Path) -> list[Path]:
    """Return the files of a corpus, sorted: the file itself, or all texts below a folder. Raises ToolError."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ToolError(f"there is no corpus {path}")
    return sorted(file for file in path.rglob("*") if file.suffix.lower() in KINDS and file.is_file())


def _digest_files(path: Path) -> str:
    """Return a digest of the names and contents of all files of a corpus."""
    digest = hashlib.blake2b(VERSION.encode(), digest_size=16)
    for file in _list_files(path):
        digest.update(str(file.relative_to(path)).encode() + b"\0")
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def _build_index(path: Path, index: Path) -> None:
    """Build the full-text index of a corpus in a temporary file, and move it into place when complete.

    Raises:
        ToolError: the corpus has no documents, or a file of it cannot be read.
    """
    index.parent.mkdir(parents=True, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(dir=index.parent, prefix=".corpus-")
    os.close(descriptor)
    try:
        with closing(sqlite3.connect(unfinished)) as database:
            database.execute("PRAGMA journal_mode = OFF")  # an unfinished file is deleted, not repaired
            database.execute("CREATE TABLE documents (id INTEGER PRIMARY KEY, title TEXT, url TEXT, body TEXT)")
            database.execute(
                "CREATE VIRTUAL TABLE texts USING fts5(title, body, content=documents, content_rowid=id, "
                "tokenize='porter unicode61')"
            )
            rows = (row for file in _list_files(path) for row in _read_documents(file, path))
            database.executemany("INSERT INTO documents (title, url, body) VALUES (?, ?, ?)", rows)
            database.execute("INSERT INTO texts (texts) VALUES ('rebuild')")
            database.execute("CREATE INDEX by_title ON documents (lower(title))")
            database.execute("CREATE INDEX by_url ON documents (url)")
            if not database.execute("SELECT count(*) FROM documents").fetchone()[0]:
                raise ToolError(f"the corpus {path} has no documents: {', '.join(KINDS)} are read")
            database.commit()
        os.chmod(unfinished, 0o644)  # servers of other users read it
        os.replace(unfinished, index)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def _read_documents(file: Path, root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (title, address, text) of each document in a file.

    A JSON Lines file has a document per line, a JSON file one or a list; any other file is one document.
    """
    name = str(file.relative_to(root)) if file != root else file.name
    if file.suffix.lower() == ".jsonl":
        with file.open(encoding="utf-8", errors="replace") as lines:
            line_number = 0
            while line := lines.readline(MAX_TEXT):
                line_number += 1
                if line.strip():
                    yield _parse_row(line, f"{name}:{line_number}")
        return
    with file.open(encoding="utf-8", errors="replace") as stream:
        text = stream.read(MAX_TEXT)
    if file.suffix.lower() == ".json":
        parsed = _parse_json(text, name)
        for line_number, row in enumerate(parsed if isinstance(parsed, list) else [parsed], start=1):
            yield _read_fields(row, f"{name}:{line_number}")
    elif file.suffix.lower() in (".html", ".htm"):
        title, body = readable(text)
        yield title or file.stem, name, body
    else:
        first_line = text.lstrip().split("\n", 1)[0]
        yield first_line.lstrip("# ").strip() if first_line.startswith("# ") else file.stem, name, text


def _parse_row(line: str, location: str) -> tuple[str, str, str]:
    """Parse one line of a JSON Lines file into (title, address, text).

    `location` is its FILE:LINE. Raises ToolError.
    """
    return _read_fields(_parse_json(line, location), location)


def _parse_json(text: str, location: str) -> object:
    """Parse JSON. Raises ToolError that names the location."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ToolError(f"{location} is no JSON: {error}") from None


def _read_fields(row: object, location: str) -> tuple[str, str, str]:
    """Return (title, address, text) of a JSON object, which may use any of several common keys.

    `location` (FILE:LINE) replaces a missing title or address. Raises ToolError without a text.
    """
    if not isinstance(row, dict):
        raise ToolError(f"{location} is no object with a title and a text")
    body = _first_value(row, ("text", "body", "content", "contents", "passage"))
    if body is None:
        raise ToolError(f"{location} has none of the keys text, body, content, contents, passage")
    title = _first_value(row, ("title", "name", "id"))
    return title or location, _first_value(row, ("url", "link", "id")) or location, body


def _first_value(row: dict[str, object], names: Sequence[str]) -> str | None:
    """Return the first nonempty value among these keys as text, or None."""
    return next((str(row[name]) for name in names if row.get(name) not in (None, "")), None)
