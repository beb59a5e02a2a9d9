"""What the document servers share: bounded files, and one answer in the format that was asked for.

Invariant: a file's unpacked size is bounded before a reader sees it, by what its archive declares, which `zipfile`
holds it to while it unpacks.
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
"""Bytes of a document."""
MAX_XML = 100_000_000
"""Bytes of an archive's XML in all: a tree of it takes some ten times as many."""
MAX_UNPACKED = 1_000_000_000
"""Bytes of all that an archive holds."""
MAX_MEMBERS = 20_000
Rows = Sequence[Sequence[Any]]


def checked_archive(data: bytes) -> io.BytesIO:
    """An Office file's bytes, if its archive unpacks to no more than the bounds; `ToolError` else."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
    except zipfile.BadZipFile as error:
        raise ToolError(f"no Office file: {error}") from None
    xml = sum(member.file_size for member in members if member.filename.endswith((".xml", ".rels", ".vml")))
    if xml > MAX_XML or sum(member.file_size for member in members) > MAX_UNPACKED or len(members) > MAX_MEMBERS:
        raise ToolError("the file unpacks to too much: it is refused")
    return io.BytesIO(data)


def encoding_of(start: bytes, requested: str, *, is_complete: bool) -> str:
    """Return the encoding of a text by its first bytes, unless one is requested: its mark, else UTF-8, else Latin-1."""
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
    """A file of which only the first bytes can be read; `cut` says that there was more."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file, self._left, self.cut = file, limit, False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        if not data and self._left == 0:
            self.cut = bool(self._file.read(1))
        self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)


def format_document(text: str, kind: Format, about: Mapping[str, Any]) -> str:
    """A document's text (in Markdown) as it was asked for; `about` is what else is known."""
    if kind == "json":
        return json.dumps({"content": text, **about}, ensure_ascii=False, default=str)
    if kind == "html":
        return f"<pre>{html.escape(text)}</pre>"
    notes = "".join(
        f"\n\n{name}: {_format_value(value)}" for name, value in about.items() if value not in (None, "", [], {})
    )
    return text + notes


def format_table(rows: Rows, kind: Format = "markdown") -> str:
    """Rows, of which the first is the head."""
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
    return str(value).replace("|", "\\|").replace("\n", " ")


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
