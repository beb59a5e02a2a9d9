"""Segments: which tokenizers take a text, or ids, part by part, so that what recurs is encoded and decoded once.

Invariant: where this says so, the ids of a text are those of its parts put together, and the text of ids that each
stand for whole characters is that of the ids put together, exactly; of any other tokenizer nothing is assumed.

A tokenizer looks for its added tokens before all else, and normalizes, cuts into words and merges what lies between two
of them as a text of its own. That holds unless something asks where in the whole text it stands (SentencePiece's blank
before the first word), or an added token takes blanks beside it along.
"""

from __future__ import annotations

import json
import re
from typing import Any

_PER_SEGMENT = frozenset({"Sequence", "ByteLevel", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"})
"""Ways to cut into words that look at one segment at a time."""
_NORMALIZERS = frozenset({"Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase"})
_MOST = 64
"""Tokens at which a text is parted."""


def decodes_token_by_token(fast: Any) -> bool:
    """Whether the text of ids is that of each, put together, as long as each is whole characters. `fast`: the
    tokenizers library's; None: there is none."""
    return fast is not None and _types(fast.decoder) == {"ByteLevel"}


def parting(fast: Any, source: str) -> re.Pattern[str] | None:
    """Cuts a text at the added tokens that the chat template's `source` writes: `split` gives parts that are encoded by
    themselves, empty ones among them. None: this tokenizer's texts are to be encoded whole."""
    if fast is None or type(fast.model).__name__ != "BPE" or fast.model.dropout:
        return None
    if fast.truncation is not None or fast.padding is not None or fast.encode_special_tokens:
        return None
    if not _types(fast.pre_tokenizer) <= _PER_SEGMENT or not _types(fast.normalizer) <= _NORMALIZERS:
        return None
    added = list(fast.get_added_tokens_decoder().values())
    if any(token.lstrip or token.rstrip or token.single_word for token in added):
        return None
    cuts = [token.content for token in added if not token.normalized and token.content in source]
    others = [token.content for token in added if token.content not in cuts]
    if not 0 < len(cuts) <= _MOST or any(_overlap(cut, other) for cut in cuts for other in [*cuts, *others]):
        return None
    return re.compile(f"({'|'.join(map(re.escape, cuts))})")


def _types(part: Any) -> set[str]:
    """The types that a normalizer, a cutter or a decoder consists of; empty where there is none."""
    found: set[str] = set()
    if part is not None:
        held: list[Any] = [json.loads(part.__getstate__())]
        while held:
            each = held.pop()
            found.add(str(each.get("type")))
            for name in ("normalizers", "pretokenizers", "decoders"):
                held += each.get(name) or ()
    return found


def _overlap(a: str, b: str) -> bool:
    """Whether two different tokens can share characters of a text."""
    if a == b:
        return False
    small = min(len(a), len(b))
    return a in b or b in a or any(a[-n:] == b[:n] or b[-n:] == a[:n] for n in range(1, small))
