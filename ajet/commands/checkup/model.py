"""A model, without its weights: chat template, stop tokens, vocabulary, context."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.schema.errors import Finding, UserError

if TYPE_CHECKING:
    from ajet.config.schema import AjetConfig
    from ajet.tokens import Renderer


def model(path: str, base: Path | None, config: AjetConfig | None) -> list[Finding]:
    """`config` gives keep_thinking and the lengths that a run would use."""
    from ajet.engine.dimensions import embedding_shapes
    from ajet.engine.model_source import at_hand, how_it_comes, locate
    from ajet.engine.models import folder_of, load_tokenizer
    from ajet.rollout.components import renderer_of
    from ajet.tokens import Renderer
    from ajet.tokens.template_doctor import examine, sizes

    try:
        trusted = config is not None and config.model.trust_remote_code
        source = locate(path, base=base, weights=False, trust_remote_code=trusted)
        if source.gguf_file is not None and at_hand(path, base=base, weights=False) is None:
            return [Finding("model", "note", f"{how_it_comes(path, base=base)}; a run does that, this check does not")]
        folder = folder_of(source, weights=False)
        tokenizer = load_tokenizer(source)
        renderer = renderer_of(config, tokenizer) if config is not None else Renderer(tokenizer)
    except UserError as error:
        return [Finding("model", "problem", error.what, error.do or error.expected)]
    told = _read(folder / "config.json")
    found = [Finding("model", "ok", f"{path} ({', '.join(told.get('architectures') or ['unknown architecture'])})")]
    found += sizes(tokenizer, told, embedding_shapes(folder))
    found += _context(told, config)
    found += _other_ends(renderer, _read(folder / "generation_config.json"))
    return [*found, *examine(renderer)]


def _read(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _context(told: dict[str, Any], config: AjetConfig | None) -> list[Finding]:
    longest = (told.get("text_config") or told).get("max_position_embeddings")
    if not isinstance(longest, int):
        return []
    wanted = config.rollout.max_model_len if config else 0
    if wanted > longest:
        text = (
            f"The model was made for {longest} tokens; rollout.max_model_len is {wanted}, and {longest} will be used."
        )
        return [Finding("context", "note", text)]
    return [Finding("context", "ok", f"{longest} tokens")]


def _other_ends(renderer: Renderer, told: dict[str, Any]) -> list[Finding]:
    """Ends that the model's makers name and ajet would not stop at."""
    named = told.get("eos_token_id")
    listed = named if isinstance(named, list) else [named] if isinstance(named, int) else []
    missing = [token for token in listed if token not in renderer.end_ids]
    if not missing:
        return []
    text = f"generation_config.json also ends replies at {', '.join(renderer.decode([token]) for token in missing)}."
    return [Finding("other ends", "note", text + " ajet stops where the chat template and the tokenizer say.")]
