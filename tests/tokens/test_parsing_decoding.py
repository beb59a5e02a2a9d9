"""Ids become text piece by piece: the pieces add up to the whole, and where bytes are only put together each token is
decoded once, however long the reply."""

import random

import pytest

from ajet.tokens.parsing import IncrementalDecoder

SAID = "héllo, 世界 🙂🙃 — and then a plain end of more than a window of letters"


class Bytes:
    """A tokenizer whose ids are bytes."""

    def __init__(self):
        self.decoded = 0

    def __call__(self, ids):
        self.decoded += len(ids)
        return bytes(ids).decode(errors="replace")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("bytewise", [True, False])
def test_pieces_of_any_size_add_up_to_the_text_of_all(seed, bytewise):
    draw = random.Random(seed)
    ids = [*SAID.encode(), 0xFF, *b"after a stray byte", *SAID.encode(), 0xE4, 0xB8][: draw.randrange(1, 250)]
    decoder, text, at = IncrementalDecoder(Bytes(), ord("x"), bytewise=bytewise), "", 0
    while at < len(ids):
        size = draw.randrange(1, 6)
        text += decoder.feed(ids[at : at + size])
        at += size
    assert text + decoder.close() == bytes(ids).decode(errors="replace")


def test_a_token_whose_bytes_stand_for_themselves_is_decoded_once():
    ids = (b"only letters, " * 100)[:1000]
    decode = Bytes()
    decoder = IncrementalDecoder(decode, 7, bytewise=True)
    assert "".join(decoder.feed([token]) for token in ids) == ids.decode()
    assert decode.decoded == len(ids)
