"""Text files.

Invariant: no more bytes are read than fit into an answer.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .documents import encoding_of, format_document
from .tool import FilePath, Format, ToolError
from .tool_server import ToolServer

NOTES = 200
"""Bytes of an answer reserved for notes about the file."""


class TextDocuments(ToolServer):
    """Reads text files of a working folder."""

    def extract_text_content(
        self,
        file_path: FilePath,
        output_format: Format = "text",
        encoding: Annotated[str, Field(description="empty: it is found out")] = "",
        max_content_length: Annotated[int, Field(description="characters; 0: as many as fit", ge=0)] = 0,
    ) -> str:
        """Content of a text file, decoded."""
        with self.folder.read(file_path) as file:
            data = file.read(self.settings.max_bytes * 4)  # a character has at most four bytes
            size = file.seek(0, 2)
        guessed = encoding_of(data, encoding, is_complete=len(data) == size)
        # Zero bytes mark a binary file, except in UTF-16.
        if not encoding and guessed != "utf-16" and b"\0" in data[:8192]:
            raise ToolError("this is no text file")
        text = data.decode(guessed, "replace")
        limit = max_content_length or self.settings.max_bytes - NOTES
        note = f"only the first {limit} characters are shown" if len(text) > limit or len(data) < size else ""
        return format_document(text[:limit], output_format, {"bytes": size, "note": note} if note else {})

    def list_supported_formats(self) -> list[str]:
        """Kinds of files read by this server."""
        return [".txt", ".md", ".log", ".json", ".xml", ".yaml", ".py", "and other text"]


tools = TextDocuments.tools
