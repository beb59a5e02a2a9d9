"""What a model is, in three fingerprints: its weights, its tokenizer, its chat template.

Invariant: equal fingerprints mean equal bytes, wherever the files lie and however they are named.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.record.checkpoint import digest_of

if TYPE_CHECKING:
    from ajet.config import AjetConfig


def weights_fingerprint(config: AjetConfig, *, base: Path | None = None) -> str:
    """A fingerprint of the weights that `model.path` names, which are read once for it. Raises UserError."""
    from ajet.engine.model_source import locate
    from ajet.engine.models import folder_of

    assert config.model.path is not None, "require_ready asks for it"
    folder = folder_of(locate(config.model.path, base=base, trust_remote_code=config.model.trust_remote_code))
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    return _digest(*(digest_of(file) for file in files))


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """A fingerprint of how the tokenizer turns text into ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab().items()))
    return _digest(text)


def template_fingerprint(tokenizer: Any, options: dict[str, Any]) -> str:
    """A fingerprint of how the tokenizer turns messages into text, with the arguments `options`."""
    return _digest(json.dumps([tokenizer.chat_template, options], sort_keys=True))


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()
