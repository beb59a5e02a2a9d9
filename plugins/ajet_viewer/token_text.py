"""The text of single tokens for display.

Invariant: concatenated texts equal the decoded ids, except that bytes of incomplete characters are spelled <0xNN>.
Supports byte-level alphabets (GPT-2: a visible character for each byte), and alphabets with ▁ for a space and <0xNN>
for single bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any


def spell_tokens(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return [N] texts; an id outside the vocabulary is spelled <id N>."""
    alphabet = (
        build_byte_alphabet() if tokenizer.convert_tokens_to_ids("Ġ") not in (None, tokenizer.unk_token_id) else None
    )
    added = tokenizer.added_tokens_decoder
    return [
        _spell_token(tokenizer.convert_ids_to_tokens(token), token, token in added, alphabet) for token in map(int, ids)
    ]


@lru_cache(maxsize=1)
def build_byte_alphabet() -> dict[str, int]:
    """Return visible character -> byte: printable Latin-1 maps to itself, other bytes in order from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + at): byte for at, byte in enumerate(others)}


def _spell_token(piece: str | None, token: int, added: bool, alphabet: dict[str, int] | None) -> str:
    if piece is None:
        return f"<id {token}>"
    if added:
        return piece
    if alphabet is None:
        return piece.replace("▁", " ")
    if not all(letter in alphabet for letter in piece):
        return piece
    data = bytes(alphabet[letter] for letter in piece)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "".join(_spell_bytes(data))


def _spell_bytes(data: bytes) -> list[str]:
    """Return complete characters, and stray bytes spelled."""
    text = data.decode(errors="surrogateescape")
    return [f"<0x{ord(letter) - 0xDC00:02X}>" if 0xDC80 <= ord(letter) <= 0xDCFF else letter for letter in text]
