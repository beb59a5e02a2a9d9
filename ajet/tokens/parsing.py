"""Parsing: a reply's text -> reasoning, content, tool calls, whole or piece by piece.

Invariant: however the text is cut into pieces, the pieces' deltas add up to the same message; `parse` is the stream
fed once. What does not read as a tool call stays in the content, character for character, so that a check can see it
and the client is told no more than was said. A call that cannot be read is text as a whole: a call that is quoted in
it is never played.

Styles: `hermes` (Hermes, Qwen2.5, Qwen3), `xml` (Qwen3.5, Qwen3-Coder) and `glm` write <tool_call>…</tool_call>
around what `calls` reads; `llama` a reply that is {"name": …, "parameters": …} (several joined by ;), perhaps after
<|python_tag|>; `harmony` has a module of its own. Reasoning is <think>…</think> at the reply's start. A tokenizer that
carries a `response_schema` is parsed by transformers instead (`SchemaParser`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from ajet.tokens.tool_calls import Function, Tools, checked, glm_call, json_call, llama_calls, xml_call

Style = Literal["hermes", "xml", "glm", "llama", "harmony", "none"]
Delta = dict[str, Any]
"""A piece of an assistant message in OpenAI's streaming shape: `content`, `reasoning_content` or `tool_calls`."""

MAX_UNREADABLE_CALLS = 16
"""What follows so many in one reply is text: each may be searched for its end up to the end of the reply."""
_THINK, _THOUGHT = "<think>", "</think>"
_PYTHON = "<|python_tag|>"
_BLOCKS: Mapping[str, tuple[Callable[[str, Tools], Function | None], Callable[[], CallEndFinder]]] = {
    "hermes": (json_call, partial(JsonEndFinder, CLOSE, start=len(OPEN))),
    "xml": (xml_call, partial(ArgumentScanner, XML)),
    "glm": (glm_call, partial(ArgumentScanner, GLM)),
}
"""Style -> what reads the text between the tags, and what finds the end tag."""


class Parser(Protocol):
    """Reads one reply."""

    def feed(self, text: str) -> list[Delta]:
        """More text of the reply; what is certain by now."""
        ...

    def close(self) -> list[Delta]:
        """The reply has ended; what was held back."""
        ...

    @property
    def raw(self) -> str:
        """The text after the reasoning, as sampled."""
        ...


class ReplyParser:
    """The styles above, as a machine that holds back only what may still turn out to be a tag.

    `tools` None: nothing is a tool call; their schemas type arguments that are written bare. `thinking` None: the model
    has no reasoning tags; False: they may open the reply; True: the prompt opened them.
    """

    def __init__(self, style: Style, *, tools: Tools | None = None, thinking: bool | None = None) -> None:
        self._style: Style = "none" if tools is None else style
        self._tools = tools or ()
        self._held = ""
        self._end: CallEndFinder | None = None
        """Of the call that `_held` begins with."""
        self._unreadable_calls = 0
        self._is_unreadable = False
        """True if that call is text up to the tag that `_end` finds. A call may follow it."""
        self._blank = ""
        self._raw: list[str] = []
        self._calls = 0
        self._spoke = False
        self._thought = False
        self._step: Callable[[bool], list[Delta] | None] = self._content
        if thinking is not None:
            self._step = self._think if thinking else self._opening
        self._after_reasoning()

    @property
    def raw(self) -> str:
        return "".join(self._raw)

    def feed(self, text: str) -> list[Delta]:
        self._held += text
        return self._advance(end=False)

    def close(self) -> list[Delta]:
        deltas = self._advance(end=True)
        if self._blank and not self._calls:
            deltas += self._say("")
        return deltas

    def _advance(self, *, end: bool) -> list[Delta]:
        deltas: list[Delta] = []
        while (more := self._step(end)) is not None:
            deltas += more
        return deltas

    # Each step consumes from `_held` and returns deltas, or None when it needs more text.

    def _after_reasoning(self) -> None:
        if self._step == self._content and self._style == "llama":
            self._step = self._whole

    def _opening(self, end: bool) -> list[Delta] | None:
        head = self._held.lstrip()
        if head.startswith(_THINK):
            self._held = head[len(_THINK) :]
            self._step = self._think
            return []
        if not end and _THINK.startswith(head):
            return None
        self._step = self._content
        self._after_reasoning()
        return []

    def _think(self, end: bool) -> list[Delta] | None:
        thought, closed, rest = self._held.partition(_THOUGHT)
        if closed:
            self._held = rest
            self._step = self._after_thought
            return self._muse(thought, last=True)
        if not self._held:
            return None
        keep = 0 if end else overlap(self._held, _THOUGHT)
        ready, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return self._muse(ready, last=end) or None

    def _muse(self, text: str, *, last: bool) -> list[Delta]:
        text = self._blank + text
        self._blank = ""
        if not self._thought:
            text = text.lstrip("\n")
        body = text.rstrip("\n")
        if not last:
            self._blank = text[len(body) :]
        self._thought = self._thought or bool(body)
        return [{"reasoning_content": body}] if body else []

    def _after_thought(self, end: bool) -> list[Delta] | None:
        self._held = self._held.lstrip("\n")
        if not self._held:
            return None
        self._step = self._content
        self._after_reasoning()
        return []

    def _content(self, end: bool) -> list[Delta] | None:
        if not self._held:
            return None
        if self._style not in _BLOCKS or self._unreadable_calls == MAX_UNREADABLE_CALLS:
            return self._say(self._take(len(self._held)))
        read, make_finder = _BLOCKS[self._style]
        at = self._held.find(OPEN)
        if at < 0:
            ready = len(self._held) - (0 if end else overlap(self._held, OPEN))
            return self._say(self._take(ready)) if ready else None
        if at:
            return self._say(self._take(at))
        if self._end is None:
            self._end = make_finder()
        stop = self._end.find(self._held)
        if stop < 0 and not end:
            return None
        if not self._is_unreadable:
            function = read(self._held[len(OPEN) : stop], self._tools) if stop >= 0 else None
            if function is None:
                self._end, self._is_unreadable = MatchingEndFinder(), True
                self._unreadable_calls += 1
                return []
            self._end = None
            self._take(stop + len(CLOSE))
            return self._call(function)
        self._end, self._is_unreadable = None, False
        return self._say(self._take(len(self._held) if stop < 0 else stop + len(CLOSE)))

    def _whole(self, end: bool) -> list[Delta] | None:
        head = self._held.lstrip()
        if not end and (head.startswith(("{", _PYTHON)) or _PYTHON.startswith(head)):
            return None
        functions = llama_calls(head.removeprefix(_PYTHON).strip()) if end else None
        if functions is None:
            self._step = self._content
            return []
        self._take(len(self._held))
        return [delta for function in functions for delta in self._call(function)]

    def _take(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        self._raw.append(taken)
        return taken

    def _say(self, text: str) -> list[Delta]:
        """Content; blanks at its end wait, for they belong to a tool call if one follows."""
        if self._style == "none":
            return [{"content": text}] if text else []
        if self._calls and not self._spoke and not self._blank:
            text = text.lstrip()
        text = self._blank + text
        body = text.rstrip() if text != self._blank else text
        self._blank = text[len(body) :]
        self._spoke = self._spoke or bool(body)
        return [{"content": body}] if body else []

    def _call(self, function: Function) -> list[Delta]:
        self._blank = ""
        call = {"index": self._calls, "type": "function", "function": function}
        self._calls += 1
        return [{"tool_calls": [call]}]


class SchemaParser:
    """A tokenizer's own `response_schema`, read by transformers once the reply is whole."""

    def __init__(self, parse: Callable[[str], Any], *, tools: Tools | None = None) -> None:
        self._parse, self._tools = parse, tools is not None
        self._text = ""

    @property
    def raw(self) -> str:
        return self._text

    def feed(self, text: str) -> list[Delta]:
        self._text += text
        return []

    def close(self) -> list[Delta]:
        try:
            message = self._parse(self._text)
        except (ValueError, TypeError, KeyError):
            message = None
        if not isinstance(message, dict):
            return [{"content": self._text}] if self._text else []
        functions = [checked(call.get("function", call), ("arguments",)) for call in message.get("tool_calls") or ()]
        if functions and (not self._tools or None in functions):
            return [{"content": self._text}]
        deltas: list[Delta] = []
        thought = message.get("reasoning_content") or message.get("thinking")
        if thought:
            deltas.append({"reasoning_content": thought})
        if message.get("content"):
            deltas.append({"content": message["content"]})
        for index, function in enumerate(functions):
            deltas.append({"tool_calls": [{"index": index, "type": "function", "function": function}]})
        return deltas


def assemble(deltas: list[Delta]) -> dict[str, Any]:
    """The assistant message that the deltas add up to; `content` is None only beside tool calls."""
    content = "".join(delta.get("content", "") for delta in deltas)
    thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [{key: call[key] for key in call if key != "index"} for call in calls]
    return message
