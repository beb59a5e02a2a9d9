"""Tool calls whose text arguments hold tags of their own format, in any pieces."""

from __future__ import annotations

import json
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
    if style == "glm":
        pair = "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"
        return f"<tool_call>write\n{pair.format('path', path)}{pair.format('content', content)}</tool_call>"
    return f"<|channel|>commentary to=functions.write <|constrain|>json<|message|>{arguments}"


def join_calls(style: str, calls: list[str]) -> str:
    return ("<|end|><|start|>assistant" if style == "harmony" else "\n").join(calls)


def read(style: Any, pieces: list[str]) -> tuple[str, list[dict[str, Any]]]:
    """Return the content and the arguments of the calls."""
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


def test_many_end_tags_are_read_in_time():
    content = "</tool_call>" * 20_000
    assert read("hermes", [write_call("hermes", "a", content)])[1] == [{"path": "a", "content": content}]
