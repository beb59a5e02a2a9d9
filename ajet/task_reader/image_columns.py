"""ImageColumns: images of a data set as `data:` URLs for messages to a model.

Invariant: an image keeps its bytes if every client reads the format. Other formats (TIFF, BMP), and photos rotated by
EXIF, become PNG. Images are never fetched; a URL stays a URL.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from ajet.schema.errors import MissingExtraError
from ajet.task_reader.rows import BadRowError

PASSED_ON = ("PNG", "JPEG", "GIF", "WEBP")  # formats with unchanged bytes
_ORIENTATION, _TURNED = 0x0112, range(2, 9)
"""EXIF's orientation tag, and the values of a rotated or mirrored image."""
_STORED = {"bytes", "path"}

_Convert = Callable[[Any], Any]


class ImageColumns:
    """The columns of a data set that hold images, alone or within lists and objects."""

    def __init__(self, features: Mapping[str, Any]) -> None:
        """Find the columns with images.

        Args:
            features: The feature of each column, as `datasets.Dataset.features`.
        """
        converters = ((name, _make_converter(feature)) for name, feature in features.items())
        self._converters = {name: convert for name, convert in converters if convert is not None}

    def rows(self, dataset: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the rows of a `datasets.Dataset` without decoding images; `urls` converts them."""
        image_columns = list(self._converters)
        if not image_columns:
            yield from dataset
            return
        has_other_columns = len(image_columns) < len(dataset.column_names)
        # The format "arrow" skips the decoding of images by the library.
        undecoded_images = dataset.select_columns(image_columns).with_format("arrow")
        for other_values, table in zip(
            dataset.remove_columns(image_columns) if has_other_columns else repeat({}),
            undecoded_images,
            strict=has_other_columns,
        ):
            row = {**other_values, **table.to_pylist()[0]}
            yield {name: row[name] for name in dataset.column_names}

    def urls(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a row with images as URLs. Raises BadRowError for an unreadable image."""
        return {**row, **{name: convert(row[name]) for name, convert in self._converters.items()}}


def data_url(data: bytes) -> str:
    """Return an image file's bytes as a `data:` URL.

    Raises:
        BadRowError: the bytes are no known image format.
        MissingExtraError: Pillow is not installed.
    """
    image = _open_image(data)
    if image is None:
        raise BadRowError("an image is damaged, or its format is unknown")
    return _encode_url(image, data)


def _make_converter(feature: Any) -> _Convert | None:
    """Return a function that replaces the images in a value of this feature by URLs; None for a feature without images.

    Images are found within objects and lists, too.
    """
    import datasets

    if isinstance(feature, datasets.Image):
        return _convert_image
    if isinstance(feature, Mapping):
        # An image column of a Parquet file without the library's metadata is an object of bytes and path.
        if set(feature) == _STORED and getattr(feature["bytes"], "dtype", "") in ("binary", "large_binary"):
            return _convert_if_image
        converters = ((name, _make_converter(inner_feature)) for name, inner_feature in feature.items())
        converter_by_name = {name: convert for name, convert in converters if convert is not None}
        return partial(_convert_object, converter_by_name) if converter_by_name else None
    item_feature = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    convert = None if item_feature is None else _make_converter(item_feature)
    return None if convert is None else partial(_convert_list, convert)


def _convert_object(converter_by_name: Mapping[str, _Convert], value: Any) -> Any:
    """Return an object with the images in some of its fields as URLs; None stays None."""
    return (
        None
        if value is None
        else {**value, **{name: convert(value[name]) for name, convert in converter_by_name.items()}}
    )


def _convert_list(convert: _Convert, value: Any) -> Any:
    """Return a list with each item converted; None stays None."""
    return None if value is None else [convert(item) for item in value]


def _convert_image(stored: Any) -> str | None:
    """Return the URL of a stored image: a `data:` URL of its bytes or of the file at its path, or a web URL unchanged.

    Args:
        stored: {"bytes", "path"}, or None.

    Returns:
        None without an image.

    Raises:
        BadRowError: the file cannot be read, or is no image.
    """
    if stored is None or (stored["bytes"] is None and stored["path"] is None):
        return None
    if stored["bytes"] is not None:
        return data_url(stored["bytes"])
    path: str = stored["path"]
    if path.startswith(("http://", "https://", "data:")):
        return path
    try:
        return data_url(Path(path).read_bytes())
    except OSError as error:
        raise BadRowError(f"the image {path} cannot be read: {error.strerror or error}") from None


def _convert_if_image(stored: Any) -> Any:
    """Return the URL of a stored {"bytes", "path"} if the bytes are an image, else the unchanged value."""
    image = None if stored is None or stored["bytes"] is None else _open_image(stored["bytes"])
    return stored if image is None else _encode_url(image, stored["bytes"])


def _open_image(data: bytes) -> Any:
    """Open an image and read only its header; return None for bytes of no known format."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("Pillow", "local", needed_for="a data set with images") from None
    try:
        return Image.open(io.BytesIO(data))
    except (OSError, Image.DecompressionBombError):
        return None


def _encode_url(image: Any, data: bytes) -> str:
    """Return an opened image as a `data:` URL, with its own bytes if every client can read them, else as PNG.

    Args:
        data: The image's bytes.
    """
    image_format = image.format
    # PNG is not checked: that would decode the image, and hardly any PNG has the tag.
    is_turned = image_format in ("JPEG", "WEBP") and image.getexif().get(_ORIENTATION) in _TURNED
    if is_turned or image_format not in PASSED_ON:
        image_format, data = "PNG", _as_png(image)
    return f"data:image/{image_format.lower()};base64,{base64.b64encode(data).decode()}"


def _as_png(image: Any) -> bytes:
    """Return an image's bytes as PNG, rotated as EXIF says and without EXIF. Raises BadRowError."""
    from PIL import Image, ImageOps

    buffer = io.BytesIO()
    try:
        upright = ImageOps.exif_transpose(image)
        png_image = upright if upright.mode in ("1", "L", "LA", "RGB", "RGBA") else upright.convert("RGB")
        png_image.save(buffer, "PNG", exif=b"")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadRowError(f"an image cannot be decoded: {error}") from None
    return buffer.getvalue()
