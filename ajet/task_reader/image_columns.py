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
        """`features`: the data set's, by column."""
        converters = ((name, _make_converter(feature)) for name, feature in features.items())
        self._converters = {name: convert for name, convert in converters if convert is not None}

    def rows(self, dataset: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the rows of a `datasets.Dataset` without decoding images; `urls` converts them."""
        names = list(self._converters)
        if not names:
            yield from dataset
            return
        others = len(names) < len(dataset.column_names)
        stored = dataset.select_columns(names).with_format("arrow")
        for rest, table in zip(dataset.remove_columns(names) if others else repeat({}), stored, strict=others):
            row = {**rest, **table.to_pylist()[0]}
            yield {name: row[name] for name in dataset.column_names}

    def urls(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a row with images as URLs. Raises BadRowError for an unreadable image."""
        return {**row, **{name: convert(row[name]) for name, convert in self._converters.items()}}


def data_url(data: bytes) -> str:
    """An encoded image as a `data:` URL. Raises BadRowError for bytes of no known image format, MissingExtraError."""
    image = _open_image(data)
    if image is None:
        raise BadRowError("an image is damaged, or its format is unknown")
    return _encode_url(image, data)


def _make_converter(feature: Any) -> _Convert | None:
    """Return a function that converts a stored value of this feature to URLs; None without images."""
    import datasets

    if isinstance(feature, datasets.Image):
        return _convert_image
    if isinstance(feature, Mapping):
        if set(feature) == _STORED and getattr(feature["bytes"], "dtype", "") in ("binary", "large_binary"):
            return _convert_if_image
        converters = ((name, _make_converter(each)) for name, each in feature.items())
        inner = {name: convert for name, convert in converters if convert is not None}
        return partial(_convert_object, inner) if inner else None
    item = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    convert = None if item is None else _make_converter(item)
    return None if convert is None else partial(_convert_list, convert)


def _convert_object(inner: Mapping[str, _Convert], value: Any) -> Any:
    return None if value is None else {**value, **{name: convert(value[name]) for name, convert in inner.items()}}


def _convert_list(convert: _Convert, value: Any) -> Any:
    return None if value is None else [convert(item) for item in value]


def _convert_image(stored: Any) -> str | None:
    """The kind of content of a column of type Image: the bytes of a file, or where it lies."""
    if stored is None or (stored["bytes"] is None and stored["path"] is None):
        return None
    if stored["bytes"] is not None:
        return data_url(stored["bytes"])
    path: str = stored["path"]
    if path.startswith(("http://", "https://", "data:")):
        return path
    try:
        return data_url(Path(path).read_bytes())
    except OSError as problem:
        raise BadRowError(f"the image {path} cannot be read: {problem.strerror or problem}") from None


def _convert_if_image(stored: Any) -> Any:
    """Convert stored bytes if they are an image; other values stay unchanged."""
    image = None if stored is None or stored["bytes"] is None else _open_image(stored["bytes"])
    return stored if image is None else _encode_url(image, stored["bytes"])


def _open_image(data: bytes) -> Any:
    """Open an image, reading only its head; None for other data."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("Pillow", "local", needed_for="a data set with images") from None
    try:
        return Image.open(io.BytesIO(data))
    except (OSError, Image.DecompressionBombError):
        return None


def _encode_url(image: Any, data: bytes) -> str:
    kind = image.format
    # PNG is not checked: that would decode the image, and hardly any PNG has the tag.
    turned = kind in ("JPEG", "WEBP") and image.getexif().get(_ORIENTATION) in _TURNED
    if turned or kind not in PASSED_ON:
        kind, data = "PNG", _as_png(image)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(data).decode()}"


def _as_png(image: Any) -> bytes:
    from PIL import Image, ImageOps

    file = io.BytesIO()
    try:
        upright = ImageOps.exif_transpose(image)
        plain = upright if upright.mode in ("1", "L", "LA", "RGB", "RGBA") else upright.convert("RGB")
        plain.save(file, "PNG", exif=b"")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as problem:
        raise BadRowError(f"an image cannot be decoded: {problem}") from None
    return file.getvalue()
