"""TokenSampler: replies sampled by a token engine, the only source of trained calls.

Invariant: the ids of a reply are the engine's, recorded even if the client leaves; the run's sampling settings replace
the client's for every trained call. A draw (one attempt to sample a reply) that violates the format demanded by its
request is recorded as aborted with the reason, counted, and followed by another draw with other random numbers; no
client sees it, and it is not trained.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from ajet.engine.contract import DrawKey, Sampling, TokenEngine, TokenRequest
from ajet.gateway.ignored_fields import IgnoredFieldLog, list_hints, refuse_unsupported
from ajet.gateway.prompt import RenderedPrompt, RenderThreadPool, render_prompt
from ajet.gateway.recorder import Recorder
from ajet.gateway.reply import Reply, tool_call_id
from ajet.gateway.request import ParsedRequest, Refused, build_ended_error
from ajet.gateway.stream_pacing import StreamPacing
from ajet.schema.call import FinishReason, RawPrompt, Terms, VersionRun
from ajet.schema.errors import EngineFailure
from ajet.schema.json_schema import find_reply_problem
from ajet.tokens import Renderer

TRIES = 4
"""Draws for a reply that satisfies its request, if the engine cannot be held to a schema."""
_RESUMED, _REDRAWN = 32, 48
"""Bit shifts in the name of a reply's random numbers, above the call's number or a client's seed. `_RESUMED` shifts
the number of earlier engine requests, `_REDRAWN` the number of rejected draws."""


class TokenSampler:
    """Samples the replies of one session."""

    def __init__(
        self,
        engine: TokenEngine,
        renderer: Renderer,
        recorder: Recorder,
        threads: RenderThreadPool,
        ignored_fields: IgnoredFieldLog,
        pacing: StreamPacing,
        *,
        key: tuple[int, int, int],
        sampling: Sampling,
        max_model_len: int,
    ) -> None:
        """Create the sampler of one session.

        Args:
            key: (seed, task order, repeat).
            sampling: The run's settings.
            max_model_len: Limit on the tokens of prompt and reply together.
        """
        self._engine = engine
        self._renderer = renderer
        self._recorder = recorder
        self._threads = threads
        self._ignored_fields = ignored_fields
        self._pacing = pacing
        self._key = key
        stop_ids = tuple(dict.fromkeys((*renderer.end_ids, *sampling.stop_ids)))
        self._run = replace(sampling, stop_ids=stop_ids)
        self._max_tokens = min(max_model_len, engine.max_model_len)

    async def sample(self, reply: Reply, *, target: str, trained: bool, adapter: str | None) -> None:
        """Sample a reply, or the rest of a reply whose client came back.

        Args:
            target: The agent's target, recorded with the call.
            trained: True if the target is trained.
            adapter: The adapter that samples. None for the model itself.

        Raises:
            Refused: The request cannot be answered.
            EngineFailure: The engine failed.
        """
        request, recorder = reply.request, self._recorder
        if request.engine_fields:
            refuse_unsupported(request)
        while True:
            if reply.token_request is None:
                async with recorder.admission_lock:
                    await self._begin_draw(reply, target, trained, adapter)
            assert reply.token_request is not None and reply.call is not None
            is_checked = False
            if request.json_schema is not None or request.tools:
                is_constrained = reply.token_request.sampling.json_schema is not None
                is_checked = needs_check(request, is_constrained=is_constrained)
            # A streaming client gets nothing before the check, because a rejected draw must stay invisible.
            reply.is_readable = not is_checked
            if reply.engine_requests:  # the client came back
                recorder.reopen(reply.call)
            if reply.engine_finish is None:  # otherwise the client left after the last token, and came back
                await self._run_engine(reply, reply.token_request)
            message, finish = self._parse_message(reply)
            if not is_checked:
                break
            # The schema is the client's, and checking it may take a second.
            violation = await asyncio.to_thread(find_violation, request, message, finish)
            if violation is None:
                break
            self._reject_draw(reply, violation)
        reply.is_readable = True
        self._complete_reply(reply, message, finish)

    async def count_tokens(self, request: ParsedRequest) -> int:
        """Return the number of prompt tokens of a request without recording it. Raises Refused."""
        return len((await self._render_request(request)).rendered.ids)

    async def check(self, request: ParsedRequest, *, trained: bool) -> None:
        """Raise the Refused that `sample` would raise before sampling, if any. Records no call."""
        refuse_unsupported(request)
        prompt = await self._render_request(request)
        self._resolve_sampling(request, trained, len(prompt.rendered.ids))

    async def _render_request(self, request: ParsedRequest) -> RenderedPrompt:
        return await render_prompt(request, self._recorder, self._renderer, self._threads)

    async def _begin_draw(self, reply: Reply, target: str, trained: bool, adapter: str | None) -> None:
        """Render the prompt, record the call and prepare the engine's request, for one attempt to sample the reply."""
        request, recorder = reply.request, self._recorder
        prompt = await render_prompt(request, recorder, self._renderer, self._threads)
        rendered = prompt.rendered
        sampling, ignored = self._resolve_sampling(request, trained, len(rendered.ids))
        if ignored:
            self._ignored_fields.log_replaced(ignored, self._run)
        if sampling.seed is not None:  # a client's seed names one reply: another draw gets another seed
            sampling = replace(sampling, seed=sampling.seed ^ (reply.rejections << _REDRAWN))
        may_call = bool(request.tools) and request.tool_choice != "none"
        is_bound = request.json_schema is not None and self._engine.constrains and not may_call
        if is_bound and not rendered.opens_thought:  # held to a schema, the model could not end an opened thought
            sampling = replace(sampling, json_schema=json.dumps(request.json_schema or {"type": "object"}))
        terms = _build_terms(request, sampling, prompt.raw_prompt, adapter)
        call = recorder.add(
            agent=request.agent,
            target=target,
            trained=trained,
            messages=request.messages,
            tools=request.tools,
            match=prompt.match,
            prompt=rendered,
            parent=prompt.parent,
            earlier_prompt=prompt.before,
            fork=prompt.fork,
            temperature=sampling.temperature,
        )
        call.terms = terms
        if request.engine_fields or request.inert_fields:
            hints = list_hints(request)
            self._ignored_fields.log_hints(hints)
            ignored |= hints
        call.extra |= request.notes
        if ignored:
            call.extra["ignored"] = ignored
        stream = self._renderer.reply_stream(
            request.tools if may_call else None,
            earlier_prompt=rendered,
            stop=request.stop,
            single_call=not request.parallel_tool_calls,
        )
        key = DrawKey(*self._key, call.index)
        reply.call = call
        reply.prompt = rendered
        reply.stream = stream
        reply.token_request = TokenRequest(rendered.ids, sampling, key, prompt.images, adapter)
        reply.engine_requests, reply.engine_finish = 0, None
        reply.ids = []
        reply.logprobs = []
        reply.unit_logprobs = []
        reply.top = []
        reply.versions = []
        reply.routed_experts = None

    def _resolve_sampling(
        self, request: ParsedRequest, trained: bool, prompt_tokens: int
    ) -> tuple[Sampling, dict[str, Any]]:
        """Return the settings of a draw, and the client's fields replaced by the run.

        Raises Refused if the prompt leaves no room for a reply.
        """
        run, limit = self._run, self._max_tokens
        if prompt_tokens >= limit:
            raise Refused(
                f"This model's maximum context length is {limit} tokens. However, your messages resulted in "
                f"{prompt_tokens} tokens. Please reduce the length of the messages. (In ajet, "
                "rollout.max_model_len and the model set the maximum.)",
                code="context_length_exceeded",
                param="messages",
            )
        max_tokens = min(run.max_tokens, limit - prompt_tokens)
        if request.max_tokens is not None:
            max_tokens = min(max_tokens, request.max_tokens)
        requested: dict[str, Any] = {}
        for name, value in (
            ("temperature", request.temperature),
            ("top_p", request.top_p),
            ("top_k", request.top_k),
            ("seed", request.engine_fields.get("seed")),
        ):
            if value is not None and value != getattr(run, name):
                requested[name] = value
        changes = {} if trained else requested
        sampling = replace(run, max_tokens=max_tokens, top_logprobs=request.top_logprobs, **changes)
        replaced = dict(requested) if trained else {}
        if request.max_tokens is not None and request.max_tokens > run.max_tokens:
            replaced["max_tokens"] = request.max_tokens
        return sampling, replaced

    async def _run_engine(self, reply: Reply, first: TokenRequest) -> None:
        """Sample into `reply` until the engine, a stop string or the end of a single tool call ends it.

        Args:
            first: The engine request of the draw's beginning.
        """
        stream, request, pacing = reply.stream, reply.request, self._pacing
        assert stream is not None
        ends_early = bool(request.stop) or not request.parallel_tool_calls
        token_request = first if not reply.engine_requests else _build_rest(first, reply)
        reply.engine_requests += 1
        ids = reply.ids
        logprobs = reply.logprobs
        unit_logprobs = reply.unit_logprobs
        versions = reply.versions
        oldest = newest = -1
        finish: FinishReason | None = None
        async with aclosing(cast(Any, self._engine.generate(token_request))) as chunks:
            async for chunk in chunks:
                if chunk.ids:
                    newest_version = chunk.version if chunk.newest is None else chunk.newest
                    if chunk.version != oldest or newest_version != newest:
                        oldest, newest = chunk.version, newest_version
                        # A run of equal versions is stored once, as (first token, oldest, newest version).
                        if not versions or versions[-1][1:] != (oldest, newest):
                            versions.append(VersionRun(len(ids), oldest, newest))
                    ids += chunk.ids
                    logprobs += chunk.logprobs
                    unit_logprobs += chunk.logprobs_unit
                    if chunk.top:
                        reply.top += chunk.top
                if chunk.routed_experts is not None:
                    reply.routed_experts = chunk.routed_experts
                finish = reply.engine_finish = chunk.finish
                if ends_early or (request.is_streamed and reply.is_readable and not pacing.is_busy):
                    stream.feed(ids[stream.id_count :])
                    if reply.is_readable:
                        reply.chunk_ends.append((len(stream.deltas), stream.id_count))
                    if stream.is_cut:
                        finish = reply.engine_finish = "stop"
                        break
                if reply.listeners and not reply.has_news:
                    reply.notify()
        if finish is None:
            raise EngineFailure("the engine ended a reply without a finish reason")

    def _parse_message(self, reply: Reply) -> tuple[dict[str, Any], FinishReason]:
        """Return the complete message of a draw, its tool calls with ids, and its finish reason."""
        stream, finish, call = reply.stream, reply.engine_finish, reply.call
        assert stream is not None and finish is not None and call is not None and reply.token_request is not None
        ids = reply.ids
        stream.feed(ids[stream.id_count :])
        message = stream.message()
        # SGLang reports "length" if the last allowed token is the end token.
        if stream.stopped is not None or (ids and ids[-1] in reply.token_request.sampling.stop_ids):
            finish = "stop"
        tool_calls = message.get("tool_calls")
        if tool_calls:
            for position, tool_call in enumerate(tool_calls):
                tool_call["id"] = tool_call_id(call.index, position)
            if finish == "stop":
                finish = "tool_calls"
        return message, finish

    def _complete_reply(self, reply: Reply, message: dict[str, Any], finish: FinishReason) -> None:
        """Record the end of the call and complete the reply. Raises Refused if the episode has ended."""
        stream, call, prompt = reply.stream, reply.call, reply.prompt
        assert stream is not None and call is not None and prompt is not None
        count = stream.id_count
        text = self._renderer.decode(reply.ids[:count], after=prompt.ids)
        if not self._recorder.settle(
            call, finish, reply=reply, count=count, message=message, reply_text=text, stopped=stream.stopped
        ):
            raise build_ended_error()
        # Tokens behind the stop string or the single tool call do not belong to the reply.
        for sampled in (reply.ids, reply.unit_logprobs, reply.top):
            del sampled[count:]
        call.stop, call.resumed = stream.stopped, max(0, reply.engine_requests - 1)
        prompt_tokens = len(prompt.ids)
        if finish == "length":
            limit = "max_tokens"
            if prompt_tokens + count >= self._max_tokens:
                limit = "rollout.max_model_len"
            elif count >= self._run.max_tokens:
                limit = "rollout.max_response_length_in_one_turn"
            call.extra["cut_by"] = limit
        reply.message = message
        reply.finish = finish
        reply.stopped = stream.stopped
        reply.prompt_tokens, reply.completion_tokens = prompt_tokens, count

    def _reject_draw(self, reply: Reply, violation: FormatViolation) -> None:
        """Record a draw that violates the requested format, so that `sample` makes another one.

        Raises Refused after the last try, and if the episode has ended.
        """
        call, stream = reply.call, reply.stream
        assert call is not None and stream is not None
        reason = f"rejected, because the client requested another format: {violation.why}"
        if not self._recorder.settle(call, "aborted", reply=reply, count=stream.id_count, error=reason):
            raise build_ended_error()
        call.rejected = violation.why
        reply.token_request = None
        reply.rejections += 1
        if reply.rejections == TRIES:
            raise Refused(
                f"None of the {TRIES} sampled replies {violation.demand}. The last one: {violation.why}",
                status=422,
                code="json_schema_not_met",
                param=violation.param,
            )


def _build_terms(
    request: ParsedRequest, sampling: Sampling, raw_prompt: RawPrompt | None, adapter: str | None
) -> Terms:
    """Return the sampling terms recorded with a call: credit assignment and proofs compute its probabilities under
    them.
    """
    truncates = sampling.temperature > 0  # greedy decoding ignores top_p and top_k
    return Terms(
        constrained=sampling.json_schema is not None,
        top_p=sampling.top_p if truncates else 1.0,
        top_k=sampling.top_k if truncates and sampling.top_k > 0 else -1,
        tool_choice=request.tool_choice,
        named_tool=request.named_tool,
        parallel_tool_calls=request.parallel_tool_calls,
        raw_prompt=raw_prompt,
        adapter=adapter,
    )


def _build_rest(first: TokenRequest, reply: Reply) -> TokenRequest:
    """Return the engine's request for the rest of a draw, with new random numbers."""
    # Only the engine knew how far the first random numbers were used. No session has 2^32 calls, so the new name is
    # unique.
    offset = reply.engine_requests << _RESUMED
    sampling = first.sampling
    seed = None if sampling.seed is None else sampling.seed ^ offset
    return replace(
        first,
        prompt_ids=np.concatenate([first.prompt_ids, np.array(reply.ids, dtype=np.int32)]),
        sampling=replace(sampling, max_tokens=sampling.max_tokens - len(reply.ids), seed=seed),
        key=first.key._replace(call=first.key.call + offset),
    )


# The demanded form of a reply, and the check of a reply against it.
# Invariant: a reply that violates a demand is shown to no client. All dialects have the same two demands: JSON of a
# schema (`response_format`), and arguments admitted by a strict tool's schema.
class FormatViolation(NamedTuple):
    """A demand of the request on the reply's format, and how the reply violates it."""

    why: str
    demand: str
    """The demand in words, after "None of the replies …"."""
    param: str
    """The field of the request with the demand."""


def needs_check(request: ParsedRequest, *, is_constrained: bool) -> bool:
    """Return True if the reply must be checked before the client sees it.

    Args:
        is_constrained: The engine holds the reply to its JSON schema.
    """
    return (request.json_schema is not None and not is_constrained) or any(_list_strict_functions(request))


def find_violation(request: ParsedRequest, message: Mapping[str, Any], finish: FinishReason) -> FormatViolation | None:
    """Return the first demand on the format that a reply violates, or None.

    The arguments of strict tools are always checked. The `response_format` schema is checked only for a complete reply
    without tool calls.
    """
    calls = message.get("tool_calls") or ()
    for tool in _list_strict_functions(request):
        for called in (call["function"] for call in calls if call["function"]["name"] == tool["name"]):
            problem = find_reply_problem(called["arguments"], tool.get("parameters") or {})
            if problem is not None:
                name = tool["name"]
                return FormatViolation(
                    why=f"the arguments of the tool {name!r}: {problem}",
                    demand=f"called the tool {name!r} with arguments that match its schema",
                    param="tools",
                )
    if request.json_schema is None or calls or finish == "length":
        return None
    problem = find_reply_problem(message["content"] or "", request.json_schema)
    if problem is None:
        return None
    return FormatViolation(why=problem, demand="matched the JSON schema of response_format", param="response_format")


def _list_strict_functions(request: ParsedRequest) -> Iterator[Mapping[str, Any]]:
    """Yield the functions with strict schemas."""
    if request.tools and request.tool_choice != "none":
        for tool in request.tools:
            if tool["function"].get("strict"):
                yield tool["function"]
