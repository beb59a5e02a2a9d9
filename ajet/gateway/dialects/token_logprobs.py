"""Logprobs as Chat Completions and Responses tell them: one entry a captured token.

Invariant: what is told of a token is what the engine reported for it, at temperature 1; a token that is no whole
character has no bytes here, since its text alone does not tell them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Decode = Callable[[Sequence[int]], str]
Top = Sequence[list[tuple[int, float]]]


def token_logprobs(
    decode: Decode, count: int, ids: Sequence[int], logprobs: Sequence[float], top: Top
) -> list[dict[str, Any]]:
    """An entry a token, each with its `count` likeliest alternatives. All of them [R]; `top` may be shorter."""
    entries = []
    for at, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
        others = top[at][:count] if at < len(top) else []
        told = [_entry(decode, *other) for other in others]
        entries.append({**_entry(decode, token, logprob), "top_logprobs": told})
    return entries


def _entry(decode: Decode, token: int, logprob: float) -> dict[str, Any]:
    spelled = decode([token])
    whole = "\ufffd" not in spelled
    return {"token": spelled, "logprob": float(logprob), "bytes": list(spelled.encode()) if whole else None}
