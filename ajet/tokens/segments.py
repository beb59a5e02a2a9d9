"""Tokenizers that encode a text, or decode ids, part by part: recurring parts are encoded and decoded once.

Invariant: for these tokenizers the ids of a text are exactly the joined ids of its parts, and the text of ids with
complete characters is the joined text of each. Other tokenizers are used without assumptions.

A tokenizer first finds its added tokens, then normalizes, splits and merges the text between two of them separately.
Exceptions are steps that depend on the position in the complete text (SentencePiece's blank before the first word) and
added tokens that absorb blanks around them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from ajet.tokens.parsing import Delta
from ajet.tokens.tool_calls import Tools, checked

_PER_SEGMENT = frozenset({"Sequence", "ByteLevel", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"})
"""Pre-tokenizers that split each segment separately."""
_NORMALIZERS = frozenset({"Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase"})
_MOST = 64
"""Most tokens at which a text is split."""


def decodes_token_by_token(fast: Any) -> bool:
    """Return True if the text of ids with complete characters is the joined text of each.

    `fast` is the tokenizer of the tokenizers library; `None` for a slow tokenizer.
    """
    return fast is not None and _list_types(fast.decoder) == {"ByteLevel"}


def parting(fast: Any, source: str) -> re.Pattern[str] | None:
    """Return a pattern whose `split` gives separately encodable parts of a text, some of them empty.

    The text is split at the added tokens in the chat template's `source`. `None` means that the tokenizer encodes
    complete texts only.
    """
    if fast is None or type(fast.model).__name__ != "BPE" or fast.model.dropout:
        return None
    if fast.truncation is not None or fast.padding is not None or fast.encode_special_tokens:
        return None
    if not _list_types(fast.pre_tokenizer) <= _PER_SEGMENT or not _list_types(fast.normalizer) <= _NORMALIZERS:
        return None
    added_tokens = list(fast.get_added_tokens_decoder().values())
    if any(token.lstrip or token.rstrip or token.single_word for token in added_tokens):
        return None
    cut_texts = [token.content for token in added_tokens if not token.normalized and token.content in source]
    other_texts = [token.content for token in added_tokens if token.content not in cut_texts]
    if not 0 < len(cut_texts) <= _MOST or any(
        _may_overlap(cut_text, other_text) for cut_text in cut_texts for other_text in [*cut_texts, *other_texts]
    ):
        return None
    return re.compile(f"({'|'.join(map(re.escape, cut_texts))})")


def _list_types(part: Any) -> set[str]:
    """Return the types of the steps of a normalizer, pre-tokenizer or decoder. The set is empty for `None`."""
    types: set[str] = set()
    if part is not None:
        pending_steps: list[Any] = [json.loads(part.__getstate__())]  # `tokenizers` pickles its parts as JSON
        while pending_steps:
            step = pending_steps.pop()
            types.add(str(step.get("type")))
            for name in ("normalizers", "pretokenizers", "decoders"):
                pending_steps += step.get(name) or ()
    return types


def _may_overlap(a: str, b: str) -> bool:
    """Return True if two different tokens can share characters of a text."""
    if a == b:
        return False
    small = min(len(a), len(b))
    return a in b or b in a or any(a[-size:] == b[:size] or b[-size:] == a[:size] for size in range(1, small))


# SchemaParser: the replies of models whose tokenizer has a `response_schema`, parsed by transformers.
# Invariant: transformers parses complete replies only. A stream of such a model therefore arrives in one piece at
# its end. A reply that does not fit the schema is content, character for character.
class SchemaParser:
    """Parses a reply by the tokenizer's `response_schema`. With `tools` as `None`, no text is a tool call."""

    def __init__(self, parse: Callable[[str], Any], *, tools: Tools | None = None) -> None:
        self._parse, self._has_tools = parse, tools is not None
        self._text = ""

    @property
    def raw(self) -> str:
        """The complete text: reasoning is not separated from the rest."""
        return self._text

    def feed(self, text: str) -> list[Delta]:
        """Add text of the reply."""
        self._text += text
        return []

    def close(self) -> list[Delta]:
        """Parse the complete reply, and return all of it as deltas: nothing is returned earlier.

        A reply that does not fit the tokenizer's response schema is returned as content.
        """
        try:
            message = self._parse(self._text)
        except (ValueError, TypeError, KeyError):
            message = None
        if not isinstance(message, dict):
            return [{"content": self._text}] if self._text else []
        functions = [checked(call.get("function", call), ("arguments",)) for call in message.get("tool_calls") or ()]
        if functions and (not self._has_tools or None in functions):
            return [{"content": self._text}]
        deltas: list[Delta] = []
        thought = message.get("reasoning_content") or message.get("thinking")
        if thought:
            deltas.append({"reasoning_content": thought})
        if message.get("content"):
            deltas.append({"content": message["content"]})
        for index, function in enumerate(functions):
            deltas.append({"tool_calls": [{"index": index, "type": "function", "function": function}]})
        return deltas
