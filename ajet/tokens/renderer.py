"""Renderer: conversations to token ids and back, for one tokenizer.

Invariant: a reply's sampled ids are never re-encoded. `extend` returns before.ids + reply_ids + suffix, where only
the suffix is newly encoded, and only if the chat template renders the whole history to the text of those ids.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ajet.schema.call import Ids
from ajet.tokens.decoding import IncrementalDecoder
from ajet.tokens.parsing import Parser, ReplyParser, SchemaParser, Style
from ajet.tokens.stream import ReplyStream
from ajet.tokens.template import ChatTemplate, Message, TemplateRefused

_THOUGHTS = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_MARK = "\u2b1aAJET-REPLY\u2b1a"
_CACHED_TEXTS = 512
_CACHED_LENGTH = 20_000


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt: its text, its ids [P], and how many messages it renders (0: a raw prompt, whose reply is all text)."""

    text: str
    ids: Ids
    count: int = 0
    raw: tuple[tuple[int, str], ...] = ()
    """(message index, text): replies whose tool calls the template spells otherwise than they were sampled, kept as
    sampled."""
    forced: str = ""
    """The end of `text` that counts as the beginning of the reply (a tool call that the client demanded)."""


class Renderer:
    """Renders, extends and parses for one tokenizer. Thread-safe.

    `keep_thinking` extends where the template would only strip the thinking of earlier turns; `template_kwargs` go to
    the chat template (`enable_thinking`); `end_ids` adds to the tokens that end a reply.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        keep_thinking: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        end_ids: Sequence[int] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self._fast = getattr(tokenizer, "backend_tokenizer", None)
        self._template = ChatTemplate(tokenizer, template_kwargs)
        self._keep_thinking = keep_thinking
        self._texts: OrderedDict[str, Ids] = OrderedDict()
        self.end_ids: tuple[int, ...] = self._find_end_ids(end_ids)
        self._schema = getattr(tokenizer, "response_schema", None)
        self._style, self._thinks = self._find_style()

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> Rendered:
        """The prompt of these messages, generation prompt included. Raises TemplateRefused."""
        text = self._template.text(messages, tools)
        return Rendered(text, self.encode(text), len(messages))

    def raw(self, prompt: str | Sequence[int]) -> Rendered:
        """A prompt without the chat template: a text, begun as the tokenizer begins texts, or ids as they are. Raises
        TemplateRefused for ids that are not in the vocabulary."""
        if isinstance(prompt, str):
            ids = self.encode(prompt)
            begin = self._begin_id()
            if begin is not None and ids[:1].tolist() != [begin]:
                ids = np.concatenate([np.array([begin], dtype=np.int32), ids])
            return Rendered(prompt, ids)
        size = len(self.tokenizer)
        wrong = next((token for token in prompt if not 0 <= token < size), None)
        if wrong is not None:
            raise TemplateRefused(f"the prompt holds the id {wrong}, and this vocabulary has {size}")
        return Rendered(self.decode(prompt), np.array(prompt, dtype=np.int32))

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
        the conversation forks. `verbatim` False: the reply was cut at a stop string, so its text is not its tokens'.
        Where no end token was sampled (`finish` "length"), the suffix brings the template's. Raises TemplateRefused.
        """
        if finish in ("error", "aborted") or len(messages) <= before.count or len(reply_ids) == 0:
            return None
        at, raw = before.count, before.raw
        head = before.text + self.decode(reply_ids, after=before.ids)
        called = bool(messages[at].get("tool_calls"))
        try:
            text = self._template.text(messages, tools, raw=dict(raw))
        except TemplateRefused:  # several calls in one reply, say, which the model made all the same
            if not called:
                raise
            text = ""
        if not text.startswith(head) and called and verbatim:
            raw = (*raw, (at, self._raw_reply(before, reply_ids)))
            text = self._template.text(messages, tools, raw=dict(raw))
        if not text.startswith(head):
            kept = self._with_thoughts(head, text, at, messages, tools, raw) if verbatim else None
            if kept is None:
                return None
            text = kept
        ids = np.concatenate([before.ids, reply_ids, self.encode(text[len(head) :])])
        return Rendered(text, ids.astype(np.int32, copy=False), len(messages), raw)

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
        names = [tool["function"]["name"] for tool in tools or ()]
        forced = before.forced if before is not None else ""
        prompt = before.text[: len(before.text) - len(forced)] if before is not None else ""
        context = int(before.ids[-1]) if before is not None and len(before.ids) else None
        parser: Parser
        if before is not None and not before.count:
            parser = ReplyParser("none")
        elif self._schema is not None:
            parser = SchemaParser(self.tokenizer.parse_response, tool_names=names)
        else:
            opened = prompt.rstrip("\n").endswith("<think>")
            parser = ReplyParser(self._style, tool_names=names, thinking=opened or False if self._thinks else None)
        stream = ReplyStream(IncrementalDecoder(self._decode, context), parser, self.end_ids, stop, single_call)
        if forced:
            stream.begin(forced)
        return stream

    def force_call(self, prompt: Rendered, name: str | None) -> Rendered | None:
        """`prompt` with the beginning of a call of tool `name` (None: of some tool) after it, so that the reply can
        only go on with it; None where this model's style or an opened thought leaves no room for that."""
        if self._schema is not None or self._style == "none" or prompt.text.rstrip("\n").endswith("<think>"):
            return None
        opening, key = ("<tool_call>\n", "arguments") if self._style == "hermes" else ("", "parameters")
        forced = opening + '{"name": "' + (f'{name}", "{key}": ' if name is not None else "")
        ids = np.concatenate([prompt.ids, self.encode(forced)])
        return replace(prompt, text=prompt.text + forced, ids=ids, forced=forced)

    def encode(self, text: str) -> Ids:
        """[N] ids of a text in which special tokens are recognised and none is added. Raises TemplateRefused for text
        that is not Unicode (lone surrogates)."""
        cached = self._texts.get(text)
        if cached is not None:
            return cached
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TemplateRefused(f"the messages hold text that is not valid Unicode: {error.reason}") from error
        if self._fast is not None:
            listed = self._fast.encode(text, add_special_tokens=False).ids
        else:
            listed = self.tokenizer.encode(text, add_special_tokens=False)
        ids = np.array(listed, dtype=np.int32)
        ids.flags.writeable = False
        if len(text) <= _CACHED_LENGTH:
            self._texts[text] = ids
            if len(self._texts) > _CACHED_TEXTS:
                self._texts.popitem(last=False)
        return ids

    def decode(self, ids: Sequence[int] | Ids, *, after: Ids | None = None) -> str:
        """The text of ids, special tokens included; `after` holds the ids they follow."""
        listed = _listed(ids)
        if after is None or not len(after):
            return self._decode(listed)
        context = int(after[-1])
        return self._decode([context, *listed])[len(self._decode([context])) :]

    def _decode(self, ids: Sequence[int]) -> str:
        if self._fast is not None:
            return self._fast.decode(list(ids), skip_special_tokens=False)
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _raw_reply(self, before: Rendered, reply_ids: Ids) -> str:
        stream = self.reply_stream([{"function": {"name": "any"}}], before=before)
        stream.feed(_listed(reply_ids))
        stream.close()
        return stream.raw

    def _with_thoughts(
        self,
        head: str,
        text: str,
        at: int,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        raw: tuple[tuple[int, str], ...],
    ) -> str | None:
        """head + what the template puts after the reply, if but for stripped thinking that is its rendering."""
        if not self._keep_thinking:
            return None
        marked = list(messages)
        marked[at] = {"role": "assistant", "content": _MARK}
        _, found, after = self._template.text(
            marked, tools, raw=dict(raw[:-1] if raw and raw[-1][0] == at else raw)
        ).rpartition(_MARK)
        if not found:
            return None
        end = next((spelled for token in self.end_ids if head.endswith(spelled := self._decode([token]))), "")
        if end and not after.startswith(end):
            return None
        kept = head + after[len(end) :]
        return kept if _THOUGHTS.sub("", kept) == _THOUGHTS.sub("", text) else None

    def _find_end_ids(self, more: Sequence[int]) -> tuple[int, ...]:
        ends: list[int] = []
        try:
            turn = self._template.text(
                [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}], prompt=False
            )
            special = set(self.tokenizer.all_special_ids) | set(getattr(self.tokenizer, "added_tokens_decoder", {}))
            ends += [token for token in self.encode(turn.rpartition(_MARK)[2]).tolist() if token in special][:1]
        except TemplateRefused:
            pass
        eos = self.tokenizer.eos_token_id
        ends += eos if isinstance(eos, list) else [eos] if eos is not None else []
        vocabulary = self.tokenizer.get_vocab()
        ends += [vocabulary[name] for name in ("<|eom_id|>",) if name in vocabulary]
        return tuple(dict.fromkeys([*ends, *more]))

    def _find_style(self) -> tuple[Style, bool]:
        source = self._template.source
        vocabulary = self.tokenizer.get_vocab()
        style: Style = "hermes"
        if "<tool_call>" not in source and self._template.knows_tools:
            llama = "<|python_tag|>" in vocabulary or "<|python_tag|>" in source or '"parameters"' in source
            style = "llama" if llama else "none"
        return style, "</think>" in source or "</think>" in vocabulary


def _listed(ids: Sequence[int] | Ids) -> list[int]:
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
