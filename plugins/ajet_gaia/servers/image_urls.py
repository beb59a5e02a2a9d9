"""A question about pictures, several a call."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .folder import Folder
from .media import content
from .media_image import seen
from .model import Model
from .settings import Settings
from .tool import Function


class Recognition:
    """Pictures by address or path."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.folder = settings, Folder(settings)

    def mcp_image_recognition(
        self,
        image_urls: Annotated[
            list[str], Field(description="addresses, or paths in the working folder", min_length=1, max_length=10)
        ],
        question: str,
    ) -> str:
        """Answer a question about pictures, by a second model."""
        pictures = [content(url, self.settings, self.folder) for url in image_urls]
        return seen(Model("IMAGE", self.settings), pictures, question)


def tools(settings: Settings) -> list[Function]:
    return [Recognition(settings).mcp_image_recognition]
