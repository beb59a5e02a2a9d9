"""Session: one episode at the gateway, with its keys, its calls and their records.

Invariants: the run's sampling settings replace a client's for every trained call; a call is settled (its end recorded)
exactly once, by the first of: its end, its client's leaving, its engine's failure, its episode's end. All methods
except `__call__`, `tool_used` and `close` run on the gateway's loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import date
from typing import Any, cast

from loguru import logger

from ajet.engine.contract import ChatEngine, Sampling, TokenEngine
from ajet.gateway.chat_relay import relay_chat
from ajet.gateway.context import GatewayAddress, GatewayContext
from ajet.gateway.ignored_fields import RequestFilter
from ajet.gateway.inflight_call import (
    ENGINE_FAILED,
    EPISODE_ENDED,
    NO_RETRY,
    InflightCall,
    InflightCalls,
    RetryHint,
)
from ajet.gateway.keys import Grant
from ajet.gateway.recorder import CLIENT_LEFT, Capture, Recorder
from ajet.gateway.reply import Reply
from ajet.gateway.request import ParsedRequest, Refused, build_ended_error
from ajet.gateway.token_sampler import TokenSampler
from ajet.record.tool_uses import IN_ALL, MOST_USES, bound_tool_use, chain_digest, size_of
from ajet.schema.call import Call, FinishReason
from ajet.schema.endpoint import Endpoint
from ajet.schema.errors import EngineFailure, EngineHangs
from ajet.schema.tool_use import ToolUse

Inspect = Callable[[Call, dict[str, Any]], list[str]]
"""Returns the names of the abnormal-output checks fired by a reply."""
MAX_REFUSALS = 8
"""Distinct refusals stored per episode."""


class Session:
    """One episode at the gateway, created by `Gateway.open`."""

    def __init__(
        self,
        context: GatewayContext,
        address: GatewayAddress,
        episode: str,
        *,
        key: tuple[int, int, int],
        sampling: Sampling,
        trainable: Collection[str] | None,
        model_name: str,
        inspect: Inspect | None,
        terminate_on_inspect: bool,
        started_at: float,
        models: Mapping[str, str | None] | None = None,
    ) -> None:
        self.episode, self.model_name = episode, model_name
        self.models = dict(models or {})
        """Model name -> its adapter. If empty, any name is accepted and each agent has its own adapter."""
        self.dialect_state: dict[str, Any] = {}
        """The dialects' state of this episode: `Caller.dialect_state`."""
        self.inflight = InflightCalls()
        self._reply_tasks: dict[asyncio.Task[Any], Reply] = {}
        """The tasks that make replies now. A reply has two while an earlier task still ends."""
        self.requests = 0
        """Number of requests with a key of this session in progress."""
        self._context, self._address = context, address
        self._recorder = Recorder()
        self._sampling = replace(sampling, max_tokens=min(sampling.max_tokens, context.max_response_tokens))
        self._trainable = None if trainable is None else frozenset(trainable)
        self._check_reply, self._terminate_on_inspect = inspect, terminate_on_inspect
        self._sampler: TokenSampler | None = None
        if context.samples_tokens:
            assert context.renderer is not None, "a token engine needs a renderer"
            self._sampler = TokenSampler(
                cast(TokenEngine, context.engine),
                context.renderer.on_day(date.fromtimestamp(started_at)),
                self._recorder,
                context.render_threads,
                context.ignored_fields,
                context.pacing,
                key=key,
                sampling=self._sampling,
                max_model_len=context.max_model_len,
            )
        self._endpoints: dict[tuple[str, str, str | None], Endpoint] = {}
        self._lock = threading.Lock()
        self._tool_use_room = IN_ALL
        self._has_dropped_uses = self._is_settled = False
        self._on_use: Callable[[ToolUse], None] | None = None

    @property
    def closed(self) -> bool:
        """True once the episode has ended and its keys are revoked."""
        return self._recorder.is_closed

    @property
    def request_filter(self) -> RequestFilter | None:
        """The filter that removes tools and fields from the session's requests. None if nothing is removed."""
        return self._context.request_filter

    @property
    def recorder(self) -> Recorder:
        """The recorder of the session's calls."""
        return self._recorder

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        return len(self._recorder.capture.calls)

    @property
    def idle(self) -> bool:
        """True if no request is in progress or arriving."""
        return not self.requests

    @property
    def last_call(self) -> float:
        """Monotonic time of the latest end of a call: now during a call, minus infinity before the first."""
        return self._recorder.settled_at if self.idle else time.monotonic()

    def context_full(self) -> bool:
        """Return True if a prompt was refused as too long, or a reply was cut at the model's context length.
        Thread-safe.
        """
        capture, limit = self._recorder.capture, self._context.max_model_len
        if any(code == "context_length_exceeded" for code, _ in capture.refusals):
            return True
        ends = ((call, call.prefix + len(call.suffix_ids) + len(call.response_ids)) for call in list(capture.calls))
        return any(call.finish == "length" and length >= limit for call, length in ends)

    def watch_uses(self, on_use: Callable[[ToolUse], None]) -> None:
        """Have `on_use` called for each use of a tool, once the use is stored."""
        self._on_use = on_use

    def tool_used(self, use: ToolUse) -> None:
        """Store a use of a tool, with a digest that chains it to the uses before. Thread-safe.

        Long values are shortened to the episode's remaining size. Uses beyond a number are dropped, with one warning.
        """
        capture = self._recorder.capture
        with self._lock:
            if self.closed:
                return
            if len(capture.tool_uses) < MOST_USES:
                previous_chain = capture.tool_uses[-1].chain if capture.tool_uses else ""
                use = bound_tool_use(use, self._tool_use_room)
                use = replace(use, chain=chain_digest(previous_chain, use))
                self._tool_use_room -= size_of(use)
                capture.tool_uses.append(use)
                if self._on_use is not None:
                    self._on_use(use)
                return
        if not self._has_dropped_uses:
            self._has_dropped_uses = True
            logger.warning(
                "episode {} used tools more than {} times: the further uses are not recorded", self.episode, MOST_USES
            )

    def note_refusal(self, refused: Refused, *, is_last: bool = False) -> None:
        """Store why a request was refused. The first few distinct reasons of an episode are stored.

        Args:
            is_last: True if the request had calls. It then counts as the episode's last request, even if one of its
                calls ended after the failure.
        """
        capture = self._recorder.capture
        if is_last:
            capture.refused = refused.code
        refusals, noted = capture.refusals, (refused.code, str(refused))
        capture.unanswered = str(refused)
        if len(refusals) < MAX_REFUSALS and noted not in refusals:
            refusals.append(noted)

    def __call__(self, agent_name: str, target_tag: str, debug_model: str | None) -> Endpoint:
        """Return the endpoint (URL, key, model name) of one agent. Thread-safe.

        The first call for an agent creates the endpoint, and raises Refused if the episode has ended. Later calls
        return the same one, also after the end: requests to it are refused then.
        """
        endpoint_key = (agent_name, target_tag, debug_model)
        with self._lock:
            endpoint = self._endpoints.get(endpoint_key)
            if endpoint is None:
                if self.closed:
                    raise build_ended_error()
                secret = self._context.keys.grant(Grant(self, *endpoint_key))
                endpoint = self._endpoints[endpoint_key] = Endpoint(
                    self._address.base_url, secret, self.model_name, self._address.transport
                )
            return endpoint

    def start_call(self, request: ParsedRequest, *, digest: bytes = b"", hint: RetryHint = NO_RETRY) -> InflightCall:
        """Start the replies to a request and join its client. Raises Refused if the gateway has too many calls."""
        call = InflightCall(
            request, self._context.call_limit, self._make_reply, self._check_prompts, digest=digest, hint=hint
        )
        call.join()
        self.inflight.add(call)
        return call

    async def count_tokens(self, request: ParsedRequest) -> int:
        """Return the number of prompt tokens of a request without recording it. Raises Refused."""
        request, engine, _ = self._route_request(request)
        # `engine` is a chat engine, which sends messages to a remote endpoint and knows no tokens.
        if engine is not None or self._sampler is None:
            raise Refused(
                "ajet cannot count the tokens of this model: a remote endpoint samples its replies",
                code="unsupported_parameter",
                param="model",
            )
        return await self._sampler.count_tokens(request)

    def close(self) -> Capture:
        """End the episode: its keys die, running calls are aborted and recorded. Thread-safe, idempotent."""
        with self._lock:
            self._recorder.is_closed = True
            self._context.keys.revoke([endpoint.api_key for endpoint in self._endpoints.values()])
        self._address.run_on_loop(self._settle_all)
        return self._recorder.capture

    async def _make_reply(self, reply: Reply) -> None:
        """Sample or resume a reply, and record the end of its call on every outcome. Raises Refused."""
        capture, task = self._recorder.capture, asyncio.current_task()
        assert task is not None
        self._reply_tasks[task] = reply
        try:
            reply.request, engine, trained = self._route_request(reply.request)
            target = reply.request.target or reply.request.agent
            if engine is None and self._sampler is not None:
                adapter: str | None = None
                if self.models or self._context.adapters:
                    adapter = self._find_adapter(reply.request, target, trained)
                await self._sampler.sample(reply, target=target, trained=trained, adapter=adapter)
            else:
                await relay_chat(
                    reply,
                    target,
                    cast(ChatEngine, engine),
                    self._recorder,
                    self._sampling,
                    self._context.ignored_fields,
                )
        except asyncio.CancelledError:
            self._settle_call(reply, "aborted", CLIENT_LEFT)
            if self.closed:
                error = build_ended_error()
                self._note_failed(error)
                raise error from None
            raise
        except EngineFailure as failure:
            capture.may_engine_recover = failure.retryable
            self._settle_call(reply, "error", str(failure))
            error = _build_engine_error(failure)
            self._note_failed(error)
            raise error from failure
        except Refused as refused:
            self._note_failed(refused)
            raise
        except BaseException:
            self._settle_call(reply, "error", "ajet: an unexpected error in the engine")
            raise
        finally:
            del self._reply_tasks[task]
        assert reply.call is not None and reply.message is not None
        if self._check_reply is not None:
            fired = self._check_reply(reply.call, reply.message)
            if fired:
                self._recorder.add_checks(reply.call, fired)
                if self._terminate_on_inspect:
                    capture.terminated = fired[0]
        # This request was answered, so earlier refusals are not the episode's end.
        capture.refused, capture.unanswered = None, ""

    async def _check_prompts(self, request: ParsedRequest) -> None:
        """Raise Refused, with the prompt's index, if one of several prompts cannot be answered. Records no call."""
        count = len(request.prompts)
        for number in range(count):
            choice, engine, trained = self._route_request(request.build_choice(number * request.replies_per_prompt))
            if engine is None and self._sampler is not None:
                try:
                    self._find_adapter(choice, choice.target or choice.agent, trained)
                    await self._sampler.check(choice, trained=trained)
                except Refused as refused:
                    self._note_failed(refused)
                    raise refused.within(f"prompt {number} of {count} (numbered from 0)") from refused

    def _route_request(self, request: ParsedRequest) -> tuple[ParsedRequest, ChatEngine | None, bool]:
        """Return the final request, its chat engine (`None` for the token engine), and whether the call is trained.

        Raises Refused if the episode has ended.
        """
        self._recorder.refuse_ended()
        context = self._context
        trained = self._trainable is None or (request.target or request.agent) in self._trainable
        engine = None if context.samples_tokens else cast(ChatEngine, context.engine)
        if not trained and request.debug_model and context.chat_engine_for is not None:
            engine = context.chat_engine_for(request.debug_model)
        if context.force_disable_toolcalls and request.tools:
            request = replace(request, tools=None, tool_choice="auto", notes={**request.notes, "dropped": "tools"})
        return request, engine, trained

    def _find_adapter(self, request: ParsedRequest, target: str, trained: bool) -> str | None:
        """Return the name of the adapter for a request, or None for the model itself.

        Raises Refused for an unknown model, and for a trained agent without adapter.
        """
        if self.models:
            model = str(request.notes.get("model") or self.model_name)
            if model not in self.models:
                raise Refused(
                    f"The model {model[:64]!r} does not exist; this server has {', '.join(self.models)}.",
                    status=404,
                    code="model_not_found",
                    param="model",
                )
            return self.models[model]
        adapters = self._context.adapters
        adapter = adapters.find_adapter(request.agent, target)
        if adapter is None and trained and adapters:
            raise Refused(
                f"The agent {request.agent!r} (target {target!r}) is trained, but no LoRA adapter is assigned to "
                f"it; the adapters are {', '.join(adapters.names)}. Add its name under "
                "ajet.trainer_common.lora.adapters (or to the `agents` of an adapter), or remove it from the "
                "workflow's trainable_targets: the base model then serves it, untrained.",
                code="no_adapter",
            )
        return adapter

    def _note_failed(self, refused: Refused) -> None:
        """Record a refusal as the outcome of the episode's last request."""
        self._recorder.capture.refused = refused.code
        self.note_refusal(refused)

    def _settle_call(self, reply: Reply, finish: FinishReason, error: str) -> bool:
        """Record the end of an interrupted call, with the tokens sampled so far.

        Returns False if its end was recorded before.
        """
        return reply.call is not None and self._recorder.settle(reply.call, finish, reply=reply, error=error)

    def _settle_all(self) -> None:
        """Record the end of every call, once. Afterwards the capture belongs to the caller of `close`."""
        if self._is_settled:
            return
        self._is_settled = True
        for task, reply in list(self._reply_tasks.items()):
            if self._settle_call(reply, "aborted", EPISODE_ENDED):
                task.cancel()
        for lost_reply in self.inflight.list_lost():
            self._recorder.mark_lost(*lost_reply)


def _build_engine_error(failure: EngineFailure) -> Refused:
    """Return the refusal of a request whose engine failed.

    A client that retries a hanging server would wait as long again, so a hang is final: the rollout decides about
    retries.
    """
    if isinstance(failure, EngineHangs):
        return Refused(f"the engine failed: {failure}", status=504, code=ENGINE_FAILED, final=True)
    return Refused(f"the engine failed: {failure}", status=503, code=ENGINE_FAILED, final=not failure.retryable)
