"""ChatTemplate: a tokenizer's chat template as a function of messages and tools.

Invariant: the client's messages reach the template unchanged in meaning, and content unknown to the template (an image,
a role's text) is refused. Only the form is changed: null content is empty, text blocks are one string (or one part), a
call's arguments are an object, `developer` is `system` if the template has no developer, reasoning has the template's
name. The date in a prompt is `day`, however long a conversation lasts. Control tokens in content are plain text
(`ControlTokens`). The functions at the end find the extension of a sampled reply in a longer history.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any, Literal

from ajet.context_tracker.matching import message_key
from ajet.schema.errors import AjetError, UserError
from ajet.tokens.content_format import (
    CALLED,
    Message,
    accepts_repeated_role,
    accepts_system,
    probe_call,
    probe_content_forms,
    probe_image_text,
    text_parts,
)
from ajet.tokens.parsing import Style
from ajet.tokens.tool_call_format import is_written_otherwise, join_results, split_calls, style_of, write_in_hermes

_FAILURES = (ArithmeticError, RecursionError)
"""Errors of a template that divides by zero, has too long a range, or calls its macro without end."""


class TemplateRefused(AjetError):
    """The chat template raised on these messages, for example on roles out of turn. The request is at fault, not
    ajet.
    """


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
        """Find out by rendering sample conversations what the tokenizer's template supports.

        Args:
            options: Arguments of the template.
            images: True if the template shows images.
            escaped: The roles whose content cannot spell control tokens.

        Raises:
            UserError: The tokenizer has no chat template.
        """
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                "This model's tokenizer has no chat template, so messages cannot be rendered.",
                where=str(getattr(tokenizer, "name_or_path", "") or "model.path"),
                expected="a model trained for chat (instruct model)",
                do="choose an instruct model, or put a chat_template.jinja into the tokenizer's folder",
            )
        self._tokenizer = tokenizer
        self._options = dict(options or {})
        self._images = images
        self.source: str = tokenizer.get_chat_template(tools=[{}])
        """The Jinja text of the template for requests with tools."""
        self._without_tools: str = tokenizer.get_chat_template()
        self.knows_tools = "tools" in self.source
        self._control = ControlTokens(tokenizer, self.source, escaped)
        self.style: Style = style_of(self.source, tokenizer.get_vocab())
        """The format of tool calls in the model's replies."""
        self._knows_developer = "developer" in self.source
        self._reasoning_field = "thinking" if _uses_field(self.source, "thinking") else "reasoning_content"
        self.dated = "strftime_now" in self.source and "strftime_now" not in self._options
        """True if the template writes a date into the prompt."""
        self.day = date.today()
        self._content_form_by_role = probe_content_forms(self._render_probe)
        self._has_other_forms = any(form != "string" for form in self._content_form_by_role.values())
        """True if the template takes a role's content as parts, or omits a role."""
        self.takes_system = accepts_system(self._render_probe, self._content_form_by_role)
        """False if the template raises on a system message, or omits its text."""
        self._takes_repeated_role = accepts_repeated_role(self._render_probe, self._content_form_by_role)
        if self.knows_tools and is_written_otherwise(
            self.style, CALLED, probe_call(self._render_probe, self._content_form_by_role)
        ):
            self.style = "none"
        self._shows_image_text = not images or probe_image_text(self._render_probe)

    def on_day(self, day: date) -> ChatTemplate:
        """Return a copy of this template with another date in its prompts."""
        dated_copy = copy.copy(self)
        dated_copy.day = day
        return dated_copy

    def text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        prompt: bool = True,
        raw: Mapping[int, str] | None = None,
    ) -> str:
        """Return the conversation as text. Raises TemplateRefused.

        Args:
            prompt: True if the generation prompt is appended.
            raw: Index of an assistant message -> the text that replaces its content and tool calls.
        """
        prepared = self._prepare_messages(messages, raw or {})
        tools = [_complete_tool(tool) for tool in tools or ()]
        if tools and self._control.escapes_tools:
            tools = self._control.escape_all(tools)
        if not self.knows_tools:  # tools, calls and results become text of plain messages
            prepared, tools = write_in_hermes(prepared, tools, in_system=self.takes_system), None
            prepared = prepared if self._takes_repeated_role else join_results(prepared)
        elif self.style == "harmony":
            prepared = split_calls(prepared)
        if self._images or self._has_other_forms:
            prepared = [self._shape_content(message) for message in prepared]
        return self._apply_template(prepared, tools, prompt=prompt)

    def _apply_template(
        self, ready: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, *, prompt: bool = True
    ) -> str:
        """Return prepared messages as text. Raises TemplateRefused."""
        from jinja2 import TemplateError

        options = dict(self._options)
        if self.dated:
            options["strftime_now"] = datetime.combine(self.day, time()).strftime
        uses_tools = bool(tools) or any("tool_calls" in message or message["role"] == "tool" for message in ready)
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
        """Return the text of probe messages, or None if the template refuses them."""
        try:
            return self._apply_template(messages)
        except TemplateRefused:
            return None

    def _shape_content(self, message: Message) -> Message:
        """Return a message with its content in the template's form: a string or parts. Raises TemplateRefused."""
        role, content = message["role"], message["content"]
        form = self._content_form_by_role.get(role, "string")
        if isinstance(content, list):
            if not self._shows_image_text and any(block.get("text", "").strip() for block in content):
                raise TemplateRefused("the model's chat template does not show text that accompanies an image")
            return message
        if form == "hidden" and content.strip():
            raise TemplateRefused(f"the model's chat template does not show messages of the role {role!r}")
        return {**message, "content": text_parts(content)} if form == "parts" else message

    def _prepare_messages(self, messages: Sequence[Message], raw: Mapping[int, str]) -> list[Message]:
        """Return messages with the roles, names and contents expected by templates, control tokens escaped."""
        tool_names: dict[str, str] = {}  # by id of the call, for the results that follow
        prepared: list[Message] = []
        for index, message in enumerate(messages):
            role, content = message["role"], message.get("content")
            if role == "assistant":
                for call in message.get("tool_calls") or ():
                    if call.get("id"):
                        tool_names[call["id"]] = call["function"]["name"]
                prepared.append(self._prepare_reply(message, raw.get(index)))
                continue
            changes: Message = {}
            if role == "tool" or role == "function":
                changes["role"] = role = "tool"
                if name := message.get("name") or tool_names.get(message.get("tool_call_id") or ""):
                    changes["name"] = name
            elif role == "developer" and not self._knows_developer:
                changes["role"] = role = "system"
            if not isinstance(content, str):
                content = _show_images(message) if self._images and role == "user" else join_text(message)
                changes["content"] = content
            if role in self._control.escaped_roles:
                changes["content"] = self._control.escape_content(content)
                if isinstance(name := changes.get("name", message.get("name")), str):
                    changes["name"] = self._control.escape(name)
            prepared.append({**message, **changes} if changes else message)
        return prepared

    def _prepare_reply(self, message: Message, raw: str | None) -> Message:
        """Return an assistant message as expected by templates.

        Args:
            raw: A text that replaces content and tool calls. None: both stay.
        """
        content = message.get("content") if raw is None else raw
        prepared = {**message, "content": content if isinstance(content, str) else join_text(message)}
        if self._reasoning_field != "reasoning_content" and "reasoning_content" in prepared:
            prepared[self._reasoning_field] = prepared.pop("reasoning_content")
        if raw is not None or not message.get("tool_calls"):
            prepared.pop("tool_calls", None)
            return prepared
        prepared["tool_calls"] = [
            {**call, "type": "function", "function": {**call["function"], "arguments": arguments_of(call)}}
            for call in message["tool_calls"]
        ]
        return prepared


def join_text(message: Mapping[str, Any]) -> str:
    """Return a message's content as one string: null is empty, text blocks are joined without a separator.

    Raises TemplateRefused for other blocks than text.
    """
    content = message.get("content")
    if isinstance(content, str):
        return content
    for block in content or ():
        if not isinstance(block.get("text"), str):
            kind = str(block.get("type") or "unknown")
            raise TemplateRefused(f"this is a text model: it cannot be shown a block of type {kind!r}")
    return "".join(block["text"] for block in content or ())


def _show_images(message: Message) -> str | list[Message]:
    """Return a message's content with a block of type `image` for each image."""
    blocks = message.get("content") or ()
    if all(block.get("type") != "image_url" for block in blocks):
        return join_text(message)
    return [
        {"type": "image"}
        if block.get("type") == "image_url"
        else {"type": "text", "text": join_text({"content": [block]})}
        for block in blocks
    ]


def arguments_of(call: Mapping[str, Any]) -> Any:
    """Return a tool call's arguments as a JSON value. Arguments that are no JSON are returned as text."""
    arguments = call["function"].get("arguments")
    if not isinstance(arguments, str):
        return arguments if arguments is not None else {}
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments


def _uses_field(source: str, name: str) -> bool:
    """Return True if a template's source reads this field of a message."""
    return any(access in source for access in (f"message.{name}", f"message['{name}']", f'message["{name}"]'))


Escaped = Literal["tool_results", "all", "none"]
"""Escaped content: tool results; all content except the model's, tool descriptions included; no content."""
CUT = "\ufdd0\ufdd1\ufdd0"
"""Three characters reserved by Unicode for internal use, and therefore absent from valid text."""


def uncut(text: str) -> str:
    """Return a text without `CUT` marks, which keep control tokens in content from being encoded as such."""
    return text.replace(CUT, "")


class ControlTokens:
    """The control tokens of a tokenizer: special tokens, and added tokens written by the chat template's `source`.

    Invariant: content that spells a control token (`<tool_response>`) is encoded as plain text. A tool's result
    therefore cannot end its turn or begin another; its decoded text is unchanged. A `CUT` in the token makes
    `Renderer.encode` encode the parts separately. Other added tokens are words of the vocabulary.
    """

    def __init__(self, tokenizer: Any, source: str, escaped: Escaped) -> None:
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        spelled = {str(token.content) for token in added if token.special or token.content in source}
        spelled |= {str(token) for token in tokenizer.all_special_tokens}
        # The longest first: a token that begins with another one is matched completely.
        spellings = sorted((text for text in spelled if len(text) > 1), key=len, reverse=True)
        self._spelling_starts = _compile_starts(spellings)
        self._escapes_any = bool(spellings) and escaped != "none"
        roles = {"tool_results": ("tool",), "all": ("tool", "user", "system", "developer"), "none": ()}[escaped]
        self.escaped_roles = frozenset(roles if spellings else ())
        """Roles of the messages whose content is escaped."""
        self.escapes_tools = self._escapes_any and escaped == "all"

    def escape(self, text: str) -> str:
        """Return a text with each control token cut in two."""
        return self._spelling_starts.sub(lambda found: found[0] + CUT, text) if self._escapes_any else text

    def escape_content(self, content: str | Sequence[Message]) -> Any:
        """Return a message's content, a text or parts, with control tokens cut."""
        if isinstance(content, str):
            return self.escape(content)
        return [{**block, "text": self.escape(block["text"])} if "text" in block else block for block in content]

    def escape_all(self, value: Any) -> Any:
        """Return a JSON value with control tokens cut in all texts, names of fields included."""
        if isinstance(value, str):
            return self.escape(value)
        if isinstance(value, Mapping):
            return {self.escape_all(name): self.escape_all(item) for name, item in value.items()}
        return [self.escape_all(item) for item in value] if isinstance(value, list | tuple) else value


def _compile_starts(spelled: list[str]) -> re.Pattern[str]:
    """Return a pattern of the first character of each text, overlapping texts included."""
    heads = "|".join(f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in spelled)
    return re.compile(heads)


_THOUGHTS = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
Respelled = tuple[int, int, str]
"""(start, end, the template's spelling) of a text in the prompt as sampled."""


@dataclass(frozen=True, slots=True)
class ReplyText:
    """The parts of a reply's text, in order."""

    reasoning: str
    rest: str
    end: str
    """The text of the end token; "" if no end token was sampled."""


@dataclass(frozen=True, slots=True)
class Extension:
    """The text behind a reply, and the template's own spelling of `ReplyText.rest` if different.

    Invariant: an extension exists only if the template's text is the text of the earlier prompt and the sampled text,
    then a suffix. Two differences are admitted: the spelling of a tool call (key order, blanks, escapes, the place of
    harmony's recipient) if both spellings parse to the same message, and with `keep_thinking` stripped thinking.
    """

    suffix: str
    spelled: str | None = None


ParseReply = Callable[[str], dict[str, Any]]
"""Parses a reply's text, without its end token, to a message."""


def template_text(text: str, respelled: Sequence[Respelled]) -> str:
    """Return the template's own text for a prompt with replies spelled as sampled."""
    parts: list[str] = []
    position = 0
    for start, end, spelled in respelled:
        parts += [text[position:start], spelled]
        position = end
    return "".join(parts) + text[position:]


def extend_respelled(
    text: str, earlier_text: str, reply: ReplyText, *, ends: Sequence[str], parse: ParseReply
) -> Extension | None:
    """Return the extension of a reply whose tool calls the template may spell differently than the model did.

    `None`: the template's text does not continue the earlier prompt, or contains another reply.

    Args:
        text: The template's text of the longer history.
        earlier_text: The template's own text of the earlier prompt.
        reply: The reply as sampled.
        ends: The texts of all end tokens.
        parse: Parses a reply's text.
    """
    start = len(earlier_text) + len(reply.reasoning)
    if not text.startswith(earlier_text) or not text.startswith(reply.reasoning, len(earlier_text)):
        return None
    ends_found = [index for end in ([reply.end] if reply.end else ends) if (index := text.find(end, start)) >= 0]
    if not ends_found:
        return None
    spelled = text[start : min(ends_found)]
    if not _is_same_reply(reply, spelled, parse):
        return None
    return Extension(text[min(ends_found) + len(reply.end) :], spelled)


def extend_without_thinking(
    text: str, earlier_text: str, reply: ReplyText, after: str, *, has_calls: bool, parse: ParseReply
) -> Extension | None:
    """Return the extension if the template may have stripped thinking from `text`.

    Args:
        after: The template's text behind the reply.
        has_calls: True if the reply's tool calls may be spelled otherwise.
    """
    if not after.startswith(reply.end):
        return None
    suffix = after[len(reply.end) :]
    stripped, tail, head = (_THOUGHTS.sub("", part_text) for part_text in (text, after, earlier_text + reply.reasoning))
    if not stripped.startswith(head) or not stripped.endswith(tail) or len(stripped) < len(head) + len(tail):
        return None
    spelled = stripped[len(head) : len(stripped) - len(tail)]
    if spelled == reply.rest:
        return Extension(suffix)
    return Extension(suffix, spelled) if has_calls and _is_same_reply(reply, spelled, parse) else None


def _complete_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool that has `parameters`, an empty schema if the client sent none: templates read this field."""
    function = tool.get("function")
    if not isinstance(function, Mapping) or function.get("parameters") is not None:
        return tool
    return {**tool, "function": {**function, "parameters": {"type": "object", "properties": {}}}}


def _is_same_reply(reply: ReplyText, spelled: str, parse: ParseReply) -> bool:
    """Return True if another spelling of a reply's text parses to the same message."""
    own_message, spelled_message = (parse(reply.reasoning + rest) for rest in (reply.rest, spelled))
    thoughts = [message.get("reasoning_content") for message in (own_message, spelled_message)]
    return message_key(own_message) == message_key(spelled_message) and thoughts[0] == thoughts[1]
