"""Web search and page reading in one tool server, with the tool names of AWorld's server of this kind.

Searches go through `google`, pages through `readweb`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .google import GoogleSearch
from .readweb import page_text


class SearchAndRead(GoogleSearch):
    """Searches the web and reads found pages."""

    def search(self, query: str, num: Annotated[int, Field(ge=1, le=10)] = 5) -> list[dict[str, str]]:
        """Search the web for words."""
        return self._find_results(query, num)

    def read_webpage(self, url: str) -> str:
        """Text of a web page, or of a document that a search found."""
        if self.corpus is not None:
            title, _, body = self.corpus.text(url)
            return f"# {title}\n\n{body}"
        return page_text(url, self.settings)


tools = SearchAndRead.tools
