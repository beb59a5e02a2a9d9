"""Tool server `fetch`: returns the text of a web page, in pieces that fit a model's context.

Every request goes through `web`, which limits bytes and seconds and refuses private addresses.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .readweb import page_text
from .tool_server import ToolServer


class Fetcher(ToolServer):
    """Fetches web pages, one piece per call."""

    def fetch(
        self,
        url: str,
        max_length: Annotated[int, Field(description="characters", gt=0, lt=1_000_000)] = 5000,
        start_index: Annotated[int, Field(description="character to begin with", ge=0)] = 0,
        raw: Annotated[bool, Field(description="the page's source")] = False,
    ) -> str:
        """Text of a web page, as Markdown; a long one in pieces."""
        text = page_text(url, self.settings, raw=raw)
        piece = text[start_index : start_index + max_length]
        if not piece:
            return "[nothing more]"
        end = start_index + len(piece)
        return piece + (
            f"\n[{len(text) - end} more characters: go on with start_index={end}]" if end < len(text) else ""
        )


tools = Fetcher.tools
