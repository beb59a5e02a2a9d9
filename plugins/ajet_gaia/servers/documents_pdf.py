"""PDF files as text, by a local reader.

Invariants: pages are read until the answer is full. Streams are unpacked within the reader's own bounds.
"""

from __future__ import annotations

import io
from typing import Annotated

from pydantic import Field

from .documents import MAX_FILE
from .tool import FilePath, ToolError
from .tool_server import ToolServer


class PdfDocuments(ToolServer):
    """Reads PDF files of a working folder."""

    def convert_document_to_markdown(
        self,
        file_path: FilePath,
        paginate: Annotated[bool, Field(description="mark where each page begins")] = False,
    ) -> str:
        """Text of a PDF file, as Markdown."""
        from pypdf import PdfReader
        from pypdf.errors import PyPdfError

        try:
            reader = PdfReader(io.BytesIO(self.folder.read_bytes(file_path, MAX_FILE)))
            # Many encrypted files have an empty password and only forbid changes.
            if reader.is_encrypted and not reader.decrypt(""):
                raise ToolError("the file is encrypted with a password")
            page_texts: list[str] = []
            size = 0
            for page_number, page in enumerate(reader.pages, start=1):
                text = page.extract_text().strip()
                page_texts.append(f"--- page {page_number} ---\n\n{text}" if paginate else text)
                size += len(text)
                if size > self.settings.max_bytes:
                    page_texts.append(f"[cut after page {page_number} of {len(reader.pages)}]")
                    break
        except PyPdfError as error:
            raise ToolError(f"no readable PDF: {error}") from None
        if not size:
            raise ToolError("the file has no text; its pages may be pictures")
        return "\n\n".join(page_text for page_text in page_texts if page_text)


tools = PdfDocuments.tools
