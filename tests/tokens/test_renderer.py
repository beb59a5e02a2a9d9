"""Render, extend and parse, on tokenizers with the chat templates of four families."""

import copy
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.schema.errors import UserError
from ajet.tokens import Rendered, Renderer, TemplateRefused
from ajet.tokens.parsing import ReplyParser, assemble
from tests.support.chat_templates import STYLES, tokenizer, variant

ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1 + 2?"}]
STYLE_NAMES = sorted(STYLES)


def renderer(style: str, **options) -> Renderer:
    return Renderer(tokenizer(style), **options)


def ids_of(render: Renderer, text: str, *, ended: bool = True) -> np.ndarray:
    ids = render.encode(text)
    return np.append(ids, np.int32(render.end_ids[0])) if ended else ids


def go_on(render: Renderer, before: Rendered, reply: np.ndarray, more: list, tools=None, finish="stop", **options):
    """The prompt after a reply and `more` messages; the reply as parsed."""
    said = render.parse(reply, tools=tools, earlier_prompt=before)
    messages = [*ASK, said, *more]
    return messages, render.extend(before, reply, finish, messages, tools, **options)


@pytest.mark.parametrize("style", STYLE_NAMES)
def test_a_prompt_is_the_templates_text_and_its_ids(style):
    render = renderer(style)
    prompt = render.render(ASK)
    expected = tokenizer(style).apply_chat_template(ASK, add_generation_prompt=True, tokenize=False)
    assert prompt.text == expected
    assert prompt.ids.tolist() == tokenizer(style).encode(expected, add_special_tokens=False)
    assert render.decode(prompt.ids) == expected


@pytest.mark.parametrize(("style", "end"), [(name, STYLES[name][2]) for name in STYLE_NAMES])
def test_the_end_of_a_turn_is_found_in_the_template(style, end):
    render = renderer(style)
    assert render.decode([render.end_ids[0]]) == end
    if style == "llama3":
        assert render.decode([render.end_ids[1]]) == "<|eom_id|>"


def test_a_base_models_eos_is_an_end_beside_the_templates():
    made = tokenizer("qwen25").__class__(
        tokenizer_object=tokenizer("qwen25").backend_tokenizer, eos_token="<|endoftext|>"
    )
    made.chat_template = tokenizer("qwen25").chat_template
    render = Renderer(made)
    assert [render.decode([token]) for token in render.end_ids] == ["<|im_end|>", "<|endoftext|>"]


@pytest.mark.parametrize("style", STYLE_NAMES)
@pytest.mark.parametrize("ended", [True, False])
def test_extension_keeps_the_replys_ids_and_encodes_only_what_follows(style, ended):
    render = renderer(style)
    before = render.render(ASK)
    # Ids that encoding the text would never give: one token a character.
    reply = np.concatenate([render.encode(letter) for letter in "It is 3."])
    reply = np.append(reply, np.int32(render.end_ids[0])) if ended else reply
    assert render.encode("It is 3.").tolist() != reply[:8].tolist()
    messages, after = go_on(
        render, before, reply, [{"role": "user", "content": "Sure?"}], finish="stop" if ended else "length"
    )
    assert after is not None
    assert after.text == render.render(messages).text
    head = len(before.ids) + len(reply)
    assert after.ids[:head].tolist() == [*before.ids.tolist(), *reply.tolist()]
    assert after.ids[head:].tolist() == render.encode(after.text[len(before.text + render.decode(reply)) :]).tolist()
    end_follows = render.decode(after.ids[head:]).startswith(STYLES[style][2])
    assert end_follows == (not ended)


@pytest.mark.parametrize("blank", [False, True])
def test_text_within_a_message_goes_on_where_the_tokenizer_adds_nothing_to_it(blank):
    """Some tokenizers put a blank before every text: what follows a stop string would have other words."""
    from tokenizers.pre_tokenizers import ByteLevel

    made = copy.deepcopy(tokenizer("qwen25"))
    made.backend_tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=blank)
    render = Renderer(made)
    before = render.render(ASK)
    reply = np.concatenate([render.encode(each) for each in ("Look.\n", "Observation:")])
    more = {"role": "assistant", "content": render.decode(reply) + "3"}
    after = render.extend(before, reply, "stop", [*ASK, more], verbatim=False)
    assert (after is None) == blank
    assert after is None or after.text == render.render([*ASK, more]).text


def test_another_end_token_than_the_templates_forks():
    render = renderer("qwen25", end_ids=[0])
    before = render.render(ASK)
    reply = np.append(render.encode("3"), np.int32(0))
    assert render.decode(reply) == "3<|endoftext|>"
    assert go_on(render, before, reply, [{"role": "user", "content": "Sure?"}])[1] is None


def test_a_template_that_trims_what_was_sampled_forks():
    render = renderer("llama3")
    before = render.render(ASK)
    assert go_on(render, before, ids_of(render, " 3 "), [{"role": "user", "content": "Sure?"}])[1] is None


@pytest.mark.parametrize("style", ["smollm2", "qwen25", "qwen3"])
@pytest.mark.parametrize("spelled", ['{"a": 1, "b": "é"}', '{"b":"\\u00e9","a":1}', '{ "a":1 }'])
def test_a_tool_call_is_kept_as_it_was_spelled(style, spelled):
    render = renderer(style)
    before = render.render(ASK, [ADD])
    reply = ids_of(render, f'<tool_call>\n{{"name": "add", "arguments": {spelled}}}\n</tool_call>')
    messages, after = go_on(render, before, reply, [{"role": "tool", "content": "3"}], [ADD])
    if style == "qwen3" and after is None:
        pytest.fail("a call without thinking extends where the template shows no thinking")
    assert json.loads(messages[2]["tool_calls"][0]["function"]["arguments"]) == json.loads(spelled)
    assert after is not None
    assert after.ids[: len(before.ids) + len(reply)].tolist() == [*before.ids.tolist(), *reply.tolist()]
    # … and so is the next one after it.
    again = ids_of(render, "3.")
    final = render.extend(
        after,
        again,
        "stop",
        [*messages, render.parse(again, earlier_prompt=after), {"role": "user", "content": "ok"}],
        [ADD],
    )
    assert final is not None and render.decode(final.ids) == final.shown
    assert final.ids[: len(after.ids)].tolist() == after.ids.tolist()


def test_several_calls_where_the_template_refuses_several_are_kept_as_sampled():
    render = renderer("llama3")
    before = render.render(ASK, [ADD])
    reply = ids_of(render, '{"name": "add", "parameters": {"a": 1}}; {"name": "add", "parameters": {"a": 2}}')
    messages, after = go_on(render, before, reply, [{"role": "tool", "content": "3"}], [ADD])
    assert [call["function"]["arguments"] for call in messages[2]["tool_calls"]] == ['{"a": 1}', '{"a": 2}']
    assert after is not None
    with pytest.raises(TemplateRefused, match="single tool-calls"):
        render.render(messages, [ADD])


THOUGHT = "<think>\nOne and two.\n</think>\n\n3"


def test_thinking_stays_within_a_turn_and_is_stripped_by_the_next_question():
    render = renderer("qwen3")
    before = render.render(ASK, [ADD])
    call = ids_of(
        render, '<think>\nI add.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    )
    messages, after = go_on(render, before, call, [{"role": "tool", "content": "3"}], [ADD])
    assert messages[2]["reasoning_content"] == "I add." and messages[2]["content"] is None
    assert after is not None
    assert go_on(render, before, ids_of(render, THOUGHT), [{"role": "user", "content": "Sure?"}], [ADD])[1] is None


def test_keep_thinking_extends_where_only_thinking_differs():
    render = renderer("qwen3", keep_thinking=True)
    before = render.render(ASK)
    reply = ids_of(render, THOUGHT)
    messages, after = go_on(render, before, reply, [{"role": "user", "content": "Sure?"}])
    assert after is not None
    assert render.decode(after.ids) == after.shown
    assert after.text.startswith(before.text + THOUGHT + "<|im_end|>\n<|im_start|>user\nSure?")
    again = ids_of(render, THOUGHT)
    more = [*messages, render.parse(again, earlier_prompt=after), {"role": "user", "content": "Really?"}]
    final = render.extend(after, again, "stop", more)
    assert final is not None and final.text.count("One and two.") == 2
    more[1] = {"role": "user", "content": "What is 1 + 3?"}
    assert render.extend(after, again, "stop", more) is None


def test_a_prompt_that_opens_the_thought_is_parsed_as_thinking():
    render = renderer("qwen3")
    plain = render.render(ASK)
    opened = Rendered(plain.text + "<think>\n", np.concatenate([plain.ids, render.encode("<think>\n")]), 2)
    said = render.parse(render.encode("One and two.\n</think>\n\n3"), earlier_prompt=opened)
    assert said == {"role": "assistant", "content": "3", "reasoning_content": "One and two."}


def test_models_without_tools_in_their_template_are_told_of_them():
    render = renderer("smollm2")
    text = render.render(ASK, [ADD]).text
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools") and json.dumps(ADD) in text
    calls = [{"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    later = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "x", "content": "3"},
        {"role": "tool", "tool_call_id": "y", "content": "4"},
    ]
    text = render.render(later, [ADD]).text
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>' in text
    assert text.count("<|im_start|>user") == 2 and "3\n</tool_response>\n<tool_response>\n4" in text


def test_a_forced_call_begins_the_reply():
    for style, spelled in [("qwen25", ' {"a": 1}}\n</tool_call>'), ("llama3", ' {"a": 1}}')]:
        render = renderer(style)
        plain = render.render(ASK, [ADD])
        prompt = render.force_call(plain, "add")
        assert prompt is not None and prompt.text.startswith(plain.text)
        reply = ids_of(render, spelled)
        said = render.parse(reply, tools=[ADD], earlier_prompt=prompt)
        assert said["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
        after = render.extend(prompt, reply, "tool_calls", [*ASK, said, {"role": "tool", "content": "3"}], [ADD])
        assert after is not None and render.decode(after.ids) == after.shown


def test_without_a_chat_template_the_person_is_told():
    with pytest.raises(UserError, match="no chat template"):
        Renderer(variant("smollm2", template=""))


def test_a_template_that_raises_refuses_the_request():
    made = tokenizer("smollm2").__class__(
        tokenizer_object=tokenizer("smollm2").backend_tokenizer, eos_token="<|im_end|>"
    )
    made.chat_template = (
        "{{ raise_exception('roles must alternate') if messages | length > 1 else messages[0].content }}"
    )
    with pytest.raises(TemplateRefused, match="roles must alternate"):
        Renderer(made).render(ASK)
    with pytest.raises(TemplateRefused, match="Unicode"):
        renderer("smollm2").render([{"role": "user", "content": "\ud800"}])


def call(name="add", arguments='{"a": 1}'):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


HERMES = [
    ("plain \n", {"content": "plain \n"}),
    ('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', {"content": None, "tool_calls": [call()]}),
    ('Hm.\n<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>\n', {"content": "Hm.", "tool_calls": [call()]}),
    (
        '<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>\n<tool_call>{"name":"f","arguments":{}}</tool_call>',
        {"content": None, "tool_calls": [call(), call("f", "{}")]},
    ),
    ('<tool_call>{"name":"add","arguments":{"a":1}}</tool_call> so', {"content": "so", "tool_calls": [call()]}),
    *[
        (f"Hm. <tool_call>{bad}</tool_call>\n", {"content": f"Hm. <tool_call>{bad}</tool_call>\n"})
        for bad in [
            "", "{", '{"name": "add"}', '{"name": "add", "arguments": "1"}', '{"name": 3, "arguments": {}}', "[]",
            '{"name": "add", "arguments": {"a": NaN}}', '{"name": "add", "arguments": {"a": "\\ud800"}}',
        ]
    ],
    ('<tool_call>{"name": "add", "arg', {"content": '<tool_call>{"name": "add", "arg'}),
    ("a <tool", {"content": "a <tool"}),
    ("<think>\nso\n</think>\n\nyes", {"content": "yes", "reasoning_content": "so"}),
    ("<think>\n\n</think>\n\nyes", {"content": "yes"}),
    ("<think>on and on", {"content": "", "reasoning_content": "on and on"}),
    ("no <think>later</think>", {"content": "no <think>later</think>"}),
    (
        '<think>so</think><tool_call>{"name":"add","arguments":{"a":1}}</tool_call>',
        {"content": None, "reasoning_content": "so", "tool_calls": [call()]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), HERMES)
def test_hermes_replies(text, expected):
    parser = ReplyParser("hermes", tools=[ADD], thinking=False)
    assert assemble(parser.feed(text) + parser.close()) == {"role": "assistant", **expected}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", {"content": "plain"}),
        ('{"name": "add", "parameters": {"a": 1}}', {"content": None, "tool_calls": [call()]}),
        ('<|python_tag|>{"name": "add", "parameters": {"a": 1}}', {"content": None, "tool_calls": [call()]}),
        ('{"name": "add", "parameters": {"a": 1}} and', {"content": '{"name": "add", "parameters": {"a": 1}} and'}),
        ('{"name": "Ann", "age": 3}', {"content": '{"name": "Ann", "age": 3}'}),
        ("<|python_tag|>print(1)", {"content": "<|python_tag|>print(1)"}),
    ],
)
def test_llama_replies(text, expected):
    parser = ReplyParser("llama", tools=[ADD])
    assert assemble(parser.feed(text) + parser.close()) == {"role": "assistant", **expected}


def test_without_tools_nothing_is_a_tool_call():
    text = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    assert renderer("qwen25").parse(ids_of(renderer("qwen25"), text))["content"] == text


def test_a_tokenizers_own_response_schema_is_used():
    made = variant("qwen25")
    made.response_schema = {
        "type": "object",
        "properties": {
            "role": {"const": "assistant"},
            "content": {"type": "string", "x-regex": r"^(.*?)(?:CALL|$)"},
            "tool_calls": {
                "type": "array",
                "x-regex-iterator": r"CALL(\{.*?\})END",
                "items": {"type": "object", "x-parser": "json", "properties": {"name": {"type": "string"}}},
            },
        },
    }
    render = Renderer(made)
    said = render.parse(ids_of(render, 'So: CALL{"name": "add", "arguments": {"a": 1}}END'), tools=[ADD])
    assert said == {"role": "assistant", "content": "So: ", "tool_calls": [call()]}
    broken = render.parse(ids_of(render, "CALL{]}END"), tools=[ADD])
    assert broken == {"role": "assistant", "content": "CALL{]}END"}


FRAGMENTS = st.lists(
    st.sampled_from(
        ["<tool_call>", "</tool_call>", "<think>", "</think>", "\n", " ", "a", "<", "<tool", "é", "深",
         '{"name": "add", "arguments": {"a": 1}}', '{"name": "add", "parameters": {}}', ";", "<|python_tag|>", "STOP"]
    ),
    max_size=14,
).map("".join)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(FRAGMENTS, st.sampled_from(["hermes", "llama", "none"]), st.sampled_from([None, False, True]), st.data())
def test_however_a_text_is_cut_it_reads_the_same(text, style, thinking, data):
    def machine() -> ReplyParser:
        return ReplyParser(style, tools=[ADD], thinking=thinking)

    whole, pieces = machine(), machine()
    expected = assemble(whole.feed(text) + whole.close())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    deltas = []
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        deltas += pieces.feed(text[start:stop])
    assert assemble(deltas + pieces.close()) == expected
    if thinking is None and not expected.get("tool_calls"):
        assert expected["content"] == text


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(3, 395), max_size=70), st.data())
def test_however_ids_are_cut_their_text_is_the_same(ids, data):
    render = renderer("smollm2")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    stream = render.reply_stream()
    deltas = []
    for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        deltas += stream.feed(ids[start:stop])
    deltas += stream.close()
    assert assemble(deltas)["content"] == render.decode(ids)
    assert stream.id_count == len(ids)


@settings(max_examples=70, deadline=None)
@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=3), st.integers(1, 5))
def test_a_stop_string_cuts_at_the_token_that_completes_it(text, stops, chunk):
    render = renderer("smollm2")
    ids = [token for letter in text for token in render.encode(letter).tolist()]
    stream = render.reply_stream(stop=stops)
    for at in range(0, len(ids), chunk):
        stream.feed(ids[at : at + chunk])
    message = stream.message()
    if not any(stop in text for stop in stops):
        assert stream.stopped is None and stream.id_count == len(ids) and message["content"] == text
        return
    assert stream.stopped in stops
    kept = render.decode(ids[: stream.id_count])
    assert stream.stopped in kept
    if stream.id_count < len(ids):
        assert not any(stop in render.decode(ids[: stream.id_count - 1]) for stop in stops)
    assert not any(stop in message["content"] for stop in stops)
    assert kept.startswith(message["content"] + stream.stopped)


@pytest.mark.slow
@settings(max_examples=70, deadline=None)
@given(
    st.sampled_from(STYLE_NAMES),
    st.lists(st.integers(8, 390), min_size=1, max_size=20),
    st.booleans(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
def test_extension_is_before_plus_reply_plus_suffix_or_none(style, sampled, ended, question):
    """Whatever ids were sampled: text equal to the template's, ids never re-encoded."""
    render = renderer(style)
    before = render.render(ASK)
    reply = np.array([*sampled, render.end_ids[0]] if ended else sampled, dtype=np.int32)
    messages, after = go_on(
        render, before, reply, [{"role": "user", "content": question}], finish="stop" if ended else "length"
    )
    if after is None:
        said = render.decode(reply).removesuffix(STYLES[style][2])
        assert style == "qwen3" or (style == "llama3" and said != said.strip())
        return
    head = len(before.ids) + len(reply)
    assert after.ids[:head].tolist() == [*before.ids.tolist(), *reply.tolist()]
    assert after.text == render.render(messages).text
    assert before.text + render.decode(reply) + render.decode(after.ids[head:]) == after.text
