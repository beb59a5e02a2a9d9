"""A renderer of a model that sees images, whose processor needs no torchvision: LLaVA's, without its fixed size."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ajet.tokens import Renderer
from ajet.tokens.image_tokens import ImageTokens
from tests.support.chat_templates import made

TOKEN = "<|image|>"
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}<|image|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@lru_cache
def processor() -> Any:
    """A token for each square of 14 x 14 pixels."""
    from transformers import LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokenizer = made(TEMPLATE, ("<|im_start|>", "<|im_end|>", TOKEN), "<|im_end|>")
    images = CLIPImageProcessorPil(do_resize=False, do_center_crop=False)
    return LlavaProcessor(
        images,
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token=TOKEN,
        num_additional_image_tokens=1,
    )


def seeing_renderer() -> Renderer:
    """Made anew."""
    return Renderer(processor().tokenizer, images=ImageTokens(processor()))
