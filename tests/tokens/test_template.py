"""Chat templates that show only one form of content, or no system message."""

from __future__ import annotations

from typing import Any

import pytest

from ajet.context_tracker.matching import message_key
from ajet.engine.model_source import locate_model
from ajet.engine.models import load_tokenizer
from ajet.tokens import Renderer
from ajet.tokens.template import ChatTemplate, TemplateRefused
from ajet.tokens.template_doctor import examine
from tests.support.chat_templates import made

MARKS = ("<|im_start|>", "<end_of_utterance>", "<image>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>")
PARTS = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""As SmolVLM and Idefics3 have it: blocks are shown, texts are not."""
NO_SYSTEM = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + m['content'] | trim"
    " + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
"""As Gemma 2 has it."""
DROPS_SYSTEM = (
    "{% for m in messages %}{% if m['role'] != 'system' %}{{ '<start_of_turn>' + m['content'] + '<end_of_turn>' }}"
    "{% endif %}{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def template_of(source: str, **options: Any) -> ChatTemplate:
    return ChatTemplate(made(source, MARKS, "<eos>", bos="<bos>"), **options)


def test_texts_reach_a_template_of_blocks():
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": "What is this?"}]
    talk = [
        {"role": "system", "content": "Be brief."},
        user(image),
        {"role": "assistant", "content": "A cat."},
        user("Which colour?"),
    ]
    shown = template_of(PARTS, images=True).text(talk)
    assert shown == (
        "<|im_start|>System: Be brief.<end_of_utterance>\nUser:<image>What is this?<end_of_utterance>\n"
        "Assistant: A cat.<end_of_utterance>\nUser: Which colour?<end_of_utterance>\nAssistant:"
    )


def test_tools_and_results_reach_a_template_of_blocks():
    talk = [user("go"), {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "a boat"}]  # fmt: skip
    shown = template_of(PARTS).text(talk, [TOOL])
    for text in ('"name": "look", "parameters"', "User: go<", '{"name": "look", "arguments": {}}', "a boat"):
        assert text in shown


@pytest.mark.parametrize("first", ["hi", [{"type": "text", "text": "hi"}]], ids=["text", "blocks"])
def test_tools_stand_in_the_first_question_without_a_system_role(first):
    talk = [user(first), {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "a boat"}]  # fmt: skip
    template = template_of(NO_SYSTEM)
    prompt, later = template.text(talk[:1], [TOOL]), template.text(talk, [TOOL])
    assert prompt.count('"name": "look", "parameters"') == later.count('"name": "look", "parameters"') == 1
    assert later.startswith(prompt.removesuffix("<start_of_turn>model\n"))
    assert "</tool_call>\n\nhi<end_of_turn>" in prompt and "<tool_response>\na boat" in later


@pytest.mark.parametrize("given", [{}, {"parameters": None}], ids=["absent", "null"])
def test_tool_without_parameters_has_none(given):
    template = ChatTemplate(load_tokenizer(locate_model("embedded:tiny-tools")))
    bare = {"type": "function", "function": {"name": "look", **given}}
    assert template.text([user("go")], [bare]) == template.text([user("go")], [TOOL])


def test_doctor_and_requests_agree_on_tools():
    renderer = Renderer(made(NO_SYSTEM, MARKS, "<eos>", bos="<bos>"))
    found = {finding.topic: finding for finding in examine(renderer)}
    assert found["tools"].state == "ok" and found["tool call"].state != "problem"
    assert found["system message"].state == "warning"
    renderer.render([user("hi")], [TOOL])


@pytest.mark.parametrize("then", ["And?", [{"type": "text", "text": "And?"}]], ids=["text", "blocks"])
@pytest.mark.parametrize("calls", [1, 2])
def test_question_after_results_joins_them_where_roles_alternate(then, calls):
    called = [{**CALL, "id": f"c{n}"} for n in range(calls)]
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "a boat"} for each in called]
    talk = [user("go"), {"role": "assistant", "content": None, "tool_calls": called}, *results]
    template = template_of(NO_SYSTEM)
    shown = template.text([*talk, user(then)], [TOOL])
    answer = "<tool_response>\na boat\n</tool_response>"
    end = "\n".join([answer] * calls) + "\n\nAnd?<end_of_turn>\n<start_of_turn>model\n"
    assert shown.endswith(f"<start_of_turn>user\n{end}")
    later = template.text([*talk, user(then), {"role": "assistant", "content": "Yes."}, user("Sure?")], [TOOL])
    assert later.startswith(shown) and later.endswith("Yes.<end_of_turn>\n<start_of_turn>user\nSure?<end_of_turn>\n"
                                                      "<start_of_turn>model\n")  # fmt: skip
    apart = template_of(NO_SYSTEM.replace("{% if (m", "{% if false and (m")).text([*talk, user(then)], [TOOL])
    assert apart.endswith(
        "</tool_response><end_of_turn>\n<start_of_turn>user\nAnd?<end_of_turn>\n<start_of_turn>model\n"
    )


def test_questions_in_a_row_are_left_to_the_template():
    with pytest.raises(TemplateRefused):
        template_of(NO_SYSTEM).text([user("one"), user("two")])


@pytest.mark.parametrize(
    "fault",
    [
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{{ nothing.at.all }}",
        "{{ 'a' + 1 }}",
        "{% for n in range(1000000) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_template_that_raises_is_refused(fault):
    source = "{% for m in messages %}{{ m.content }}{% if m.content == 'bad' %}" + fault + "{% endif %}{% endfor %}"
    renderer = Renderer(made(source, MARKS, "<eos>", bos="<bos>"))
    assert renderer.template.text([user("good")]) == "good"
    with pytest.raises(TemplateRefused):
        renderer.render([user("bad")])
    always = Renderer(made(fault + "{% for m in messages %}{{ m.content }}{% endfor %}", MARKS, "<eos>", bos="<bos>"))
    assert [finding.state for finding in examine(always)] == ["problem"]


@pytest.mark.parametrize(
    "arguments", ["[" * 100_000, "9" * 5_000, "{", '{"a": NaN}'], ids=["deep", "digits", "cut", "NaN"]
)
def test_arguments_that_are_no_json_are_shown_or_refused(arguments):
    called = {**CALL, "function": {"name": "look", "arguments": arguments}}
    talk = [user("go"), {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "c1", "content": "a boat"}]  # fmt: skip
    assert arguments[:50] in template_of(NO_SYSTEM).text(talk, [TOOL]).replace("\\", "")
    assert message_key(talk[1]) == message_key(talk[1])


WRITES = {
    "tag of its own": "<seed:tool_call><function={name}><parameter=a>1</parameter></function></seed:tool_call>",
    "invoke": '<calls><invoke name="{name}"></invoke></calls>{{# "parameters" #}}',
    "python": "<tool_call>{name}(a=1)</tool_call>",
    "list": '[TOOL_CALLS][{{"name": "{name}", "arguments": {{}}}}]{{# <tool_call> #}}',
}


@pytest.mark.parametrize("way", WRITES)
def test_calls_written_otherwise_refuse_tools(way):
    written = WRITES[way].format(name="' + c.function.name + '").replace("[TOOL", "' + '[TOOL")
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ '" + written + "' }}{% endfor %}"
        "<eos>{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    )
    renderer = Renderer(made(source, MARKS, "<eos>", bos="<bos>"))
    assert not renderer.reads_tool_calls
    assert {finding.topic: finding.state for finding in examine(renderer)}["tools"] == "warning"
    with pytest.raises(TemplateRefused):
        renderer.render([user("hi")], [TOOL])


@pytest.mark.parametrize("source", [NO_SYSTEM, DROPS_SYSTEM], ids=["raises", "drops"])
def test_unshown_system_messages_are_refused(source):
    template = template_of(source)
    with pytest.raises(TemplateRefused):
        template.text([{"role": "system", "content": "Be brief."}, user("hi")])
    assert "hi" in template.text([user("hi")])
