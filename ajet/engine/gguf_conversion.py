"""Converts a .gguf file to a folder in Hugging Face layout, once.

Invariant: the folder's weights are the file's dequantised numbers in float32, and its tokenizer splits text as in the
model's training. Loading the folder takes a second, loading the .gguf about 15 seconds.
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from ajet.engine.model_cache import Progress, quiet_transformers
from ajet.record.files import apply_umask
from ajet.schema.errors import MissingExtraError, UserError

_LOCAL_ONLY = {"trust_remote_code": False, "local_files_only": True}
"""Options for reading: ignore code and files next to the .gguf."""


def convert_gguf(gguf: Path, target: Path, progress: Progress) -> None:
    """Write model and tokenizer of `gguf` into the existing empty folder `target`.

    Raises:
        UserError: the file cannot be read as a model.
    """
    try:
        import accelerate  # noqa: F401
        import gguf as _gguf  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(str(error.name), "local", needed_for=f"Loading {gguf.name}") from None
    import torch
    from transformers import AutoModelForCausalLM

    progress(f"converting {gguf.name} (once, about half a minute)", 0, 0)
    # the reader ignores settings and always draws a progress bar
    with quiet_transformers(), redirect_stderr(io.StringIO()):
        try:
            model = AutoModelForCausalLM.from_pretrained(
                gguf.parent, gguf_file=gguf.name, dtype=torch.float32, **_dequantize_weights(), **_LOCAL_ONLY
            )
        except (ValueError, KeyError, OSError) as error:
            raise UserError(f"{gguf} cannot be read as a model: {error}", where="model.path") from error
        tokenizer = _load_tokenizer(gguf, model.config)
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
    apply_umask(target)


def _dequantize_weights() -> dict[str, Any]:
    """Return the loader option for plain weights, {} for versions of transformers that always load plain weights."""
    import transformers

    options = getattr(transformers, "GgufConfig", None)
    return {} if options is None else {"quantization_config": options(dequantize=True)}


def _load_tokenizer(gguf: Path, config: Any) -> Any:
    """Return the file's tokenizer, corrected after transformers' reader.

    Restores the ids for begin, end and padding, separate tokens for digits, and a decoder that only joins bytes (the
    generic decoder also turns the letter U+2581 into a blank).
    """
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, **_LOCAL_ONLY)
    tokenizer.clean_up_tokenization_spaces = False
    for role in ("bos", "eos", "pad"):
        token_id = getattr(config, f"{role}_token_id", None)
        if isinstance(token_id, int):
            setattr(tokenizer, f"{role}_token", tokenizer.convert_ids_to_tokens(token_id))
    fields = _read_fields(gguf)
    if fields.get("tokenizer.ggml.model") == "gpt2":
        backend = tokenizer.backend_tokenizer
        backend.decoder = decoders.ByteLevel()
        if fields.get("tokenizer.ggml.pre") == "smollm":
            digits = pre_tokenizers.Digits(individual_digits=True)
            backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return tokenizer


def _read_fields(gguf: Path) -> dict[str, str]:
    """Return the tokenizer's kind and its rule for splitting text, by their names in the file."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    field_names = ("tokenizer.ggml.model", "tokenizer.ggml.pre")
    return {name: str(field.contents()) for name in field_names if (field := reader.get_field(name)) is not None}
