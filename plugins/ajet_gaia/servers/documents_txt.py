"""Text files.

Invariant: no more is read than can be answered.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .documents import formatted
from .tool import FilePath, Format, ToolError
from .tool_server import ToolServer

NOTES = 200
"""Bytes of an answer that are kept for what is said about the file."""


class TextDocuments(ToolServer):
    """Text files of a working folder."""

    def extract_text_content(
        self,
        file_path: FilePath,
        output_format: Format = "text",
        encoding: Annotated[str, Field(description="empty: it is found out")] = "",
        max_content_length: Annotated[int, Field(description="characters; 0: as many as fit", ge=0)] = 0,
    ) -> str:
        """Content of a text file."""
        with self.folder.read(file_path) as file:
            data = file.read(self.settings.max_bytes * 4)
            size = file.seek(0, 2)
        text = _decoded(data, encoding, cut=len(data) < size)
        limit = max_content_length or self.settings.max_bytes - NOTES
        note = f"only the first {limit} characters are shown" if len(text) > limit or len(data) < size else ""
        return formatted(text[:limit], output_format, {"bytes": size, "note": note} if note else {})

    def list_supported_formats(self) -> list[str]:
        """Kinds of files that this server reads."""
        return [".txt", ".md", ".log", ".json", ".xml", ".yaml", ".py", "and other text"]


tools = TextDocuments.tools


def _decoded(data: bytes, asked: str, *, cut: bool) -> str:
    if asked:
        try:
            return data.decode(asked, "replace")
        except LookupError:
            raise ToolError(f"there is no encoding {asked}") from None
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if b"\0" in data[:8192]:
        raise ToolError("this is no text file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if cut and error.start > len(data) - 4:  # within a character
            return data.decode("utf-8", "ignore")
    return data.decode("latin-1")
