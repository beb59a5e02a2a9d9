"""OpenAI Completions: a raw prompt, as a text or as token ids, and the text that follows. Streaming and not.

Invariant: no chat template is applied and the reply is not parsed; ids of the client's are taken as they are, a text
that goes on from an earlier reply gets that reply's sampled ids. Each choice is one call, and none is made where one of
the prompts is refused; usage counts each prompt once and every captured token. Without `max_tokens` a reply has at most
16 tokens, as the protocol says.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ajet.gateway.dialects import fields
from ajet.gateway.dialects.chat import error_body, event, usage_of
from ajet.gateway.dialects.contract import Asked, Caller, Writer
from ajet.gateway.turn import Piece, Refused, Turn, TurnRequest, choices
from ajet.tokens.stream import IncrementalDecoder

TAKEN = {
    "model", "prompt", "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n",
    "presence_penalty", "repetition_penalty", "min_p", "seed", "stop", "stream", "stream_options", "suffix",
    "temperature", "top_p", "top_k",
    "user",  # asks nothing of the reply
}  # fmt: skip
"""The fields of a request that this dialect knows."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "logit_bias": (),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "suffix": ("",),
    "seed": (),
}
"""Fields that not every engine honours, with the values that ask for nothing."""
_MAX_TOKENS = 16
_MAX_CHOICES = 128

Prompt = str | list[int]


@dataclass(frozen=True, slots=True)
class _Options:
    model: str
    include_usage: bool
    logprobs: int | None
    count: int
    """Choices a prompt."""
    echoes: Sequence[str]
    """Per prompt, what its choices' texts begin with."""
    id: str = field(default_factory=lambda: "cmpl-" + secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))


class CompletionsDialect:
    """See Dialect. `decode` gives the text of token ids; None where no tokens are known."""

    path = "/v1/completions"

    def __init__(self, decode: Callable[[Sequence[int]], str] | None) -> None:
        self._decode = decode

    def read(self, body: Mapping[str, Any], caller: Caller) -> Asked:
        """The request as turns: for each prompt, `n`. Raises Refused."""
        fields.refuse_unknown(body, TAKEN)
        model = fields.model(body)
        prompts = _prompts(body.get("prompt"))
        count = fields.integer(body, "n", 1, _MAX_CHOICES) or 1
        if len(prompts) * count > _MAX_CHOICES:
            raise fields.wrong("prompt", f"at most {_MAX_CHOICES} choices over all prompts")
        best_of = fields.integer(body, "best_of", 1, _MAX_CHOICES)
        if best_of is not None and best_of != count:
            raise fields.unsupported("best_of", "every reply is given: it can only be equal to 'n'.")
        logprobs = fields.integer(body, "logprobs", 0, 20)
        echo = fields.boolean(body, "echo", False)
        if echo and logprobs is not None:
            raise fields.unsupported("echo", "logprobs of prompts are not at hand.")
        fields.seed(body)
        stream = fields.boolean(body, "stream", False)
        usage = fields.include_usage(body, stream)
        shared = TurnRequest(
            agent=caller.agent,
            target=caller.target,
            debug_model=caller.debug_model,
            messages=(),
            max_tokens=fields.integer(body, "max_tokens", 1, 1 << 31) or _MAX_TOKENS,
            temperature=fields.number(body, "temperature", 0, 2),
            top_p=fields.top_p(body),
            top_k=fields.top_k(body),
            stop=fields.stop_strings(body.get("stop")),
            logprobs=logprobs is not None,
            top_logprobs=logprobs or 0,
            counts_tokens=usage or not stream,
            passed=fields.not_neutral(body, _NEUTRAL),
            asides=fields.given(body, ("user",)),
            notes={"model": model} if model else {},
        )
        turns = [turn for prompt in prompts for turn in choices(replace(shared, prompt=prompt), count)]
        echoes = [self._text(prompt) if echo else "" for prompt in prompts]
        options = _Options(model or "ajet", usage, logprobs, count, echoes)
        return Asked(turns, stream, options, checks=turns[::count] if len(prompts) > 1 else ())

    def reply(self, asked: Asked, turns: Sequence[Turn]) -> dict[str, Any]:
        """A text_completion."""
        options: _Options = asked.options
        choices = []
        for index, turn in enumerate(turns):
            text = options.echoes[index // options.count] + (turn.message["content"] or "")
            told = None
            if options.logprobs is not None:
                told = self._logprobs(options.logprobs).tell(turn.ids, turn.logprobs, turn.top)
            choices.append(_choice(index, text, told, turn.finish))
        return {**_head(options), "choices": choices, "usage": _usage(options, turns)}

    def writer(self, asked: Asked) -> Writer:
        """See Writer."""
        return _ChunkWriter(self, asked.options)

    def error(self, refused: Refused, request_id: str = "") -> dict[str, Any]:
        """OpenAI's error shape."""
        return error_body(refused, {"messages": "prompt"})

    def _text(self, prompt: Prompt) -> str:
        if isinstance(prompt, str):
            return prompt
        if self._decode is None:
            raise fields.unsupported("echo", "the text of token ids is not at hand.")
        try:
            return self._decode(prompt)
        except (OverflowError, IndexError, TypeError) as error:
            raise fields.wrong("prompt", "ids of this model's vocabulary") from error

    def _logprobs(self, count: int) -> _Logprobs:
        return _Logprobs(self._decode, count)


class _Logprobs:
    """Logprobs of one choice, told in pieces whose offsets go on."""

    def __init__(self, decode: Callable[[Sequence[int]], str] | None, count: int) -> None:
        self._decode, self._count = decode, count
        self._text = IncrementalDecoder(decode) if decode is not None else None
        self._offset = 0

    def tell(
        self, ids: Sequence[int], logprobs: Sequence[float], top: Sequence[list[tuple[int, float]]]
    ) -> dict[str, Any] | None:
        """The next tokens' entries; None where there are none."""
        if self._decode is None or self._text is None or not len(ids):
            return None
        tokens, offsets, others = [], [], []
        for at, token in enumerate(ids):
            spelled = self._decode([token])
            tokens.append(spelled)
            offsets.append(self._offset)
            self._offset += len(self._text.feed([token]))
            likely = {self._decode([other]): float(value) for other, value in (top[at] if at < len(top) else [])}
            others.append({**dict(list(likely.items())[: self._count]), spelled: float(logprobs[at])})
        return {
            "tokens": tokens,
            "token_logprobs": [float(value) for value in logprobs],
            "top_logprobs": others,
            "text_offset": offsets,
        }


class _ChunkWriter:
    """text_completion events."""

    def __init__(self, dialect: CompletionsDialect, options: _Options) -> None:
        self._dialect, self._options = dialect, options
        self._head = _head(options)
        self._logprobs: dict[int, _Logprobs] = {}

    def start(self, choice: int) -> bytes:
        echo = self._options.echoes[choice // self._options.count]
        return self._chunk(choice, echo) if echo else b""

    def piece(self, choice: int, piece: Piece) -> bytes:
        text = "".join([delta.get("content") or "" for delta in piece.deltas])
        told = None
        if self._options.logprobs is not None:
            if choice not in self._logprobs:
                self._logprobs[choice] = self._dialect._logprobs(self._options.logprobs)
            told = self._logprobs[choice].tell(piece.ids, piece.logprobs, piece.top)
        return self._chunk(choice, text, told) if text or told else b""

    def end(self, choice: int, turn: Turn) -> bytes:
        return self._chunk(choice, "", None, turn.finish)

    def close(self, turns: Sequence[Turn]) -> bytes:
        usage = b""
        if self._options.include_usage:
            usage = event({**self._head, "choices": [], "usage": _usage(self._options, turns)})
        return usage + b"data: [DONE]\n\n"

    def error(self, refused: Refused) -> bytes:
        return event(self._dialect.error(refused))

    def _chunk(self, choice: int, text: str, told: dict[str, Any] | None = None, finish: str | None = None) -> bytes:
        usage = {"usage": None} if self._options.include_usage else {}
        return event({**self._head, "choices": [_choice(choice, text, told, finish)], **usage})


def _choice(index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _head(options: _Options) -> dict[str, Any]:
    return {"id": options.id, "object": "text_completion", "created": options.created, "model": options.model}


def _usage(options: _Options, turns: Sequence[Turn]) -> dict[str, int] | None:
    return usage_of(turns[:: options.count], turns)


def _prompts(value: Any) -> list[Prompt]:
    """A text, ids, or a list of either."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise fields.wrong("prompt", "a text, a list of texts, a list of token ids, or a list of such lists")
    if _are_ids(value):
        return [value]
    for index, prompt in enumerate(value):
        if not isinstance(prompt, str) and not (isinstance(prompt, list) and _are_ids(prompt)):
            raise fields.wrong(f"prompt[{index}]", "a text or a list of token ids")
    return value


def _are_ids(value: list[Any]) -> bool:
    return all(isinstance(token, int) and not isinstance(token, bool) for token in value)
