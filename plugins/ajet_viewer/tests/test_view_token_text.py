"""What single tokens look like: put together, the text; what is no character by itself, its bytes."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.engine.model_source import locate_model
from ajet.engine.models import load_tokenizer
from ajet_viewer.view import spell_tokens


@pytest.fixture(scope="module")
def tiny():
    return load_tokenizer(locate_model("embedded:tiny-tools", base=Path(".")))


def joined(texts):
    """Spelled bytes back to characters."""
    data = b"".join(
        b"".join(
            bytes([int(part[3:5], 16)]) if re.fullmatch(r"<0x[0-9A-F]{2}>", part) else part.encode()
            for part in re.split(r"(<0x[0-9A-F]{2}>)", text)
        )
        for text in texts
    )
    return data.decode()


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40).filter(lambda text: "<0x" not in text))
def test_texts_put_together_are_the_text(tiny, text):
    ids = tiny.encode(text, add_special_tokens=False)
    assert joined(spell_tokens(tiny, ids)) == tiny.decode(ids, clean_up_tokenization_spaces=False)


def test_special_tokens_and_ids_of_nothing(tiny):
    ids = tiny.encode("<|im_start|>user", add_special_tokens=False)
    assert spell_tokens(tiny, ids)[0] == "<|im_start|>"
    assert spell_tokens(tiny, [10_000_000]) == ["<id 10000000>"]
