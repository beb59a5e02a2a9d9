"""Wikipedia, from a corpus if given, else from Wikipedia's own interface.

Invariant: answers add nothing to their source. Parts missing in a corpus (categories, history) are reported as missing.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any

from pydantic import Field

from .corpus import Corpus
from .settings import Settings
from .tool import Shape, ToolError
from .tool_server import ToolServer
from .web import query

Language = Annotated[str, Field(description="en, de, zh and so on", pattern="^[a-z][a-z-]{1,15}$")]
CONTENT = 20_000
"""Characters of an article, unless the full article is requested."""


class Wikipedia(ToolServer):
    """Finds articles by search and by title."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.corpus = Corpus.of(settings)

    def search_wikipedia(
        self,
        query: str,
        limit: Annotated[int, Field(ge=1, le=50)] = 10,
        language: Language = "en",
        output_format: Shape = "markdown",
    ) -> str | list[dict[str, str]]:
        """Articles that fit a query."""
        if self.corpus is not None:
            results = [(document.title, document.snippet) for document in self.corpus.search(query, limit)]
        else:
            rows = self._send_query(language, list="search", srsearch=query, srlimit=limit)["search"]
            results = [(row["title"], re.sub(r"<[^>]*>", "", row.get("snippet", ""))) for row in rows]
        if output_format == "json":
            return [{"title": title, "snippet": snippet} for title, snippet in results]
        return "\n".join(f"- {title}: {snippet}" for title, snippet in results) or "[nothing found]"

    def get_article_content(
        self,
        title: str,
        auto_suggest: Annotated[bool, Field(description="the nearest title if there is none of this name")] = True,
        redirect: bool = True,
        language: Language = "en",
        include_full_content: Annotated[bool, Field(description="else only the beginning")] = True,
        output_format: Shape = "markdown",
    ) -> str | dict[str, str]:
        """Text of an article, by title."""
        name, text = self._find_article(title, language, suggest=auto_suggest, redirect=redirect)
        if not include_full_content and len(text) > CONTENT:
            text = f"{text[:CONTENT]}\n[{len(text) - CONTENT} more characters]"
        return {"title": name, "content": text} if output_format == "json" else f"# {name}\n\n{text}"

    def get_article_summary(
        self,
        title: str,
        sentences: Annotated[int, Field(ge=1, le=50)] = 5,
        auto_suggest: bool = True,
        language: Language = "en",
        output_format: Shape = "markdown",
    ) -> str | dict[str, str]:
        """The first sentences of an article."""
        name, text = self._find_article(title, language, suggest=auto_suggest, redirect=True)
        body = re.sub(r"^#.*\n", "", text).strip()
        summary = " ".join(re.split(r"(?<=[.!?。])\s+", body)[:sentences])
        return {"title": name, "summary": summary} if output_format == "json" else f"# {name}\n\n{summary}"

    def get_article_categories(self, title: str, language: Language = "en") -> list[str]:
        """Categories of an article, by title."""
        self._require_wikipedia("categories")
        page = self._query_page(language, titles=title, prop="categories", cllimit=100, clshow="!hidden", redirects=1)
        return [row["title"].split(":", 1)[-1] for row in page.get("categories", [])]

    def get_article_links(
        self, title: str, limit: Annotated[int, Field(ge=1, le=500)] = 100, language: Language = "en"
    ) -> list[str]:
        """Articles that an article links to."""
        if self.corpus is not None:
            return re.findall(r"\]\(([^)\s]+)\)", self.corpus.text(title)[2])[:limit]
        page = self._query_page(language, titles=title, prop="links", pllimit=limit, plnamespace=0, redirects=1)
        return [row["title"] for row in page.get("links", [])]

    def get_article_history(
        self,
        title: str,
        date: Annotated[str, Field(description="2024-05-31, or 2024/05/31")],
        language: Language = "en",
    ) -> dict[str, Any]:
        """The newest version of an article on a day."""
        self._require_wikipedia("history")
        date_match = re.fullmatch(r"(\d{4})[-/]?(\d{2})[-/]?(\d{2})", date.strip())
        if date_match is None:
            raise ToolError(f"{date} is no date; 2024-05-31 is one")
        page = self._query_page(
            language,
            titles=title,
            prop="revisions",
            rvlimit=1,
            rvstart=f"{'-'.join(date_match.groups())}T23:59:59Z",
            rvdir="older",
            rvslots="main",
            rvprop="ids|timestamp|user|comment|content",
        )
        if not page.get("revisions"):
            raise ToolError(f"{title} has no version of {date} or before")
        revision = page["revisions"][0]
        content = revision.get("slots", {}).get("main", {}).get("content", "")
        return {
            "title": page["title"],
            "revision": revision["revid"],
            "time": revision["timestamp"],
            "content": content,
        }

    def get_wikipedia_capabilities(self) -> dict[str, Any]:
        """Source and limits of the articles."""
        if self.corpus is not None:
            return {"source": "a corpus on this machine", "missing": ["categories", "history", "languages"]}
        return {"source": "Wikipedia", "languages": "all"}

    def _require_wikipedia(self, information: str) -> None:
        """Raise ToolError if a corpus is configured, because it lacks this information."""
        if self.corpus is not None:
            raise ToolError(f"the corpus on this machine has no {information}")

    def _find_article(self, title: str, language: str, *, suggest: bool, redirect: bool) -> tuple[str, str]:
        """Return (title, text) of an article, from the corpus or from Wikipedia.

        Args:
            suggest: True to take the best search result if no article has this title.
            redirect: True to follow redirects.

        Raises:
            ToolError: there is no such article.
        """
        if self.corpus is not None:
            name, _, body = self.corpus.text(title)
            return name, body
        parameters = {"prop": "extracts", "explaintext": 1, "redirects": 1 if redirect else None}
        try:
            page = self._query_page(language, titles=title, **parameters)
        except ToolError:
            rows = self._send_query(language, list="search", srsearch=title, srlimit=1)["search"] if suggest else []
            if not rows:
                raise
            page = self._query_page(language, titles=rows[0]["title"], **parameters)
        return page["title"], page.get("extract", "")

    def _query_page(self, language: str, **parameters: Any) -> dict[str, Any]:
        """Query Wikipedia for one page and return its data. Raises ToolError if there is no such article."""
        pages = self._send_query(language, **parameters)["pages"]
        if not pages or pages[0].get("missing") or pages[0].get("invalid"):
            raise ToolError(f"there is no article {parameters['titles']}")
        page: dict[str, Any] = pages[0]
        return page

    def _send_query(self, language: str, **parameters: Any) -> dict[str, Any]:
        """Send a query to Wikipedia's API and return the field `query` of its reply. Raises ToolError."""
        address = os.environ.get("WIKIPEDIA_API_URL") or f"https://{language}.wikipedia.org/w/api.php"
        common = {"action": "query", "format": "json", "formatversion": 2}
        reply = query(address, self.settings, **common, **parameters).json()
        if not isinstance(reply, dict) or "query" not in reply:
            problem = reply.get("error", {}) if isinstance(reply, dict) else {}
            raise ToolError(f"Wikipedia answered: {problem.get('info', 'nothing')}")
        result: dict[str, Any] = reply["query"]
        return result


tools = Wikipedia.tools
