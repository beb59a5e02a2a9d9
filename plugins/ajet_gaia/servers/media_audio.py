"""Tool server for recordings: transcripts, metadata and excerpts.

Files and addresses are opened by `media`. Transcripts come from the service AUDIO, all other answers from this machine.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field

from .media import describe_media, ffmpeg, open_media, read_media, size_of
from .model import Model
from .tool import FilePath
from .tool_server import ToolServer


class Audio(ToolServer):
    """Transcribes, describes and cuts recordings of a working folder."""

    def transcribe_audio(
        self,
        file_path: FilePath,
        model_size: Annotated[
            Literal["tiny", "base", "small", "medium", "large"], Field(description="a wish; the service has its model")
        ] = "base",
        output_format: Literal["text", "json", "srt", "vtt"] = "text",
    ) -> str:
        """Transcript of a recording, by a second model."""
        audio = read_media(file_path, self.settings, self.folder)
        return Model("AUDIO", self.settings).transcribe(PurePosixPath(file_path).name, audio, output_format)

    def extract_audio_metadata(self, file_path: FilePath) -> dict[str, Any]:
        """Duration, format and streams of a recording."""
        with open_media(file_path, self.settings, self.folder) as file:
            return {"bytes": size_of(file), "streams": describe_media(file, self.settings)}

    def trim_audio(
        self,
        file_path: FilePath,
        start_time: Annotated[float, Field(description="seconds", ge=0)],
        duration: Annotated[float, Field(description="seconds; 0: to the end", ge=0)] = 0,
    ) -> str:
        """Cut a part out of a recording, into a WAV file beside it."""
        path = PurePosixPath(file_path)
        target = str(path.with_name(f"{path.stem}_{start_time:g}_{duration:g}.wav"))
        length = ["-t", f"{duration}"] if duration else []
        with open_media(file_path, self.settings, self.folder) as file, self.folder.scratch() as scratch_file:
            ffmpeg(
                file, ["-ss", f"{start_time}"], [*length, "-vn", "-f", "wav", "-y", str(scratch_file)], self.settings
            )
            self.folder.write(target, scratch_file.read_bytes())
        return f"{target} is written"

    def list_supported_formats(self) -> list[str]:
        """Kinds of files read by this server."""
        return [".mp3", ".wav", ".m4a", ".flac", ".ogg", ".webm", "and what else ffmpeg reads"]


tools = Audio.tools
