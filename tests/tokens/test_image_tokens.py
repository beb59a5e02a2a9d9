"""Images in prompts: as many tokens as the processor says, and none that nobody sent."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.schema.errors import UserError
from ajet.tokens import TemplateRefused
from ajet.tokens.image_tokens import ImageTokens, image_urls, picture
from tests.support.image_fixtures import TOKEN, processor, seeing_renderer
from tutorial.example_vision.colours import data_url, question, square

pytestmark = pytest.mark.slow

RENDERER = seeing_renderer()
SIZES = st.tuples(st.integers(1, 6), st.integers(1, 6))


def shown(size: tuple[int, int], text: str = "What is it?") -> dict:
    return question(data_url(square("red", 14 * size[0], 14 * size[1])), text)


@given(SIZES, st.integers(1, 3), st.sampled_from(["", "text", "two\nlines"]))
@settings(max_examples=40, deadline=None)
def test_a_prompt_is_what_the_processor_itself_writes(size, count, text):  # LLaVA's takes images of one size
    messages = [{"role": "system", "content": "Look."}, *[shown(size, text)] * count]
    rendered = RENDERER.render(messages)
    pictures = [picture(url) for url in image_urls(messages)]
    whole = processor()(text=[RENDERER.template.text(messages)], images=pictures)["input_ids"][0]
    assert rendered.ids.tolist() == whole
    assert (rendered.ids == RENDERER.images.token_id).sum() == count * size[0] * size[1]


@given(st.lists(SIZES, min_size=1, max_size=3))
@settings(max_examples=20, deadline=None)
def test_a_conversation_with_images_is_extended_not_rendered_anew(sizes):
    messages = [shown(sizes[0])]
    before = RENDERER.render(messages)
    for size in sizes[1:]:
        reply = np.array([*RENDERER.encode("re"), *RENDERER.encode("d"), RENDERER.end_ids[0]], np.int32)
        messages += [{"role": "assistant", "content": "red"}, shown(size)]
        extended = RENDERER.extend(before, reply, "stop", messages)
        assert extended is not None
        assert extended.ids[: len(before.ids) + len(reply)].tolist() == [*before.ids, *reply]
        before = extended
    runs = np.count_nonzero(RENDERER.images.folded(before.ids) == RENDERER.images.token_id)
    assert runs == len(sizes), "each image is one place in what an engine with a processor of its own is given"


def test_text_alone_is_as_ever():
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert RENDERER.render(messages).text == RENDERER.render([{"role": "user", "content": "ab"}]).text


def test_for_a_model_of_text_nothing_is_imported(monkeypatch):
    from ajet.engine.embedded import shipped_folder
    from ajet.engine.models import load_image_tokens

    monkeypatch.setitem(sys.modules, "transformers", None)
    folder = shipped_folder("tiny-tools")
    assert folder is not None and load_image_tokens(folder) is None


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"role": "user", "content": f"a {TOKEN} of mine"}, "1 places for images, but there are 0 images"),
        (question("data:image/png;base64,aGVsbG8=", "?"), "damaged, or its format is unknown"),
        (question("data:image/png;base64,!!", "?"), "damaged, or its format is unknown"),
        (question("https://example.org/a.png", "?"), "downloads no images"),
    ],
)
def test_what_is_no_image_is_refused(message, why):
    with pytest.raises(TemplateRefused, match=why):
        RENDERER.render([message])


def test_places_without_images_are_refused_in_raw_prompts_too():
    for prompt in (f"a{TOKEN}", [RENDERER.images.token_id]):
        with pytest.raises(TemplateRefused, match="1 places"):
            RENDERER.raw(prompt)


def test_a_processor_without_an_image_token_is_named():
    with pytest.raises(UserError, match="ajet does not know"):
        ImageTokens(processor().tokenizer)
