"""Loads tokenizers and models from a ModelSource, and computes three fingerprints of a model.

Invariant: a loaded model is in evaluation mode, with the requested dtype and device and a chat template. Its rotary
frequencies are fixed by the longest possible sequence. A .gguf is converted once into the cache. Loading reads only the
folder: no code runs and no external file is fetched, unless the source is trusted. A damaged checkpoint of ajet is
refused. Equal fingerprints (weights, tokenizer, chat template) mean equal bytes, regardless of location and file names.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.engine.model_cache import ProgressLines, open_entry, quiet_transformers
from ajet.engine.model_limits import read_limits
from ajet.engine.model_source import ModelSource, name_gguf_entry
from ajet.record.checkpoint import digest_file, require_sound
from ajet.record.files import read_json
from ajet.schema.errors import UserError, require_packages

if TYPE_CHECKING:
    import torch

    from ajet.config import AjetConfig
    from ajet.tokens.image_tokens import ImageTokens


TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)
"""A folder with a tokenizer has at least one of the files."""


def prepare_folder(source: ModelSource, *, weights: bool = True) -> Path:
    """Return the source as a folder in Hugging Face layout, converting a .gguf at first use.

    Args:
        weights: True if the weights will be loaded and must be checked.

    Raises:
        UserError: the checkpoint is damaged or cannot be converted.
    """
    if source.folder is not None:
        require_sound(source.folder, tensors=weights)
        return source.folder
    from ajet.engine.gguf_conversion import convert_gguf

    gguf = source.gguf_file
    assert gguf is not None, "a source is a folder or a file"
    return open_entry(name_gguf_entry(gguf), lambda into: convert_gguf(gguf, into, ProgressLines()))


def read_vocabulary_size(folder: Path) -> int | None:
    """Return the model's number of token ids, or None if config.json lacks it."""
    config = read_json(folder / "config.json")
    size = (config.get("text_config") or config).get("vocab_size")
    return size if isinstance(size, int) else None


def load_tokenizer(source: ModelSource) -> Any:
    """Load the transformers tokenizer.

    Raises:
        UserError: the tokenizer or its chat template is missing.
    """
    require_packages("transformers", "jinja2", extra="local", needed_for="A model's tokenizer")
    from transformers import AutoTokenizer

    folder = prepare_folder(source, weights=False)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **build_loader_options(source.trust_remote_code))
    except Exception as error:  # tokenizers raises bare Exception for a damaged file
        is_missing = not any((folder / name).is_file() for name in TOKENIZER_FILES)
        raise build_code_refusal(error, folder) or UserError(
            f"The model {source.path} has no tokenizer."
            if is_missing
            else f"The tokenizer of {source.path} cannot be loaded: {str(error)[:500]}",
            where=str(folder),
            expected=f"{TOKENIZER_FILES[0]} and tokenizer_config.json in the same folder as config.json",
            do="copy these files (and chat_template.jinja, if it exists) from the folder of the base model",
        ) from error
    if not tokenizer.chat_template:
        raise UserError(
            f"The model {source.path} has no chat template: it is a base model.",
            where=str(folder),
            expected="a model trained for chat (its name usually contains Instruct or Chat)",
            do="Set model.path to the Instruct version of the model, or add a chat_template.jinja to its folder.",
        )
    return tokenizer


def build_loader_options(trust_remote_code: bool) -> dict[str, bool]:
    """Return transformers' loader options for local files. Without explicit values it would ask on standard input."""
    return {"trust_remote_code": trust_remote_code, "local_files_only": not trust_remote_code}


def build_code_refusal(error: Exception, folder: Path) -> UserError | None:
    """Return the error for a model with Python code if transformers refused to run it, else None."""
    if "trust_remote_code" not in str(error):
        return None
    return UserError(
        "This model contains Python code, which loading the model would run. ajet has not run it.",
        where=str(folder),
        expected="a model of an architecture that the package transformers contains",
        do="read the code; if you trust it, set model.trust_remote_code: true in the YAML (a run's record "
        "cannot allow it)",
    )


def load_image_tokens(folder: Path, *, trust_remote_code: bool = False) -> ImageTokens | None:
    """Load the model's image processor, or return None for a text model.

    Raises:
        UserError: the processor cannot be loaded.
    """
    if not read_limits(folder).images:
        return None
    from transformers import AutoProcessor

    from ajet.tokens.image_tokens import ImageTokens

    try:
        processor = AutoProcessor.from_pretrained(folder, **build_loader_options(trust_remote_code))
    except (OSError, ValueError, KeyError, ImportError) as error:
        if (refused := build_code_refusal(error, folder)) is not None:
            raise refused from error
        reason, _, _ = str(error).strip().partition("\n")
        raise UserError(
            f"The processor of this vision model cannot be loaded: {reason}",
            where=str(folder),
            do="install torchvision in the version that fits torch: the processors of most model families need it",
        ) from error
    return ImageTokens(processor)


def load_model(
    source: ModelSource, *, dtype: torch.dtype, device: torch.device | str = "cpu", max_model_len: int | None = None
) -> Any:
    """Load the transformers causal language model for sequences of up to `max_model_len` tokens.

    Args:
        max_model_len: None for the model's own maximum.

    Raises:
        UserError: the model cannot be loaded or does not fit into memory.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    folder = prepare_folder(source)
    try:
        with quiet_transformers():
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, **build_loader_options(source.trust_remote_code)
            )
        model = model.to(device)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        if (refused := build_code_refusal(error, folder)) is not None:
            raise refused from error
        if "Unrecognized configuration class" in str(error) and read_limits(folder).images:
            raise UserError(
                f"{source.path} is a vision model; the local backbone samples and trains text models only.",
                where=str(folder),
                do="train it with --backbone verl; to run the agent without training, use --backbone debug with "
                "rollout.engine: endpoint",
            ) from error
        raise UserError(f"The model {source.path} cannot be loaded: {str(error)[:500]}", where=str(folder)) from error
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"The model {source.path} does not fit on {device}.",
            where="model.path",
            do="Set model.path to a smaller model.",
        ) from error
    longest = read_context_length(model)
    freeze_rope(model, longest if max_model_len is None else min(max_model_len, longest))
    return model.eval()


def read_context_length(model: Any) -> int:
    """Return the model's maximum sequence length in tokens."""
    config = model.config.get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or 1 << 30)


def read_processor_flags() -> dict[str, Any]:
    """Return processor capabilities by torch's names, or {} if this torch version lacks them."""
    import torch

    return dict(torch.cpu.get_capabilities()) if hasattr(torch.cpu, "get_capabilities") else {}


def choose_fast_dtype(device: torch.device | str) -> torch.dtype:
    """Return bfloat16 if the device multiplies bfloat16 faster than float32, else float32.

    On a CPU, fast bfloat16 needs AVX512-BF16, AMX or ARM's bf16; emulation is several times slower than float32.
    """
    import torch

    kind = torch.device(device).type
    if kind == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float32
    if kind == "cpu":
        from torch.backends import mkldnn

        flags = read_processor_flags()
        fast = any(flags.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
        return torch.bfloat16 if fast and mkldnn.is_available() else torch.float32
    return torch.float32


FROZEN = "frozen"
"""The `rope_type` of a module with frozen frequencies."""


def freeze_rope(model: Any, max_model_len: int) -> None:
    """Freeze all rotary frequencies of `model` in place, for sequences of up to `max_model_len` tokens.

    A token's rotation then depends only on its position. transformers selects the frequencies of `longrope` (Phi 3 and
    4, MiniCPM) and `dynamic` by the longest position in a forward pass, so packed samples and rows of a step would
    affect each other, and a reply that crosses the border would change its own past. vLLM selects by `max_model_len`;
    ajet does the same for engine and trainer. The configuration, and therefore its saved form, stays unchanged.
    """
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, str) and hasattr(module, "inv_freq"):
            module.rope_type = _freeze_module(module, kind, None, max_model_len)
        elif isinstance(kind, dict):
            module.rope_type = {
                layer: _freeze_module(module, name, layer, max_model_len) for layer, name in kind.items()
            }


def _freeze_module(module: Any, kind: str, layer: str | None, limit: int) -> str:
    """Freeze the rotary frequencies of one kind of layer, and return the module's new rope type.

    transformers would choose "longrope" and "dynamic" frequencies by the length of each batch, so the same token would
    get other log-probabilities when sampled and when trained. They are fixed to those of the longest sequence.

    Args:
        limit: the longest sequence of the run.
    """
    if kind != "longrope" and "dynamic" not in kind:
        return kind
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = module.config.rope_parameters
    parameters = parameters if layer is None else parameters[layer]
    pretrained = parameters["original_max_position_embeddings"] if kind == "longrope" else module.original_max_seq_len
    if limit > pretrained:  # shorter sequences keep the frequencies of the module's start
        prefix = "" if layer is None else f"{layer}_"
        current = getattr(module, f"{prefix}inv_freq")
        layer_argument = {} if layer is None else {"layer_type": layer}
        frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](module.config, current.device, seq_len=limit, **layer_argument)
        module.register_buffer(f"{prefix}inv_freq", frequencies.to(current.dtype), persistent=False)
        setattr(module, f"{prefix}attention_scaling", scaling)
    return FROZEN


def fingerprint_weights(config: AjetConfig, *, base: Path | None = None) -> str:
    """Return a fingerprint of the weights of `model.path`. This reads all weights once.

    Raises:
        UserError: the model cannot be found.
    """
    from ajet.engine.model_source import locate_configured_model

    folder = prepare_folder(locate_configured_model(config, base))
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    return _hash_parts(*(digest_file(file) for file in files))


def fingerprint_tokenizer(tokenizer: Any) -> str:
    """Return a digest of the rules by which the tokenizer converts text to ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab().items()))
    return _hash_parts(text)


def fingerprint_chat_template(tokenizer: Any, options: dict[str, Any]) -> str:
    """Return a digest that determines how messages become text.

    Args:
        options: further arguments of the chat template.
    """
    return _hash_parts(json.dumps([tokenizer.chat_template, options], sort_keys=True))


def _hash_parts(*parts: str) -> str:
    """Return a digest of texts in their order. A separator marks where one text ends."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()
