"""OpenAI Completions: a raw prompt (a text or token ids) and its continuation, streamed or not.

Invariant: no chat template is applied and the reply is not parsed. The client's ids are used unchanged; a text that
continues an earlier reply reuses the sampled ids of that reply. Each choice is one call, and no call is made if one of
the prompts is refused. Usage counts each prompt once and every captured token. Without `max_tokens` a reply has at most
16 tokens, as defined by the protocol.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet.gateway.dialects import fields
from ajet.gateway.dialects.chat import count_usage, encode_event, error_body
from ajet.gateway.dialects.contract import Caller, StreamWriter
from ajet.gateway.reply import Reply, ReplyChunk, TopLogprobs
from ajet.gateway.request import ParsedRequest, Refused
from ajet.tokens.parsing import IncrementalDecoder

INERT = ("user",)
"""Fields that do not affect the reply."""
TAKEN = {
    *INERT,
    "model", "prompt", "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n",
    "presence_penalty", "repetition_penalty", "min_p", "seed", "stop", "stream", "stream_options", "suffix",
    "temperature", "top_p", "top_k",
}  # fmt: skip
"""Fields that a request may have; any other field is refused."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "logit_bias": (),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "suffix": ("",),
    "seed": (),
}
"""Fields not honoured by every engine, with their neutral values."""
_MAX_TOKENS = 16
_MAX_CHOICES = 128

Prompt = str | list[int]


@dataclass(slots=True)
class _Options:
    model: str
    include_usage: bool
    logprobs: int | None
    count: int
    """Number of choices for each prompt."""
    echoes: Sequence[str]
    """For each prompt, the beginning of its choices' texts."""
    id: str = field(default_factory=lambda: "cmpl-" + secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))


class CompletionsDialect:
    """The Completions protocol. `decode` gives the text of token ids; `None` if no tokens are known."""

    path = "/v1/completions"

    def __init__(self, decode: Callable[[Sequence[int]], str] | None) -> None:
        self._decode = decode

    def parse(self, body: Mapping[str, Any], caller: Caller) -> ParsedRequest:
        """Parse the JSON body of a request. Raises Refused for a field that cannot be honoured."""
        fields.refuse_unknown(body, TAKEN)
        model = fields.read_model(body)
        prompts = _read_prompts(body.get("prompt"))
        count = fields.read_integer(body, "n", 1, _MAX_CHOICES) or 1
        if len(prompts) * count > _MAX_CHOICES:
            raise fields.invalid_value("prompt", f"at most {_MAX_CHOICES} completions over all prompts of the request")
        best_of = fields.read_integer(body, "best_of", 1, _MAX_CHOICES)
        if best_of is not None and best_of != count:
            raise fields.unsupported_value(
                "best_of", "this server returns every completion, so 'best_of' must be equal to 'n'."
            )
        logprobs = fields.read_integer(body, "logprobs", 0, 20)
        echo = fields.read_boolean(body, "echo", False)
        if echo and logprobs is not None:
            raise fields.unsupported_value(
                "echo", "this server cannot return the prompt's log-probabilities; leave out 'echo' or 'logprobs'."
            )
        fields.read_seed(body)
        is_streamed = fields.read_boolean(body, "stream", False)
        include_usage = fields.read_include_usage(body, is_streamed)
        echoes = [self._decode_prompt(prompt) if echo else "" for prompt in prompts]
        return ParsedRequest(
            agent=caller.agent,
            target=caller.target,
            debug_model=caller.debug_model,
            messages=(),
            prompts=prompts,
            max_tokens=fields.read_integer(body, "max_tokens", 1, 1 << 31) or _MAX_TOKENS,
            **fields.read_sampling(body),
            stop=fields.read_stop(body.get("stop")),
            logprobs=logprobs is not None,
            top_logprobs=logprobs or 0,
            counts_tokens=include_usage or not is_streamed,
            engine_fields=fields.select_effective(body, NEUTRAL),
            inert_fields=fields.select_set(body, INERT),
            notes={"model": model} if model else {},
            replies_per_prompt=count,
            is_streamed=is_streamed,
            options=_Options(model or "ajet", include_usage, logprobs, count, echoes),
        )

    def format_reply(self, request: ParsedRequest, replies: Sequence[Reply]) -> dict[str, Any]:
        """Return the JSON body of the answer: a `text_completion` with a choice per reply.

        Each prompt has `options.count` consecutive replies. With `echo` a choice begins with its prompt.
        """
        options: _Options = request.options
        choices = []
        for index, reply in enumerate(replies):
            content = reply.message["content"] if reply.message is not None else None
            text, logprobs = options.echoes[index // options.count] + (content or ""), None
            if options.logprobs is not None:
                formatter = self.build_formatter(options.logprobs)
                logprobs = formatter.format_next(reply.ids, reply.unit_logprobs, reply.top)
            choices.append(_build_choice(index, text, logprobs, reply.finish))
        usage = count_usage(replies[:: options.count], replies)
        return {**_build_head(options), "choices": choices, "usage": usage}

    def build_writer(self, request: ParsedRequest) -> StreamWriter:
        """Return the writer of a streamed answer."""
        return _TextWriter(self, request.options)

    def format_error(self, refused: Refused, request_id: str = "") -> dict[str, Any]:
        """Return an error in OpenAI's shape."""
        return error_body(refused, {"messages": "prompt"})

    def _decode_prompt(self, prompt: Prompt) -> str:
        """Return the text of a prompt, which `echo` puts before its replies. Raises Refused for ids that cannot be
        decoded.
        """
        if isinstance(prompt, str):
            return prompt
        if self._decode is None:
            raise fields.unsupported_value(
                "echo", "this server cannot decode a prompt of token ids; send the prompt as text, or leave out 'echo'."
            )
        try:
            return self._decode(prompt)
        except (OverflowError, IndexError, TypeError) as error:
            raise fields.invalid_value("prompt", "token ids of this model's vocabulary") from error

    def build_formatter(self, count: int) -> _LogprobFormatter:
        """Return the formatter of one choice's logprobs, with `count` alternatives per token."""
        return _LogprobFormatter(self._decode, count)


class _LogprobFormatter:
    """Formats the logprobs of one choice in parts. Text offsets continue across parts."""

    def __init__(self, decode: Callable[[Sequence[int]], str] | None, count: int) -> None:
        self._decode, self._top_count = decode, count
        self._text = IncrementalDecoder(decode) if decode is not None else None
        self._offset = 0

    def format_next(self, ids: Sequence[int], logprobs: Sequence[float], top: TopLogprobs) -> dict[str, Any] | None:
        """Return the logprobs of the next tokens in the form of Completions, or `None` without tokens or a decoder."""
        if self._decode is None or self._text is None or not len(ids):
            return None
        tokens, offsets, top_entries = [], [], []
        for index, token in enumerate(ids):
            token_text = self._decode([token])
            tokens.append(token_text)
            offsets.append(self._offset)
            self._offset += len(self._text.feed([token]))
            logprob_by_text = {
                self._decode([top_id]): float(value) for top_id, value in (top[index] if index < len(top) else [])
            }
            top_entries.append(
                {**dict(list(logprob_by_text.items())[: self._top_count]), token_text: float(logprobs[index])}
            )
        return {
            "tokens": tokens,
            "token_logprobs": [float(value) for value in logprobs],
            "top_logprobs": top_entries,
            "text_offset": offsets,
        }


class _TextWriter:
    """Writes the text_completion events of replies."""

    def __init__(self, dialect: CompletionsDialect, options: _Options) -> None:
        self._dialect, self._options = dialect, options
        self._common_fields = _build_head(options)
        self._formatters: dict[int, _LogprobFormatter] = {}

    def begin_reply(self, choice: int) -> bytes:
        """Return an event with the prompt's text if the client requested `echo`."""
        echo = self._options.echoes[choice // self._options.count]
        return self._encode_choice(choice, echo) if echo else b""

    def write_chunk(self, choice: int, chunk: ReplyChunk) -> bytes:
        """Return an event with the next text and its logprobs, or b"" if there are none."""
        text = "".join([delta.get("content") or "" for delta in chunk.deltas])
        logprobs = None
        if self._options.logprobs is not None:
            if choice not in self._formatters:
                self._formatters[choice] = self._dialect.build_formatter(self._options.logprobs)
            logprobs = self._formatters[choice].format_next(chunk.ids, chunk.logprobs, chunk.top)
        return self._encode_choice(choice, text, logprobs) if text or logprobs else b""

    def end_reply(self, choice: int, reply: Reply) -> bytes:
        return self._encode_choice(choice, "", None, reply.finish)

    def close(self, replies: Sequence[Reply]) -> bytes:
        """Return the usage if requested, and the final mark of the stream."""
        usage = b""
        if self._options.include_usage:
            total = count_usage(replies[:: self._options.count], replies)
            usage = encode_event({**self._common_fields, "choices": [], "usage": total})
        return usage + b"data: [DONE]\n\n"

    def fail(self, refused: Refused) -> bytes:
        return encode_event(self._dialect.format_error(refused))

    def _encode_choice(
        self, choice: int, text: str, logprobs: dict[str, Any] | None = None, finish: str | None = None
    ) -> bytes:
        """Return an event with one part of a choice. If usage is requested, it is null in all events but the last."""
        usage = {"usage": None} if self._options.include_usage else {}
        return encode_event(
            {**self._common_fields, "choices": [_build_choice(choice, text, logprobs, finish)], **usage}
        )


def _build_choice(index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _build_head(options: _Options) -> dict[str, Any]:
    return {"id": options.id, "object": "text_completion", "created": options.created, "model": options.model}


def _read_prompts(value: Any) -> list[Prompt]:
    """Return the prompts in the field `prompt`: a text, ids, or a list of texts or id lists. Raises Refused."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise fields.invalid_value(
            "prompt", "a string, a list of strings, a list of token ids, or a list of lists of token ids"
        )
    if _are_ids(value):
        return [value]
    for index, prompt in enumerate(value):
        if not isinstance(prompt, str) and not (isinstance(prompt, list) and _are_ids(prompt)):
            raise fields.invalid_value(f"prompt[{index}]", "a string or a list of token ids")
    return value


def _are_ids(value: list[Any]) -> bool:
    return all(isinstance(token, int) and not isinstance(token, bool) for token in value)
