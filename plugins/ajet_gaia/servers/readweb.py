"""Tool server `readweb`: returns the text of a web page.

Every request goes through `web`, which limits bytes and seconds and refuses private addresses.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .html_text import readable
from .settings import Settings
from .tool import ToolError
from .tool_server import ToolServer
from .web import get

TEXTS = ("text/", "application/json", "application/xml", "application/javascript")


class Reader(ToolServer):
    """Reads web pages as Markdown."""

    def read_url(
        self, url: str, include_images: Annotated[bool, Field(description="their addresses in the text")] = False
    ) -> str:
        """Text of a web page, as Markdown."""
        return page_text(url, self.settings, images=include_images)


tools = Reader.tools


def page_text(url: str, settings: Settings, *, images: bool = False, raw: bool = False) -> str:
    """Return the text of a web page with its title, or its source.

    Args:
        images: True to include the addresses of pictures.
        raw: True for the source.

    Raises:
        ToolError: the address cannot be read, or is neither a page nor text.
    """
    reply = get(url, settings)
    if not raw and reply.kind in ("text/html", "application/xhtml+xml"):
        title, text = readable(reply.text(), reply.url, images=images)
        text = f"# {title}\n\n{text}" if title else text
    elif raw or reply.kind.startswith(TEXTS) or reply.kind.endswith(("+json", "+xml")):
        text = reply.text()
    else:
        raise ToolError(f"{reply.url} is {reply.kind}: download it instead")
    return text + ("\n[the page goes on: only its beginning was read]" if reply.cut else "")
