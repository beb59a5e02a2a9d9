"""Tool server that transcribes several recordings per call."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import Field

from .media import read_media
from .model import Model
from .tool_server import ToolServer


class Recordings(ToolServer):
    """Transcribes recordings by address or path."""

    def mcp_transcribe_audio(
        self,
        audio_urls: Annotated[
            list[str], Field(description="addresses, or paths in the working folder", min_length=1, max_length=10)
        ],
    ) -> dict[str, str]:
        """Transcripts of recordings, by address or path."""
        model = Model("AUDIO", self.settings)
        return {
            url: model.transcribe(PurePosixPath(url).name, read_media(url, self.settings, self.folder), "text")
            for url in audio_urls
        }


tools = Recordings.tools
