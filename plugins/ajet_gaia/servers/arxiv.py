"""Papers of arXiv, by arXiv's own interface.

Invariants: a paper's id is checked before its use in an address. Downloads go to the working folder.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal
from xml.etree import ElementTree

from pydantic import Field

from .documents_pdf import PdfDocuments
from .tool import Shape, ToolError
from .tool_server import ToolServer
from .web import get, query

ATOM = "{http://www.w3.org/2005/Atom}"
CATEGORIES = {
    "astro-ph": "astrophysics",
    "cond-mat": "condensed matter",
    "cs": "computer science",
    "econ": "economics",
    "eess": "electrical engineering and systems",
    "gr-qc": "general relativity and quantum cosmology",
    "hep-ex": "high energy physics, experiment",
    "hep-lat": "high energy physics, lattice",
    "hep-ph": "high energy physics, phenomenology",
    "hep-th": "high energy physics, theory",
    "math": "mathematics",
    "math-ph": "mathematical physics",
    "nlin": "nonlinear sciences",
    "nucl-ex": "nuclear experiment",
    "nucl-th": "nuclear theory",
    "physics": "physics",
    "q-bio": "quantitative biology",
    "q-fin": "quantitative finance",
    "quant-ph": "quantum physics",
    "stat": "statistics",
}
RESULTS = 10
PaperId = Annotated[str, Field(description="as 1706.03762 or math/0211159, with v2 for a version")]
ID = re.compile(r"(?:\d{4}\.\d{4,5}|[a-z-]+(?:\.[A-Z]{2})?/\d{7})(?:v\d+)?")


class Arxiv(ToolServer):
    """Searches, describes and downloads papers."""

    def search_papers(
        self,
        query: str,
        sort_by: Literal["relevance", "lastUpdatedDate", "submittedDate"] = "relevance",
        sort_order: Literal["descending", "ascending"] = "descending",
        category: Annotated[str, Field(description="as cs.CL; empty: all")] = "",
        output_format: Shape = "markdown",
    ) -> str | list[dict[str, Any]]:
        """Papers that fit a query."""
        terms = " AND ".join(f'all:"{word}"' for word in re.findall(r"[\w.-]+", query)[:20])
        if category:
            terms += f" AND cat:{re.sub(r'[^A-Za-z.-]', '', category)}"
        papers = self._query_papers(search_query=terms, sortBy=sort_by, sortOrder=sort_order, max_results=RESULTS)
        if output_format == "json":
            return papers
        return "\n\n".join(_format_paper(paper) for paper in papers) or "[nothing found]"

    def get_paper_details(self, paper_id: PaperId, output_format: Shape = "markdown") -> str | dict[str, Any]:
        """Title, authors, dates and abstract of a paper."""
        papers = self._query_papers(id_list=_check_id(paper_id), max_results=1)
        if not papers:
            raise ToolError(f"there is no paper {paper_id}")
        return papers[0] if output_format == "json" else _format_paper(papers[0])

    def download_paper(
        self,
        paper_id: PaperId,
        extract_text: Annotated[bool, Field(description="answer its text, too")] = False,
    ) -> str:
        """Download a paper's PDF into the working folder."""
        paper = _check_id(paper_id)
        base = os.environ.get("ARXIV_URL") or "https://arxiv.org"
        reply = get(f"{base}/pdf/{paper}", self.settings, limit=self.settings.max_download)
        if reply.cut or not reply.body.startswith(b"%PDF"):
            raise ToolError(f"{reply.url} answered no PDF, or one that is too large")
        path = f"{paper.replace('/', '_')}.pdf"
        self.folder.write(path, reply.body)
        note = f"{len(reply.body)} bytes are in {path}"
        if not extract_text:
            return note
        return f"{note}\n\n{PdfDocuments(self.settings).convert_document_to_markdown(path)}"

    def get_categories(self) -> dict[str, str]:
        """Archives of arXiv; their parts are written as cs.CL."""
        return CATEGORIES

    def get_arxiv_capabilities(self) -> dict[str, Any]:
        """Number of papers that a search returns, and their possible orders."""
        return {"results": RESULTS, "sort_by": ["relevance", "lastUpdatedDate", "submittedDate"]}

    def _query_papers(self, **parameters: Any) -> list[dict[str, Any]]:
        """Query arXiv's Atom feed and return the papers as dictionaries. Raises ToolError without a valid feed."""
        address = os.environ.get("ARXIV_API_URL") or "https://export.arxiv.org/api/query"
        reply = query(address, self.settings, **parameters)
        try:
            entries = ElementTree.fromstring(reply.body).findall(f"{ATOM}entry")
        except ElementTree.ParseError as error:
            raise ToolError(f"arXiv answered no feed: {error}") from None
        # arXiv reports an error as an entry with the title "Error".
        return [_read_paper(entry) for entry in entries if entry.findtext(f"{ATOM}title") != "Error"]


tools = Arxiv.tools


def _check_id(paper_id: str) -> str:
    """Return the arXiv id in a text such as arXiv:1706.03762 or a page's address. Raises ToolError for another text."""
    name = paper_id.strip().removeprefix("arXiv:").rsplit("/abs/", 1)[-1]
    if ID.fullmatch(name) is None:
        raise ToolError(f"{paper_id[:60]} is no id of a paper; 1706.03762 is one")
    return name


def _read_paper(entry: ElementTree.Element) -> dict[str, Any]:
    """Convert an entry of the Atom feed to a dictionary."""

    def text(name: str) -> str:
        return " ".join((entry.findtext(f"{ATOM}{name}") or "").split())

    return {
        "id": text("id").rsplit("/abs/", 1)[-1],
        "title": text("title"),
        "authors": [(author.findtext(f"{ATOM}name") or "").strip() for author in entry.findall(f"{ATOM}author")],
        "published": text("published"),
        "updated": text("updated"),
        "categories": [category.get("term", "") for category in entry.findall(f"{ATOM}category")],
        "abstract": text("summary"),
    }


def _format_paper(paper: dict[str, Any]) -> str:
    """Return a paper as Markdown: title, id, date, first ten authors, abstract."""
    authors = ", ".join(paper["authors"][:10])
    return f"**{paper['title']}** ({paper['id']}, {paper['published'][:10]})\n{authors}\n{paper['abstract']}"
