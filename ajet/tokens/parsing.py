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
        self._window: list[int] = [] if context is None else [context]
        """The latest ids, with context."""
        self._given = 0 if context is None else len(decode([context]))
        """Characters of the window's text already returned."""

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that further ids cannot change."""
        self._window.extend(ids)
        text = self._decode(self._window)
        ready = len(text.rstrip("\ufffd"))
        piece = text[self._given : ready]
        if self._is_bytewise and ready == len(text):
            self._window, self._given = [], 0
            return piece
        self._given = max(self._given, ready)
        if len(self._window) > _WINDOW and ready == len(text):
            self._window = self._window[-1:]
            text = self._decode(self._window)
            if text.endswith("\ufffd"):  # the last token only completes a character: begin without a context
                self._window, self._given = [], 0
            else:
                self._given = len(text)
        return piece

    def close(self) -> str:
        """Return the text held back: replacement characters for bytes of incomplete characters."""
        return self._decode(self._window)[self._given :] if self._window else ""


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
        self._end_ids, self._stop, self._allows_one_call = frozenset(end_ids), tuple(stop), single_call
        self._longest = max((len(text) for text in self._stop), default=1) - 1
        self._tail = ""
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
        if not self._stop and not self._allows_one_call:
            self.id_count += len(ids)
            text = self._decoder.feed([token for token in ids if token not in self._end_ids]) if ids else ""
            deltas = self._parser.feed(text) if text else []
            self.deltas += deltas
            return deltas
        first = len(self.deltas)
        for token in ids:  # singly, so that the token completing a stop string is the last
            if self.is_cut:
                break
            self.id_count += 1
            if token not in self._end_ids:
                self._add_deltas(self._search_stop(self._decoder.feed([token])))
        return self.deltas[first:]

    def begin(self, forced: str) -> None:
        """Parse the beginning of the reply contained in the prompt."""
        self._add_deltas(self._parser.feed(forced))

    def close(self) -> list[Delta]:
        """End the reply. Return the deltas held back so far."""
        if self._is_closed:
            return []
        self._is_closed = True
        deltas: list[Delta] = []
        if not self.is_cut and (rest := self._decoder.close()):
            deltas += self._search_stop(rest)
        if not self.is_cut and self._tail:
            deltas += self._parser.feed(self._tail)
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
        self._tail += text
        stops = [(index, stop) for stop in self._stop if (index := self._tail.find(stop)) >= 0]
        if stops:
            index, self.stopped = min(stops)
            self.is_cut = True
            ready, self._tail = self._tail[:index], ""
        else:
            size = max(0, len(self._tail) - self._longest)
            ready, self._tail = self._tail[:size], self._tail[size:]
        return self._parser.feed(ready) if ready else []

    def _add_deltas(self, deltas: list[Delta]) -> list[Delta]:
        """Add deltas to the message and return them, without further calls if one call is allowed.

        The further calls are removed from the list `deltas` itself.
        """
        if self._allows_one_call:
            calls = [delta for delta in deltas if "tool_calls" in delta]
            for extra in calls if self._has_call else calls[1:]:
                deltas.remove(extra)
            self._has_call = self._has_call or bool(calls)
            # Each tool-call delta is a whole call. After the first one the reply is complete, and sampling can end.
            self.is_cut = self.is_cut or self._has_call
        self.deltas += deltas
        return deltas


class ReplyParser:
    """Parses the styles above, and holds back only text that may still become a tag.

    Args:
        tools: Tools whose schemas type unquoted arguments; `None` parses no tool calls.
        thinking: `None` if the model has no reasoning tags, False if tags may open the reply, True if the prompt opened
            them.
    """

    def __init__(self, style: Style, *, tools: Tools | None = None, thinking: bool | None = None) -> None:
        self._style: Style = "none" if tools is None else style
        self._tools = tools or ()
        self._held = ""
        self._end: CallEndFinder | None = None
        """Finds the end of the call at the start of `_held`."""
        self._unreadable_calls = 0
        self._is_unreadable = False
        """True if the call is text up to the tag found by `_end`. A call may follow."""
        self._blank = ""
        self._raw: list[str] = []
        self._calls = 0
        self._has_content = False
        self._has_reasoning = False
        self._first_content_step = self._parse_llama if self._style == "llama" else self._parse_content
        self._step: Callable[[bool], list[Delta] | None] = self._first_content_step
        if thinking is not None:
            self._step = self._parse_reasoning if thinking else self._parse_opening

    @property
    def raw(self) -> str:
        return "".join(self._raw)

    def feed(self, text: str) -> list[Delta]:
        """Add sampled text and return the deltas that are certain by now."""
        self._held += text
        return self._parse_held(end=False)

    def close(self) -> list[Delta]:
        """End the reply and return the remaining deltas."""
        deltas = self._parse_held(end=True)
        if self._blank and not self._calls and self._style != "none":
            deltas += self._add_content("")
        return deltas

    def _parse_held(self, *, end: bool) -> list[Delta]:
        deltas: list[Delta] = []
        while (more := self._step(end)) is not None:
            deltas += more
        return deltas

    # Each step consumes from `_held` and returns deltas, or None when it needs more text.

    def _parse_opening(self, end: bool) -> list[Delta] | None:
        head = self._held.lstrip()
        if head.startswith(_THINK):
            self._held = head[len(_THINK) :]
            self._step = self._parse_reasoning
            return []
        if not end and _THINK.startswith(head):
            return None
        self._step = self._first_content_step
        return []

    def _parse_reasoning(self, end: bool) -> list[Delta] | None:
        thought, closed, rest = self._held.partition(_THOUGHT)
        if closed:
            self._held = rest
            self._step = self._skip_newlines
            return self._add_reasoning(thought, last=True)
        if not self._held:
            return None
        keep = 0 if end else overlap(self._held, _THOUGHT)
        ready, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return self._add_reasoning(ready, last=end) or None

    def _add_reasoning(self, text: str, *, last: bool) -> list[Delta]:
        text = self._blank + text
        self._blank = ""
        if not self._has_reasoning:
            text = text.lstrip("\n")
        body = text.rstrip("\n")
        if not last:
            self._blank = text[len(body) :]
        self._has_reasoning = self._has_reasoning or bool(body)
        return [{"reasoning_content": body}] if body else []

    def _skip_newlines(self, end: bool) -> list[Delta] | None:
        self._held = self._held.lstrip("\n")
        if not self._held:
            return None
        self._step = self._first_content_step
        return []

    def _parse_content(self, end: bool) -> list[Delta] | None:
        if not self._held:
            return None
        if self._style == "none":
            text, self._held = self._held, ""
            self._raw.append(text)
            return [{"content": text}]
        if self._style not in _BLOCKS or self._unreadable_calls == MAX_UNREADABLE_CALLS:
            return self._add_content(self._consume_text(len(self._held)))
        read_block, make_finder = _BLOCKS[self._style]
        start = self._held.find(OPEN)
        if start < 0:
            ready = len(self._held) - (0 if end else overlap(self._held, OPEN))
            return self._add_content(self._consume_text(ready)) if ready else None
        if start:
            return self._add_content(self._consume_text(start))
        if self._end is None:
            self._end = make_finder()
        stop = self._end.find(self._held)
        if stop < 0 and not end:
            return None
        if not self._is_unreadable:
            function = read_block(self._held[len(OPEN) : stop], self._tools) if stop >= 0 else None
            if function is None:
                self._end, self._is_unreadable = MatchingEndFinder(), True
                self._unreadable_calls += 1
                return []
            self._end = None
            self._consume_text(stop + len(CLOSE))
            return self._add_call(function)
        self._end, self._is_unreadable = None, False
        return self._add_content(self._consume_text(len(self._held) if stop < 0 else stop + len(CLOSE)))

    def _parse_llama(self, end: bool) -> list[Delta] | None:
        head = self._held.lstrip()
        if not end and (head.startswith(("{", _PYTHON)) or _PYTHON.startswith(head)):
            return None
        functions = llama_calls(head.removeprefix(_PYTHON).strip()) if end else None
        if functions is None:
            self._step = self._parse_content
            return []
        self._consume_text(len(self._held))
        return [delta for function in functions for delta in self._add_call(function)]

    def _consume_text(self, count: int) -> str:
        consumed, self._held = self._held[:count], self._held[count:]
        self._raw.append(consumed)
        return consumed

    def _add_content(self, text: str) -> list[Delta]:
        """Return content. Blanks at its end are held back, because a following tool call would drop them."""
        if self._calls and not self._has_content and not self._blank:
            text = text.lstrip()
        text = self._blank + text
        body = text.rstrip() if text != self._blank else text
        self._blank = text[len(body) :]
        self._has_content = self._has_content or bool(body)
        return [{"content": body}] if body else []

    def _add_call(self, function: Function) -> list[Delta]:
        self._blank = ""
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
