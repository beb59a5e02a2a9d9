"""ImageTokens: an image in a prompt is one repeated token, as many times as the model's processor says.

Invariant: the k-th placeholder in a rendered text is the k-th image of its messages; a text with more or fewer
placeholders is refused. The processor computes only lengths, once per size of image: the ids of all text are the
tokenizer's.
"""

from __future__ import annotations

import base64
import binascii
import copy
import io
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from ajet.schema.call import Ids
from ajet.schema.errors import UserError
from ajet.tokens.template import TemplateRefused

if TYPE_CHECKING:
    from PIL.Image import Image

_CACHED_IMAGES = 1024


def image_urls(messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the URLs of all images in a conversation, in order."""
    lists = [content for message in messages if isinstance(content := message.get("content"), list)]
    return tuple([part["image_url"]["url"] for parts in lists for part in parts if part.get("type") == "image_url"])


def picture(url: str) -> Image:
    """Return the image in a `data:` URL, in RGB. Raises TemplateRefused for other URLs: nothing is fetched."""
    from PIL import Image, UnidentifiedImageError

    head, _, data = url.partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise TemplateRefused("this server downloads no images: send images as data: URLs in base64")
    try:
        return Image.open(io.BytesIO(base64.b64decode(data, validate=True))).convert("RGB")
    except (binascii.Error, UnidentifiedImageError, OSError, Image.DecompressionBombError) as problem:
        raise TemplateRefused("an image cannot be read: it is damaged, or its format is unknown") from problem


class ImageTokens:
    """The image tokens of one model's processor. Thread-safe."""

    def __init__(self, processor: Any) -> None:
        """Prepare a processor. Raises UserError for a processor without an image token."""
        token = getattr(processor, "image_token", None)
        if not isinstance(token, str):
            raise UserError(
                "ajet does not know how this model represents images as tokens.",
                where=type(processor).__name__,
                expected="a processor with one image token, as in Qwen2-VL, Qwen2.5-VL and Qwen3-VL",
            )
        self.processor_name = type(processor).__name__
        self.token = token
        self.token_id = int(processor.tokenizer.convert_tokens_to_ids(token))
        self._processor = copy.deepcopy(processor)  # each call changes the settings of the processor's tokenizer
        self._lock = threading.Lock()
        self._tokens_by_size: dict[tuple[int, int], int] = {}
        self._tokens_by_digest: OrderedDict[bytes, int] = OrderedDict()

    def spread(self, ids: Ids, urls: Sequence[str]) -> Ids:
        """Return the ids of a text, each placeholder repeated to its image's length. Raises TemplateRefused."""
        placeholders = np.flatnonzero(ids == self.token_id)
        if len(placeholders) != len(urls):
            raise TemplateRefused(
                f"the text has {len(placeholders)} places for images, but there are {len(urls)} images: the text must "
                f"not contain {self.token}, and the chat template must show each image once"
            )
        if not urls:
            return ids
        repeats = np.ones(len(ids), dtype=np.int64)
        repeats[placeholders] = [self._find_length(url) for url in urls]
        return np.repeat(ids, repeats)

    def folded(self, ids: Ids) -> Ids:
        """Return ids with each run of image tokens as one token, for engines with their own processor."""
        repeats_previous = (ids[1:] == self.token_id) & (ids[:-1] == self.token_id)
        return ids[np.concatenate([[True], ~repeats_previous])] if len(ids) else ids

    def _find_length(self, url: str) -> int:
        """Return the number of tokens of an image, cached by its URL and by its size. Raises TemplateRefused."""
        digest = blake2b(url.encode(), digest_size=16).digest()
        with self._lock:
            length = self._tokens_by_digest.get(digest)
        if length is not None:
            return length
        image = picture(url)
        with self._lock:
            length = self._tokens_by_size.get(image.size)
            if length is None:
                length = self._tokens_by_size[image.size] = self._count_tokens(image)
            self._tokens_by_digest[digest] = length
            if len(self._tokens_by_digest) > _CACHED_IMAGES:
                self._tokens_by_digest.popitem(last=False)
        return length

    def _count_tokens(self, image: Image) -> int:
        """Return the number of tokens into which the processor turns an image.

        Raises TemplateRefused if the processor refuses the image or uses other tokens than the image token.
        """
        try:
            ids = self._processor(text=[self.token], images=[image])["input_ids"][0]
        except ValueError as problem:  # for example, one side is much longer than the other
            raise TemplateRefused(f"the model's image processor refuses an image: {problem}") from problem
        if any(token != self.token_id for token in ids):
            raise TemplateRefused(
                "the model's image processor represents an image by other tokens than a single image token, "
                "which ajet does not support"
            )
        return len(ids)
