"""Extract the text of Word files and presentations, by the paragraphs of their XML.

Invariant: every paragraph of the body appears once and in order, however deep: in tables (one line a row, cells
separated by ` | `), shape groups, text boxes, content controls. Related parts follow: charts, diagrams, headers,
footers and notes after a document; charts, diagrams and speaker notes after their slide. Deleted text of tracked
changes, comments and picture descriptions are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ajet.schema.errors import MissingExtraError
from ajet_gaia.servers.documents import checked_archive

PARAGRAPH, TABLE, ROW, CELL = "p", "tbl", "tr", "tc"
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
    found = list(_read_blocks(document.element.body))
    found += _read_diagrams_and_charts(document.part, parse_xml)
    for kind in RELATED_PARTS:
        texts = [_read_blocks(parse_xml(part.blob)) for part in _find_parts(document.part, kind)]
        found += dict.fromkeys(block for blocks in texts for block in blocks)  # sections repeat the same blocks
    return "\n\n".join(found)


def read_slides(data: bytes) -> str:
    """Return the text of a presentation. Raises as `read_word`."""
    try:
        from pptx import Presentation
        from pptx.oxml import parse_xml
    except ImportError as error:
        raise MissingExtraError("python-pptx", "documents", needed_for="Reading presentations") from error
    found = []
    for slide in Presentation(checked_archive(data)).slides:
        blocks = [*_read_blocks(slide.element), *_read_diagrams_and_charts(slide.part, parse_xml)]
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
            blocks += _read_blocks(notes._txBody)
        found.append("\n".join(blocks))
    return "\n\n".join(text for text in found if text)


def _read_diagrams_and_charts(part: Any, parse_xml: Callable[[bytes], Any]) -> Iterator[str]:
    """Yield the texts of a part's diagrams and charts."""
    for each in _find_parts(part, "diagramData"):
        yield from _read_blocks(parse_xml(each.blob))
    for each in _find_parts(part, "chart"):
        yield from _read_chart(parse_xml(each.blob))


def _find_parts(part: Any, kind: str) -> list[Any]:
    """Return the parts of a kind referenced by a part."""
    relations = part.rels.values()
    return [each.target_part for each in relations if not each.is_external and each.reltype.rpartition("/")[2] == kind]


def _read_blocks(element: Any) -> Iterator[str]:
    """Yield paragraphs and table rows with text."""
    for child in element:
        name = _get_tag(child)
        if name in LEFT_OUT:
            continue
        if name == PARAGRAPH:
            inside: list[Any] = []
            if text := _read_line(child, inside).strip():
                yield text
            for box in inside:
                yield from _read_blocks(box)
        elif name == TABLE:
            yield from _read_table_rows(child)
        else:
            yield from _read_blocks(child)


def _read_table_rows(table: Any) -> Iterator[str]:
    for row in _find_children(table, ROW):
        cells = ["\n".join(_read_blocks(cell)) for cell in _find_children(row, CELL)]
        if any(cells):
            yield " | ".join(cells)


def _read_line(paragraph: Any, inside: list[Any]) -> str:
    """Return a paragraph's own text; nested text boxes are appended to `inside`."""
    parts: list[str] = []
    for child in paragraph:
        name = _get_tag(child)
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
            parts.append(_read_line(child, inside))
    return "".join(parts)


def _read_chart(chart: Any) -> Iterator[str]:
    """Yield a chart's titles, and one line for each series."""
    yield from _read_blocks(chart)
    for series in (each for each in chart.iter() if _get_tag(each) == "ser"):
        named = {
            _get_tag(child): [value.text or "" for value in child.iter() if _get_tag(value) == "v"] for child in series
        }
        labels, values = (named.get(one) or named.get(other) or [] for one, other in (("cat", "xVal"), ("val", "yVal")))
        pairs = [f"{label} {value}" for label, value in zip(labels, values, strict=False)] or values
        if numbers := ", ".join(pairs):
            yield f"{' '.join(named.get('tx', []))}: {numbers}".removeprefix(": ")


def _find_children(element: Any, wanted: str) -> Iterator[Any]:
    """Yield rows of a table or cells of a row, also inside content controls and insertions."""
    for child in element:
        name = _get_tag(child)
        if name == wanted:
            yield child
        elif name in ("sdt", "sdtContent", "ins", "smartTag", "customXml"):
            yield from _find_children(child, wanted)


def _get_tag(element: Any) -> str:
    """Return the tag without its namespace; "" for comments and processing instructions."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""
