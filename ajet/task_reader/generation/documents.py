"""Documents as passages: the text of a file, cut where sentences or lines end.

Invariant: a passage is a run of its document's text, at most `size` characters long, and all of the text is in one.
What a file unpacks to is bounded before it is read.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ajet.environment.gaia.servers.documents import MAX_FILE, checked_archive
from ajet.environment.gaia.servers.html_text import readable
from ajet.environment.gaia.servers.tool import ToolError
from ajet.schema.errors import MissingExtra, TaskError

KEY = "ajet.task_reader.data_generation.document_reader.document_path"
UNREADABLE = (ToolError, ValueError, LookupError, TypeError, AttributeError, SyntaxError, RecursionError, zlib.error)
"""What readers of documents raise for damage: XML's are SyntaxErrors, and a part that is missing is any of these."""
ENDS = {
    "sentence": re.compile(r"(?<=[.!?。！？])\s+|\n+|(?<=[。！？])"),
    "paragraph": re.compile(r"\n\s*\n"),
    "line": re.compile(r"\n+"),
    "word": re.compile(r"\s+"),
}
"""Where a passage may end, by `split_by`."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Part of a document."""

    source: str
    """The file's name."""
    text: str


def passages(file: Path, *, size: int, split_by: str) -> list[Passage]:
    """All of a file. Raises TaskError for one that cannot be read, MissingExtra."""
    ends = ENDS.get(split_by)
    if ends is None:
        raise TaskError(
            f"Documents are not cut by {split_by}.",
            where="ajet.task_reader.data_generation.document_reader.split_by",
            expected=", ".join(ENDS),
        )
    return [Passage(file.name, text) for text in _cut(text_of_file(file), ends, size)]


def text_of_file(file: Path) -> str:
    """Its words. Raises TaskError, MissingExtra."""
    read = READERS.get(file.suffix.lower())
    if read is None:
        raise TaskError(f"{file.name} is of a kind that is not read.", where=KEY, expected=", ".join(READERS))
    data = file.read_bytes()
    if len(data) > MAX_FILE:
        raise TaskError(f"{file.name} has {len(data)} bytes.", where=KEY, expected=f"at most {MAX_FILE}")
    try:
        text = read(data)
    except UNREADABLE as problem:
        raise TaskError(
            f"{file.name} cannot be read: {problem}", where=KEY, do="mend the file, or leave it out"
        ) from None
    if not text.strip():
        raise TaskError(f"{file.name} has no text.", where=KEY, expected="text; what is scanned has none")
    return text


def _cut(text: str, ends: re.Pattern[str], size: int) -> Iterator[str]:
    held = ""
    for piece in (part.strip() for part in ends.split(text)):
        while len(piece) > size:  # no end in it, so it is cut
            if held:
                yield held
                held = ""
            yield piece[:size]
            piece = piece[size:]
        if held and len(held) + 1 + len(piece) > size:
            yield held
            held = ""
        if piece:
            held = f"{held} {piece}" if held else piece
    if held:
        yield held


def _plain(data: bytes) -> str:
    return data.decode("utf-8-sig")


def _html(data: bytes) -> str:
    return readable(_plain(data))[1]


def _pdf(data: bytes) -> str:
    try:
        from pypdf import PdfReader
        from pypdf.errors import DependencyError, PyPdfError
    except ImportError as error:
        raise MissingExtra("pypdf", "documents", needed_for="Reading PDF files") from error
    try:
        return "\n\n".join(page.extract_text() for page in PdfReader(io.BytesIO(data)).pages)
    except (DependencyError, PyPdfError) as error:  # the first: what decrypts is not installed
        raise ValueError(str(error)) from error


def _word(data: bytes) -> str:
    try:
        from docx import Document
        from docx.table import Table
    except ImportError as error:
        raise MissingExtra("python-docx", "documents", needed_for="Reading Word files") from error
    parts: list[str] = []
    for block in Document(checked_archive(data)).iter_inner_content():
        rows = block.rows if isinstance(block, Table) else ()
        parts += [" | ".join(cell.text for cell in row.cells) for row in rows] if rows else [block.text]  # type: ignore[union-attr]
    return "\n\n".join(part for part in parts if part.strip())


def _slides(data: bytes) -> str:
    try:
        from pptx import Presentation
    except ImportError as error:
        raise MissingExtra("python-pptx", "documents", needed_for="Reading presentations") from error
    slides = Presentation(checked_archive(data)).slides
    found = [
        "\n".join(shape.text_frame.text for shape in slide.shapes if shape.has_text_frame).strip() for slide in slides
    ]
    return "\n\n".join(text for text in found if text)


READERS: Mapping[str, Callable[[bytes], str]] = {
    **dict.fromkeys((".txt", ".md", ".markdown", ".rst"), _plain),
    **dict.fromkeys((".html", ".htm"), _html),
    ".pdf": _pdf,
    ".docx": _word,
    ".pptx": _slides,
}
"""By suffix."""
