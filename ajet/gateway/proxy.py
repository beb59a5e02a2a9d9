"""Proxy: turns that a chat engine answers (a debug model, a remote server).

Invariant: the engine gets the client's request as it was meant, and what it says is passed on unchanged; such replies
have no ids here, so they are recorded and never trained on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, cast

from ajet.engine.contract import ChatEngine, Sampling
from ajet.gateway.capture import Sampled
from ajet.gateway.hints import Heard
from ajet.gateway.prompting import lowered_max_tokens
from ajet.gateway.reply import Reply
from ajet.gateway.running_calls import RunningCalls
from ajet.gateway.turn import OnPiece, Piece, Refused, Turn, TurnRequest
from ajet.schema.call import FinishReason
from ajet.schema.errors import EngineFailure

Answer = tuple[dict[str, Any], FinishReason, Mapping[str, Any]]
"""The message, why it ended, the server's own token counts."""
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "tool_calls": "tool_calls"}


async def chat_turn(
    reply: Reply,
    request: TurnRequest,
    target: str,
    engine: ChatEngine,
    ledger: RunningCalls,
    run: Sampling,
    heard: Heard,
) -> Turn:
    """Have a chat engine answer. Raises Refused."""
    recorder = ledger.recorder
    body = chat_body(request, run)
    reply.told.clear()
    reply.marks.clear()
    async with ledger.turnstile:
        ledger.refuse_ended()
        entry = recorder.enter(
            agent=request.agent,
            target=target,
            trained=False,
            messages=request.messages,
            tools=request.tools,
            match=recorder.conversations.match(request.agent, request.messages),
            prompt=None,
            temperature=run.temperature if request.temperature is None else request.temperature,
        )
    reply.entry = entry
    entry.call.extra.update(request.notes)
    heard.say(request.asides)
    heard.say_replaced(lowered := lowered_max_tokens(request, run), run)
    if ignored := {**request.asides, **lowered}:
        entry.call.extra["ignored"] = ignored
    with ledger.under_way(entry, Sampled()):
        if reply.streamed:
            if request.counts_tokens:  # without it servers count nothing in streams
                body["stream_options"] = {"include_usage": True}
            message, finish, usage = await relay(engine.stream(body), reply.tell)
        else:
            message, finish, usage = read_answer(await engine.chat(body))
    recorder.settle(entry, finish, message=message)
    ledger.look(entry.call, message)
    return Turn(entry.call.index, message, finish, usage.get("prompt_tokens"), usage.get("completion_tokens"))


def chat_body(request: TurnRequest, run: Sampling) -> dict[str, Any]:
    """The request as a chat engine takes it: OpenAI's Chat Completions. Raises Refused."""
    if request.logprobs:
        raise Refused("this model's logprobs are not at hand", param="logprobs", code="unsupported_parameter")
    if request.prompt is not None:
        raise Refused("this model takes messages only", param="prompt", code="unsupported_parameter")
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
    return {**body, **request.passed}


def read_answer(answer: Mapping[str, Any]) -> Answer:
    """The answer of a chat engine. Raises EngineFailure for what is no chat completion."""
    try:
        choice = answer["choices"][0]
        message = {name: value for name, value in choice["message"].items() if value is not None}
        message.setdefault("role", "assistant")
        message.setdefault("content", None if message.get("tool_calls") else "")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise EngineFailure(f"the server's answer is no chat completion: {error!r}") from error
    return message, _FINISH.get(choice.get("finish_reason"), "stop"), answer.get("usage") or {}


async def relay(chunks: AsyncIterator[dict[str, Any]], on_piece: OnPiece) -> Answer:
    """The answer of a streamed reply, whose pieces are passed on."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    finish: FinishReason = "stop"
    usage: Mapping[str, Any] = {}
    async with aclosing(cast(Any, chunks)) as stream:
        async for chunk in stream:
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices") or ():
                delta = {name: value for name, value in (choice.get("delta") or {}).items() if value is not None}
                finish = _FINISH.get(choice.get("finish_reason"), finish)
                for name in ("content", "reasoning_content"):
                    if delta.get(name):
                        message[name] = message.get(name, "") + delta[name]
                for call in delta.get("tool_calls") or ():
                    told = calls.setdefault(call.get("index", 0), {"type": "function", "function": {"arguments": ""}})
                    told["id"] = call.get("id") or told.get("id", "")
                    function = call.get("function") or {}
                    told["function"]["name"] = function.get("name") or told["function"].get("name", "")
                    told["function"]["arguments"] += function.get("arguments") or ""
                delta.pop("role", None)
                if any(delta.values()):
                    on_piece(Piece([delta]))
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
        message["content"] = message["content"] or None
    return message, finish, usage
