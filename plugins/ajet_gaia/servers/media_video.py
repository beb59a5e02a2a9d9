"""Tool server for videos: extracted pictures and descriptions.

Files and addresses are opened by `media`. At most a fixed number of pictures is taken, however long the video is, so
that the answer fits a model's context. Descriptions come from the service VIDEO.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import Field

from .media import ffmpeg, open_media
from .media_image import ask_about_pictures
from .model import Model
from .tool import Shape, ToolError
from .tool_server import ToolServer

MAX_PICTURES = 32
VideoUrl = Annotated[str, Field(description="address, or path in the working folder")]
Rate = Annotated[float, Field(description="pictures a second", gt=0, le=10)]
Start = Annotated[float, Field(description="seconds", ge=0)]
End = Annotated[float, Field(description="seconds; 0: the end", ge=0)]


class Videos(ToolServer):
    """Describes videos of a working folder or of the web."""

    def analyze_video(
        self,
        video_url: VideoUrl,
        question: str,
        sample_rate: Rate = 0.5,
        start_time: Start = 0,
        end_time: End = 0,
        output_format: Shape = "markdown",
        max_workers: Annotated[int, Field(description="not needed here", ge=1)] = 1,
    ) -> str | dict[str, Any]:
        """Answer a question about a video, by a second model shown pictures of it."""
        return self._answer_question(video_url, question, sample_rate, start_time, end_time, output_format)

    def summarize_video(
        self,
        video_url: VideoUrl,
        sample_rate: Rate = 0.5,
        start_time: Start = 0,
        end_time: End = 0,
        output_format: Shape = "markdown",
    ) -> str | dict[str, Any]:
        """Summarize a video, by a second model shown pictures of it."""
        question = "These are pictures of one video, in order. Say what happens in it."
        return self._answer_question(video_url, question, sample_rate, start_time, end_time, output_format)

    def extract_keyframes(
        self,
        video_path: VideoUrl,
        target_time: Annotated[int, Field(description="seconds", ge=0)],
        window_size: Annotated[int, Field(description="seconds around it", ge=1, le=60)] = 5,
        output_dir: Annotated[str, Field(description="in the working folder; empty: beside the video")] = "",
        output_format: Literal["png", "jpg"] = "png",
    ) -> list[str]:
        """Write pictures from around a time of a video into the working folder."""
        start = max(0.0, target_time - window_size / 2)
        with open_media(video_path, self.settings, self.folder) as file:
            pictures = self._extract_pictures(file, 1.0, start, start + window_size, output_format)
        folder = output_dir or f"{PurePosixPath(video_path).stem}_frames"
        written = [f"{folder}/{target_time}_{number}.{output_format}" for number in range(len(pictures))]
        for path, picture in zip(written, pictures, strict=True):
            self.folder.write(path, picture)
        return written

    def _answer_question(
        self, video: str, question: str, rate: float, start: float, end: float, shape: str
    ) -> str | dict[str, Any]:
        """Take pictures of a video, and return a model's answer to a question about them, as text or JSON."""
        with open_media(video, self.settings, self.folder) as file:
            pictures = self._extract_pictures(file, rate, start, end, "jpg")
        answer = ask_about_pictures(Model("VIDEO", self.settings), pictures, question)
        return {"answer": answer, "pictures": len(pictures)} if shape == "json" else answer

    def _extract_pictures(self, file: BinaryIO, rate: float, start: float, end: float, form: str) -> list[bytes]:
        """Return at most MAX_PICTURES pictures of a video as file contents, in order.

        Args:
            rate: pictures per second.
            start: first second.
            end: last second; not after `start`: to the end of the video.
            form: file name extension of the pictures, "png" or "jpg".
        """
        length = ["-t", f"{end - start}"] if end > start else []
        with self.folder.scratch() as scratch_file:
            pattern = scratch_file.with_name(f"%03d.{form}")
            filter_options = ["-vf", f"fps={rate},scale='min(1024,iw)':-2", "-frames:v", str(MAX_PICTURES)]
            ffmpeg(file, ["-ss", f"{start}"], [*length, *filter_options, str(pattern)], self.settings)
            pictures = [path.read_bytes() for path in sorted(scratch_file.parent.glob(f"*.{form}"))]
        if not pictures:
            raise ToolError("the video has no picture at that time")
        return pictures


tools = Videos.tools
