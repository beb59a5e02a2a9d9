"""Replies encoded anew from their text, and the tokens that this changes."""

from __future__ import annotations

from typing import Any


def reencode_ids(ids: list[int], tokenizer: Any) -> list[int]:
    """Return the tokens of the text of `ids`. Special tokens stay tokens."""
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    encoded: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return encoded


def count_shared_ends(sampled: list[int], encoded: list[int]) -> tuple[int, int]:
    """Return how many tokens two replies share at their beginning, and how many of the others at their end."""
    most = min(len(sampled), len(encoded))
    begin = next((at for at in range(most) if sampled[at] != encoded[at]), most)
    end = next((at for at in range(most - begin) if sampled[-1 - at] != encoded[-1 - at]), most - begin)
    return begin, end


def spread_changed(logprobs: list[float], begin: int, end: int, length: int) -> list[float]:
    """Return `length` log-probabilities: those of shared tokens, and the sum of the changed ones in equal parts.

    Their sum stays the log-probability of the reply as it was sampled.
    """
    changed, count = logprobs[begin : len(logprobs) - end], length - begin - end
    return [*logprobs[:begin], *[sum(changed) / max(1, count)] * count, *logprobs[len(logprobs) - end :]]
