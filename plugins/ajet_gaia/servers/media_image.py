"""Pictures: text, content and metadata.

Invariants: a picture with too many pixels is refused before unpacking. Descriptions come from the service IMAGE.
"""

from __future__ import annotations

import base64
import io
import re
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from .media import read_media
from .model import Model
from .process import run
from .tool import FilePath, ToolError
from .tool_server import ToolServer

MAX_POINTS = 100_000_000
KINDS = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp"}


class Pictures(ToolServer):
    """Reads and describes pictures of a working folder."""

    def extract_text_ocr(
        self,
        file_path: FilePath,
        language: Annotated[str, Field(description="tesseract's name, as eng or chi_sim")] = "eng",
        preprocess: Annotated[bool, Field(description="grey and full contrast first")] = True,
    ) -> str:
        """Text in a picture, by OCR."""
        if shutil.which("tesseract") is None:
            raise ToolError("this tool is off: the program tesseract is not installed")
        if re.fullmatch(r"[A-Za-z_+]{2,40}", language) is None:
            raise ToolError(f"{language[:40]} is no language; eng is one")
        picture = open_picture(read_media(file_path, self.settings, self.folder))
        if preprocess:
            from PIL import ImageOps

            picture = ImageOps.autocontrast(picture.convert("L"))
        with tempfile.TemporaryDirectory() as scratch:
            picture.save(f"{scratch}/picture.png")
            finished = run(
                ["tesseract", "picture.png", "stdout", "-l", language],
                folder=Path(scratch),
                timeout=self.settings.timeout,
                limit=self.settings.max_bytes,
            )
        if finished.code != 0:
            raise ToolError(f"tesseract: {finished.errors.strip()[-300:]}")
        return finished.output.strip() or "[no text]"

    def analyze_image_ai(
        self, file_path: FilePath, task: Annotated[str, Field(description="what to look for")] = "Describe the picture."
    ) -> str:
        """What a picture shows, by a second model."""
        return ask_about_pictures(
            Model("IMAGE", self.settings), [read_media(file_path, self.settings, self.folder)], task
        )

    def get_image_metadata(self, file_path: FilePath) -> dict[str, Any]:
        """Format, size and EXIF of a picture."""
        picture = open_picture(read_media(file_path, self.settings, self.folder))
        from PIL.ExifTags import TAGS

        exif = {TAGS.get(tag, str(tag)): str(value)[:200] for tag, value in picture.getexif().items()}
        metadata = {"format": picture.format, "width": picture.width, "height": picture.height, "mode": picture.mode}
        return metadata | ({"exif": exif} if exif else {})


tools = Pictures.tools


def open_picture(data: bytes) -> Any:
    """Open a picture and check its size; its pixels are not unpacked yet. Raises ToolError if it cannot be used."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ToolError("this tool is off: the package pillow is not installed") from None
    Image.MAX_IMAGE_PIXELS = None  # the check below replaces Pillow's bound
    try:
        picture = Image.open(io.BytesIO(data))
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise ToolError(f"no readable picture: {error}") from None
    if picture.width * picture.height > MAX_POINTS:
        raise ToolError(f"the picture has more than {MAX_POINTS} points")
    return picture


def ask_about_pictures(model: Model, pictures: list[bytes], question: str) -> str:
    """Send a question and pictures to a vision model, and return its answer."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": question}]
    for data in pictures:
        address = f"data:{picture_type(data)};base64,{base64.b64encode(data).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": address}})
    return model.chat([{"role": "user", "content": parts}], 0.1)


def picture_type(data: bytes) -> str:
    """Return a picture's MIME type from its first bytes."""
    signatures = {b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"RIFF": "WEBP"}
    name = next((name for signature, name in signatures.items() if data.startswith(signature)), None)
    if name is None:
        raise ToolError("a picture is PNG, JPEG, GIF or WEBP")
    return KINDS[name]
