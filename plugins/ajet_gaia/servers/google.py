"""Web search: in a corpus if given, else by Google's programmable search with a key.

Invariant: the key goes to the search's own address and into no answer.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import Field

from .corpus import Corpus
from .settings import Settings
from .tool import ToolError
from .tool_server import ToolServer
from .web import query

ADDRESS = "https://www.googleapis.com/customsearch/v1"
ENGINES = ("GOOGLE_CSE_ID", "GOOGLE_SEARCH_ENGINE_ID")


class GoogleSearch(ToolServer):
    """Searches, with title, address and snippet of each result."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.corpus = Corpus.of(settings)

    def search_google(
        self,
        query: str,
        num_results: Annotated[int, Field(ge=1, le=10)] = 5,
        safe_search: bool = True,
        language: Annotated[str, Field(description="en, de, zh and so on")] = "en",
        country: Annotated[str, Field(description="us, de, cn and so on")] = "us",
        output_format: Literal["json", "markdown", "text"] = "json",
    ) -> str | list[dict[str, str]]:
        """Search the web for words."""
        results = self._find_results(query, num_results, safe_search=safe_search, language=language, country=country)
        if output_format == "json":
            return results
        return "\n".join(f"- [{row['title']}]({row['url']}): {row['snippet']}" for row in results) or "[nothing found]"

    def get_search_capabilities(self) -> dict[str, Any]:
        """Source and limits of the results."""
        return {"source": "a corpus on this machine" if self.corpus is not None else "Google", "most_results": 10}

    def _find_results(
        self, words: str, limit: int, *, safe_search: bool = True, language: str = "", country: str = ""
    ) -> list[dict[str, str]]:
        """Search the corpus, or Google if there is no corpus, and return {title, url, snippet} of each result.

        Raises:
            ToolError: the search failed. Google's key is removed from the message.
        """
        if self.corpus is not None:
            rows = self.corpus.search(words, limit)
            return [{"title": document.title, "url": document.url, "snippet": document.snippet} for document in rows]
        key = os.environ.get("GOOGLE_API_KEY", "")
        engine = next((os.environ[name] for name in ENGINES if os.environ.get(name)), "")
        safe = "active" if safe_search else "off"
        try:
            answer = query(
                os.environ.get("GOOGLE_API_URL") or ADDRESS,
                self.settings,
                **{"key": key, "cx": engine, "q": words, "num": limit, "safe": safe, "hl": language, "gl": country},
            ).json()
        except ToolError as error:
            raise ToolError(str(error).replace(key, "…") if key else str(error)) from None
        items = answer.get("items", []) if isinstance(answer, dict) else []
        return [{"title": row["title"], "url": row["link"], "snippet": row.get("snippet", "")} for row in items]


tools = GoogleSearch.tools
