"""PowerPoint files as Markdown, one section per slide.

Invariant: pictures are written below the working folder only.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import Field

from .documents import MAX_FILE, checked_archive, format_document, format_table
from .tool import FilePath, Format
from .tool_server import ToolServer

MAX_IMAGES = 50
MAX_DEPTH = 20
"""Maximum nesting of groups of shapes."""


class Slides(ToolServer):
    """Reads PowerPoint files of a working folder."""

    def extract_pptx_content(
        self,
        file_path: FilePath,
        output_format: Format = "markdown",
        extract_images: Annotated[bool, Field(description="write them into a folder beside the file")] = False,
        extract_notes: bool = True,
        include_structure: Annotated[bool, Field(description="a list of the slides' titles")] = False,
    ) -> str:
        """Text of a PowerPoint file (.pptx), slide by slide, with tables and notes."""
        from pptx import Presentation

        slides = Presentation(checked_archive(self.folder.read_bytes(file_path, MAX_FILE))).slides
        parts: list[str] = []
        titles: list[str] = []
        images: list[str] = []
        for slide_number, slide in enumerate(slides, start=1):
            title = slide.shapes.title.text.strip() if slide.shapes.title is not None else ""
            titles.append(f"{slide_number}. {title}")
            parts.append(f"## Slide {slide_number}{': ' + title if title else ''}")
            for shape in _walk_shapes(slide.shapes, MAX_DEPTH):
                if slide.shapes.title is not None and shape.shape_id == slide.shapes.title.shape_id:
                    continue
                if getattr(shape, "has_table", False):
                    parts.append(format_table([[cell.text for cell in row.cells] for row in shape.table.rows]))
                elif getattr(shape, "has_text_frame", False) and shape.text_frame.text.strip():
                    parts.append(shape.text_frame.text.strip())
                elif extract_images and hasattr(shape, "image") and len(images) < MAX_IMAGES:
                    images.append(self._write_image(file_path, slide_number, len(images), shape.image))
            if extract_notes and slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
                notes = slide.notes_slide.notes_text_frame.text.strip()
                parts += [f"Notes: {notes}"] if notes else []
        facts: dict[str, Any] = {"structure": titles if include_structure else [], "images": images}
        return format_document("\n\n".join(parts), output_format, facts)

    def list_supported_formats(self) -> list[str]:
        """Kinds of files read by this server."""
        return [".pptx"]

    def _write_image(self, file_path: str, slide: int, number: int, image: Any) -> str:
        """Write a slide's picture into a folder beside the file, and return its path."""
        path = f"{PurePosixPath(file_path).stem}_images/slide{slide}_{number}.{image.ext}"
        self.folder.write(path, image.blob)
        return path


tools = Slides.tools


def _walk_shapes(shapes: Iterable[Any], depth: int) -> Iterable[Any]:
    """Yield all shapes, with those inside groups in place of their group, down to `depth` levels."""
    for shape in shapes:
        if depth and hasattr(shape, "shapes"):
            yield from _walk_shapes(shape.shapes, depth - 1)
        else:
            yield shape
