"""chain.jsonl: links of committed records, each with the digest of the previous link.

A link is one line of the chain: the digests of records written since the link before. To link a record is to write its
digest there. Invariant: links are only appended. The link of a step is written after its episodes and its metrics row
are on disk, and before the checkpoint of the step; a resumed run never depends on unlinked data. Truncation at a
resume, pruned checkpoints and removals by `ajet gc` are linked before any file is deleted. `ajet audit` compares links
and files. With a key, only the owner of the key can write valid links.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ajet.config.record_file import has_record_file, open_record_file, read_record_part
from ajet.record import files
from ajet.record.files import append_lines, cut_partial_line, next_line, parse_object
from ajet.schema.commands import FRESH_ADVICE
from ajet.schema.errors import UserError

FILE = "chain.jsonl"
KEY = "AJET_AUDIT_KEY"
"""Environment variable with the key of the links' digests."""
METRICS = "metrics.jsonl"
GENESIS = "0" * 64
"""Digest of the previous link in the first link."""
_EPISODE_FILE = re.compile(r"episodes/step-\d+(?:\.\w+)?\.jsonl")
_OWN = b', "digest": "'
"""Text before the digest of a link, the last key of the line."""


class LinkedLine(NamedTuple):
    """The digests and lengths of one episode's line and of its arrays, as a link of the chain lists them."""

    uuid: str
    task: str
    length: int  # bytes, with the newline
    digest: str
    blob_length: int
    blob_digest: str


class LinkedLines(NamedTuple):
    """Consecutive lines of one episode file, as one write appended them and a link of the chain lists them."""

    file: str  # below the run's folder
    first: int
    """The number of the first in it, from 1."""
    at: int
    """Byte offset of the first line."""
    blob_at: int
    lines: Sequence[LinkedLine]

    def as_json(self) -> dict[str, Any]:
        """Return the lines as JSON values, for a link of the chain."""
        entry = {"file": self.file, "first": self.first, "at": self.at, "blob_at": self.blob_at}
        return entry | {"lines": [list(line) for line in self.lines]}

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> LinkedLines:
        """Return the lines listed in a link of the chain.

        Raises:
            KeyError, TypeError, ValueError: The values are invalid.
        """
        if _EPISODE_FILE.fullmatch(entry["file"]) is None:
            raise ValueError("it names a file without episodes")
        lines = [LinkedLine(*line) for line in entry["lines"]]
        return cls(entry["file"], entry["first"], entry["at"], entry["blob_at"], lines)

    def places(self) -> Iterator[tuple[LinkedLine, int, int]]:
        """Yield each line with its byte offset in the episode file and that of its arrays in the `.bin` file."""
        offset, blob_offset = self.at, self.blob_at
        for line in self.lines:
            yield line, offset, blob_offset
            offset, blob_offset = offset + line.length, blob_offset + line.blob_length


def digest_of(data: bytes) -> str:
    """Return the digest by which the chain of a run names a record: 16 bytes of BLAKE2b, in hexadecimal."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def linked_line(uuid: str, task: str, line: str, packed: bytes) -> LinkedLine:
    """Return digests and lengths of an episode's line and arrays, as a link of the chain lists them.

    Args:
        line: The episode's JSON without a newline.
        packed: The episode's compressed arrays, as written to the `.bin` file.
    """
    data = line.encode() + b"\n"
    return LinkedLine(uuid, task, len(data), digest_of(data), len(packed), digest_of(packed))


def chain_key() -> bytes | None:
    """Return the key that signs the chain, from the environment variable `AJET_AUDIT_KEY`, or None without one."""
    return os.environ.get(KEY, "").strip().encode() or None


def key_name(key: bytes) -> str:
    """Return 8 hexadecimal digits that name a key without revealing any part of it."""
    return hmac.new(key, b"the name of this key", "sha256").hexdigest()[:8]


def link_digest(body: bytes, key: bytes | None) -> str:
    """Return the digest of a link's body: an HMAC with the key, or SHA-256 without a key.

    Args:
        body: The link's JSON without its last entry, the digest.
    """
    return hmac.new(key, body, "sha256").hexdigest() if key else hashlib.sha256(body).hexdigest()


def split_link(line: bytes) -> tuple[bytes, str]:
    """Return (body, digest) of a link's line. The body is the link's JSON without the digest.

    Raises:
        ValueError: The line has no digest at its end.
    """
    body, separator, digest_end = line.rpartition(_OWN)
    if not separator or not digest_end.endswith(b'"}\n'):
        raise ValueError("its own digest is missing")
    return body + b"}", digest_end[:-3].decode()


@dataclass(slots=True)
class ChainHead:
    """The last link of a chain, which the next link refers to."""

    links: int = 0
    digest: str = GENESIS
    key: str = ""
    """Name of the signing key; "" without a key."""


class Chain:
    """The chain of one run, which lists the digests of the records in order. Thread-safe.

    Only the process that holds the run's lock appends links.
    """

    def __init__(self, folder: Path, *, key: bytes | None = None) -> None:
        """Open the chain of the run in `folder`.

        Raises:
            UserError: The last link is damaged, or was signed with another key.
        """
        self.path = folder / FILE
        self._key, self._name = key, key_name(key) if key else ""
        self._lock = threading.Lock()
        self._lines: list[LinkedLines] = []
        self._row_digests: list[str] = []
        self._last_link = last_link(self.path)
        if self._last_link.key and self._last_link.key != self._name:
            raise UserError(
                f"The chain (the run's record of file digests) was signed with the key {self._last_link.key}, but "
                + (f"the variable {KEY} contains {self._name}." if key else f"the variable {KEY} is not set."),
                where=str(self.path),
                expected=f"the same key in the environment variable {KEY}",
                do=f"set the variable to that key; or {FRESH_ADVICE}",
            )

    @property
    def head(self) -> str:
        """The digest of the last link, or zeros without a link. A checkpoint stores it."""
        return self._last_link.digest

    @property
    def has_links(self) -> bool:
        """True if the chain's file has at least one link."""
        return self._last_link.links > 0

    def note_lines(self, lines: LinkedLines) -> None:
        """Store appended episode lines for the next link of the chain."""
        with self._lock:
            self._lines.append(lines)

    def note_row(self, line: str) -> None:
        """Store the digest of an appended metrics row for the next link of the chain."""
        with self._lock:
            self._row_digests.append(digest_of(line.encode() + b"\n"))

    def commit(self, kind: str, step: int, **more: Any) -> None:
        """Append a link with all stored lines and row digests. The link is on disk on return.

        Args:
            kind: Kind of the event, such as "step" or "checkpoint".
            step: Training step of the event.
            more: Further JSON values of the link.

        Raises:
            UserError: The disk is full.
        """
        with self._lock:
            link: dict[str, Any] = {"link": self._last_link.links + 1, "kind": kind, "step": step, **more}
            if self._lines:
                link["episodes"] = [line.as_json() for line in self._lines]
            if self._row_digests:
                link["rows"] = list(self._row_digests)
            if self._name:
                link["key"] = self._name
            link["earlier"] = self._last_link.digest
            body = json.dumps(link, ensure_ascii=False)
            digest = link_digest(body.encode(), self._key)
            head = ChainHead(self._last_link.links + 1, digest, self._name)
            cut_partial_line(self.path)  # a failed write is cut back to `size`, which must not include a partial line
            size = self.path.stat().st_size if self.path.exists() else 0
            try:
                with files.explain_write_errors(
                    "an entry of the chain (the run's record of file digests)",
                    self.path.parent,
                    intact="earlier entries are complete",
                ):
                    append_lines(self.path, [f'{body[:-1]}{_OWN.decode()}{digest}"}}'])
                self._last_link = head
                self._lines = []
                self._row_digests = []
            except BaseException:
                # After an interrupt, too, the link may be written completely. The next write would repeat it.
                with suppress(OSError):
                    os.truncate(self.path, size)
                raise

    def commit_noted(self, step: int) -> None:
        """Append a link of the kind "record" if lines or rows are stored, else do nothing."""
        if self._lines or self._row_digests:
            self.commit("record", step)

    def commit_end(self, step: int, outcome: str) -> None:
        """Append the link that ends the process, after a link with the lines and rows still stored.

        Args:
            outcome: How the process ended.
        """
        self.commit_noted(step)
        if not self._lines and not self._row_digests:  # no end while records are unlinked
            self.commit("end", step, outcome=outcome)


def has_saved_checkpoint(folder: Path) -> bool:
    """Return True if the chain of the run in `folder` lists a saved checkpoint, or is damaged."""
    if not has_record_file(folder / FILE):
        return False
    with open_record_file(folder / FILE) as file:
        try:
            return any(b'"kind": "checkpoint"' in link for link in links_of(file))
        except ValueError:  # a damaged chain is kept, not overwritten
            return True


def last_link(path: Path) -> ChainHead:
    """Return number, digest and key name of the last complete link in the chain's file, or an empty ChainHead.

    Reads only the end of the file.

    Raises:
        UserError: The last link is damaged.
    """
    try:
        chain_file = open_record_file(path)
    except FileNotFoundError:
        return ChainHead()
    with chain_file as file:
        size = end = file.seek(0, os.SEEK_END)
        tail = b""
        while end > 0 and tail.count(b"\n") < 3:  # a last line may be unfinished: it was never there
            start = max(0, end - max(1 << 16, size - end))
            file.seek(start)
            tail, end = file.read(size - start), start
    complete_lines = tail[: tail.rfind(b"\n") + 1]
    if not complete_lines:
        return ChainHead()
    line = complete_lines[complete_lines.rfind(b"\n", 0, -1) + 1 :]
    try:
        link = parse_object(line)
        return ChainHead(int(link["link"]), split_link(line)[1], str(link.get("key", "")))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"The last entry of the chain (the run's record of file digests) is damaged ({error}).",
            where=str(path),
            do=f"restore the file from a copy; or {FRESH_ADVICE}",
        ) from error


def stray_lines(folder: Path, file: str, first: int, at: int, blob_at: int) -> LinkedLines | None:
    """Return the complete lines of an episode file, from a given line up to the first damaged one.

    Args:
        folder: The run's folder.
        file: Path of the episode file in the folder.
        first: Number of the first line, from 1.
        at: Byte offset of this line.
        blob_at: Byte offset of its arrays in the `.bin` file.

    Returns:
        None without lines or arrays.
    """
    path = folder / file
    lines: list[LinkedLine] = []
    if not has_record_file(path) or path.stat().st_size <= at or not has_record_file(path.with_suffix(".bin")):
        return None
    with open_record_file(path) as text, open_record_file(path.with_suffix(".bin")) as blobs:
        text.seek(at)
        blob_end = blob_at
        while (line := next_line(text)).endswith(b"\n"):
            try:
                row = parse_object(line)
                blob, uuid, task = row["blob"], row["uuid"], row["task"]["task_id"]
                packed = read_record_part(blobs, blob_end, blob["length"])
                if blob["offset"] != blob_end or zlib.crc32(packed) != blob["crc32"]:
                    break
            except (ValueError, KeyError, TypeError):
                break
            blob_end += len(packed)
            lines.append(linked_line(uuid, task, line[:-1].decode(), packed))
    return LinkedLines(file, first, at, blob_at, lines) if lines else None


def links_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the complete lines of an open chain file, without an unfinished last line.

    Raises:
        ValueError: A line is over the size limit.
    """
    while (line := next_line(file)).endswith(b"\n"):
        yield line
