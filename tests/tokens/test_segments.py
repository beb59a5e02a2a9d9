"""A text encoded part by part, and ids decoded token by token, are what the tokenizer itself makes of the whole."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers

from ajet.tokens import Renderer
from tests.support.chat_templates import STYLES, tokenizer

PIECES = (
    "<|im_start|>", "<|im_end|>", "<|im_", "|>", "<tool_call>", "</tool_call>", "\n", " ", "  ", "user", "don't", "12",
    "é", "e\u0301", "深", "😀", "\ufffd", "Ａ", "a tool", "_",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def altered(kind: str):
    """A byte-level tokenizer of which something is otherwise."""
    made = copy.deepcopy(tokenizer("qwen25"))
    fast = made.backend_tokenizer
    if kind == "blank first":
        fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    elif kind == "normalized":
        fast.normalizer = normalizers.NFC()
        fast.add_tokens([AddedToken("a tool", normalized=True)])
    elif kind == "words first":
        digits = pre_tokenizers.Digits(individual_digits=True)
        fast.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    elif kind == "takes blanks":
        fast.add_tokens([AddedToken("a tool", lstrip=True)])
    elif kind == "overlaps":
        fast.add_tokens([AddedToken("_<|im_end|>", normalized=False)])
    elif kind == "first of the text":
        fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        fast.decoder = decoders.Metaspace(prepend_scheme="first")
    return made


KINDS = {
    "as it is": True,
    "blank first": True,
    "normalized": True,
    "words first": True,
    "takes blanks": False,
    "overlaps": False,
    "first of the text": False,
}
"""Whether its texts are parted."""
RENDERERS = {kind: Renderer(altered(kind)) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(text=TEXTS, order=st.randoms(use_true_random=False))
def test_parts_give_what_the_whole_gives(kind, text, order):
    render = RENDERERS[kind]
    fast = render.tokenizer.backend_tokenizer
    assert (render.separators is not None) == KINDS[kind]
    ids = fast.encode(text, add_special_tokens=False).ids
    assert render.encode(text).tolist() == render.encode(text).tolist() == ids
    order.shuffle(ids)
    assert render.decode(ids) == fast.decode(ids, skip_special_tokens=False)


def test_no_part_is_padded():
    """A tokenizer that was called with `padding=True` goes on padding what it gets together."""
    render = Renderer(altered("as it is"))
    fast = render.tokenizer.backend_tokenizer
    text = "<|im_start|>user\nA question that is longer than the rest of it.<|im_end|>\n"
    ids = fast.encode(text, add_special_tokens=False).ids
    fast.enable_padding()
    assert render.encode(text).tolist() == ids


@pytest.mark.parametrize("style", sorted(STYLES))
def test_what_recurs_is_encoded_once(style, monkeypatch):
    render = Renderer(tokenizer(style))
    asked: list[str] = []
    encode = render.encode_texts
    monkeypatch.setattr(render, "encode_texts", lambda texts: asked.extend(texts) or encode(texts))
    for number in (1, 2):
        render.render([{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"What is {number}?"}])
    first = next(at for at, text in enumerate(asked) if "What is 2?" in text)
    assert asked[first:] == [next(text for text in asked if "What is 2?" in text)], "nothing else is new"
    assert any("Be brief." in text for text in asked[:first])
