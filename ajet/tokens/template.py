"""Template: a tokenizer's chat template as a function of messages and tools.

Invariant: what the client said reaches the template unchanged in meaning. Only the spelling is settled here: null
content is empty, text blocks are one string, or one part where the template shows only parts, a call's arguments are
an object, `developer` is `system` where the template knows no developer, reasoning has the name that the template
reads. What the template cannot show (an image, a role's text) is refused. The date that some templates put into the
prompt is `day`, however long a conversation lasts. A template that knows no tools gets them in the Hermes way, in the
system message, or in the first user message where it takes no system message, so that any chat model can be asked to
use tools and none loses them silently. Results are then a user message, joined with one that follows where the template
raises on two in a row.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import Any

from ajet.schema.errors import AjetError, UserError
from ajet.tokens.content_format import (
    CALLED,
    accepts_repeated_role,
    accepts_system,
    probe_call,
    probe_content_forms,
    probe_image_text,
    text_parts,
)
from ajet.tokens.control_tokens import ControlTokens, Escaped
from ajet.tokens.parsing import Style
from ajet.tokens.tool_call_format import is_written_otherwise, style_of

Message = dict[str, Any]

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


_FAILURES = (ArithmeticError, RecursionError)
"""A template that divides by zero, asks for too long a range, or calls its macro without end."""


class TemplateRefused(AjetError):
    """The chat template raised on these messages (say, roles out of turn): the request is at fault, not ajet."""


class ChatTemplate:
    """Renders conversations to text. Thread-safe; transformers compiles each template once."""

    def __init__(
        self,
        tokenizer: Any,
        options: Mapping[str, Any] | None = None,
        *,
        images: bool = False,
        escaped: Escaped = "tool_results",
    ) -> None:
        """`images`: the template shows them. `escaped`: whose content cannot spell control tokens."""
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                "This model's tokenizer has no chat template, so messages cannot be rendered.",
                where=str(getattr(tokenizer, "name_or_path", "") or "model.path"),
                expected="a chat (instruct) model",
                do="choose an instruct model, or put a chat_template.jinja beside its tokenizer",
            )
        self._tokenizer = tokenizer
        self._options = dict(options or {})
        self._images = images
        self.source: str = tokenizer.get_chat_template(tools=[{}])
        """The Jinja text that is used with tools."""
        self._without_tools: str = tokenizer.get_chat_template()
        self.knows_tools = "tools" in self.source
        self._control = ControlTokens(tokenizer, self.source, escaped)
        self.style: Style = style_of(self.source, tokenizer.get_vocab())
        """How its replies write tool calls."""
        self._knows_developer = "developer" in self.source
        self._thought = "thinking" if _reads(self.source, "thinking") else "reasoning_content"
        self.dated = "strftime_now" in self.source and "strftime_now" not in self._options
        """Whether it writes a date into the prompt."""
        self.day = date.today()
        self._forms = probe_content_forms(self._render_probe)
        self.takes_system = accepts_system(self._render_probe, self._forms)
        """False: the template raises on a system message, or drops it."""
        self._takes_repeated_role = accepts_repeated_role(self._render_probe, self._forms)
        if self.knows_tools and is_written_otherwise(self.style, CALLED, probe_call(self._render_probe, self._forms)):
            self.style = "none"
        self._shows_image_text = not images or probe_image_text(self._render_probe)

    def on_day(self, day: date) -> ChatTemplate:
        """A copy of this template whose prompts have another date."""
        other = copy.copy(self)
        other.day = day
        return other

    def text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        prompt: bool = True,
        raw: Mapping[int, str] | None = None,
    ) -> str:
        """The conversation as text, ended by the generation prompt if `prompt`.

        `raw` maps the index of an assistant message to the text that stands for its content and tool calls as they
        were sampled. Raises TemplateRefused.
        """
        ready = [self._escaped(message) for message in self._ready(messages, raw or {})]
        tools = self._control.escape_tools(tools)
        if not self.knows_tools:
            ready, tools = _in_hermes(ready, tools, in_system=self.takes_system), None
            ready = ready if self._takes_repeated_role else _join_results(ready)
        elif self.style == "harmony":
            ready = _one_call_each(ready)
        return self._apply([self._in_form(message) for message in ready], tools, prompt=prompt)

    def _apply(
        self, ready: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, *, prompt: bool = True
    ) -> str:
        """Messages in the template's own forms as text. Raises TemplateRefused."""
        from jinja2 import TemplateError

        options = dict(self._options)
        if self.dated:
            options["strftime_now"] = datetime.combine(self.day, time()).strftime
        uses_tools = bool(tools) or any("tool_calls" in each or each["role"] == "tool" for each in ready)
        try:
            return self._tokenizer.apply_chat_template(
                list(ready),
                tools=list(tools) if tools else None,
                chat_template=self.source if uses_tools else self._without_tools,
                add_generation_prompt=prompt,
                tokenize=False,
                **options,
            )
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, *_FAILURES) as error:
            raise TemplateRefused(f"the model's chat template refuses these messages: {error}") from error

    def _render_probe(self, messages: Sequence[Message]) -> str | None:
        try:
            return self._apply(messages)
        except TemplateRefused:
            return None

    def _in_form(self, message: Message) -> Message:
        """A message in the form that the template shows. Raises TemplateRefused where it shows none."""
        role, content = message["role"], message["content"]
        form = self._forms.get(role, "string")
        if isinstance(content, list):
            if not self._shows_image_text and any(block.get("text", "").strip() for block in content):
                raise TemplateRefused("the model's chat template does not show text beside an image")
            return message
        if form == "hidden" and content.strip():
            raise TemplateRefused(f"the model's chat template does not show messages of the role {role!r}")
        return {**message, "content": text_parts(content)} if form == "parts" else message

    def _ready(self, messages: Sequence[Message], raw: Mapping[int, str]) -> list[Message]:
        names: dict[str, str] = {}
        ready: list[Message] = []
        for index, message in enumerate(messages):
            role = message["role"]
            if role == "assistant":
                for call in message.get("tool_calls") or ():
                    if call.get("id"):
                        names[call["id"]] = call["function"]["name"]
                ready.append(self._assistant(message, raw.get(index)))
            elif role == "tool" or role == "function":
                name = message.get("name") or names.get(message.get("tool_call_id") or "")
                ready.append(
                    {**message, "role": "tool", "content": text_of(message), **({"name": name} if name else {})}
                )
            elif role == "developer" and not self._knows_developer:
                ready.append({**message, "role": "system", "content": text_of(message)})
            elif isinstance(message.get("content"), str):
                ready.append(message)
            elif self._images and role == "user":
                ready.append({**message, "content": _shown(message)})
            else:
                ready.append({**message, "content": text_of(message)})
        return ready

    def _escaped(self, message: Message) -> Message:
        """A message whose words are ready, with no control token in them that its role may not send."""
        role, content = message["role"], message["content"]
        if role == "assistant":
            return message
        changed: Message = {}
        if isinstance(content, str):
            changed["content"] = self._control.escape(content, role)
        else:
            changed["content"] = [
                {**block, "text": self._control.escape(block["text"], role)} if "text" in block else block
                for block in content
            ]
        if isinstance(message.get("name"), str):
            changed["name"] = self._control.escape(message["name"], role)
        same = all(changed[name] == message[name] for name in changed)
        return message if same else {**message, **changed}

    def _assistant(self, message: Message, raw: str | None) -> Message:
        ready = {**message, "content": text_of(message) if raw is None else raw}
        if self._thought != "reasoning_content" and "reasoning_content" in ready:
            ready[self._thought] = ready.pop("reasoning_content")
        if raw is not None or not message.get("tool_calls"):
            ready.pop("tool_calls", None)
            return ready
        ready["tool_calls"] = [
            {**call, "type": "function", "function": {**call["function"], "arguments": arguments_of(call)}}
            for call in message["tool_calls"]
        ]
        return ready


def text_of(message: Mapping[str, Any]) -> str:
    """A message's content as one string: null is empty, text blocks are joined with nothing between them. Raises
    TemplateRefused for anything but text."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    for block in content or ():
        if not isinstance(block.get("text"), str):
            kind = str(block.get("type") or "unknown")
            raise TemplateRefused(f"this is a text model: it cannot be shown a block of type {kind!r}")
    return "".join(block["text"] for block in content or ())


def _shown(message: Message) -> str | list[Message]:
    """A message's content with its images as blocks that stand for them."""
    blocks = message.get("content") or ()
    if all(block.get("type") != "image_url" for block in blocks):
        return text_of(message)
    return [
        {"type": "image"}
        if block.get("type") == "image_url"
        else {"type": "text", "text": text_of({"content": [block]})}
        for block in blocks
    ]


def arguments_of(call: Mapping[str, Any]) -> Any:
    """A tool call's arguments as the JSON value they spell; the text itself if they spell none."""
    arguments = call["function"].get("arguments")
    if not isinstance(arguments, str):
        return arguments if arguments is not None else {}
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments


def _reads(source: str, name: str) -> bool:
    return any(access in source for access in (f"message.{name}", f"message['{name}']", f'message["{name}"]'))


def _one_call_each(messages: list[Message]) -> list[Message]:
    """Several calls of one message as messages of one call, each before its result: harmony's template shows only the
    first. Where a call has content beside its thought, they become one thought: it has no room for both."""
    single: list[Message] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        calls = message.get("tool_calls") or []
        at += 1
        if not calls:
            single.append(message)
            continue
        results: list[Message] = []
        while at < len(messages) and messages[at]["role"] == "tool":
            results.append(messages[at])
            at += 1
        if message.get("thinking") and message["content"]:
            message = {**message, "thinking": f"{message['thinking']}\n\n{message['content']}", "content": ""}
        for call in calls[:-1]:
            single.append({**message, "tool_calls": [call]})
            message = {"role": "assistant", "content": ""}
            own = [each for each in results if call.get("id") and each.get("tool_call_id") == call["id"]] or results[:1]
            single += own[:1]
            results = [each for each in results if each not in own[:1]]
        single += [{**message, "tool_calls": calls[-1:]}, *results]
    return single


def _in_hermes(messages: list[Message], tools: Sequence[Mapping[str, Any]] | None, *, in_system: bool) -> list[Message]:
    """Calls, results and tools as plain messages. `in_system` False: tools open the first user message."""
    spelled: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            block = f"<tool_response>\n{message['content']}\n</tool_response>"
            if spelled and spelled[-1].get("results"):
                spelled[-1]["content"] += "\n" + block
            else:
                spelled.append({"role": "user", "content": block, "results": True})
        elif message.get("tool_calls"):
            blocks = [message["content"]] if message["content"] else []
            for call in message["tool_calls"]:
                function = call["function"]
                arguments = json.dumps(function["arguments"], ensure_ascii=False)
                blocks.append(f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {arguments}}}\n</tool_call>')
            spelled.append({"role": "assistant", "content": "\n".join(blocks)})
        else:
            spelled.append(message)
    if not tools:
        return spelled
    section = _SYSTEM.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if in_system and spelled and spelled[0]["role"] == "system":
        return [{**spelled[0], "content": f"{spelled[0]['content']}\n\n{section}"}, *spelled[1:]]
    if in_system:
        return [{"role": "system", "content": section}, *spelled]
    return _before_first_question(spelled, section)


def _before_first_question(messages: list[Message], section: str) -> list[Message]:
    at = 1 if messages and messages[0]["role"] == "system" else 0
    if at == len(messages) or messages[at]["role"] != "user":
        return [*messages[:at], {"role": "user", "content": section}, *messages[at:]]
    return [*messages[:at], _prepend_text(section, messages[at]), *messages[at + 1 :]]


def _join_results(messages: list[Message]) -> list[Message]:
    """Put results of tools, which are spelled as a user's message, into the user's message that follows them."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1].get("results") and message["role"] == "user":
            message = _prepend_text(joined.pop()["content"], message)
        joined.append(message)
    return joined


def _prepend_text(text: str, message: Message) -> Message:
    content: Any = message["content"]
    joined = f"{text}\n\n{content}" if isinstance(content, str) else [*text_parts(f"{text}\n\n"), *content]
    return {**message, "content": joined}
