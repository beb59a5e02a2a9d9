"""The format of a model's tool calls, and messages in the form of its template.

Invariant: the format is found from template and vocabulary alone, never from a model's name: a fine-tuned copy is
treated like its original. An unknown format is `none`, and the renderer refuses tools. A template without tools gets
tools in Hermes' format, in the system message or, without a system message, in the first user message. Results are then
a user message, joined with the next user message if the template raises on two in a row.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any

from ajet.tokens.content_format import Message, text_parts
from ajet.tokens.parsing import ReplyParser, Style, assemble

_SYSTEM = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""

FORCED: dict[Style, tuple[str, str]] = {
    "hermes": ('<tool_call>\n{"name": "', 'NAME", "arguments": '),
    "xml": ("<tool_call>\n<function=", "NAME>\n"),
    "glm": ("\n<think></think>\n<tool_call>", "NAME\n"),
    "llama": ('{"name": "', 'NAME", "parameters": '),
    "harmony": ("<|channel|>commentary to=functions.", "NAME <|constrain|>json<|message|>"),
}
"""Style -> the beginning of a reply that can only be a tool call, and its continuation for a tool NAME."""


def style_of(source: str, vocabulary: Container[str]) -> Style:
    """Return the style in which a model writes tool calls. A template without tools gets them in Hermes' style.

    Args:
        source: The template's source for requests with tools.
        vocabulary: The tokens of the tokenizer.
    """
    if "<|channel|>" in source and "<|message|>" in source:
        return "harmony"
    if "<arg_key>" in source:
        return "glm"
    if "<function=" in source:
        return "xml"
    if "<tool_call>" in source or "tools" not in source:
        return "hermes"
    is_llama = "<|python_tag|>" in vocabulary or "<|python_tag|>" in source or '"parameters"' in source
    return "llama" if is_llama else "none"


def is_written_otherwise(style: Style, name: str, text: str) -> bool:
    """Return True if the call of `name` in a template's `text` has another style."""
    if name not in text or style in ("harmony", "none"):
        return False
    start = text.find("{") if style == "llama" else 0
    stop = text.rfind("}") + 1 if style == "llama" else len(text)
    parser = ReplyParser(style, tools=[])
    calls = assemble(parser.feed(text[start:stop]) + parser.close()).get("tool_calls", [])
    return not any(call["function"]["name"] == name for call in calls)


def split_calls(messages: list[Message]) -> list[Message]:
    """Split messages with several calls into messages of one call, each before its result, for harmony's template.

    The template shows only the first call of a message. Reasoning and content of a call are joined, because the
    template has one place for both.
    """
    split_messages: list[Message] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        calls = message.get("tool_calls") or []
        index += 1
        if not calls:
            split_messages.append(message)
            continue
        results: list[Message] = []
        while index < len(messages) and messages[index]["role"] == "tool":
            results.append(messages[index])
            index += 1
        if message.get("thinking") and message["content"]:
            message = {**message, "thinking": f"{message['thinking']}\n\n{message['content']}", "content": ""}
        for call in calls[:-1]:
            split_messages.append({**message, "tool_calls": [call]})
            message = {"role": "assistant", "content": ""}
            own_results = [
                result for result in results if call.get("id") and result.get("tool_call_id") == call["id"]
            ] or results[:1]
            split_messages += own_results[:1]
            results = [result for result in results if result not in own_results[:1]]
        split_messages += [{**message, "tool_calls": calls[-1:]}, *results]
    return split_messages


def write_in_hermes(
    messages: list[Message], tools: Sequence[Mapping[str, Any]] | None, *, in_system: bool
) -> list[Message]:
    """Write calls, results and tools as plain messages. With `in_system` False, the first user message gets the
    tools.
    """
    written_messages: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            block = f"<tool_response>\n{message['content']}\n</tool_response>"
            if written_messages and written_messages[-1].get("results"):
                written_messages[-1]["content"] += "\n" + block
            else:
                # The mark `results` is for this module: further results and the next question join the message.
                written_messages.append({"role": "user", "content": block, "results": True})
        elif message.get("tool_calls"):
            blocks = [message["content"]] if message["content"] else []
            for call in message["tool_calls"]:
                function = call["function"]
                arguments = json.dumps(function["arguments"], ensure_ascii=False)
                blocks.append(f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {arguments}}}\n</tool_call>')
            written_messages.append({"role": "assistant", "content": "\n".join(blocks)})
        else:
            written_messages.append(message)
    if not tools:
        return written_messages
    section = _SYSTEM.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if in_system and written_messages and written_messages[0]["role"] == "system":
        return [
            {**written_messages[0], "content": f"{written_messages[0]['content']}\n\n{section}"},
            *written_messages[1:],
        ]
    if in_system:
        return [{"role": "system", "content": section}, *written_messages]
    return _before_first_question(written_messages, section)


def _before_first_question(messages: list[Message], section: str) -> list[Message]:
    """Put a section before the first user message. If none opens the conversation, the section becomes one."""
    index = 1 if messages and messages[0]["role"] == "system" else 0
    if index == len(messages) or messages[index]["role"] != "user":
        return [*messages[:index], {"role": "user", "content": section}, *messages[index:]]
    return [*messages[:index], _prepend_text(section, messages[index]), *messages[index + 1 :]]


def join_results(messages: list[Message]) -> list[Message]:
    """Join tool results (user messages here) with the user message behind them."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1].get("results") and message["role"] == "user":
            message = _prepend_text(joined.pop()["content"], message)
        joined.append(message)
    return joined


def _prepend_text(text: str, message: Message) -> Message:
    """Return a message with a text before its content, which is a string or a list of parts."""
    content: Any = message["content"]
    joined = f"{text}\n\n{content}" if isinstance(content, str) else [*text_parts(f"{text}\n\n"), *content]
    return {**message, "content": joined}
