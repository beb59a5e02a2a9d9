"""Reads documents (text, PDF, Word, PowerPoint) and splits them into passages.

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
from typing import Any

from loguru import logger

from ajet.schema.errors import MissingExtraError, TaskError
from ajet.schema.settled import repair_text
from ajet.task_reader.contract import explain_read_errors
from ajet_gaia.servers.documents import MAX_FILE, checked_archive
from ajet_gaia.servers.html_text import readable
from ajet_gaia.servers.tool import ToolError

# Extract the text of Word files and presentations, by the paragraphs of their XML.
# Invariant: every paragraph of the body appears once and in order, however deep: in tables (one line a row, cells
# separated by ` | `), shape groups, text boxes, content controls. Related parts follow: charts, diagrams, headers,
# footers and notes after a document; charts, diagrams and speaker notes after their slide. Deleted text of tracked
# changes, comments and picture descriptions are left out.
PARAGRAPH = "p"
TABLE = "tbl"
ROW = "tr"
CELL = "tc"
LEFT_OUT = frozenset({"Fallback", "del", "moveFrom", "pPr", "rPr", "sectPr"})
"""Skipped elements: fallbacks for older programs, deleted text, settings."""
BREAKS = {"br": "\n", "cr": "\n", "tab": "\t", "noBreakHyphen": "-"}
RELATED_PARTS = ("header", "footer", "footnotes", "endnotes")
"""Kinds of document parts with text."""


def read_word(data: bytes) -> str:
    """Return the text of a Word file.

    A damaged file raises the exceptions of `checked_archive`, of python-docx or of its XML parser.

    Raises:
        MissingExtraError: python-docx is not installed.
    """
    try:
        from docx import Document
        from docx.oxml.parser import parse_xml
    except ImportError as error:
        raise MissingExtraError("python-docx", "documents", needed_for="Reading Word files") from error
    document = Document(checked_archive(data))
    text_blocks = list(_read_blocks(document.element.body))
    text_blocks += _read_diagrams_and_charts(document.part, parse_xml)
    for kind in RELATED_PARTS:
        texts = [_read_blocks(parse_xml(part.blob)) for part in _find_parts(document.part, kind)]
        text_blocks += dict.fromkeys(block for blocks in texts for block in blocks)  # sections repeat the same blocks
    return "\n\n".join(text_blocks)


def read_slides(data: bytes) -> str:
    """Return the text of a PowerPoint file. Raises the same errors as `read_word`."""
    try:
        from pptx import Presentation
        from pptx.oxml import parse_xml
    except ImportError as error:
        raise MissingExtraError("python-pptx", "documents", needed_for="Reading presentations") from error
    slides = []
    for slide in Presentation(checked_archive(data)).slides:
        blocks = [*_read_blocks(slide.element), *_read_diagrams_and_charts(slide.part, parse_xml)]
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
            blocks += _read_blocks(notes._txBody)
        slides.append("\n".join(blocks))
    return "\n\n".join(text for text in slides if text)


def _read_diagrams_and_charts(part: Any, parse_xml: Callable[[bytes], Any]) -> Iterator[str]:
    """Yield the texts of a part's diagrams and charts."""
    for related_part in _find_parts(part, "diagramData"):
        yield from _read_blocks(parse_xml(related_part.blob))
    for related_part in _find_parts(part, "chart"):
        yield from _read_chart(parse_xml(related_part.blob))


def _find_parts(part: Any, kind: str) -> list[Any]:
    """Return the files inside an Office archive that `part` references with this relationship type."""
    relations = part.rels.values()
    return [
        relation.target_part
        for relation in relations
        if not relation.is_external and relation.reltype.rpartition("/")[2] == kind
    ]


def _read_blocks(element: Any) -> Iterator[str]:
    """Yield the text of each paragraph and table row below an XML element, in order.

    A paragraph's text boxes follow its own text.
    """
    for child in element:
        name = _get_tag(child)
        if name in LEFT_OUT:
            continue
        if name == PARAGRAPH:
            text_boxes: list[Any] = []
            if text := _read_line(child, text_boxes).strip():
                yield text
            for box in text_boxes:
                yield from _read_blocks(box)
        elif name == TABLE:
            yield from _read_table_rows(child)
        else:
            yield from _read_blocks(child)


def _read_table_rows(table: Any) -> Iterator[str]:
    """Yield each row of a table as one line, with its cells separated by ` | `; empty rows are left out."""
    for row in _find_children(table, ROW):
        cells = ["\n".join(_read_blocks(cell)) for cell in _find_children(row, CELL)]
        if any(cells):
            yield " | ".join(cells)


def _read_line(paragraph: Any, text_boxes: list[Any]) -> str:
    """Return a paragraph's own text.

    Args:
        text_boxes: nested text boxes are appended, since their paragraphs are separate blocks.
    """
    parts: list[str] = []
    for child in paragraph:
        name = _get_tag(child)
        if name in LEFT_OUT:
            continue
        if name == "t":
            parts.append(child.text or "")
        elif name in BREAKS:
            parts.append(BREAKS[name])
        elif name == "fld" and child.get("type", "").startswith("slidenum"):  # the number of the slide
            continue
        elif name in ("txbxContent", "txBody"):
            text_boxes.append(child)
        else:
            parts.append(_read_line(child, text_boxes))
    return "".join(parts)


def _read_chart(chart: Any) -> Iterator[str]:
    """Yield a chart's titles, and one line for each series."""
    yield from _read_blocks(chart)
    for series in (element for element in chart.iter() if _get_tag(element) == "ser"):
        values_by_tag = {
            _get_tag(child): [value.text or "" for value in child.iter() if _get_tag(value) == "v"] for child in series
        }
        # Scatter charts name labels and values xVal and yVal, other charts cat and val.
        labels, values = (
            values_by_tag.get(first_tag) or values_by_tag.get(second_tag) or []
            for first_tag, second_tag in (("cat", "xVal"), ("val", "yVal"))
        )
        pairs = [f"{label} {value}" for label, value in zip(labels, values, strict=False)] or values
        if numbers := ", ".join(pairs):
            yield f"{' '.join(values_by_tag.get('tx', []))}: {numbers}".removeprefix(": ")


def _find_children(element: Any, tag: str) -> Iterator[Any]:
    """Yield rows of a table or cells of a row, also inside content controls and insertions."""
    for child in element:
        name = _get_tag(child)
        if name == tag:
            yield child
        elif name in ("sdt", "sdtContent", "ins", "smartTag", "customXml"):
            yield from _find_children(child, tag)


def _get_tag(element: Any) -> str:
    """Return the tag without its namespace; "" for comments and processing instructions."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


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
    """A section of a document's text, with its place."""

    source: str  # file name
    text: str


def list_documents(path: Path) -> list[Path]:
    """Return the document at the path, or all visible files below a folder, sorted.

    Raises TaskError if there are none.
    """
    documents = sorted(file for file in path.rglob("*") if _is_document(file)) if path.is_dir() else [path]
    if not documents:
        raise TaskError(
            f"There is no document in the folder {path.name}.",
            where=f"{KEY}: {path}",
            expected=f"files ending in {', '.join(READERS)}",
            do="add documents, or set another folder",
        )
    return documents


def _is_document(path: Path) -> bool:
    """Return True for a file whose name does not begin with a dot."""
    return path.is_file() and not path.name.startswith(".")


def read_passages(file: Path, *, size: int, split_by: str) -> list[Passage]:
    """Split a document into passages.

    Args:
        size: largest number of characters of a passage.
        split_by: unit at which text may be split, such as "sentence".

    Raises:
        TaskError: the file cannot be read.
        MissingExtraError: a package for this kind of file is not installed.
    """
    ends = ENDS.get(split_by)
    if ends is None:
        raise TaskError(
            f"Documents cannot be split by {split_by}.",
            where="ajet.task_reader.data_generation.document_reader.split_by",
            expected=", ".join(ENDS),
        )
    return [Passage(repair_text(file.name), text) for text in _cut_passages(read_document(file), ends, size)]


def read_document(file: Path) -> str:
    """Return the text of a file, read by its suffix.

    Raises:
        TaskError: the suffix is unknown, or the file is too large, damaged or empty.
        MissingExtraError: a package for this kind of file is not installed.
    """
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise TaskError(f"{file.name} has an unsupported suffix.", where=KEY, expected=", ".join(READERS))
    with explain_read_errors(file):
        data = file.read_bytes()
    if len(data) > MAX_FILE:
        raise TaskError(f"{file.name} has {len(data)} bytes.", where=KEY, expected=f"at most {MAX_FILE}")
    try:
        text = reader(data, file.name)
    except UNREADABLE as problem:
        raise TaskError(f"{file.name} cannot be read: {problem}", where=KEY, do="fix or remove the file") from None
    if not text.strip():
        raise TaskError(f"{file.name} has no text.", where=KEY, expected="text; scanned pages have no text")
    return repair_text(text)


def _cut_passages(text: str, ends: re.Pattern[str], size: int) -> Iterator[str]:
    """Yield passages of at most `size` characters, each filled with as many pieces as fit.

    Args:
        ends: pattern between two pieces, such as the end of a sentence. A longer piece is cut by size.
    """
    passage = ""
    for piece in (part.strip() for part in ends.split(text)):
        while len(piece) > size:  # the piece contains no end, so it is cut by size
            if passage:
                yield passage
                passage = ""
            yield piece[:size]
            piece = piece[size:]
        if passage and len(passage) + 1 + len(piece) > size:
            yield passage
            passage = ""
        if piece:
            passage = f"{passage} {piece}" if passage else piece
    if passage:
        yield passage


def _read_plain_text(data: bytes, name: str) -> str:
    """Decode a text file as UTF-8, or by its byte order mark. Raises ValueError."""
    return decode_text(data, "utf-8")


def decode_text(data: bytes, declared: str) -> str:
    """Decode bytes by their byte order mark, or else by the encoding `declared`.

    Raises ValueError for bytes of another encoding, instead of guessing.
    """
    start, encoding = next(
        ((byte_order_mark, name) for byte_order_mark, name in MARKS if data.startswith(byte_order_mark)),
        (b"", declared),
    )
    try:
        text = data[len(start) :].decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not {encoding} ({error.reason} at byte {error.start}): save it as UTF-8") from None
    if text.count("\0") > len(text) * ZEROS:
        raise ValueError("it has many zero bytes, like UTF-16 without a byte order mark: save it as UTF-8")
    return text


def _read_html(data: bytes, name: str) -> str:
    """Return title and text of a page, decoded by the encoding that it declares. Raises ValueError."""
    declaration = DECLARED.search(data[:HEAD])
    declared = declaration[1].decode("ascii", "replace").lower() if declaration else "utf-8"
    title, text = readable(decode_text(data, MEANT.get(declared, declared)), images="described")
    return f"{title}\n\n{text}" if title and title not in text else text


def _read_pdf(data: bytes, name: str) -> str:
    """Return the text of a PDF file, page by page. Pages without text are reported.

    Raises:
        ValueError: the file is damaged or encrypted, or no page has text.
        MissingExtraError: pypdf is not installed.
    """
    try:
        from pypdf import PdfReader
        from pypdf.errors import DependencyError, PyPdfError
    except ImportError as error:
        raise MissingExtraError("pypdf", "documents", needed_for="Reading PDF files") from error
    try:
        pages = [page.extract_text().strip() for page in PdfReader(io.BytesIO(data)).pages]
    except (DependencyError, PyPdfError) as error:  # DependencyError: no package for decryption
        raise ValueError(str(error)) from error
    if empty_pages := [number for number, page in enumerate(pages, 1) if not page]:
        problem = f"{len(empty_pages)} of {len(pages)} pages have no text (scanned pages?)"
        if len(empty_pages) == len(pages):
            raise ValueError(f"{problem}: run OCR first, for example ocrmypdf")
        logger.warning("{}: {} (the first is page {})", name, problem, empty_pages[0])
    return "\n\n".join(page for page in pages if page)


READERS: Mapping[str, Callable[[bytes, str], str]] = {
    **dict.fromkeys((".txt", ".md", ".markdown", ".rst"), _read_plain_text),
    **dict.fromkeys((".html", ".htm"), _read_html),
    ".pdf": _read_pdf,
    ".docx": lambda data, _: read_word(data),
    ".pptx": lambda data, _: read_slides(data),
}
"""Suffix -> reader(content, file name)."""
