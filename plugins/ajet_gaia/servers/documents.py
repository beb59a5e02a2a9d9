"""Shared code of the document servers: bounded files, and answers in the requested format.

Invariant: a file's unpacked size is bounded before a reader opens the file. The bound uses the sizes declared in the
archive, enforced by `zipfile` while unpacking.
"""

from __future__ import annotations

import codecs
import html
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from .tool import Format, ToolError

MAX_FILE = 100_000_000
"""Maximum bytes of a document."""
MAX_XML = 100_000_000
"""Maximum bytes of an archive's XML in total; parsed XML needs about ten times as much memory."""
MAX_UNPACKED = 1_000_000_000
"""Maximum bytes of an archive's content in total."""
MAX_MEMBERS = 20_000
Rows = Sequence[Sequence[Any]]


def checked_archive(data: bytes) -> io.BytesIO:
    """Return an Office file's bytes if its archive unpacks within the bounds, else raise ToolError."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
    except zipfile.BadZipFile as error:
        raise ToolError(f"no Office file: {error}") from None
    xml_bytes = sum(member.file_size for member in members if member.filename.endswith((".xml", ".rels", ".vml")))
    if xml_bytes > MAX_XML or sum(member.file_size for member in members) > MAX_UNPACKED or len(members) > MAX_MEMBERS:
        raise ToolError("the file unpacks to too much: it is refused")
    return io.BytesIO(data)


def encoding_of(start: bytes, requested: str, *, is_complete: bool) -> str:
    """Return the requested encoding, else detect it from the first bytes: byte order mark, UTF-8, Latin-1."""
    if requested:
        try:
            "".encode(requested)
        except LookupError:
            raise ToolError(f"there is no encoding {requested}") from None
        return requested
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start, final=is_complete)  # the last character may be cut
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8-sig"


class BoundedFile(io.RawIOBase):
    """A file limited to its first bytes; `cut` is True if more bytes follow."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._bytes_left = limit
        self.cut = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer within the limit, and note at the limit whether more bytes follow."""
        data = self._file.read(min(len(buffer), self._bytes_left))
        if not data and self._bytes_left == 0:
            self.cut = bool(self._file.read(1))
        self._bytes_left -= len(data)
        buffer[: len(data)] = data
        return len(data)


def format_document(text: str, kind: Format, about: Mapping[str, Any]) -> str:
    """Return a document's text in the requested format.

    Args:
        about: facts such as the number of rows: further fields in JSON, lines below the text in Markdown and text, left
            out in HTML.
    """
    if kind == "json":
        return json.dumps({"content": text, **about}, ensure_ascii=False, default=str)
    if kind == "html":
        return f"<pre>{html.escape(text)}</pre>"
    notes = "".join(
        f"\n\n{name}: {_format_value(value)}" for name, value in about.items() if value not in (None, "", [], {})
    )
    return text + notes


def format_table(rows: Rows, kind: Format = "markdown") -> str:
    """Return rows as a table in HTML, tab-separated text or Markdown, with the first row as head in Markdown."""
    if kind == "html":
        cells = ("".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows)
        return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"
    if kind == "text":
        return "\n".join("\t".join(str(cell) for cell in row) for row in rows)
    lines = ["| " + " | ".join(_escape_cell(cell) for cell in row) + " |" for row in rows]
    if lines:
        lines.insert(1, "|" + "---|" * max(1, len(rows[0])))
    return "\n".join(lines)


def _escape_cell(value: Any) -> str:
    """Return a cell's text for a Markdown table, where bars and line breaks have a meaning."""
    return str(value).replace("|", "\\|").replace("\n", " ")


def _format_value(value: Any) -> str:
    """Return a text as it is, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
