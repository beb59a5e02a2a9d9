"""Read documents as passages, split at sentences, paragraphs, lines or words.

Invariant: a passage has at most `size` characters, and passages cover all text of the document. Unpacked sizes are
bounded before reading.
"""

from __future__ import annotations

import codecs
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from ajet.schema.errors import MissingExtraError, TaskError
from ajet.schema.settled import repair_text
from ajet.task_reader.contract import explain_read_errors
from ajet_datagen.generation.office import read_slides, read_word
from ajet_gaia.servers.documents import MAX_FILE
from ajet_gaia.servers.html_text import readable
from ajet_gaia.servers.tool import ToolError

KEY = "ajet.task_reader.data_generation.document_reader.document_path"
UNREADABLE = (ToolError, ValueError, LookupError, TypeError, AttributeError, SyntaxError, RecursionError, zlib.error)
"""Exceptions of document readers for damaged files: XML errors are SyntaxErrors, a missing part raises any of these."""
ENDS = {
    "sentence": re.compile(r"(?<=[.!?。！？])\s+|\n+|(?<=[。！？])"),
    "paragraph": re.compile(r"\n\s*\n"),
    "line": re.compile(r"\n+"),
    "word": re.compile(r"\s+"),
}
"""`split_by` -> pattern of passage borders."""
MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks, longer marks first because one mark is a prefix of another."""
DECLARED = re.compile(rb"""<(?:meta|\?xml)[^>]*?(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
MEANT = dict.fromkeys(("iso-8859-1", "latin1", "us-ascii", "ascii"), "cp1252") | dict.fromkeys(
    ("utf-16", "utf-16le", "utf-16be"), "utf-8"
)
"""Declared encoding -> encoding used by browsers (WHATWG, Encoding). A UTF-16 page starts with a byte order mark;
otherwise its declaration could not be read."""
ZEROS = 0.1
"""Maximum share of zero characters."""
HEAD = 4096
"""Bytes searched for a declared encoding; browsers search 1,024."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a document."""

    source: str  # file name
    text: str


def list_documents(place: Path) -> list[Path]:
    """Return a document, or all visible documents of a folder, recursively. Raises TaskError without documents."""
    found = sorted(each for each in place.rglob("*") if _is_document(each)) if place.is_dir() else [place]
    if not found:
        raise TaskError(
            f"There is no document in the folder {place.name}.",
            where=f"{KEY}: {place}",
            expected=f"files ending in {', '.join(READERS)}",
            do="add documents, or set another folder",
        )
    return found


def _is_document(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".")


def read_passages(file: Path, *, size: int, split_by: str) -> list[Passage]:
    """Return all passages of a file. Raises TaskError for an unreadable file, MissingExtraError."""
    ends = ENDS.get(split_by)
    if ends is None:
        raise TaskError(
            f"Documents cannot be split by {split_by}.",
            where="ajet.task_reader.data_generation.document_reader.split_by",
            expected=", ".join(ENDS),
        )
    return [Passage(repair_text(file.name), text) for text in _cut_passages(read_document(file), ends, size)]


def read_document(file: Path) -> str:
    """Return the text of a file. Raises TaskError, MissingExtraError."""
    read = READERS.get(file.suffix.lower())
    if read is None:
        raise TaskError(f"{file.name} has an unsupported suffix.", where=KEY, expected=", ".join(READERS))
    with explain_read_errors(file):
        data = file.read_bytes()
    if len(data) > MAX_FILE:
        raise TaskError(f"{file.name} has {len(data)} bytes.", where=KEY, expected=f"at most {MAX_FILE}")
    try:
        text = read(data, file.name)
    except UNREADABLE as problem:
        raise TaskError(f"{file.name} cannot be read: {problem}", where=KEY, do="fix or remove the file") from None
    if not text.strip():
        raise TaskError(f"{file.name} has no text.", where=KEY, expected="text; scanned pages have no text")
    return repair_text(text)


def _cut_passages(text: str, ends: re.Pattern[str], size: int) -> Iterator[str]:
    held = ""
    for piece in (part.strip() for part in ends.split(text)):
        while len(piece) > size:  # the piece contains no end, so it is cut by size
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


def _read_plain_text(data: bytes, name: str) -> str:
    return decode_text(data, "utf-8")


def decode_text(data: bytes, declared: str) -> str:
    """Decode bytes by their byte order mark, otherwise as `declared`. Raises ValueError for bytes of another encoding
    instead of guessing."""
    start, encoding = next(((mark, name) for mark, name in MARKS if data.startswith(mark)), (b"", declared))
    try:
        text = data[len(start) :].decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not {encoding} ({error.reason} at byte {error.start}): save it as UTF-8") from None
    if text.count("\0") > len(text) * ZEROS:
        raise ValueError("it has many zero bytes, like UTF-16 without a byte order mark: save it as UTF-8")
    return text


def _read_html(data: bytes, name: str) -> str:
    found = DECLARED.search(data[:HEAD])
    declared = found[1].decode("ascii", "replace").lower() if found else "utf-8"
    title, text = readable(decode_text(data, MEANT.get(declared, declared)), images="described")
    return f"{title}\n\n{text}" if title and title not in text else text


def _read_pdf(data: bytes, name: str) -> str:
    try:
        from pypdf import PdfReader
        from pypdf.errors import DependencyError, PyPdfError
    except ImportError as error:
        raise MissingExtraError("pypdf", "documents", needed_for="Reading PDF files") from error
    try:
        pages = [page.extract_text().strip() for page in PdfReader(io.BytesIO(data)).pages]
    except (DependencyError, PyPdfError) as error:  # DependencyError: no package for decryption
        raise ValueError(str(error)) from error
    if silent := [number for number, page in enumerate(pages, 1) if not page]:
        problem = f"{len(silent)} of {len(pages)} pages have no text (scanned pages?)"
        if len(silent) == len(pages):
            raise ValueError(f"{problem}: run OCR first, for example ocrmypdf")
        logger.warning("{}: {} (the first is page {})", name, problem, silent[0])
    return "\n\n".join(page for page in pages if page)


READERS: Mapping[str, Callable[[bytes, str], str]] = {
    **dict.fromkeys((".txt", ".md", ".markdown", ".rst"), _read_plain_text),
    **dict.fromkeys((".html", ".htm"), _read_html),
    ".pdf": _read_pdf,
    ".docx": lambda data, _: read_word(data),
    ".pptx": lambda data, _: read_slides(data),
}
"""Suffix -> reader(content, file name)."""
