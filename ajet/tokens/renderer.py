"""Renderer: conversations to token ids and back, for one tokenizer.

Invariant: the sampled ids of a reply are never encoded again. `extend` returns before.ids + reply_ids + suffix. Only
the suffix is newly encoded, and only if the chat template renders the complete history to the text of these ids.
"""

from __future__ import annotations

import copy
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np

from ajet.schema.call import Ids
from ajet.tokens.end_tokens import MARK, end_ids_of
from ajet.tokens.harmony import HarmonyParser
from ajet.tokens.image_tokens import ImageTokens, image_urls
from ajet.tokens.parsing import IncrementalDecoder, Parser, ReplyParser, ReplyStream, assemble
from ajet.tokens.segments import SchemaParser, decodes_token_by_token, parting
from ajet.tokens.template import (
    CUT,
    ChatTemplate,
    Escaped,
    Extension,
    Message,
    ReplyText,
    Respelled,
    TemplateRefused,
    extend_respelled,
    extend_without_thinking,
    template_text,
    uncut,
)
from ajet.tokens.tool_call_format import FORCED
from ajet.tokens.tool_calls import Tools

_CACHED_TEXTS = 512
_CACHED_LENGTH = 20_000


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt: its text, its ids [P], and the number of rendered messages.

    The number is 0 for a raw prompt, whose reply is all text.
    """

    text: str
    """The encoded text, with a `CUT` in each control token spelled by content; `shown` is the text without them."""
    ids: Ids
    count: int = 0
    raw: tuple[tuple[int, str], ...] = ()
    """(message index, text) of replies with tool calls refused by the template, which gets them as text."""
    forced: str = ""
    """The end of `text` that begins the reply (a tool call demanded by the client)."""
    respelled: tuple[Respelled, ...] = ()
    """Places of replies as sampled, with tool calls spelled otherwise by the template."""

    @property
    def shown(self) -> str:
        """The text of the ids, without the `CUT` marks of control tokens in a message's content."""
        return uncut(self.text)

    @property
    def opens_thought(self) -> bool:
        """True if the prompt ends with the beginning of the reply's thinking."""
        return self.text.removesuffix(self.forced).rstrip("\n").endswith("<think>")


class Renderer:
    """Renders conversations, extends them and parses replies for one tokenizer. Thread-safe."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        keep_thinking: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        end_ids: Sequence[int] = (),
        images: ImageTokens | None = None,
        escaped: Escaped = "tool_results",
    ) -> None:
        """Find out by rendering sample conversations what the tokenizer's chat template supports. Raises UserError
        without one.

        Args:
            keep_thinking: Extend a conversation also if the template strips the thinking of earlier turns.
            template_kwargs: Arguments of the chat template (`enable_thinking`).
            end_ids: Further tokens that end a reply.
            images: The image tokens of a vision model.
            escaped: The roles whose content cannot spell control tokens.
        """
        self.tokenizer = tokenizer
        self.images = images
        self._fast_tokenizer = getattr(tokenizer, "backend_tokenizer", None)
        # Without this variable each child process prints a warning about our batches of one.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.template = ChatTemplate(tokenizer, template_kwargs, images=images is not None, escaped=escaped)
        self._keep_thinking = keep_thinking
        self._ids_by_text: OrderedDict[str, Ids] = OrderedDict()
        """Text -> its ids, for the latest short texts."""
        self._token_texts: dict[int, str] = {}
        """Token -> the text of the token alone."""
        self._is_bytewise = decodes_token_by_token(self._fast_tokenizer)
        """True if the text of tokens with complete characters is the joined text of the single tokens."""
        self.separators = parting(self._fast_tokenizer, self.template.source)
        template_ends = end_ids_of(self.template, tokenizer, self.encode)
        self.end_ids: tuple[int, ...] = tuple(dict.fromkeys([*template_ends, *end_ids]))
        self._schema = getattr(tokenizer, "response_schema", None)
        self.thinks = "</think>" in self.template.source or "</think>" in tokenizer.get_vocab()
        """True if replies may begin with <think>."""

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> Rendered:
        """Return the prompt of messages, generation prompt included. Raises TemplateRefused."""
        if tools and not self.reads_tool_calls:
            raise TemplateRefused(
                "ajet cannot read the form in which this model's chat template writes tool calls, so the calls "
                "would be lost: use no tools (rollout.force_disable_toolcalls), or give the tokenizer a "
                "response_schema"
            )
        text = self.template.text(messages, tools)
        ids = self.encode(text)
        if self.images is not None:
            ids = self.images.spread(ids, image_urls(messages))
        return Rendered(text, ids, len(messages))

    def on_day(self, day: date) -> Renderer:
        """Return the renderer for prompts of a day: a copy only if the template writes a date."""
        if not self.template.dated or self.template.day == day:
            return self
        dated_copy = copy.copy(self)
        dated_copy.template = self.template.on_day(day)
        return dated_copy

    @property
    def reads_tool_calls(self) -> bool:
        """False if the format of this model's tool calls is unknown."""
        return self._schema is not None or self.template.style != "none"

    def raw(self, prompt: str | Sequence[int]) -> Rendered:
        """Return a prompt without the chat template: a text with the tokenizer's first token, or unchanged ids.

        Raises TemplateRefused for ids outside the vocabulary.
        """
        if isinstance(prompt, str):
            ids = self.encode_without_images(prompt)
            first_ids = self.tokenizer.encode("", add_special_tokens=True)[:1]
            # Some tokenizers add an end token here, not a first one. The text may spell the first token itself.
            if first_ids and first_ids[0] == self.tokenizer.bos_token_id and ids[:1].tolist() != first_ids:
                ids = np.concatenate([np.array(first_ids, dtype=np.int32), ids])
            return Rendered(prompt, ids)
        size = len(self.tokenizer)
        invalid_id = next((token for token in prompt if not 0 <= token < size), None)
        if invalid_id is not None:
            raise TemplateRefused(
                f"the prompt contains the token id {invalid_id}, but the vocabulary has {size} tokens"
            )
        ids = np.array(prompt, dtype=np.int32)
        if self.images is not None:
            ids = self.images.spread(ids, ())
        return Rendered(self.decode(prompt), ids)

    def extend(
        self,
        earlier_prompt: Rendered,
        reply_ids: Ids,
        finish: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        verbatim: bool = True,
    ) -> Rendered | None:
        """Return the prompt of messages that begin with the messages of `earlier_prompt` and its reply, as sampled.

        Returns `None` if the template renders this history otherwise (thinking stripped, content trimmed, another end
        token): the conversation forks. If no end token was sampled (`finish` "length"), the suffix has the template's.

        Args:
            earlier_prompt: The earlier prompt.
            reply_ids: The sampled ids of the reply [R].
            finish: The finish reason of the reply.
            verbatim: False if a stop string cut the reply: its text differs from the text of its ids, and the message
                may continue.
        Raises:
            TemplateRefused: The template refuses the messages.
        """
        if finish in ("error", "aborted") or len(messages) <= earlier_prompt.count or len(reply_ids) == 0:
            return None
        count, raw = earlier_prompt.count, earlier_prompt.raw
        has_calls = verbatim and bool(messages[count].get("tool_calls"))
        reply = earlier_prompt.forced + self.decode(reply_ids, after=earlier_prompt.ids)
        try:
            text = self.template.text(messages, tools, raw=dict(raw))
        except TemplateRefused:  # for example, the reply has several calls and the template allows one
            if not has_calls:
                raise
            raw = (*raw, (count, self._split_reply(earlier_prompt, reply, int(reply_ids[-1])).rest))
            text = self.template.text(messages, tools, raw=dict(raw))
        known_text = earlier_prompt.text.removesuffix(earlier_prompt.forced)
        respelled = earlier_prompt.respelled
        shown_text = template_text(known_text, respelled) if respelled else known_text
        suffix: str | None = None
        # The usual case: the template renders exactly the earlier prompt and the reply as sampled.
        if text.startswith(shown_text) and text.startswith(reply, len(shown_text)):
            suffix = text[len(shown_text) + len(reply) :]
        elif has_calls or (self._keep_thinking and verbatim):
            parts = self._split_reply(earlier_prompt, reply, int(reply_ids[-1]))
            extension = self._find_extension(
                text, shown_text, parts, has_calls, earlier_prompt, messages, tools, dict(raw)
            )
            if extension is not None:
                suffix = extension.suffix
                if extension.spelled is not None:
                    begin = len(known_text) + len(parts.reasoning)
                    respelled = (*respelled, (begin, begin + len(parts.rest), extension.spelled))
        if suffix is None:
            return None
        encoded = self.encode(suffix)
        # Behind a stop string the suffix may begin within a message, where some tokenizers put a blank before it.
        if not verbatim and self.decode(encoded, after=reply_ids)[:1] != uncut(suffix)[:1]:
            return None
        if self.images is not None:
            encoded = self.images.spread(encoded, image_urls(messages[count:]))
        ids = np.concatenate([earlier_prompt.ids, reply_ids, encoded]).astype(np.int32, copy=False)
        return Rendered(known_text + reply + suffix, ids, len(messages), raw, respelled=respelled)

    def parse(
        self,
        reply_ids: Sequence[int] | Ids,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        earlier_prompt: Rendered | None = None,
    ) -> dict[str, Any]:
        """Parse the ids of a reply to its message: role, content, and reasoning_content and tool_calls if present.

        Tool calls have no ids, and are parsed only with `tools`.
        """
        stream = self.reply_stream(tools, earlier_prompt=earlier_prompt)
        stream.feed(reply_ids.tolist() if isinstance(reply_ids, np.ndarray) else reply_ids)
        return stream.message()

    def reply_stream(
        self,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        earlier_prompt: Rendered | None = None,
        stop: Sequence[str] = (),
        single_call: bool = False,
    ) -> ReplyStream:
        """Return an incremental parser of one reply to `earlier_prompt`. The reply to a raw prompt is all content.

        Args:
            tools: The tools that the reply may call; `None` parses no tool calls.
            stop: Strings that end the reply.
            single_call: True if the first tool call ends the reply.
        """
        context = int(earlier_prompt.ids[-1]) if earlier_prompt is not None and len(earlier_prompt.ids) else None
        parser = self._build_parser(tools or None, earlier_prompt)
        decoder = IncrementalDecoder(self._decode_ids, context, bytewise=self._is_bytewise)
        stream = ReplyStream(decoder, parser, self.end_ids, stop, single_call)
        if earlier_prompt is not None and earlier_prompt.forced:
            stream.begin(earlier_prompt.forced)
        return stream

    def force_call(self, prompt: Rendered, name: str | None) -> Rendered | None:
        """Return a prompt that ends with the beginning of a call of tool `name` (`None` for any tool).

        Returns `None` if this model's format has no call beginning, or the prompt begins the thinking.
        """
        if self._schema is not None or prompt.opens_thought:
            return None
        opening, name_form = FORCED.get(self.template.style, (None, ""))
        if opening is None:
            return None
        forced = opening + (name_form.replace("NAME", name) if name is not None else "")
        ids = np.concatenate([prompt.ids, self.encode(forced)])
        return replace(prompt, text=prompt.text + forced, ids=ids, forced=forced)

    def encode(self, text: str) -> Ids:
        """Return the ids of a text [N]. Special tokens in the text are encoded as such, except with a `CUT` in them.

        No token is added. Raises TemplateRefused for invalid Unicode (lone surrogates).
        """
        if CUT in text:
            return np.concatenate([self.encode(part) for part in text.split(CUT)])
        cached = self._ids_by_text.get(text)
        if cached is not None:
            return cached
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TemplateRefused(f"the messages contain text that is not valid Unicode: {error.reason}") from error
        parts = [text]
        # Other code may have enabled padding since: the parts would be padded.
        if self.separators is not None and self._fast_tokenizer is not None and self._fast_tokenizer.padding is None:
            parts = [part for part in self.separators.split(text) if part]
        cached_ids = {part: self._ids_by_text.get(part) for part in parts}
        uncached_parts = [part for part, ids in cached_ids.items() if ids is None]
        new_ids = dict(zip(uncached_parts, self.encode_texts(uncached_parts), strict=True)) if uncached_parts else {}
        if parts != [text]:
            part_ids = [new_ids[part] if (ids := cached_ids[part]) is None else ids for part in parts]
            new_ids[text] = np.concatenate(part_ids) if part_ids else np.empty(0, dtype=np.int32)
        for part, ids in new_ids.items():
            ids.flags.writeable = False
            if len(part) <= _CACHED_LENGTH:
                self._ids_by_text[part] = ids
                if len(self._ids_by_text) > _CACHED_TEXTS:
                    self._ids_by_text.popitem(last=False)
        return new_ids[text]

    def encode_texts(self, texts: list[str]) -> list[Ids]:
        """Return the ids [N] of each text, by the tokenizer itself."""
        if self._fast_tokenizer is None:
            id_lists = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        else:  # a batch releases the interpreter's lock; offsets, which take as long, are skipped
            id_lists = [
                encoding.ids for encoding in self._fast_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            ]
        return [np.array(ids, dtype=np.int32) for ids in id_lists]

    def encode_without_images(self, text: str) -> Ids:
        """Return the ids [N] of a text without image placeholders. Raises TemplateRefused."""
        ids = self.encode(text)
        return ids if self.images is None else self.images.spread(ids, ())

    def decode(self, ids: Sequence[int] | Ids, *, after: Ids | None = None) -> str:
        """Return the text of ids, special tokens included.

        Args:
            after: The preceding ids, on which the text of the first id may depend.
        """
        id_list = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if after is None or not len(after):
            return self._decode_ids(id_list)
        context = int(after[-1])
        return self._decode_ids([context, *id_list])[len(self._decode_ids([context])) :]

    def _decode_ids(self, ids: Sequence[int]) -> str:
        """Return the text of ids, joined from cached texts if exact: with `_is_bytewise`, or for a single id."""
        texts = self._token_texts
        if self._is_bytewise or len(ids) == 1:
            for token in ids:
                if token not in texts:
                    texts[token] = self._decode_uncached([token])
            text = "".join([texts[token] for token in ids])
            if "\ufffd" not in text or len(ids) == 1:
                return text
        return self._decode_uncached(ids)

    def _decode_uncached(self, ids: Sequence[int]) -> str:
        """Return the text of ids, by the tokenizer itself."""
        if self._fast_tokenizer is not None:
            return self._fast_tokenizer.decode(list(ids), skip_special_tokens=False)
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _build_parser(self, tools: Tools | None, earlier_prompt: Rendered | None) -> Parser:
        """Return a parser of a reply to `earlier_prompt`, from its first character (a forced call included)."""
        if earlier_prompt is not None and not earlier_prompt.count:
            return ReplyParser("none")
        if self._schema is not None:
            return SchemaParser(self.tokenizer.parse_response, tools=tools)
        if self.template.style == "harmony":
            return HarmonyParser(tools=tools)
        thinking = (earlier_prompt is not None and earlier_prompt.opens_thought) if self.thinks else None
        return ReplyParser(self.template.style, tools=tools, thinking=thinking)

    def _split_reply(self, earlier_prompt: Rendered, reply: str, last: int) -> ReplyText:
        """Return the text of a reply as its reasoning, the rest, and the text of its end token.

        Args:
            reply: The reply's text.
            last: The last sampled token.
        """
        end = self._decode_ids([last]) if last in self.end_ids else ""
        body = reply.removesuffix(end)
        parser = self._build_parser((), earlier_prompt)
        parser.feed(body)
        parser.close()
        size = len(body) - len(parser.raw)
        return ReplyText(body[:size], body[size:], end)

    def _find_extension(
        self,
        text: str,
        shown: str,
        reply: ReplyText,
        has_calls: bool,
        earlier_prompt: Rendered,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        raw: dict[int, str],
    ) -> Extension | None:
        """Return the extension of a reply whose tool calls are spelled otherwise or whose thinking is stripped, or
        None.

        Args:
            text: The template's text of the longer history.
            shown: The template's own text of the earlier prompt.
            reply: The reply as sampled.
            has_calls: True if the reply has tool calls.
            raw: Message index -> the text that replaces a reply refused by the template.
        """

        def parse(reply: str) -> dict[str, Any]:
            parser = self._build_parser(tools or (), earlier_prompt)
            return assemble(parser.feed(reply) + parser.close())

        if has_calls:
            ends = [self._decode_ids([token]) for token in self.end_ids]
            extension = extend_respelled(text, shown, reply, ends=ends, parse=parse)
            if extension is not None:
                return extension
        if not self._keep_thinking:
            return None
        count = earlier_prompt.count
        # The template's text behind the reply is found with a mark as the reply.
        marked_messages = [*messages[:count], {"role": "assistant", "content": MARK}, *messages[count + 1 :]]
        raw.pop(count, None)
        try:
            _, has_mark, text_after = self.template.text(marked_messages, tools, raw=raw).rpartition(MARK)
        except TemplateRefused:
            return None
        return (
            extend_without_thinking(text, shown, reply, text_after, has_calls=has_calls, parse=parse)
            if has_mark
            else None
        )
