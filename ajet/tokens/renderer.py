"""Renderer: conversations to token ids and back, for one tokenizer.

Invariant: a reply's sampled ids are never re-encoded. `extend` returns before.ids + reply_ids + suffix, where only
the suffix is newly encoded, and only if the chat template renders the whole history to the text of those ids.
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
from ajet.tokens.parsing import Parser, ReplyParser, SchemaParser, assemble
from ajet.tokens.segments import decodes_token_by_token, parting
from ajet.tokens.stream import IncrementalDecoder, ReplyStream
from ajet.tokens.template import (
    CUT,
    ChatTemplate,
    Escaped,
    Extension,
    Message,
    Respelled,
    Said,
    TemplateRefused,
    extension,
    extension_beyond_thoughts,
    extension_respelled,
    own_text,
    uncut,
)
from ajet.tokens.tool_call_format import FORCED
from ajet.tokens.tool_calls import Tools

_CACHED_TEXTS = 512
_CACHED_LENGTH = 20_000


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt: its text, its ids [P], and how many messages it renders (0: a raw prompt, whose reply is all text)."""

    text: str
    """As it is encoded, a `CUT` wherever content spells a control token; for people it is `shown`."""
    ids: Ids
    count: int = 0
    raw: tuple[tuple[int, str], ...] = ()
    """(message index, text): replies whose tool calls the template refuses to show, given to it as text."""
    forced: str = ""
    """The end of `text` that counts as the beginning of the reply (a tool call that the client demanded)."""
    respelled: tuple[Respelled, ...] = ()
    """Where replies stand as sampled and the template spells their tool calls otherwise."""

    @property
    def shown(self) -> str:
        """The text that the ids say."""
        return uncut(self.text)

    @property
    def opens_thought(self) -> bool:
        """Whether the prompt itself begins the reply's thinking."""
        return self.text.removesuffix(self.forced).rstrip("\n").endswith("<think>")


class Renderer:
    """Renders, extends and parses for one tokenizer. Thread-safe.

    `keep_thinking` extends where the template would only strip the thinking of earlier turns; `template_kwargs` go to
    the chat template (`enable_thinking`); `end_ids` adds to the tokens that end a reply; `images` is how a model that
    sees images is shown them; `escaped` says whose content cannot spell control tokens.
    """

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
        self.tokenizer = tokenizer
        self.images = images
        self._fast = getattr(tokenizer, "backend_tokenizer", None)
        os.environ.setdefault(
            "TOKENIZERS_PARALLELISM", "false"
        )  # or each child process is warned of our batches of one
        self.template = ChatTemplate(tokenizer, template_kwargs, images=images is not None, escaped=escaped)
        self._keep_thinking = keep_thinking
        self._texts: OrderedDict[str, Ids] = OrderedDict()
        self._words: dict[int, str] = {}
        """Tokens -> their text alone; as many as the vocabulary has at most."""
        self._bytewise = decodes_token_by_token(self._fast)
        self._whole: dict[int, str] = {}
        """Those of `_words` that are whole characters, where such texts are only put together."""
        self._parting = parting(self._fast, self.template.source)
        found = end_ids_of(self.template, tokenizer, self.encode)
        self.end_ids: tuple[int, ...] = tuple(dict.fromkeys([*found, *end_ids]))
        self._schema = getattr(tokenizer, "response_schema", None)
        self.thinks = "</think>" in self.template.source or "</think>" in tokenizer.get_vocab()
        """Whether replies may begin with <think>."""

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> Rendered:
        """The prompt of these messages, generation prompt included. Raises TemplateRefused."""
        if tools and not self.reads_tool_calls:
            raise TemplateRefused(
                "this model's chat template writes tool calls in a way that ajet cannot read, so they would be lost; "
                "leave tools out (rollout.force_disable_toolcalls), or give the tokenizer a response_schema"
            )
        text = self.template.text(messages, tools)
        return Rendered(text, self._with_images(self.encode(text), messages), len(messages))

    def on_day(self, day: date) -> Renderer:
        """The renderer for prompts of that day: this one, but where the template writes a date into them."""
        if not self.template.dated or self.template.day == day:
            return self
        other = copy.copy(self)
        other.template = self.template.on_day(day)
        return other

    @property
    def reads_tool_calls(self) -> bool:
        """False: how this model writes tool calls is not known."""
        return self._schema is not None or self.template.style != "none"

    def raw(self, prompt: str | Sequence[int]) -> Rendered:
        """A prompt without the chat template: a text, begun as the tokenizer begins texts, or ids as they are. Raises
        TemplateRefused for ids that are not in the vocabulary."""
        if isinstance(prompt, str):
            ids = self.without_images(prompt)
            begin = self._begin_id()
            if begin is not None and ids[:1].tolist() != [begin]:
                ids = np.concatenate([np.array([begin], dtype=np.int32), ids])
            return Rendered(prompt, ids)
        size = len(self.tokenizer)
        wrong = next((token for token in prompt if not 0 <= token < size), None)
        if wrong is not None:
            raise TemplateRefused(f"the prompt holds the id {wrong}, and this vocabulary has {size}")
        return Rendered(self.decode(prompt), self._with_images(np.array(prompt, dtype=np.int32), ()))

    def _begin_id(self) -> int | None:
        begun = self.tokenizer.encode("", add_special_tokens=True)[:1]
        return begun[0] if begun and begun[0] == self.tokenizer.bos_token_id else None

    def extend(
        self,
        before: Rendered,
        reply_ids: Ids,
        finish: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        verbatim: bool = True,
    ) -> Rendered | None:
        """The prompt of `messages`, which begin with `before`'s and the reply to it, kept as sampled.

        None: the template renders this history otherwise (thinking stripped, content trimmed, another end token), so
        the conversation forks. `verbatim` False: the reply was cut at a stop string, so its text is not its tokens',
        and `messages` may go on within its message.
        Where no end token was sampled (`finish` "length"), the suffix brings the template's. Raises TemplateRefused.
        """
        if finish in ("error", "aborted") or len(messages) <= before.count or len(reply_ids) == 0:
            return None
        at, raw = before.count, before.raw
        called = verbatim and bool(messages[at].get("tool_calls"))
        reply = before.forced + self.decode(reply_ids, after=before.ids)
        try:
            text = self.template.text(messages, tools, raw=dict(raw))
        except TemplateRefused:  # several calls in one reply, say, which the model made all the same
            if not called:
                raise
            raw = (*raw, (at, self._said(before, reply, int(reply_ids[-1])).rest))
            text = self.template.text(messages, tools, raw=dict(raw))
        start = len(before.text) - len(before.forced)
        own = own_text(before.text[:start], before.respelled)
        found = extension(text, own, reply)
        respelled = before.respelled
        if found is None and (called or (self._keep_thinking and verbatim)):
            said = self._said(before, reply, int(reply_ids[-1]))
            found = self._extension(text, own, said, called, before, messages, tools, dict(raw))
            if found is not None and found.spelled is not None:
                begin = start + len(said.thought)
                respelled = (*respelled, (begin, begin + len(said.rest), found.spelled))
        if found is None:
            return None
        encoded = self.encode(found.suffix)
        if not verbatim and not self._joins(reply_ids, encoded, found.suffix):
            return None
        suffix = self._with_images(encoded, messages[before.count :])
        ids = np.concatenate([before.ids, reply_ids, suffix]).astype(np.int32, copy=False)
        return Rendered(before.text[:start] + reply + found.suffix, ids, len(messages), raw, respelled=respelled)

    def _joins(self, ids: Ids, encoded: Ids, text: str) -> bool:
        """Whether `encoded`, of a text that may begin within a message, begins with it after `ids`, too: some
        tokenizers put a blank before every text."""
        return self.decode(encoded, after=ids)[:1] == uncut(text)[:1]

    def parse(
        self,
        reply_ids: Sequence[int] | Ids,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        before: Rendered | None = None,
    ) -> dict[str, Any]:
        """The assistant message that these ids say: role, content, and where present reasoning_content, tool_calls
        (without ids). Tool calls are looked for only if there are `tools`."""
        stream = self.reply_stream(tools, before=before)
        stream.feed(_listed(reply_ids))
        return stream.message()

    def reply_stream(
        self,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        before: Rendered | None = None,
        stop: Sequence[str] = (),
        single_call: bool = False,
    ) -> ReplyStream:
        """An incremental parser of one reply to the prompt `before`, that ends it at a `stop` string or, with
        `single_call`, after its first tool call. After a raw prompt the whole text is content."""
        context = int(before.ids[-1]) if before is not None and len(before.ids) else None
        parser = self._parser(tools or None, before)
        decoder = IncrementalDecoder(self._decode, context, bytewise=self._bytewise)
        stream = ReplyStream(decoder, parser, self.end_ids, stop, single_call)
        if before is not None and before.forced:
            stream.begin(before.forced)
        return stream

    def force_call(self, prompt: Rendered, name: str | None) -> Rendered | None:
        """`prompt` with the beginning of a call of tool `name` (None: of some tool) after it, so that the reply can
        only go on with it; None where this model's style or an opened thought leaves no room for that."""
        if self._schema is not None or prompt.opens_thought:
            return None
        opening, named = FORCED.get(self.template.style, (None, ""))
        if opening is None:
            return None
        forced = opening + (named.replace("NAME", name) if name is not None else "")
        ids = np.concatenate([prompt.ids, self.encode(forced)])
        return replace(prompt, text=prompt.text + forced, ids=ids, forced=forced)

    def encode(self, text: str) -> Ids:
        """[N] ids of a text in which special tokens are recognised, but where a `CUT` lies in them, and none is added.
        Raises TemplateRefused for text that is not Unicode (lone surrogates)."""
        if CUT in text:
            return np.concatenate([self.encode(part) for part in text.split(CUT)])
        cached = self._texts.get(text)
        if cached is not None:
            return cached
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TemplateRefused(f"the messages hold text that is not valid Unicode: {error.reason}") from error
        parting = self._parting
        if self._fast is not None and self._fast.padding is not None:  # which somebody has asked for since
            parting = None
        parts = [text] if parting is None else [part for part in parting.split(text) if part]
        if len(parts) < 2:
            return self._encode(parts)[0] if parts else np.empty(0, dtype=np.int32)
        known = [self._texts.get(part) for part in parts]
        missing = list(dict.fromkeys(part for part, ids in zip(parts, known, strict=True) if ids is None))
        new = dict(zip(missing, self._encode(missing), strict=True)) if missing else {}
        ids = np.concatenate([new[part] if ids is None else ids for part, ids in zip(parts, known, strict=True)])
        return self._keep(text, ids)

    def _encode(self, texts: list[str]) -> list[Ids]:
        """[N] ids of each, by the tokenizer itself."""
        if self._fast is not None:  # in a batch, which lets other threads run, and without offsets, which take as long
            listed = [each.ids for each in self._fast.encode_batch_fast(texts, add_special_tokens=False)]
        else:
            listed = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        return [self._keep(text, np.array(ids, dtype=np.int32)) for text, ids in zip(texts, listed, strict=True)]

    def _keep(self, text: str, ids: Ids) -> Ids:
        """The ids, which are those of this text."""
        ids.flags.writeable = False
        if len(text) <= _CACHED_LENGTH:
            self._texts[text] = ids
            if len(self._texts) > _CACHED_TEXTS:
                self._texts.popitem(last=False)
        return ids

    def without_images(self, text: str) -> Ids:
        """[N] ids of a text that goes on from others and holds no image's place. Raises TemplateRefused."""
        return self._with_images(self.encode(text), ())

    def _with_images(self, ids: Ids, messages: Sequence[Message]) -> Ids:
        """The ids of a text that shows these messages, with their images as long as they are."""
        return ids if self.images is None else self.images.spread(ids, image_urls(messages))

    def decode(self, ids: Sequence[int] | Ids, *, after: Ids | None = None) -> str:
        """The text of ids, special tokens included; `after` holds the ids they follow."""
        listed = _listed(ids)
        if after is None or not len(after):
            return self._decode(listed)
        context = int(after[-1])
        return self._decode([context, *listed])[len(self._decode([context])) :]

    def _decode(self, ids: Sequence[int]) -> str:
        if len(ids) == 1:
            return self._word(ids[0])  # every reply begins after a token, and most pieces are one
        if not self._bytewise:
            return self._decoded(ids)
        try:
            return "".join([self._whole[token] for token in ids])
        except KeyError:
            for token in ids:
                self._word(token)
        if all(token in self._whole for token in ids):
            return "".join([self._whole[token] for token in ids])
        return self._decoded(ids)

    def _word(self, token: int) -> str:
        text = self._words.get(token)
        if text is None:
            text = self._words[token] = self._decoded([token])
            if "\ufffd" not in text:
                self._whole[token] = text
        return text

    def _decoded(self, ids: Sequence[int]) -> str:
        if self._fast is not None:
            return self._fast.decode(list(ids), skip_special_tokens=False)
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _parser(self, tools: Tools | None, before: Rendered | None) -> Parser:
        """A parser of a reply to `before`, from its very beginning (a forced call included)."""
        if before is not None and not before.count:
            return ReplyParser("none")
        if self._schema is not None:
            return SchemaParser(self.tokenizer.parse_response, tools=tools)
        if self.template.style == "harmony":
            return HarmonyParser(tools=tools)
        opened = before is not None and before.opens_thought
        return ReplyParser(self.template.style, tools=tools, thinking=opened or False if self.thinks else None)

    def _said(self, before: Rendered, reply: str, last: int) -> Said:
        """The parts of a reply's text; `last` is its last token."""
        end = self._decode([last]) if last in self.end_ids else ""
        body = reply.removesuffix(end)
        parser = self._parser((), before)
        parser.feed(body)
        parser.close()
        thought = len(body) - len(parser.raw)
        return Said(body[:thought], body[thought:], end)

    def _extension(
        self,
        text: str,
        own: str,
        said: Said,
        called: bool,
        before: Rendered,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        raw: dict[int, str],
    ) -> Extension | None:
        """The two differences that are no reason to fork."""

        def reads(reply: str) -> dict[str, Any]:
            parser = self._parser(tools or (), before)
            return assemble(parser.feed(reply) + parser.close())

        if called:
            ends = [self._decode([token]) for token in self.end_ids]
            found = extension_respelled(text, own, said, ends=ends, reads=reads)
            if found is not None:
                return found
        if not self._keep_thinking:
            return None
        after = self._after_reply(before.count, messages, tools, raw)
        if after is None:
            return None
        return extension_beyond_thoughts(text, own, said, after, called=called, reads=reads)

    def _after_reply(
        self,
        at: int,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        raw: dict[int, str],
    ) -> str | None:
        """The text that the template puts after message `at`, a reply; None where it refuses."""
        marked = [*messages[:at], {"role": "assistant", "content": MARK}, *messages[at + 1 :]]
        raw.pop(at, None)
        try:
            _, found, after = self.template.text(marked, tools, raw=raw).rpartition(MARK)
        except TemplateRefused:
            return None
        return after if found else None


def _listed(ids: Sequence[int] | Ids) -> list[int]:
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
