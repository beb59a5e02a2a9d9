"""Replies of a chat engine: a debug model, or a remote server.

Invariant: the engine gets the client's request unchanged in meaning, and the answer is passed on unchanged. Replies of
chat engines have no token ids, and are recorded but never trained.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

from ajet.engine.contract import ChatEngine, Sampling
from ajet.gateway.ignored_fields import IgnoredFieldLog
from ajet.gateway.recorder import Recorder
from ajet.gateway.remote_reply import parse_chat_choice
from ajet.gateway.remote_stream import MALFORMED, ChunkCollector
from ajet.gateway.reply import Reply
from ajet.gateway.request import ParsedRequest, Refused, build_ended_error
from ajet.schema.call import FinishReason
from ajet.schema.errors import NO_COMPLETION, EngineFailure
from ajet.tokens.parsing import Delta

ChatAnswer = tuple[dict[str, Any], FinishReason, Mapping[str, Any]]
"""The message, its finish reason, and the server's own token counts."""


async def relay_chat(
    reply: Reply, target: str, engine: ChatEngine, recorder: Recorder, run: Sampling, ignored_fields: IgnoredFieldLog
) -> None:
    """Have a chat engine answer, and record the call without tokens. Raises Refused or EngineFailure.

    Args:
        target: The agent's target, recorded with the call.
        run: The run's sampling settings, used where the client sets none.
        ignored_fields: Logs fields without effect.
    """
    request = reply.request
    body = build_chat_body(request, run)
    reply.deltas.clear()  # a chat engine cannot resume: for a returning client the reply starts over
    reply.chunk_ends.clear()
    reply.is_readable = True
    async with recorder.admission_lock:
        call = reply.call = recorder.add(
            agent=request.agent,
            target=target,
            trained=False,
            messages=request.messages,
            tools=request.tools,
            match=recorder.conversations.match(request.agent, request.messages),
            prompt=None,
            temperature=run.temperature if request.temperature is None else request.temperature,
        )
    call.extra.update(request.notes)
    ignored_fields.log_hints(request.inert_fields)
    lowered_fields: dict[str, Any] = {}
    if request.max_tokens is not None and request.max_tokens > run.max_tokens:
        lowered_fields["max_tokens"] = request.max_tokens
    ignored_fields.log_replaced(lowered_fields, run)
    if ignored := {**request.inert_fields, **lowered_fields}:
        call.extra["ignored"] = ignored
    if request.is_streamed:
        if request.counts_tokens:  # servers do not count tokens of streams by default
            body["stream_options"] = {"include_usage": True}
        message, finish, usage = await relay_stream(engine.stream(body), reply.add_deltas)
    else:
        message, finish, usage = read_answer(await engine.chat(body))
    if not recorder.settle(call, finish, message=message):
        raise build_ended_error()
    reply.is_readable = True  # again: a client that left after the last await has reset it
    reply.message, reply.finish = message, finish
    reply.prompt_tokens, reply.completion_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")


def build_chat_body(request: ParsedRequest, run: Sampling) -> dict[str, Any]:
    """Return the request in the form of OpenAI's Chat Completions. Raises Refused."""
    if request.logprobs:
        raise Refused(
            "Unsupported value for 'logprobs': this server relays the request to a chat endpoint and does not "
            "return its log-probabilities. Leave the field out.",
            param="logprobs",
            code="unsupported_parameter",
        )
    if request.prompts:
        raise Refused(
            "Unsupported value for 'prompt': this server relays requests to a chat endpoint, which takes "
            "messages only. Use /v1/chat/completions.",
            param="prompt",
            code="unsupported_parameter",
        )
    body: dict[str, Any] = {"messages": list(request.messages)}
    if request.tools:
        body["tools"] = list(request.tools)
        if request.tool_choice == "named":
            body["tool_choice"] = {"type": "function", "function": {"name": request.named_tool}}
        elif request.tool_choice != "auto":
            body["tool_choice"] = request.tool_choice
        if not request.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    body["temperature"] = run.temperature if request.temperature is None else request.temperature
    body["top_p"] = run.top_p if request.top_p is None else request.top_p
    body["max_tokens"] = run.max_tokens if request.max_tokens is None else min(run.max_tokens, request.max_tokens)
    if request.top_k is not None and request.top_k > 0:
        body["top_k"] = request.top_k
    if request.stop:
        body["stop"] = list(request.stop)
    if request.json_schema is not None:
        schema = {"name": "reply", "schema": dict(request.json_schema)}
        body["response_format"] = (
            {"type": "json_schema", "json_schema": schema} if request.json_schema else {"type": "json_object"}
        )
    return {**body, **request.engine_fields}


def read_answer(answer: Mapping[str, Any]) -> ChatAnswer:
    """Return the message, finish reason and token counts of a chat engine's answer.

    Raises EngineFailure if the JSON is no chat completion.
    """
    try:
        message, finish = parse_chat_choice(answer["choices"][0])
    except MALFORMED as error:
        raise EngineFailure(f"{NO_COMPLETION}: {error!r}") from error
    return message, finish, answer.get("usage") or {}


async def relay_stream(
    chunks: AsyncIterator[dict[str, Any]], add_deltas: Callable[[Sequence[Delta]], None]
) -> ChatAnswer:
    """Pass a streamed answer on, and return its message, finish reason and token counts at the end. Raises
    EngineFailure.

    Args:
        chunks: Chunks of OpenAI's Chat Completions.
        add_deltas: Called with each next part of the reply.
    """
    collector = ChunkCollector()
    async with aclosing(cast(Any, chunks)) as stream:
        async for chunk in stream:
            try:
                collector.add_event(chunk)
            except MALFORMED as error:
                raise EngineFailure(f"{NO_COMPLETION}: {error!r}") from error
            for choice in chunk.get("choices") or ():
                delta = {name: value for name, value in (choice.get("delta") or {}).items() if value is not None}
                delta.pop("role", None)
                if any(delta.values()):
                    add_deltas([delta])
    return read_answer(collector.build_body() or {})
