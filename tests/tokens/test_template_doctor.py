"""Render, extend and parse under the published chat templates of the model families."""

import json
import re
from datetime import date

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.tokens import Renderer, TemplateRefused
from ajet.tokens.harmony import HarmonyParser
from ajet.tokens.parsing import ReplyParser, assemble
from ajet.tokens.template import template_text
from ajet.tokens.template_doctor import TOOL, TemplateRehearsal, call, own_reply, result
from tests.support.chat_templates import made
from tests.support.published_templates import FAMILIES, family

NAMES = sorted(FAMILIES)
THINKING = ["glm4.5", "gpt-oss", "qwen3", "qwen3.5"]
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is it?"}]
MORE = {"role": "user", "content": "Sure?"}
ANSWER = {"role": "assistant", "content": "It is a boat."}
THOUGHT = {"reasoning_content": "One moment."}
ONE, OTHER = call("skiff", 1), call("dinghy", 2, 1)
CALLING = {"role": "assistant", "content": None, "tool_calls": [ONE]}
RESULT = result(ONE, "a small boat")


def renderer(name, **options):
    return Renderer(family(name), **options)


def turn(name, reply, *then, **options):
    """One reply and what follows it."""
    tools = [TOOL] if reply.get("tool_calls") else None
    return TemplateRehearsal(renderer(name), ASK, tools).play(reply, *then, **options)


ENDS = {
    "qwen2.5": ["<|im_end|>"],
    "qwen3": ["<|im_end|>"],
    "qwen3.5": ["<|im_end|>"],
    "smollm2": ["<|im_end|>"],
    "hermes": ["<|im_end|>"],
    "llama3": ["<|eot_id|>", "<|eom_id|>"],
    "llama3.2": ["<|eot_id|>", "<|eom_id|>"],
    "glm4.5": ["<|user|>", "<|observation|>", "<|endoftext|>"],
    "gpt-oss": ["<|return|>", "<|call|>"],
}


@pytest.mark.parametrize("name", NAMES)
def test_stop_tokens_are_those_that_the_family_samples(name):
    render = renderer(name)
    assert [render.decode([token]) for token in render.end_ids] == ENDS[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_is_what_transformers_renders(name):
    tokenizer = family(name)
    for messages, tools in [(ASK, None), ([*ASK, ANSWER, MORE], None), (ASK[1:], None), (ASK, [TOOL])]:
        if tools and name in ("llama3", "smollm2"):
            continue  # their templates know no tools
        expected = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
        prompt = renderer(name).render(messages, tools)
        assert prompt.text == expected
        assert prompt.ids.tolist() == tokenizer.encode(expected, add_special_tokens=False)


PLAIN = {"answer": "extends", "length": "extends", "call": "extends", "respelled": "extends", "two": "extends"}
STRIPS = {"answer": "forks", "length": "forks"}
OUTCOMES = {
    "qwen2.5": PLAIN,
    "smollm2": PLAIN,
    "hermes": PLAIN,
    "llama3": PLAIN,
    "llama3.2": {**PLAIN, "two": "refused"},
    "qwen3": {**PLAIN, **STRIPS, "call": "forks", "respelled": "forks", "two": "forks"},  # an empty thought is stripped
    "qwen3.5": {**PLAIN, **STRIPS},
    "glm4.5": PLAIN,
    "gpt-oss": {**PLAIN, "answer": "forks", "two": "misread"},  # <|return|> becomes <|end|>; one call a message
}


@pytest.mark.parametrize("name", NAMES)
def test_turns_without_a_thought(name):
    assert {
        "answer": turn(name, ANSWER, MORE),
        "length": turn(name, ANSWER, MORE, cut=True),
        "call": turn(name, CALLING, RESULT),
        "respelled": turn(name, CALLING, RESULT, respell=True),
        "two": turn(name, {**CALLING, "tool_calls": [ONE, OTHER]}, RESULT, result(OTHER, "smaller")),
    } == OUTCOMES[name]


@pytest.mark.parametrize("name", THINKING)
def test_thinking_is_kept_between_calls_and_stripped_by_the_next_question(name):
    assert turn(name, {**CALLING, **THOUGHT}, RESULT) == "extends"
    assert turn(name, {**CALLING, **THOUGHT}, RESULT, respell=True) == "extends"
    assert turn(name, {**ANSWER, **THOUGHT}, MORE) == "forks"


@pytest.mark.parametrize("name", sorted({*THINKING} - {"gpt-oss"}))
def test_keep_thinking_goes_on_from_what_was_sampled(name):
    played = TemplateRehearsal(renderer(name, keep_thinking=True), ASK, [TOOL])
    replies = [({**CALLING, **THOUGHT}, RESULT), ({**ANSWER, **THOUGHT}, MORE)] * 2
    for at, (reply, then) in enumerate(replies):
        assert played.play(reply, then, respell=at == 0) == "extends"
    assert played.prompt.text.count("One moment.") == 4
    assert '"page":1,"word"' in played.prompt.text or name != "qwen3"
    assert played.renderer.decode(played.prompt.ids) == played.prompt.shown
    fresh = played.renderer.render(played.messages, [TOOL])
    assert "One moment." not in fresh.text
    assert played.prompt.text.endswith(fresh.text[fresh.text.rindex("Sure?") :])


def test_hermes_renders_a_result_otherwise_once_it_is_not_the_last():
    played = TemplateRehearsal(renderer("hermes"), ASK, [TOOL])
    assert played.play(CALLING, RESULT) == "extends"
    assert played.play(CALLING, RESULT) == "forks"
    assert played.cost > 1.4


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_system_prompt_or_tool_list_is_never_extended(name):
    render = renderer(name)
    before = render.render(ASK, [TOOL])
    reply = own_reply(render, ASK, ANSWER, MORE, [TOOL])
    said = render.parse(reply, tools=[TOOL], earlier_prompt=before)
    changed = [{"role": "system", "content": "Be long."}, ASK[1], said, MORE]
    assert render.extend(before, reply, "stop", changed, [TOOL]) is None
    other = {"type": "function", "function": {**TOOL["function"], "name": "search"}}
    assert render.extend(before, reply, "stop", [*ASK, said, MORE], [TOOL, other]) is None


def test_arguments_written_bare_get_the_types_of_their_schema():
    for name, spelled in [
        ("glm4.5", "\n<tool_call>look_up\n<arg_key>word</arg_key>\n<arg_value>5</arg_value>\n"
                   "<arg_key>page</arg_key>\n<arg_value>5</arg_value>\n</tool_call>"),
        ("qwen3.5", "</think>\n\n<tool_call>\n<function=look_up>\n<parameter=word>\n5\n</parameter>\n"
                    "<parameter=page>\n5\n</parameter>\n</function>\n</tool_call>"),
    ]:  # fmt: skip
        render = renderer(name)
        said = render.parse(render.encode(spelled), tools=[TOOL], earlier_prompt=render.render(ASK, [TOOL]))
        assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"word": "5", "page": 5}
        broken = spelled.replace("5</arg_value>\n</tool", "</tool").replace("\n</parameter>\n</func", "\n</func")
        assert broken != spelled
        said = render.parse(render.encode(broken), tools=[TOOL], earlier_prompt=render.render(ASK, [TOOL]))
        assert "tool_calls" not in said and said["content"].strip() == broken.removeprefix("</think>").strip()


KINDS = [
    ({"type": "string"}, "null", "null"),
    ({"type": ["string", "null"]}, "null", None),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "7", "7"),
    ({"enum": ["1", "2"]}, "1", "1"),
    ({"type": "boolean"}, "True", True),
    ({"type": "array"}, '["a", 1]', ["a", 1]),
    ({"type": "number"}, "NaN", "NaN"),
    ({"type": "object"}, "{broken", "{broken"),
    ({}, "2.5", 2.5),
    (None, "plain words", "plain words"),
]


@pytest.mark.parametrize(("schema", "spelled", "value"), KINDS)
def test_a_bare_argument_is_typed(schema, spelled, value):
    from ajet.tokens.tool_calls import glm_call

    parameters = {"type": "object", "properties": {} if schema is None else {"x": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    read = glm_call(f"f\n<arg_key>x</arg_key>\n<arg_value>{spelled}</arg_value>\n", [tool])
    assert read is not None and json.loads(read["arguments"]) == {"x": value}


def test_nothing_but_a_call_is_a_call():
    from ajet.tokens.tool_calls import glm_call, xml_call

    pair = "<arg_key>x</arg_key><arg_value>1</arg_value>"
    for text in ("", " ", "two words", "f<arg_key>x</arg_key>", f"f{pair}more", f"f{pair}{pair}", f"<f>{pair}"):
        assert glm_call(text) is None
    for text in ("", "<function=f>", "<function=f></function>x", "f()", "<function=f><parameter=x>1</function>",
                 "<function=></function>", "<function=f>x</function>"):  # fmt: skip
        assert xml_call(text) is None
    assert glm_call("now\n") == {"name": "now", "arguments": "{}"} == xml_call("\n<function=now>\n</function>\n")


HARMONY = [
    ("<|channel|>final<|message|>Hi.", {"content": "Hi."}),
    ("<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>Hi.",
     {"content": "Hi.", "reasoning_content": "So."}),
    ("<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>analysis<|message|>And.<|end|>",
     {"content": "", "reasoning_content": "So.\nAnd."}),
    ('<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>{"word": "é"}',
     {"content": None, "tool_calls": [{"word": "é"}]}),
    (' to=functions.look_up<|channel|>commentary json<|message|>{"word":"é"}',
     {"content": None, "tool_calls": [{"word": "é"}]}),
    ('<|channel|>commentary<|message|>Looking.<|end|><|start|>assistant to=functions.look_up<|channel|>commentary '
     'json<|message|>{}', {"content": "Looking.", "tool_calls": [{}]}),
    ("<|channel|>commentary to=functions.look_up json<|message|>{broken",
     {"content": "<|channel|>commentary to=functions.look_up json<|message|>{broken"}),
    ("Just words, no channel.", {"content": "Just words, no channel."}),
    ("<|channel|>fin", {"content": "<|channel|>fin"}),
    ("", {"content": ""}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), HARMONY)
def test_harmony_replies(text, expected):
    render = renderer("gpt-oss")
    said = render.parse(render.encode(text), tools=[TOOL], earlier_prompt=render.render(ASK, [TOOL]))
    if "tool_calls" in said:
        said["tool_calls"] = [json.loads(each["function"]["arguments"]) for each in said["tool_calls"]]
    assert said == {"role": "assistant", **expected}


def test_harmony_shows_every_call_of_a_message_and_thought_beside_content():
    render = renderer("gpt-oss")
    both = {"role": "assistant", "content": "Looking.", **THOUGHT, "tool_calls": [ONE, OTHER]}
    text = render.render([*ASK, both, result(OTHER, "smaller"), RESULT], [TOOL]).text
    order = [
        text.index(word) for word in ("One moment.\n\nLooking.", '"skiff"', '"a small boat"', '"dinghy"', '"smaller"')
    ]
    assert order == sorted(order)


def test_a_demanded_call_begins_the_reply_in_every_style():
    spelled = {
        "qwen2.5": ' {"word": "a"}}\n</tool_call>',
        "hermes": ' {"word": "a"}}\n</tool_call>',
        "llama3.2": ' {"word": "a"}}',
        "glm4.5": "<arg_key>word</arg_key>\n<arg_value>a</arg_value>\n</tool_call>",
        "gpt-oss": '{"word": "a"}',
    }
    for name, rest in spelled.items():
        render = renderer(name)
        prompt = render.force_call(render.render(ASK, [TOOL]), "look_up")
        assert prompt is not None and prompt.text.endswith(prompt.forced)
        end = render.end_ids[1] if name in ("glm4.5", "gpt-oss") else render.end_ids[0]
        reply = np.append(render.encode(rest), np.int32(end))
        said = render.parse(reply, tools=[TOOL], earlier_prompt=prompt)
        assert said["tool_calls"][0]["function"] == {"name": "look_up", "arguments": '{"word": "a"}'}
        after = render.extend(prompt, reply, "tool_calls", [*ASK, said, RESULT], [TOOL])
        assert after is not None and render.decode(after.ids) == after.shown
        assert after.ids[: len(prompt.ids) + len(reply)].tolist() == [*prompt.ids.tolist(), *reply.tolist()]
    opened = renderer("qwen3.5")
    assert opened.force_call(opened.render(ASK, [TOOL]), "look_up") is None


def test_calls_that_cannot_be_read_are_refused_not_lost():
    strange = "{% for message in messages %}{{ message.content }}{% endfor %}{% if tools %}<calls>{% endif %}"
    render = Renderer(made(strange, ("<|end|>",), "<|end|>"))
    assert render.render(ASK).text == "Be brief.What is it?"
    with pytest.raises(TemplateRefused, match="ajet cannot read the form"):
        render.render(ASK, [TOOL])


@pytest.mark.parametrize("name", NAMES)
def test_an_image_is_refused_by_name(name):
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    with pytest.raises(TemplateRefused, match="text model.*'image_url'"):
        renderer(name).render([{"role": "user", "content": [{"type": "text", "text": "See:"}, image]}])
    blocks = [{"type": "text", "text": "What "}, {"type": "text", "text": "is it?"}]
    assert renderer(name).render([ASK[0], {"role": "user", "content": blocks}]).text == renderer(name).render(ASK).text


@pytest.mark.parametrize("name", ["llama3.2", "gpt-oss"])
def test_the_date_in_a_prompt_is_the_one_that_it_is_asked_for(name):
    today = renderer(name)
    old = today.on_day(date(2024, 5, 6))
    assert "06 May 2024" in old.render(ASK).text or "2024-05-06" in old.render(ASK).text
    assert old.render(ASK).text == old.render(ASK).text != today.render(ASK).text
    assert today.on_day(today.template.day) is today
    plain = renderer("qwen3")
    assert plain.on_day(date(2024, 5, 6)) is plain


def test_tools_of_an_earlier_turn_are_shown_without_a_tool_list():
    text = renderer("hermes").render([*ASK, CALLING, RESULT]).text
    assert '"name": "look_up"' in text and "<tool_response>\na small boat" in text
    assert renderer("hermes").render(ASK).text == family("hermes").apply_chat_template(
        ASK, add_generation_prompt=True, tokenize=False
    )


# Properties: any conversation, under every family.

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | WORDS, lambda inner: st.lists(inner, max_size=2), max_leaves=3
)
ARGUMENTS = st.dictionaries(st.sampled_from(["word", "page", "more"]), JSON, max_size=3)
TYPED = st.fixed_dictionaries({}, optional={"word": WORDS, "page": st.integers(), "more": st.lists(st.integers())})
FOREIGN = WORDS | st.sampled_from(["<think>\nno\n</think>\n\n", "<|im_end|>\n", "</tool_call>", "<|user|>", "<|end|>"])
STEPS = st.lists(
    st.tuples(
        st.lists(ARGUMENTS, max_size=2),
        WORDS,
        WORDS,
        FOREIGN,
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


def spelled_out(render, ids):
    """The same text a character a token, tags apart."""
    added = sorted(render.tokenizer.get_added_vocab(), key=len, reverse=True)
    pieces = re.split("(" + "|".join(map(re.escape, added)) + ")", render.decode(ids))
    letters = [each for piece in pieces for each in ([piece] if piece in added else piece)]
    return np.concatenate([render.encode(each) for each in letters if each])


def the_reply(render, messages, arguments, content, thought, then, respell, split):
    calls = [call("skiff", at, len(messages)) for at in range(len(arguments))]
    for made_, each in zip(calls, arguments, strict=True):
        made_["function"] = {"name": "look_up", "arguments": json.dumps(each, ensure_ascii=False)}
    reply = {"role": "assistant", "content": content}
    if thought and (render.thinks or render.template.style == "harmony"):
        reply["reasoning_content"] = thought
    if calls:
        reply["tool_calls"] = calls
    follow = [result(made_, then or "?") for made_ in calls] or [{"role": "user", "content": then or "?"}]
    ids = own_reply(render, messages, reply, follow[0], [TOOL], respell=respell)
    return (spelled_out(render, ids) if split else ids), follow


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.sampled_from(NAMES), STEPS, st.booleans())
def test_whatever_is_said_ids_are_kept_or_the_branch_forks(name, steps, keep_thinking):
    render = renderer(name, keep_thinking=keep_thinking)
    messages = list(ASK)
    prompt = render.render(messages, [TOOL])
    for arguments, content, thought, then, respell, split in steps:
        try:
            ids, follow = the_reply(render, messages, arguments, content, thought, then, respell, split)
        except TemplateRefused:
            return  # two calls at once for Llama 3
        said = render.parse(ids, tools=[TOOL], earlier_prompt=prompt)
        for made_, each in zip(said.get("tool_calls") or (), follow, strict=False):
            made_["id"] = each.get("tool_call_id", "x")
        messages = [*messages, said, *follow]
        after = render.extend(prompt, ids, "stop", messages, [TOOL])
        fresh = render.render(messages, [TOOL])
        assert render.decode(fresh.ids) == fresh.shown
        own = template_text(prompt.text, prompt.respelled)
        if after is None:
            assert not fresh.text.startswith(own + render.decode(ids))  # no fork without need
            prompt = fresh
            continue
        assert after.ids[: len(prompt.ids) + len(ids)].tolist() == [*prompt.ids.tolist(), *ids.tolist()]
        assert after.shown == render.decode(after.ids)
        assert after.text.startswith(prompt.text + render.decode(ids))
        shown = template_text(after.text, after.respelled)
        if keep_thinking:
            shown, stripped = (re.sub(r"<think>.*?</think>|\s+", "", each, flags=re.S) for each in (shown, fresh.text))
            assert shown == stripped
        else:
            assert shown == fresh.text  # but for the spelling of calls, the template's own text
        prompt = after


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.sampled_from(NAMES), st.none() | TYPED, WORDS, WORDS, st.booleans(), st.data())
def test_what_a_template_spells_is_read_back_however_it_is_cut(name, arguments, content, thought, split, data):
    render = renderer(name)
    content, thought = content.strip(), thought.strip()
    called = [] if arguments is None else [arguments]
    ids, _ = the_reply(render, ASK, called, content, thought, "", False, split)
    before = render.render(ASK, [TOOL])
    said = render.parse(ids, tools=[TOOL], earlier_prompt=before)
    if called:
        assert [json.loads(each["function"]["arguments"]) for each in said["tool_calls"]] == called
    else:
        assert said["content"] == content
    if thought and name in THINKING and not (name == "gpt-oss" and called and content):
        assert said["reasoning_content"] == thought
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    stream = render.reply_stream([TOOL], earlier_prompt=before)
    for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        stream.feed(ids[start:stop].tolist())
    assert stream.message() == said


PIECES = st.lists(
    st.sampled_from(
        ["<tool_call>", "</tool_call>", "look_up", "<function=look_up>", "</function>", "<parameter=word>", "\n", " ",
         "é", "</parameter>", "<arg_key>word</arg_key>", "<arg_value>", "</arg_value>", "<|channel|>", "analysis",
         "final", "commentary", " to=functions.look_up", "<|constrain|>json", "<|message|>", "<|end|>", "<|start|>",
         "assistant",         '{"word": "a"}', "{", "a", "<", "<|"]
    ),
    max_size=16,
).map("".join)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(PIECES, st.sampled_from(["xml", "glm", "harmony"]), st.booleans(), st.data())
def test_however_a_text_is_cut_it_reads_the_same_in_every_style(text, style, told, data):
    def machine():
        tools = [TOOL] if told else None
        return HarmonyParser(tools=tools) if style == "harmony" else ReplyParser(style, tools=tools)

    whole, pieces = machine(), machine()
    expected = assemble(whole.feed(text) + whole.close())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    deltas = []
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        deltas += pieces.feed(text[start:stop])
    assert assemble(deltas + pieces.close()) == expected and pieces.raw == whole.raw
    assert text.endswith(whole.raw)
    assert told or "tool_calls" not in expected
    if style != "harmony" and "tool_calls" not in expected:
        assert expected["content"] == text


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.sampled_from(NAMES), st.lists(st.integers(0, 2000), min_size=1, max_size=20), st.booleans(), st.booleans())
def test_whatever_ids_are_sampled_are_kept_or_forked(name, sampled, ended, keep_thinking):
    """Special tokens in any order, too: nothing hangs, nothing is encoded again."""
    render = renderer(name, keep_thinking=keep_thinking)
    control = [token for token in render.tokenizer.get_added_vocab().values() if token not in render.end_ids]
    ids = [control[token % 50] if token % 50 < len(control) else token % 400 for token in sampled]
    reply = np.array([token for token in ids if token not in render.end_ids] or [40], dtype=np.int32)
    reply = np.append(reply, np.int32(render.end_ids[0])) if ended else reply
    before = render.render(ASK, [TOOL])
    said = render.parse(reply, tools=[TOOL], earlier_prompt=before)
    try:
        after = render.extend(before, reply, "stop" if ended else "length", [*ASK, said, MORE], [TOOL])
    except TemplateRefused:
        assert name in ("gpt-oss", "llama3.2")  # channels in the content; a call beside others
        return
    if after is not None:
        assert after.ids[: len(before.ids) + len(reply)].tolist() == [*before.ids.tolist(), *reply.tolist()]
        assert after.text.startswith(before.text + render.decode(reply, after=before.ids))
