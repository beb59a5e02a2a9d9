"""Checks before the start of Ray whether verl can train a vision model.

Invariant: a processor unknown to verl is refused. verl would drop the processor with a warning and train the model as a
text model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ajet.engine.models import load_image_tokens
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.tokens.image_tokens import ImageTokens

KNOWN = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Glm4v", "Glm46V", "Mllama", "Gemma4")
"""Processor names, without `Processor`, accepted by verl's `hf_processor`; a test compares them."""


def require_image_tokens(folder: Path) -> ImageTokens | None:
    """Return the image tokens of the model in `folder`, or None for a text model.

    Raises:
        UserError: verl does not support the model's processor.
    """
    tokens = load_image_tokens(folder)
    if tokens is None:
        return None
    name = tokens.processor_name.removesuffix("Processor")
    if name not in KNOWN:
        raise UserError(
            f"verl does not support this model's image processor ({name}).",
            where=str(folder),
            expected="one of the families " + ", ".join(KNOWN[:5]),
        )
    return tokens
