"""Logprobs in the form of Chat Completions and Responses: one entry for each captured token.

Invariant: an entry has the engine's values for its token, at temperature 1. A token that is only part of a character
has no bytes here, since its text does not determine them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ajet.gateway.reply import TopLogprobs

Decode = Callable[[Sequence[int]], str]
"""Returns the text of token ids."""


def build_token_logprobs(
    decode: Decode, count: int, ids: Sequence[int], logprobs: Sequence[float], top: TopLogprobs
) -> list[dict[str, Any]]:
    """Return an entry for each token with its `count` likeliest alternatives.

    Args:
        decode: Returns the text of token ids.
        count: Number of alternatives.
        ids: The tokens [R].
        logprobs: Their log-probabilities [R] at temperature 1.
        top: For each token the likeliest ones; may be shorter than [R].
    """
    entries = []
    for index, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
        top_tokens = top[index][:count] if index < len(top) else []
        alternatives = [_build_entry(decode, *top_token) for top_token in top_tokens]
        entries.append({**_build_entry(decode, token, logprob), "top_logprobs": alternatives})
    return entries


def _build_entry(decode: Decode, token: int, logprob: float) -> dict[str, Any]:
    """Return the text, logprob and UTF-8 bytes of a token. `bytes` is None for a part of a character."""
    text = decode([token])
    is_complete = "\ufffd" not in text
    return {"token": text, "logprob": float(logprob), "bytes": list(text.encode()) if is_complete else None}
