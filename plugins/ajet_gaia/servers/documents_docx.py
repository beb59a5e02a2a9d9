"""Word files as Markdown.

Invariants: paragraphs and tables stay in order. Pictures are written below the working folder only.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import Field

from .documents import MAX_FILE, checked_archive, format_document, format_table
from .tool import FilePath, Format
from .tool_server import ToolServer

MAX_IMAGES = 50


class WordDocuments(ToolServer):
    """Reads Word files of a working folder."""

    def extract_docx_content(
        self,
        file_path: FilePath,
        output_format: Format = "markdown",
        extract_images: Annotated[bool, Field(description="write them into a folder beside the file")] = False,
        extract_tables: bool = True,
        extract_headers_footers: bool = False,
        include_structure: Annotated[bool, Field(description="a list of the headings")] = False,
    ) -> str:
        """Text of a Word file (.docx): headings, paragraphs, lists and tables."""
        from docx import Document
        from docx.table import Table

        document = Document(checked_archive(self.folder.read_bytes(file_path, MAX_FILE)))
        parts: list[str] = []
        headings: list[str] = []
        for block in document.iter_inner_content():
            if isinstance(block, Table):
                if extract_tables:
                    parts.append(format_table([[cell.text for cell in row.cells] for row in block.rows]))
            elif block.text.strip():
                parts.append(_format_paragraph(block, headings))
        facts: dict[str, Any] = {}
        if extract_headers_footers:
            sections = [(section.header, section.footer) for section in document.sections]
            margin_texts = [
                text
                for header_and_footer in sections
                for margin in header_and_footer
                if (text := "\n".join(paragraph.text for paragraph in margin.paragraphs))
            ]
            facts["headers and footers"] = list(dict.fromkeys(margin_texts))
        if include_structure:
            facts["structure"] = headings
        if extract_images:
            facts["images"] = self._write_images(file_path, document.part.package.iter_parts())
        return format_document("\n\n".join(parts), output_format, facts)

    def list_supported_formats(self) -> list[str]:
        """Kinds of files read by this server."""
        return [".docx"]

    def _write_images(self, file_path: str, parts: Any) -> list[str]:
        """Write the document's pictures into a folder beside the file, and return their paths."""
        images = [image for image in parts if image.content_type.startswith("image/")][:MAX_IMAGES]
        written = []
        for image in images:
            path = f"{PurePosixPath(file_path).stem}_images/{PurePosixPath(str(image.partname)).name}"
            self.folder.write(path, image.blob)
            written.append(path)
        return written


tools = WordDocuments.tools


def _format_paragraph(paragraph: Any, headings: list[str]) -> str:
    """Return a paragraph as Markdown: heading, list item or text.

    The text of a heading is appended to `headings`, indented by its level.
    """
    style = paragraph.style.name if paragraph.style is not None else ""
    text: str = paragraph.text.strip()
    if style == "Title" or style.startswith("Heading"):
        digits = style.removeprefix("Heading").strip()
        level = min(int(digits), 6) if digits.isdigit() else 1
        headings.append(f"{'  ' * (level - 1)}{text}")
        return f"{'#' * level} {text}"
    return f"- {text}" if style.startswith("List") else text
