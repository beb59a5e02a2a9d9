"""Templates that take content in one form only, or no system message: nothing is lost without a word."""

import json

import pytest

from ajet.tokens.template import ChatTemplate
from ajet.tokens.template_doctor import TOOL, call, examine, result
from ajet_proof.tokens.proof import prove
from tests.support.chat_templates import made
from tests.support.gateways import Renderer, TemplateRefused, post, start_gateway
from tests.support.published_templates import published

TEXTS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is it?"},
    {"role": "assistant", "content": "A cat."},
    {"role": "user", "content": [{"type": "text", "text": "Which "}, {"type": "text", "text": "colour?"}]},
]
CALL = call("skiff", 1)
CALLED = [{"role": "assistant", "content": None, "tool_calls": [CALL]}, result(CALL, "a small boat")]
TURN = (
    "{% for m in messages %}{{ '[' + m.role + ']' }}BODY{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}[a]{% endif %}"
)
PARTS = "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
NO_SYSTEM = "{% if m.role != 'system' %}{{ m.content }}{% endif %}"
ONLY_IMAGES = (
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}{% endif %}"
)


def renderer(template: str) -> Renderer:
    text = published(template) if template.endswith(".jinja") else template
    ends = {"gemma.jinja": "<end_of_turn>", "smolvlm.jinja": "<end_of_utterance>"}
    end = ends.get(template, "<|end|>")
    return Renderer(made(text, (end, "<|begin|>"), end, bos="<|begin|>"))


@pytest.mark.parametrize(
    "template", ["smolvlm.jinja", "idefics3.jinja", "llava_next.jinja", "qwen2_5_vl.jinja", TURN.replace("BODY", PARTS)]
)
def test_every_text_is_shown_once(template):
    shown = renderer(template).render(TEXTS).shown
    places = [shown.index(text) for text in ("Be brief.", "What is it?", "A cat.", "Which colour?")]
    assert places == sorted(places) and shown.count("A cat.") == 1


@pytest.mark.parametrize("template", ["smolvlm.jinja", "idefics3.jinja", "llava_next.jinja"])
def test_tools_and_results_are_shown_as_parts(template):
    shown = renderer(template).render([*TEXTS[:2], *CALLED], [TOOL]).shown
    assert shown.count("Looks a word up.") == shown.count("a small boat") == 1 and '"skiff"' in shown


def test_a_role_that_is_dropped_is_refused():
    words = renderer(TURN.replace("BODY", NO_SYSTEM))
    with pytest.raises(TemplateRefused):
        words.render(TEXTS)
    assert words.render(TEXTS[1:]).shown.startswith("[user]What is it?")
    assert "Looks a word up." in words.render(TEXTS[1:], [TOOL]).shown


def test_text_dropped_beside_an_image_is_refused():
    tokenizer = made(TURN.replace("BODY", ONLY_IMAGES), ("<|end|>",), "<|end|>")
    template = ChatTemplate(tokenizer, images=True)
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    assert "<image>" in template.text([{"role": "user", "content": [image]}])
    with pytest.raises(TemplateRefused):
        template.text([{"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}])


@pytest.mark.parametrize("template", ["gemma.jinja", "smolvlm.jinja", TURN.replace("BODY", "{{ m.content }}")])
@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_text_models_refuse_other_parts(template, kind):
    words = renderer(template)
    part = {"type": kind, kind: {"url": "data:,"}}
    for content in ([part], [{"type": "text", "text": "What is it?"}, part]):
        with pytest.raises(TemplateRefused, match=kind):
            words.render([{"role": "user", "content": content}])


def test_parts_of_text_reach_a_template_of_strings_as_one():
    parts = [{"type": "text", "text": "Which "}, {"type": "text", "text": "colour?"}]
    words = renderer(TURN.replace("BODY", "{{ m.content | upper }}"))
    assert words.render([{"role": "user", "content": parts}]).shown == "[user]WHICH COLOUR?<|end|>[a]"


def test_texts_beside_images_are_shown_in_every_turn():
    template = ChatTemplate(made(published("smolvlm.jinja"), ("<|end|>",), "<|end|>"), images=True)
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    seen = {"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}
    shown = template.text([TEXTS[0], seen, *TEXTS[2:]])
    places = [shown.index(text) for text in ("Be brief.", "<image>What is it?", "A cat.", "Which colour?")]
    assert places == sorted(places)


@pytest.mark.parametrize("template", ["gemma.jinja", TURN.replace("BODY", NO_SYSTEM)])
def test_tools_open_the_first_user_message(template):
    words = renderer(template)
    history = [TEXTS[1], *CALLED, {"role": "assistant", "content": "A boat."}, {"role": "user", "content": "Sure?"}]
    shown = words.render(history, [TOOL]).shown
    assert shown.count("Looks a word up.") == 1
    assert shown.index("Looks a word up.") < shown.index("What is it?") < shown.index("a small boat")
    begun = words.render([{"role": "assistant", "content": "Hello."}], [TOOL]).shown if "gemma" not in template else ""
    assert begun.count("Looks a word up.") == bool(begun)


def test_doctor_and_gateway_agree_about_tools():
    words = renderer("gemma.jinja")
    states = {each.topic: each.state for each in examine(words)}
    assert states["system message"] == "warning" and states["tool call"] == "ok" and states["tools"] == "ok"
    spelled = json.dumps({"name": "look_up", "arguments": {"word": "skiff"}})
    replies = [f"<tool_call>\n{spelled}\n</tool_call>", "A small boat.", "Yes."]
    with start_gateway(replies, words=words) as b:
        session = b.open()
        endpoint, messages = session.endpoint("a"), [TEXTS[1]]
        first = post(endpoint, {"model": "m", "messages": messages, "tools": [TOOL]}).json()["choices"][0]["message"]
        messages += [first, result(first["tool_calls"][0], "a small boat")]
        assert post(endpoint, {"model": "m", "messages": messages, "tools": [TOOL]}).status_code == 200
        assert post(endpoint, {"model": "m", "messages": TEXTS[:2], "tools": [TOOL]}).status_code == 400
        capture = session.close()
    assert prove(capture.calls, capture.messages, capture.tools, words, episode="e").ok


def test_prompts_of_parts_extend_and_are_proven():
    words = renderer("smolvlm.jinja")
    with start_gateway(["A cat.", "Black."], words=words) as b:
        session = b.open()
        endpoint, messages = session.endpoint("a"), TEXTS[:2]
        first = post(endpoint, {"model": "m", "messages": messages}).json()["choices"][0]["message"]
        post(endpoint, {"model": "m", "messages": [*messages, first, TEXTS[3]]}).raise_for_status()
        capture = session.close()
    assert "Which colour?" in words.decode(capture.calls[1].suffix_ids)
    proof = prove(capture.calls, capture.messages, capture.tools, words, episode="e")
    assert proof.ok
    capture.messages[1] = {**capture.messages[1], "content": "What was it?"}
    assert not prove(capture.calls, capture.messages, capture.tools, words, episode="e").ok
