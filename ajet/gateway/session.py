"""Session: one episode's conversation with its models.

Invariants: a reply's ids are the engine's, recorded whatever becomes of the client; a request that extends an earlier
call does so with that call's exact ids, otherwise it forks with a reason; the policy's own sampling rules over a
client's wishes wherever a call trains. Everything but `__call__` and `close` runs on the gateway's loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any, cast

from loguru import logger

from ajet.engine.contract import ChatEngine, Sampling, TokenEngine
from ajet.gateway.capture import Capture
from ajet.gateway.keys import Grant
from ajet.gateway.proxy import chat_turn
from ajet.gateway.reply import Reply
from ajet.gateway.retries import Askings
from ajet.gateway.running_calls import Inspect, RunningCalls
from ajet.gateway.serving import Reach, Serving
from ajet.gateway.token_turn import TokenTurns
from ajet.gateway.turn import Refused, Turn, TurnRequest
from ajet.record.tool_uses import IN_ALL, MOST_USES, chained, kept, size_of
from ajet.schema.endpoint import Endpoint
from ajet.schema.tool_use import ToolUse

MOST_REFUSALS = 8
"""Different ones that are kept of an episode."""


class Session:
    """One episode at the gateway; made by `Gateway.open`."""

    def __init__(
        self,
        serving: Serving,
        reach: Reach,
        episode: str,
        *,
        key: tuple[int, int, int],
        sampling: Sampling,
        trainable: Collection[str] | None,
        model_name: str,
        inspect: Inspect | None,
        terminate_on_inspect: bool,
        began: float,
        models: Mapping[str, str | None] | None = None,
    ) -> None:
        self.episode, self.model_name = episode, model_name
        self.models = dict(models or {})
        """Names that clients may ask for, and the adapter that answers to each; empty: whatever they ask for, each
        agent has its own."""
        self.kept: dict[str, Any] = {}
        """What dialects remember of this episode; see `Caller.kept`."""
        self._serving, self._reach = serving, reach
        self.askings = Askings()
        """What its clients asked for and have not got yet."""
        self._sampling = replace(sampling, max_tokens=min(sampling.max_tokens, serving.max_response_tokens))
        self._trainable = None if trainable is None else frozenset(trainable)
        self.load = serving.load
        self.requests = 0
        """That have found it by their keys and are not answered to the end."""
        self._ledger = RunningCalls(serving.load, inspect, terminate_on_inspect)
        self._tokens: TokenTurns | None = None
        if serving.samples_tokens:
            assert serving.renderer is not None, "a token engine needs a renderer"
            self._tokens = TokenTurns(
                self._ledger,
                cast(TokenEngine, serving.engine),
                serving.renderer.on_day(date.fromtimestamp(began)),
                serving.aside,
                serving.heard,
                key=key,
                sampling=self._sampling,
                max_model_len=serving.max_model_len,
            )
        self._endpoints: dict[tuple[str, str, str | None], Endpoint] = {}
        self._lock = threading.Lock()
        self._room_for_uses = IN_ALL
        self._left_out = self._settled = False
        self._on_use: Callable[[ToolUse], None] | None = None

    @property
    def closed(self) -> bool:
        """True once the episode has ended: its keys are dead."""
        return self._ledger.closed

    @property
    def calls(self) -> int:
        """The number of calls asked so far."""
        return len(self._ledger.recorder.capture.calls)

    @property
    def idle(self) -> bool:
        """No call is under way, and no request that may become one: a body takes its time to come."""
        return not self.requests and self._ledger.idle

    @property
    def last_call(self) -> float:
        """When a call was last under way, by the monotonic clock: now while one is, or comes, minus infinity before
        the first."""
        return self._ledger.recorder.settled_at if self.idle else time.monotonic()

    def context_full(self) -> bool:
        """See schema.Endpoints. From any thread."""
        capture = self._ledger.recorder.capture
        if any(code == "context_length_exceeded" for code, _ in capture.refusals):
            return True
        room = self._serving.max_model_len
        ends = ((call, call.prefix + len(call.suffix_ids) + len(call.response_ids)) for call in list(capture.calls))
        return any(call.finish == "length" and length >= room for call, length in ends)

    def watch_uses(self, on_use: Callable[[ToolUse], None]) -> None:
        """Have each use of a tool told, once it is kept."""
        self._on_use = on_use

    def tool_used(self, use: ToolUse) -> None:
        """See schema.Endpoints. From any thread."""
        capture = self._ledger.recorder.capture
        with self._lock:
            if self.closed:
                return
            if len(capture.tool_uses) < MOST_USES:
                before = capture.tool_uses[-1].chain if capture.tool_uses else ""
                use = kept(use, self._room_for_uses)
                use = replace(use, chain=chained(before, use))
                self._room_for_uses -= size_of(use)
                capture.tool_uses.append(use)
                if self._on_use is not None:
                    self._on_use(use)
                return
        if not self._left_out:
            self._left_out = True
            logger.warning("episode {} used tools more than {} times: the rest is not kept", self.episode, MOST_USES)

    def note(self, refused: Refused, *, answered: bool = True) -> None:
        """A request of this episode was refused; so many are kept as say what goes wrong. `answered` False: calls were
        made for it, and it is the last request, even if one of them ended after the failure."""
        capture = self._ledger.recorder.capture
        if not answered:
            capture.refused = refused.code
        kept, told = capture.refusals, (refused.code, str(refused))
        capture.unanswered = str(refused)
        if len(kept) < MOST_REFUSALS and told not in kept:
            kept.append(told)

    def __call__(self, agent_name: str, target_tag: str, debug_model: str | None) -> Endpoint:
        """The endpoint of one agent; see schema.Endpoints."""
        wanted = (agent_name, target_tag, debug_model)
        with self._lock:
            endpoint = self._endpoints.get(wanted)
            if endpoint is None:
                if self.closed:
                    raise Refused("this episode has ended", status=410, code="episode_finished")
                secret = self._serving.keys.grant(Grant(self, *wanted))
                endpoint = self._endpoints[wanted] = Endpoint(
                    self._reach.base_url, secret, self.model_name, self._reach.transport
                )
            return endpoint

    async def make(self, reply: Reply) -> Turn:
        """Make a reply, or go on with it where its client left and came back. Raises Refused. Cancelling it frees the
        engine."""
        self._ledger.load.refuse_more()
        capture = self._ledger.recorder.capture
        try:
            turn = await self._make(reply)
        except Refused as refused:
            capture.refused = refused.code
            self.note(refused)
            raise
        capture.refused, capture.unanswered = None, ""
        return turn

    async def _make(self, reply: Reply) -> Turn:
        request, engine, samples_tokens, own = self._route(reply.request)
        target = request.target or request.agent
        if samples_tokens and self._tokens is not None:
            return await self._tokens.make(reply, request, target, own, self._adapter(request, target, own))
        return await chat_turn(
            reply, request, target, cast(ChatEngine, engine), self._ledger, self._sampling, self._serving.heard
        )

    async def check(self, requests: Sequence[TurnRequest]) -> None:
        """Refuse all of these where one cannot be made. Raises Refused, which says which. Nothing is recorded."""
        for at, asked in enumerate(requests):
            request, _, samples_tokens, own = self._route(asked)
            if samples_tokens and self._tokens is not None:
                try:
                    self._adapter(request, request.target or request.agent, own)
                    await self._tokens.check(request, own)
                except Refused as refused:
                    self._ledger.recorder.capture.refused = refused.code
                    self.note(refused)
                    raise refused.within(f"prompt {at} of {len(requests)} (from 0)") from refused

    async def count(self, request: TurnRequest) -> int:
        """The tokens of the prompt that this request would be given now. Nothing is recorded. Raises Refused."""
        request, _, samples_tokens, _ = self._route(request)
        if not samples_tokens or self._tokens is None:
            raise Refused("this model's tokens cannot be counted here", code="unsupported_parameter", param="model")
        return await self._tokens.count(request)

    def _route(self, request: TurnRequest) -> tuple[TurnRequest, TokenEngine | ChatEngine, bool, bool]:
        """(the request, who answers it, whether in tokens, whether it trains)."""
        self._ledger.refuse_ended()
        own = self._trainable is None or (request.target or request.agent) in self._trainable
        engine, samples_tokens = self._serving.engine, self._serving.samples_tokens
        if not own and request.debug_model and self._serving.chat_engine_for is not None:
            engine, samples_tokens = self._serving.chat_engine_for(request.debug_model), False
        if self._serving.force_disable_toolcalls and request.tools:
            request = replace(request, tools=None, tool_choice="auto", notes={**request.notes, "dropped": "tools"})
        return request, engine, samples_tokens, own

    def _adapter(self, request: TurnRequest, target: str, own: bool) -> str | None:
        """Which of several adapters answers. Raises Refused for a model that there is not, and where what is to be
        trained has none."""
        if self.models:
            asked = str(request.notes.get("model") or self.model_name)
            if asked not in self.models:
                raise Refused(
                    f"The model {asked[:64]!r} does not exist; there are {', '.join(self.models)}.",
                    status=404,
                    code="model_not_found",
                    param="model",
                )
            return self.models[asked]
        found = self._serving.adapters.of(request.agent, target)
        if found is None and own and self._serving.adapters:
            raise Refused(
                f"The agent {request.agent!r} (target {target!r}) is to be trained and has no adapter; there are "
                f"{', '.join(self._serving.adapters.names)}. Name it under ajet.trainer_common.lora.adapters (or in "
                "the `agents` of one), or leave it out of the workflow's trainable_targets: it then has the model "
                "without adapters.",
                code="no_adapter",
            )
        return found

    def close(self) -> Capture:
        """End the episode: its keys die, running calls are aborted and recorded. Thread-safe, idempotent."""
        with self._lock:
            self._ledger.closed = True
            self._serving.keys.revoke([endpoint.api_key for endpoint in self._endpoints.values()])
        self._reach.on_loop(self._end)
        return self._ledger.recorder.capture

    def _end(self) -> None:
        """Settle every call, once: after that the capture belongs to the caller."""
        if not self._settled:
            self._settled = True
            self._ledger.abort_all()
            for lost in self.askings.list_lost():
                self._ledger.recorder.mark_lost(*lost)
