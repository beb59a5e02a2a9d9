"""Tool server that searches a local corpus (`Corpus`) and reads its documents.

Answers are short enough for a small model's context.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .corpus import Corpus
from .settings import Settings
from .tool import ToolError
from .tool_server import ToolServer


class CorpusSearch(ToolServer):
    """Searches and reads documents of a corpus."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.corpus = Corpus.of(settings)

    def search(
        self,
        query: str,
        limit: Annotated[int, Field(description="documents", ge=1, le=50)] = 3,
        words: Annotated[int, Field(description="words of each that are shown", ge=1, le=64)] = 24,
    ) -> str:
        """Find documents by their words."""
        documents = self._require_corpus().search(query, limit, words)
        return "\n".join(f"{document.title}: {document.snippet}" for document in documents) or "[nothing found]"

    def open_document(
        self,
        title: Annotated[str, Field(description="title or address of a document")],
        start: Annotated[int, Field(description="character to begin with", ge=0)] = 0,
        max_length: Annotated[int, Field(description="characters", ge=1)] = 4000,
    ) -> str:
        """Text of a document by title or address."""
        name, _, body = self._require_corpus().text(title)
        piece = body[start : start + max_length]
        remaining = len(body) - start - len(piece)
        return f"{name}\n{piece}" + (f"\n[{remaining} more characters]" if remaining > 0 else "")

    def _require_corpus(self) -> Corpus:
        """Return the corpus. Raises ToolError if none is configured."""
        if self.corpus is None:
            raise ToolError("no corpus is configured")
        return self.corpus


tools = CorpusSearch.tools
