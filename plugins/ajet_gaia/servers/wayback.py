"""Tool server `wayback`: finds and reads archived versions of web pages in the Internet Archive.

Every request goes through `web`, which limits bytes and seconds and refuses private addresses.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any

from pydantic import Field

from .html_text import readable
from .settings import Settings
from .tool import Shape, ToolError
from .tool_server import ToolServer
from .web import get, query

TRUNCATED = 20_000
Day = Annotated[str, Field(description="YYYYMMDD, as much of it as is known; empty: any", pattern="^[0-9]{0,14}$")]


class Wayback(ToolServer):
    """Lists and reads archived versions of a page."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.base = os.environ.get("WAYBACK_URL") or "https://web.archive.org"

    def list_archived_versions(
        self,
        url: str,
        limit: Annotated[int, Field(ge=1, le=1000)] = 10,
        from_date: Day = "",
        to_date: Day = "",
        output_format: Shape = "markdown",
    ) -> str | list[dict[str, str]]:
        """Times at which a page was archived."""
        parameters = {"url": url, "output": "json", "limit": limit, "from": from_date, "to": to_date}
        rows = query(f"{self.base}/cdx/search/cdx", self.settings, **parameters).json()
        head, body = (rows[0], rows[1:]) if rows else ([], [])
        versions = [dict(zip(head, map(str, row), strict=False)) for row in body]
        if output_format == "json":
            return versions
        lines = [f"- {row.get('timestamp', '')} {row.get('statuscode', '')}" for row in versions]
        return "\n".join(lines) or "[no version is archived]"

    def get_archived_content(
        self,
        url: str,
        timestamp: Annotated[str, Field(description="YYYYMMDDhhmmss; the nearest version is read")],
        extract_text_only: bool = True,
        truncate_content: Annotated[bool, Field(description="only the beginning")] = False,
        output_format: Shape = "markdown",
    ) -> str | dict[str, str]:
        """Content of a page as it was archived at a time."""
        if re.fullmatch(r"\d{4,14}", timestamp) is None:
            raise ToolError(f"{timestamp[:40]} is not a time, for instance 20240531")
        reply = get(f"{self.base}/web/{timestamp}id_/{url}", self.settings)
        text = reply.text()
        if extract_text_only and reply.kind == "text/html":
            title, body = readable(text, url)
            text = f"# {title}\n\n{body}" if title else body
        if truncate_content and len(text) > TRUNCATED:
            text = f"{text[:TRUNCATED]}\n[{len(text) - TRUNCATED} more characters]"
        return {"url": reply.url, "content": text} if output_format == "json" else text

    def get_wayback_capabilities(self) -> dict[str, Any]:
        """Source and limits of the versions."""
        return {"source": self.base, "times": "YYYYMMDDhhmmss"}


tools = Wayback.tools
