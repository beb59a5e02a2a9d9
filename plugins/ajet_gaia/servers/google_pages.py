"""Web search and the pages that it finds, by the names of another server.

Invariant: as `google`'s and `readweb`'s.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .google import GoogleSearch
from .readweb import page_text


class SearchAndRead(GoogleSearch):
    """Results, and what they say."""

    def search(self, query: str, num: Annotated[int, Field(ge=1, le=10)] = 5) -> list[dict[str, str]]:
        """Search the web."""
        return self._find_results(query, num)

    def read_webpage(self, url: str) -> str:
        """Text of a web page, or of a document that a search found."""
        if self.corpus is not None:
            title, _, body = self.corpus.text(url)
            return f"# {title}\n\n{body}"
        return page_text(url, self.settings)


tools = SearchAndRead.tools
