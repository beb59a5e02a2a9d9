"""Tool calls whose text arguments hold tags of their own format, in any pieces."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.tokens.harmony import HarmonyParser
from ajet.tokens.parsing import Parser, ReplyParser, assemble

TEXT = {"type": "string"}
TOOLS = [
    {"type": "function", "function": {"name": "write", "parameters": {
        "type": "object", "properties": {"path": TEXT, "content": TEXT}}}}
]  # fmt: skip
FORMATS = ("hermes", "xml", "glm", "harmony")
TAGS = {
    "hermes": ("<tool_call>", "</tool_call>", '"', "\\", "}", "\n"),
    "xml": ("</tool_call>", "</parameter>", "</function>", "<tool_call>", "\n"),
    "glm": ("</tool_call>", "</arg_value>", "<tool_call>", "</arg_key>", "\n"),
    "harmony": ("<|end|>", "<|start|>", "<|message|>", "<|channel|>", '"', "\\"),
}


def write_call(style: str, path: str, content: str) -> str:
    """Return a call of `write` as models of this format spell it."""
    arguments = json.dumps({"path": path, "content": content})
    if style == "hermes":
        return f'<tool_call>\n{{"name": "write", "arguments": {arguments}}}\n</tool_call>'
    if style == "xml":
        pairs = f"<parameter=path>\n{path}\n</parameter>\n<parameter=content>\n{content}\n</parameter>\n"
        return f"<tool_call>\n<function=write>\n{pairs}</function>\n</tool_call>"
    if style == "glm inline":
        pair = "<arg_key>{}</arg_key><arg_value>{}</arg_value>"
        return f"<tool_call>write{pair.format('path', path)}{pair.format('content', content)}</tool_call>"
    if style == "glm":
        pair = "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"
        return f"<tool_call>write\n{pair.format('path', path)}{pair.format('content', content)}</tool_call>"
    return f"<|channel|>commentary to=functions.write <|constrain|>json<|message|>{arguments}"


def join_calls(style: str, calls: list[str]) -> str:
    return ("<|end|><|start|>assistant" if style == "harmony" else "\n").join(calls)


def read(style: Any, pieces: list[str]) -> tuple[str, list[dict[str, Any]]]:
    """Return the content and the arguments of the calls."""
    style = style.split()[0]
    parser: Parser = HarmonyParser(tools=TOOLS) if style == "harmony" else ReplyParser(style, tools=TOOLS)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.close()
    message = assemble(deltas)
    calls = [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return message["content"] or "", calls


def cut(text: str, places: list[int]) -> list[str]:
    at = sorted({place % (len(text) + 1) for place in places})
    return [text[one:other] for one, other in zip([0, *at], [*at, len(text)], strict=True)]


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("place", ["alone", "start", "end", "amid", "twice"])
def test_tags_within_arguments_are_text(style, place):
    for tag in TAGS[style]:
        content = {"alone": tag, "start": f"{tag} x", "end": f"x {tag}", "amid": f"a {tag} b", "twice": f"{tag}{tag} c"}
        told = content[place].strip("\n") if style in ("xml", "glm") else content[place]
        assert read(style, [write_call(style, "a", told)]) == ("", [{"path": "a", "content": told}]), (style, tag)


@pytest.mark.parametrize("style", FORMATS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_pieces_add_up_to_the_complete_reply(style, data):
    part = st.one_of(st.sampled_from(TAGS[style]), st.sampled_from(["a", " ", "<", "{", "</", "tool_call>"]))
    texts = data.draw(st.lists(st.lists(part, max_size=6).map("".join), min_size=1, max_size=3))
    reply = join_calls(style, [write_call(style, "a", text) for text in texts])
    reply = reply[: data.draw(st.integers(0, len(reply)))] if data.draw(st.booleans()) else reply
    places = data.draw(st.lists(st.integers(0, 10_000), max_size=8))
    assert read(style, cut(reply, places)) == read(style, [reply]) == read(style, list(reply))


@pytest.mark.parametrize("style", ["hermes", "harmony"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_quoted_arguments_hold_any_text(style, data):
    part = st.one_of(st.sampled_from(TAGS[style]), st.text(st.characters(blacklist_categories=["Cs"]), max_size=5))
    texts = data.draw(st.lists(st.lists(part, max_size=6).map("".join), min_size=1, max_size=3))
    wanted = [{"path": "a", "content": text} for text in texts]
    if style == "harmony" and any("<|end|><|start|>assistant" in text for text in texts):
        return
    reply = join_calls(style, [write_call(style, "a", text) for text in texts])
    assert read(style, [reply])[1] == wanted


BROKEN = {
    "hermes": '<tool_call>\n{"name": "write", "arguments": {"path": "x}}\n</tool_call>',
    "xml": "<tool_call>\n<function=write>\n<parameter=path>\nx\n</function>\n</tool_call>",
    "xml without function end": "<tool_call>\n<function=write>\n<parameter=path>\nx\n</parameter>\n</tool_call>",
    "glm": "<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>x\n</tool_call>",
}


@pytest.mark.parametrize("name", BROKEN)
def test_call_after_a_broken_one_is_read(name):
    style = name.split()[0]
    content, calls = read(style, [BROKEN[name] + "\n" + write_call(style, "a", "b")])
    assert calls == [{"path": "a", "content": "b"}]
    assert content == BROKEN[name]


@pytest.mark.parametrize("style", ["hermes", "xml", "glm", "harmony"])
def test_many_end_tags_are_read_in_time(style):
    content = f"- {TAGS[style][1 if style == 'hermes' else 0]}" * 3_000
    reply = write_call(style, "a", content)
    pieces = [reply[at : at + 4] for at in range(0, len(reply), 4)]
    began = time.process_time()
    assert read(style, pieces)[1] == [{"path": "a", "content": content}]
    assert time.process_time() - began < 5


REPEATED = {
    "xml": "<tool_call><function=f><parameter=a>\nx</tool_call>",
    "xml pairs": "<tool_call><function=f><parameter=a>\nx\n<parameter=b>\ny\n</parameter>\n</tool_call>",
    "glm": "<tool_call>f<arg_key>a</arg_key><arg_value></tool_call>",
    "hermes": '<tool_call>{"x</tool_call>',
}


@pytest.mark.parametrize("name", REPEATED)
def test_repeated_broken_call_is_read_in_time(name):
    began = time.process_time()
    assert read(name.split()[0], [REPEATED[name] * 1_500]) == (REPEATED[name] * 1_500, [])
    assert time.process_time() - began < 5


def read_in_pieces(style: str, text: str) -> tuple[str, list[dict[str, Any]]]:
    """Return what the reply says, which is the same in pieces of 1 and 7 characters."""
    complete = read(style, [text])
    for size in (1, 7):
        assert read(style, [text[at : at + size] for at in range(0, len(text), size)]) == complete
    return complete


ENDS = {
    "hermes": '"}}</tool_call>',
    "xml": "</parameter></function></tool_call>",
    "glm": "</arg_value></tool_call>",
    "glm inline": "</arg_value>\n<tool_call>",
    "harmony": '"}<|end|>',
}


@pytest.mark.parametrize("style", ENDS)
def test_complete_end_within_a_line_is_text(style):
    for content in (
        f"before {ENDS[style]} after",
        f"a\n{ENDS[style]}{ENDS[style]} b\nc",
        f"x {ENDS[style]}",
        ENDS[style],
    ):
        reply = join_calls(style, [write_call(style, "a", content), write_call(style, "b", "good")])
        wanted = [{"path": "a", "content": content}, {"path": "b", "content": "good"}]
        assert read_in_pieces(style, reply) == ("", wanted), content


@pytest.mark.parametrize("style", ENDS)
@pytest.mark.parametrize("place", ["{}", "Example:\n{}\nend", "{} and {}", "one:\n{}\nother:\n{}", "\t{}"])
def test_quoted_call_is_text(style, place):
    example = write_call(style, "q", "quoted")
    for quoted in (example, example.replace("\n", "")):
        content = place.replace("{}", quoted)
        reply = join_calls(style, [write_call(style, "a", content), write_call(style, "b", "good")])
        wanted = [{"path": "a", "content": content}, {"path": "b", "content": "good"}]
        assert read_in_pieces(style, reply) == ("", wanted)


@pytest.mark.parametrize("style", ["xml", "glm"])
def test_call_quoted_within_a_quoted_call_is_text(style):
    content = write_call(style, "a", f"one:\n{write_call(style, 'b', 'x')}\nend")
    assert read_in_pieces(style, write_call(style, "c", content)) == ("", [{"path": "c", "content": content}])


AMBIGUOUS = {
    "xml": "before\n</parameter>\n</function>\n</tool_call>\nafter",
    "glm": "before</arg_value>\n</tool_call>\nafter",
    "glm inline": "before</arg_value></tool_call>\nafter",
}


@pytest.mark.parametrize("style", AMBIGUOUS)
def test_call_ends_at_the_first_complete_end(style):
    content, calls = read_in_pieces(style, write_call(style, "a", AMBIGUOUS[style]))
    assert calls == [{"path": "a", "content": "before"}]
    assert content.startswith("after")


UNENDED = {
    "xml": "<tool_call>\n<function=write>\n<parameter=path>\nx\n"
    "<parameter=content>\ny\n</parameter>\n</function>\n</tool_call>",
    "xml inline": "<tool_call><function=write><parameter=path>x<parameter=content>y</parameter></function></tool_call>",
    "glm": "<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>x\n"
    "<arg_key>content</arg_key>\n<arg_value>y</arg_value>\n</tool_call>",
    "glm inline": "<tool_call>write<arg_key>path</arg_key><arg_value>x"
    "<arg_key>content</arg_key><arg_value>y</arg_value></tool_call>",
    "hermes": '<tool_call>{"name": "write", "arguments": {"path": "x, "content": "y"}}</tool_call>',
    "hermes odd": '<tool_call>{"name": "write", "arguments": {"path": "say "hi there"}}</tool_call>',
    "hermes even": '<tool_call>{"name": "write", "arguments": {"path": "say "hi" there"}}</tool_call>',
    "hermes single": "<tool_call>{'name': 'write', 'arguments': {'path': 'it\"s'}}</tool_call>",
    "hermes newline": '<tool_call>{"name": "write", "arguments": {"path": "x\ny"}}</tool_call>',
    "hermes two": '<tool_call>{"name": "write", "arguments": {}}{"name": "write", "arguments": {}}</tool_call>',
}  # fmt: skip


@pytest.mark.parametrize("name", UNENDED)
@pytest.mark.parametrize("between", ["", "\n"])
def test_argument_without_end_takes_no_other(name, between):
    style = "glm inline" if name == "glm inline" else name.split()[0]
    good = write_call(style, "a", "b").replace("\n", "" if between == "" and style == "hermes" else "\n")
    reply = UNENDED[name] + between + good + between + good
    assert read_in_pieces(style, reply) == (UNENDED[name], [{"path": "a", "content": "b"}] * 2)


@pytest.mark.parametrize("style", ["xml", "glm", "glm inline"])
def test_cut_call_plays_no_quoted_one(style):
    example = write_call(style, "q", "quoted")
    call = write_call(style, "a", f"one:\n{example}\nother:\n{example}\nmore")
    cut_off = call[: call.index("\nmore")]
    assert read_in_pieces(style, cut_off) == (cut_off, [])


@pytest.mark.parametrize("style", ["xml", "glm"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_tags_within_lines_are_text(style, data):
    part = st.sampled_from([*TAGS[style], *ENDS.values(), "<parameter=path>", "<arg_key>path</arg_key><arg_value>"])
    lines = data.draw(st.lists(st.lists(part.filter(lambda tag: "\n" not in tag)).map("".join), min_size=1, max_size=4))
    content = "\n".join(f"- {line}." for line in lines)
    assert read(style, [write_call(style, "a", content)]) == ("", [{"path": "a", "content": content}])
