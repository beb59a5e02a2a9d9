"""The text of Word files and presentations, by the paragraphs of their XML.

Invariant: every paragraph of the body comes once and in its place, however deep it stands: in tables (a row is a line,
its cells apart by ` | `), in groups of shapes, in text boxes, in content controls. What stands beside it follows:
charts, diagrams, headers, footers and notes after a document; charts, diagrams and the speaker's notes after their
slide. What was struck out by tracked changes, comments and descriptions of pictures are not part of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ajet.schema.errors import MissingExtraError
from ajet_gaia.servers.documents import checked_archive

PARAGRAPH, TABLE, ROW, CELL = "p", "tbl", "tr", "tc"
LEFT_OUT = frozenset({"Fallback", "del", "moveFrom", "pPr", "rPr", "sectPr"})
"""Of elements: what older programs are shown in another's place, what was struck out, and settings."""
BREAKS = {"br": "\n", "cr": "\n", "tab": "\t", "noBreakHyphen": "-"}
BESIDE = ("header", "footer", "footnotes", "endnotes")
"""Kinds of a document's parts that hold text of it."""


def word(data: bytes) -> str:
    """A Word file's. Raises MissingExtraError, and what its readers raise for damage."""
    try:
        from docx import Document
        from docx.oxml.parser import parse_xml
    except ImportError as error:
        raise MissingExtraError("python-docx", "documents", needed_for="Reading Word files") from error
    document = Document(checked_archive(data))
    found = list(_blocks(document.element.body))
    found += _beside(document.part, parse_xml)
    for kind in BESIDE:
        told = [_blocks(parse_xml(part.blob)) for part in _parts(document.part, kind)]
        found += dict.fromkeys(block for blocks in told for block in blocks)  # each section has the same ones
    return "\n\n".join(found)


def slides(data: bytes) -> str:
    """A presentation's. Raises as `word` does."""
    try:
        from pptx import Presentation
        from pptx.oxml import parse_xml
    except ImportError as error:
        raise MissingExtraError("python-pptx", "documents", needed_for="Reading presentations") from error
    found = []
    for slide in Presentation(checked_archive(data)).slides:
        told = [*_blocks(slide.element), *_beside(slide.part, parse_xml)]
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
            told += _blocks(notes._txBody)
        found.append("\n".join(told))
    return "\n\n".join(text for text in found if text)


def _beside(part: Any, parse_xml: Callable[[bytes], Any]) -> Iterator[str]:
    """The texts of its diagrams and charts."""
    for each in _parts(part, "diagramData"):
        yield from _blocks(parse_xml(each.blob))
    for each in _parts(part, "chart"):
        yield from _chart(parse_xml(each.blob))


def _parts(part: Any, kind: str) -> list[Any]:
    """The parts of that kind that a part refers to."""
    relations = part.rels.values()
    return [each.target_part for each in relations if not each.is_external and each.reltype.rpartition("/")[2] == kind]


def _blocks(element: Any) -> Iterator[str]:
    """The paragraphs and the tables' rows that have text."""
    for child in element:
        name = _name(child)
        if name in LEFT_OUT:
            continue
        if name == PARAGRAPH:
            inside: list[Any] = []
            if text := _line(child, inside).strip():
                yield text
            for box in inside:
                yield from _blocks(box)
        elif name == TABLE:
            yield from _rows(child)
        else:
            yield from _blocks(child)


def _rows(table: Any) -> Iterator[str]:
    for row in _each(table, ROW):
        cells = ["\n".join(_blocks(cell)) for cell in _each(row, CELL)]
        if any(cells):
            yield " | ".join(cells)


def _line(paragraph: Any, inside: list[Any]) -> str:
    """A paragraph's own words; boxes of text that hang on it go into `inside`."""
    parts: list[str] = []
    for child in paragraph:
        name = _name(child)
        if name in LEFT_OUT:
            continue
        if name == "t":
            parts.append(child.text or "")
        elif name in BREAKS:
            parts.append(BREAKS[name])
        elif name == "fld" and child.get("type", "").startswith("slidenum"):
            continue
        elif name in ("txbxContent", "txBody"):
            inside.append(child)
        else:
            parts.append(_line(child, inside))
    return "".join(parts)


def _chart(chart: Any) -> Iterator[str]:
    """The chart's titles, and a line for each row of numbers."""
    yield from _blocks(chart)
    for series in (each for each in chart.iter() if _name(each) == "ser"):
        named = {_name(child): [value.text or "" for value in child.iter() if _name(value) == "v"] for child in series}
        labels, values = (named.get(one) or named.get(other) or [] for one, other in (("cat", "xVal"), ("val", "yVal")))
        pairs = [f"{label} {value}" for label, value in zip(labels, values, strict=False)] or values
        if told := ", ".join(pairs):
            yield f"{' '.join(named.get('tx', []))}: {told}".removeprefix(": ")


def _each(element: Any, wanted: str) -> Iterator[Any]:
    """Rows of a table, cells of a row: also those that a content control or an insertion holds."""
    for child in element:
        name = _name(child)
        if name == wanted:
            yield child
        elif name in ("sdt", "sdtContent", "ins", "smartTag", "customXml"):
            yield from _each(child, wanted)


def _name(element: Any) -> str:
    """Without its namespace; "" for comments and instructions."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""
