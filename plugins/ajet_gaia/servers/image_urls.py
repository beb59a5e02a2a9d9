"""Tool server that lets a vision model answer a question about several pictures."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .media import read_media
from .media_image import ask_about_pictures
from .model import Model
from .tool_server import ToolServer


class Recognition(ToolServer):
    """Answers questions about pictures by address or path."""

    def mcp_image_recognition(
        self,
        image_urls: Annotated[
            list[str], Field(description="addresses, or paths in the working folder", min_length=1, max_length=10)
        ],
        question: str,
    ) -> str:
        """Answer a question about pictures, by a second model."""
        pictures = [read_media(url, self.settings, self.folder) for url in image_urls]
        return ask_about_pictures(Model("IMAGE", self.settings), pictures, question)


tools = Recognition.tools
