"""ReplyStream: parses sampled ids to the deltas of a message: reasoning, content and tool calls.

Invariant: however the ids or the text are cut into pieces, the deltas add up to the same message. Text that does not
parse as a tool call stays in the content, character for character, visible to checks and clients; a call quoted in such
text is not made. Deltas contain neither a stop string's text nor the text behind it.

Styles: `hermes` (Hermes, Qwen2.5, Qwen3), `xml` (Qwen3.5, Qwen3-Coder) and `glm` write <tool_call>…</tool_call> around
the text parsed by `tool_calls`; `llama` writes a reply of the form {"name": …, "parameters": …} (several joined by ;),
perhaps behind <|python_tag|>; `harmony` has a separate parser. Reasoning is <think>…</think> at the reply's start. A
tokenizer with a `response_schema` is parsed by `SchemaParser`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol

from ajet.tokens.call_end import (
    CLOSE,
    GLM,
    OPEN,
    XML,
    ArgumentScanner,
    CallEndFinder,
    JsonEndFinder,
    MatchingEndFinder,
    overlap,
)
from ajet.tokens.tool_calls import Function, Tools, glm_call, json_call, llama_calls, xml_call

Style = Literal["hermes", "xml", "glm", "llama", "harmony", "none"]
Delta = dict[str, Any]
"""A piece of an assistant message in OpenAI's streaming shape: `content`, `reasoning_content` or `tool_calls`."""

MAX_UNREADABLE_CALLS = 16
"""Limit on unreadable calls; the rest of the reply is text. Each costs a search up to the end of the reply."""
_THINK, _THOUGHT = "<think>", "</think>"
_PYTHON = "<|python_tag|>"
_BLOCKS: Mapping[str, tuple[Callable[[str, Tools], Function | None], Callable[[], CallEndFinder]]] = {
    "hermes": (json_call, partial(JsonEndFinder, CLOSE, start=len(OPEN))),
    "xml": (xml_call, partial(ArgumentScanner, XML)),
    "glm": (glm_call, partial(ArgumentScanner, GLM)),
}
"""Style -> the function that parses the text between the tags, and the finder of the end tag."""
_WINDOW = 24
"""Number of tokens after which an `IncrementalDecoder` drops earlier tokens."""


class Parser(Protocol):
    """Parses the text of one reply."""

    def feed(self, text: str) -> list[Delta]:
        """Parse more text. Return the deltas that further text cannot change."""
        ...

    def close(self) -> list[Delta]:
        """End the reply. Return the deltas held back so far."""
        ...

    @property
    def raw(self) -> str:
        """The text behind the reasoning, as sampled."""
        ...


class IncrementalDecoder:
    """Decodes the ids of one reply in pieces; joined, the pieces are the text of all ids decoded at once.

    A character whose bytes are split over tokens is returned with its last token. A context token in front makes
    tokenizers that strip a leading space (SentencePiece) decode a continuation as a continuation.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], context: int | None = None, *, bytewise: bool = False
    ) -> None:
        """Begin a reply.

        Args:
            decode: Maps ids to their text, special tokens included.
            context: The last token of the prompt.
            bytewise: True if `decode` joins the bytes of each id: no context is needed then.
        """
        self._decode = decode
        self._is_bytewise = bytewise
        context = None if bytewise else context
        self._window_ids: list[int] = [] if context is None else [context]
        """The latest token ids, with the ids before them that the decoder needs as context."""
        self._returned_chars = 0 if context is None else len(decode([context]))
        """Characters of the window's text already returned."""

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that further ids cannot change."""
        self._window_ids.extend(ids)
        text = self._decode(self._window_ids)
        ready = len(text.rstrip("\ufffd"))
        piece = text[self._returned_chars : ready]
        if self._is_bytewise and ready == len(text):
            self._window_ids, self._returned_chars = [], 0
            return piece
        self._returned_chars = max(self._returned_chars, ready)
        if len(self._window_ids) > _WINDOW and ready == len(text):
            self._window_ids = self._window_ids[-1:]
            text = self._decode(self._window_ids)
            if text.endswith("\ufffd"):  # the last token only completes a character: begin without a context
                self._window_ids, self._returned_chars = [], 0
            else:
                self._returned_chars = len(text)
        return piece

    def close(self) -> str:
        """Return the text held back: replacement characters for bytes of incomplete characters."""
        return self._decode(self._window_ids)[self._returned_chars :] if self._window_ids else ""


class ReplyStream:
    """Parses the sampled ids of one reply, and ends the reply at a stop string or after its only tool call."""

    def __init__(
        self,
        decoder: IncrementalDecoder,
        parser: Parser,
        end_ids: Sequence[int],
        stop: Sequence[str] = (),
        single_call: bool = False,
    ) -> None:
        """Begin a reply.

        Args:
            end_ids: Tokens that end the reply, without text.
            stop: Strings that end the reply.
            single_call: True if the first tool call ends the reply.
        """
        self._decoder, self._parser = decoder, parser
        self._end_ids = frozenset(end_ids)
        self._stop_strings = tuple(stop)
        self._allows_one_call = single_call
        self._max_partial_stop = max((len(text) for text in self._stop_strings), default=1) - 1
        self._possible_stop = ""
        """Text that may be the beginning of a stop string."""
        self._has_call = self._is_closed = False
        self.deltas: list[Delta] = []
        """All deltas of the reply so far."""
        self.is_cut = False
        """True once a stop string or the only tool call has completed the reply before the engine did."""
        self.id_count = 0
        """Number of ids that belong to the reply: fewer than fed if the reply was cut."""
        self.stopped: str | None = None
        """The stop string that was found in the reply."""

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        """Parse more sampled ids. Return the deltas that further ids cannot change."""
        if not self._stop_strings and not self._allows_one_call:
            self.id_count += len(ids)
            text = self._decoder.feed([token for token in ids if token not in self._end_ids]) if ids else ""
            deltas = self._parser.feed(text) if text else []
            self.deltas += deltas
            return deltas
        first_new = len(self.deltas)
        for token in ids:  # singly, so that the token completing a stop string is the last
            if self.is_cut:
                break
            self.id_count += 1
            if token not in self._end_ids:
                self._add_deltas(self._search_stop(self._decoder.feed([token])))
        return self.deltas[first_new:]

    def begin(self, forced: str) -> None:
        """Parse the beginning of the reply contained in the prompt."""
        self._add_deltas(self._parser.feed(forced))

    def close(self) -> list[Delta]:
        """End the reply. Return the deltas held back so far."""
        if self._is_closed:
            return []
        self._is_closed = True
        deltas: list[Delta] = []
        if not self.is_cut and (held_text := self._decoder.close()):
            deltas += self._search_stop(held_text)
        if not self.is_cut and self._possible_stop:
            deltas += self._parser.feed(self._possible_stop)
        return self._add_deltas(deltas + self._parser.close())

    def message(self) -> dict[str, Any]:
        """End the reply. Return its message in OpenAI's shape, tool calls without ids."""
        self.close()
        return assemble(self.deltas)

    @property
    def raw(self) -> str:
        """The text behind the reasoning, as sampled."""
        return self._parser.raw

    def _search_stop(self, text: str) -> list[Delta]:
        """Parse text up to a stop string. A possible beginning of a stop string is held back."""
        if not text:
            return []
        self._possible_stop += text
        stops = [(index, stop) for stop in self._stop_strings if (index := self._possible_stop.find(stop)) >= 0]
        if stops:
            index, self.stopped = min(stops)
            self.is_cut = True
            ready, self._possible_stop = self._possible_stop[:index], ""
        else:
            size = max(0, len(self._possible_stop) - self._max_partial_stop)
            ready, self._possible_stop = self._possible_stop[:size], self._possible_stop[size:]
        return self._parser.feed(ready) if ready else []

    def _add_deltas(self, deltas: list[Delta]) -> list[Delta]:
        """Add deltas to the message and return them, without further calls if one call is allowed.

        The further calls are removed from the list `deltas` itself.
        """
        if self._allows_one_call:
            calls = [delta for delta in deltas if "tool_calls" in delta]
            for further_call in calls if self._has_call else calls[1:]:
                deltas.remove(further_call)
            self._has_call = self._has_call or bool(calls)
            # Each tool-call delta is a whole call. After the first one the reply is complete, and sampling can end.
            self.is_cut = self.is_cut or self._has_call
        self.deltas += deltas
        return deltas


class ReplyParser:
    """Parses replies of one style (hermes, xml, glm, llama), and holds back only text that may still become a tag.

    Args:
        tools: Tools whose schemas type unquoted arguments; `None` parses no tool calls.
        thinking: `None` if the model has no reasoning tags, False if tags may open the reply, True if the prompt opened
            them.
    """

    def __init__(self, style: Style, *, tools: Tools | None = None, thinking: bool | None = None) -> None:
        self._style: Style = "none" if tools is None else style
        self._tools = tools or ()
        self._unparsed = ""
        self._call_end: CallEndFinder | None = None
        """Finds the end of the call at the start of `_unparsed`."""
        self._unreadable_calls = 0
        self._is_unreadable = False
        """True if the call is text up to the tag found by `_call_end`. A call may follow."""
        self._trailing_blank = ""
        self._consumed_parts: list[str] = []
        self._calls = 0
        self._has_content = False
        self._has_reasoning = False
        self._first_content_step = self._parse_llama if self._style == "llama" else self._parse_content
        self._step: Callable[[bool], list[Delta] | None] = self._first_content_step
        if thinking is not None:
            self._step = self._parse_reasoning if thinking else self._parse_opening

    @property
    def raw(self) -> str:
        return "".join(self._consumed_parts)

    def feed(self, text: str) -> list[Delta]:
        """Add sampled text and return the deltas that are certain by now."""
        self._unparsed += text
        return self._parse_held(is_end=False)

    def close(self) -> list[Delta]:
        """End the reply and return the remaining deltas."""
        deltas = self._parse_held(is_end=True)
        if self._trailing_blank and not self._calls and self._style != "none":
            deltas += self._add_content("")  # no call followed, so the blanks belong to the content
        return deltas

    def _parse_held(self, *, is_end: bool) -> list[Delta]:
        """Run parsing steps until one needs more text, and return their deltas."""
        deltas: list[Delta] = []
        while (new_deltas := self._step(is_end)) is not None:
            deltas += new_deltas
        return deltas

    # Each step consumes from `_unparsed` and returns deltas, or None when it needs more text.

    def _parse_opening(self, is_end: bool) -> list[Delta] | None:
        """Go on with the reasoning if the reply begins with <think>, otherwise with the content."""
        head = self._unparsed.lstrip()
        if head.startswith(_THINK):
            self._unparsed = head[len(_THINK) :]
            self._step = self._parse_reasoning
            return []
        if not is_end and _THINK.startswith(head):
            return None
        self._step = self._first_content_step
        return []

    def _parse_reasoning(self, is_end: bool) -> list[Delta] | None:
        """Parse reasoning up to </think>. A possible beginning of this tag is held back."""
        thought, end_tag, text_after = self._unparsed.partition(_THOUGHT)
        if end_tag:
            self._unparsed = text_after
            self._step = self._skip_newlines
            return self._add_reasoning(thought, is_last=True)
        if not self._unparsed:
            return None
        held_chars = 0 if is_end else overlap(self._unparsed, _THOUGHT)
        ready, self._unparsed = (
            self._unparsed[: len(self._unparsed) - held_chars],
            self._unparsed[len(self._unparsed) - held_chars :],
        )
        return self._add_reasoning(ready, is_last=is_end) or None

    def _add_reasoning(self, text: str, *, is_last: bool) -> list[Delta]:
        """Return the delta of a reasoning text without leading and trailing newlines, which belong to the template.

        Trailing newlines are held back until the next text shows that they are inside of the reasoning.
        """
        text = self._trailing_blank + text
        self._trailing_blank = ""
        if not self._has_reasoning:
            text = text.lstrip("\n")
        body = text.rstrip("\n")
        if not is_last:
            self._trailing_blank = text[len(body) :]
        self._has_reasoning = self._has_reasoning or bool(body)
        return [{"reasoning_content": body}] if body else []

    def _skip_newlines(self, is_end: bool) -> list[Delta] | None:
        """Drop the newlines between reasoning and content, which belong to the template."""
        self._unparsed = self._unparsed.lstrip("\n")
        if not self._unparsed:
            return None
        self._step = self._first_content_step
        return []

    def _parse_content(self, is_end: bool) -> list[Delta] | None:
        """Parse content up to the next tool call, or one complete tool call.

        A tool call that cannot be parsed becomes content. Its end is then searched by matching tags, because its text
        is not valid JSON and may quote other calls.
        """
        if not self._unparsed:
            return None
        if self._style == "none":
            text, self._unparsed = self._unparsed, ""
            self._consumed_parts.append(text)
            return [{"content": text}]
        if self._style not in _BLOCKS or self._unreadable_calls == MAX_UNREADABLE_CALLS:
            return self._add_content(self._consume_text(len(self._unparsed)))
        read_block, make_finder = _BLOCKS[self._style]
        start = self._unparsed.find(OPEN)
        if start < 0:
            ready = len(self._unparsed) - (0 if is_end else overlap(self._unparsed, OPEN))
            return self._add_content(self._consume_text(ready)) if ready else None
        if start:
            return self._add_content(self._consume_text(start))
        if self._call_end is None:
            self._call_end = make_finder()
        stop = self._call_end.find(self._unparsed)
        if stop < 0 and not is_end:
            return None
        if not self._is_unreadable:
            function = read_block(self._unparsed[len(OPEN) : stop], self._tools) if stop >= 0 else None
            if function is None:
                self._call_end, self._is_unreadable = MatchingEndFinder(), True
                self._unreadable_calls += 1
                return []
            self._call_end = None
            self._consume_text(stop + len(CLOSE))
            return self._add_call(function)
        self._call_end, self._is_unreadable = None, False
        return self._add_content(self._consume_text(len(self._unparsed) if stop < 0 else stop + len(CLOSE)))

    def _parse_llama(self, is_end: bool) -> list[Delta] | None:
        """Parse a reply of Llama's style, which is either calls without tags around them or content.

        Text that begins like a call may still turn out to be content, so nothing is returned (None) before the end.
        """
        head = self._unparsed.lstrip()
        if not is_end and (head.startswith(("{", _PYTHON)) or _PYTHON.startswith(head)):
            return None
        functions = llama_calls(head.removeprefix(_PYTHON).strip()) if is_end else None
        if functions is None:
            self._step = self._parse_content
            return []
        self._consume_text(len(self._unparsed))
        return [delta for function in functions for delta in self._add_call(function)]

    def _consume_text(self, count: int) -> str:
        """Remove the next characters from the unparsed text and return them. They become part of `raw`."""
        consumed, self._unparsed = self._unparsed[:count], self._unparsed[count:]
        self._consumed_parts.append(consumed)
        return consumed

    def _add_content(self, text: str) -> list[Delta]:
        """Return content. Blanks at its end are held back, because a following tool call would drop them."""
        if self._calls and not self._has_content and not self._trailing_blank:  # the first content behind a call
            text = text.lstrip()
        text = self._trailing_blank + text
        body = text.rstrip() if text != self._trailing_blank else text  # equal: `close` adds the held blanks
        self._trailing_blank = text[len(body) :]
        self._has_content = self._has_content or bool(body)
        return [{"content": body}] if body else []

    def _add_call(self, function: Function) -> list[Delta]:
        """Return a tool call as a delta. Blanks before a call are dropped."""
        self._trailing_blank = ""
        call = {"index": self._calls, "type": "function", "function": function}
        self._calls += 1
        return [{"tool_calls": [call]}]


def assemble(deltas: list[Delta]) -> dict[str, Any]:
    """Return the assistant message of all deltas. `content` is `None` only in messages with tool calls."""
    content = "".join(delta.get("content", "") for delta in deltas)
    thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [{key: call[key] for key in call if key != "index"} for call in calls]
    return message
