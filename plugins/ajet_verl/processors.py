"""Which models that see images verl can train: said before Ray starts.

Invariant: a processor that verl would leave out with a warning, and then treat its model as one of text, is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ajet.engine.models import load_image_tokens
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.tokens.image_tokens import ImageTokens

KNOWN = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Glm4v", "Glm46V", "Mllama", "Gemma4")
"""Names, without `Processor`, that verl's `hf_processor` takes; a test holds them."""


def require_image_tokens(folder: Path) -> ImageTokens | None:
    """How the model in `folder` is shown images; None for a model of text. Raises UserError where verl could not show
    it what it sees."""
    tokens = load_image_tokens(folder)
    if tokens is None:
        return None
    name = tokens.processor_name.removesuffix("Processor")
    if name not in KNOWN:
        raise UserError(
            f"verl does not know how this model is shown images ({name}).",
            where=str(folder),
            expected="one of the families " + ", ".join(KNOWN[:5]),
        )
    return tokens
