"""Session: one episode's conversation with its models.

Invariants: a reply's ids are the engine's, recorded whatever becomes of the client; a request that extends an earlier
call does so with that call's exact ids, otherwise it forks with a reason; the policy's own sampling rules over a
client's wishes wherever a call trains. Everything but `__call__` and `close` runs on the gateway's loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from ajet.engine.contract import ChatEngine, DrawKey, Sampling, TokenEngine, TokenRequest
from ajet.gateway.capture import Capture, Entry, Recorder, Sampled
from ajet.gateway.prompting import prompt_of, sampling_of
from ajet.gateway.proxy import chat_body, read_answer, relay
from ajet.gateway.tool_call_ids import call_ids, with_ids
from ajet.gateway.turn import OnPiece, Piece, Refused, Turn, TurnRequest
from ajet.schema.call import Call, FinishReason
from ajet.schema.endpoint import Endpoint
from ajet.schema.errors import EngineFailure
from ajet.tokens import Rendered, Renderer

if TYPE_CHECKING:
    from ajet.gateway.server import Gateway

Inspect = Callable[[Call, dict[str, Any]], list[str]]


@dataclass(frozen=True, slots=True)
class Grant:
    """What a key stands for."""

    session: Session
    agent: str
    target: str
    debug_model: str | None


class Session:
    """One episode at the gateway; made by `Gateway.open`."""

    def __init__(
        self,
        gateway: Gateway,
        episode: str,
        *,
        key: tuple[int, int, int],
        sampling: Sampling,
        trainable: Collection[str] | None,
        model_name: str,
        inspect: Inspect | None,
        terminate_on_inspect: bool,
    ) -> None:
        self.episode, self.model_name = episode, model_name
        self.kept: dict[str, Any] = {}
        """What dialects remember of this episode; see `Caller.kept`."""
        self._gateway = gateway
        self._key, self._sampling = key, sampling
        self._trainable = None if trainable is None else frozenset(trainable)
        self._inspect, self._terminate = inspect, terminate_on_inspect
        self._recorder = Recorder()
        self._active: dict[int, tuple[asyncio.Task[Any] | None, Entry, Sampled]] = {}
        self._endpoints: dict[tuple[str, str, str | None], Endpoint] = {}
        self._lock = threading.Lock()
        self._closed = False

    @property
    def closed(self) -> bool:
        """True once the episode has ended: its keys are dead."""
        return self._closed

    def __call__(self, agent_name: str, target_tag: str, debug_model: str | None) -> Endpoint:
        """The endpoint of one agent; see schema.Endpoints."""
        wanted = (agent_name, target_tag, debug_model)
        with self._lock:
            endpoint = self._endpoints.get(wanted)
            if endpoint is None:
                if self._closed:
                    raise Refused("this episode has ended", status=410, code="episode_finished")
                secret = self._gateway.keys.grant(Grant(self, *wanted))
                endpoint = self._endpoints[wanted] = Endpoint(
                    self._gateway.base_url, secret, self.model_name, self._gateway.transport
                )
            return endpoint

    async def turn(self, request: TurnRequest, on_piece: OnPiece | None = None) -> Turn:
        """One reply; `on_piece` hears of it while it is sampled. Raises Refused. Cancelling it frees the engine."""
        request, engine, samples_tokens, own = self._route(request)
        target = request.target or request.agent
        if samples_tokens:
            renderer = self._gateway.renderer
            assert renderer is not None, "a token engine needs a renderer"
            return await self._token_turn(request, target, own, cast(TokenEngine, engine), renderer, on_piece)
        return await self._chat_turn(request, target, cast(ChatEngine, engine), on_piece)

    def count(self, request: TurnRequest) -> int:
        """The tokens of the prompt that this request would be given now. Nothing is recorded. Raises Refused."""
        request, _, samples_tokens, _ = self._route(request)
        if not samples_tokens or self._gateway.renderer is None:
            raise Refused("this model's tokens cannot be counted here", code="unsupported_parameter", param="model")
        return len(prompt_of(request, self._recorder, self._gateway.renderer).rendered.ids)

    def _route(self, request: TurnRequest) -> tuple[TurnRequest, TokenEngine | ChatEngine, bool, bool]:
        """(the request, who answers it, whether in tokens, whether it trains)."""
        self._refuse_ended()
        own = self._trainable is None or (request.target or request.agent) in self._trainable
        engine, samples_tokens = self._gateway.engine, self._gateway.samples_tokens
        if not own and request.debug_model and self._gateway.chat_engine_for is not None:
            engine, samples_tokens = self._gateway.chat_engine_for(request.debug_model), False
        if self._gateway.force_disable_toolcalls and request.tools:
            request = replace(request, tools=None, tool_choice="auto", notes={**request.notes, "dropped": "tools"})
        return request, engine, samples_tokens, own

    async def stream(self, request: TurnRequest) -> AsyncIterator[Piece | Turn]:
        """The same as pieces, ended by the Turn; closing the iterator aborts the call."""
        queue: asyncio.Queue[Piece | None] = asyncio.Queue()
        task = asyncio.create_task(self.turn(request, queue.put_nowait))
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (piece := await queue.get()) is not None:
                yield piece
            yield await task
        finally:
            task.cancel()
            await asyncio.wait([task])

    def close(self) -> Capture:
        """End the episode: its keys die, running calls are aborted and recorded. Thread-safe, idempotent."""
        with self._lock:
            self._closed = True
            self._gateway.keys.revoke([endpoint.api_key for endpoint in self._endpoints.values()])
        self._gateway.on_loop(self._abort_running)
        return self._recorder.capture

    def _abort_running(self) -> None:
        for task, entry, sampled in list(self._active.values()):
            self._settle_aborted(entry, sampled)
            if task is not None:
                task.cancel()

    def _settle_aborted(self, entry: Entry, sampled: Sampled) -> None:
        if not entry.settled:
            sampled.write(entry.call)
            self._recorder.settle(entry, "aborted")

    def _refuse_ended(self) -> None:
        if self._closed:
            raise Refused("this episode has ended", status=410, code="episode_finished")
        if self._recorder.capture.terminated is not None:
            raise Refused(
                f"this episode was ended by the check {self._recorder.capture.terminated!r}",
                status=410,
                code="episode_terminated",
            )

    # Token engines: what trains.

    async def _token_turn(
        self,
        request: TurnRequest,
        target: str,
        trained: bool,
        engine: TokenEngine,
        renderer: Renderer,
        on_piece: OnPiece | None,
    ) -> Turn:
        _refuse_passed(request.passed)
        entry, prompt, sampling = self._enter(request, target, trained, engine, renderer)
        call = entry.call
        read_tools = request.tools if request.tool_choice != "none" else None
        reply = renderer.reply_stream(
            read_tools, before=prompt, stop=request.stop, single_call=not request.parallel_tool_calls
        )
        draw = DrawKey(*self._key, call.index)
        watched = bool(request.stop) or not request.parallel_tool_calls
        sampled = Sampled()
        ids = call_ids(call.index)
        finish: FinishReason = "error"
        self._active[call.index] = (asyncio.current_task(), entry, sampled)
        try:
            async with aclosing(cast(Any, engine.generate(TokenRequest(prompt.ids, sampling, draw)))) as chunks:
                async for chunk in chunks:
                    sampled.add(chunk.ids, chunk.logprobs, chunk.logprobs_unit, chunk.version)
                    sampled.top += chunk.top
                    finish = chunk.finish or finish
                    if on_piece is None and not watched:
                        continue
                    known = reply.kept
                    deltas = reply.feed(chunk.ids)
                    if on_piece is not None:
                        kept = slice(known, reply.kept)
                        told = sampled.ids[kept], sampled.logprobs_unit[kept], sampled.top[kept]
                        on_piece(Piece(ids(deltas), *told, prompt_tokens=len(prompt.ids)))
                    if reply.cut:
                        finish = "stop"
                        break
            if finish == "error":
                raise EngineFailure("the engine ended a reply without a finish reason")
        except asyncio.CancelledError:
            self._settle_aborted(entry, sampled)
            if self._closed:
                raise Refused("this episode has ended", status=410, code="episode_finished") from None
            raise
        except EngineFailure as error:
            sampled.write(call)
            self._recorder.settle(entry, "error", error=str(error))
            raise Refused(f"the engine failed: {error}", status=503, code="engine_failure") from error
        finally:
            if not entry.settled and finish == "error":
                sampled.write(call)
                self._recorder.settle(entry, "error", error="ajet: an unexpected error in the engine")
            del self._active[call.index]
        if entry.settled:
            raise Refused("this episode has ended", status=410, code="episode_finished")
        if on_piece is None and not watched:
            reply.feed(sampled.ids)
        rest = reply.close()
        if reply.stopped is not None:
            finish = "stop"
        if on_piece is not None and rest:
            on_piece(Piece(ids(rest), prompt_tokens=len(prompt.ids)))
        message = with_ids(reply.message(), call.index)
        if finish == "stop" and message.get("tool_calls"):
            finish = "tool_calls"
        sampled.write(call, reply.kept)
        entry.verbatim = reply.stopped is None
        self._recorder.settle(
            entry, finish, message=message, reply_text=renderer.decode(call.response_ids, after=prompt.ids)
        )
        if reply.stopped is not None:
            call.extra["stop"] = reply.stopped
        self._look(call, message)
        return Turn(
            call.index,
            message,
            finish,
            len(prompt.ids),
            len(call.response_ids),
            sampled.ids[: reply.kept],
            sampled.logprobs_unit[: reply.kept],
            sampled.top[: reply.kept],
            reply.stopped,
        )

    def _enter(
        self, request: TurnRequest, target: str, trained: bool, engine: TokenEngine, renderer: Renderer
    ) -> tuple[Entry, Rendered, Sampling]:
        gateway = self._gateway
        prompt = prompt_of(request, self._recorder, renderer)
        room = min(gateway.max_model_len, engine.max_model_len)
        run = replace(self._sampling, max_tokens=min(self._sampling.max_tokens, gateway.max_response_tokens))
        sampling, notes = sampling_of(
            request,
            run,
            trained=trained,
            prompt_tokens=len(prompt.rendered.ids),
            room=room,
            end_ids=renderer.end_ids,
        )
        entry = self._recorder.enter(
            agent=request.agent,
            target=target,
            trained=trained,
            messages=request.messages,
            tools=request.tools,
            match=prompt.match,
            prompt=prompt.rendered,
            parent=prompt.parent,
            before=prompt.before,
            fork=prompt.fork,
            temperature=sampling.temperature,
        )
        entry.call.extra.update(notes)
        return entry, prompt.rendered, sampling

    # Chat engines: debug models and remote servers. Recorded, never trained.

    async def _chat_turn(self, request: TurnRequest, target: str, engine: ChatEngine, on_piece: OnPiece | None) -> Turn:
        recorder = self._recorder
        body = chat_body(request, self._sampling)
        match = recorder.conversations.match(request.agent, request.messages)
        entry = recorder.enter(
            agent=request.agent,
            target=target,
            trained=False,
            messages=request.messages,
            tools=request.tools,
            match=match,
            prompt=None,
            temperature=self._sampling.temperature if request.temperature is None else request.temperature,
        )
        entry.call.extra.update(request.notes)
        self._active[entry.call.index] = (asyncio.current_task(), entry, Sampled())
        settled = False
        try:
            if on_piece is None:
                answer = await engine.chat(body)
                message, finish, usage = read_answer(answer)
            else:
                message, finish, usage = await relay(engine.stream(body), on_piece)
            settled = True
        except asyncio.CancelledError:
            settled = True
            recorder.settle(entry, "aborted")
            if self._closed:
                raise Refused("this episode has ended", status=410, code="episode_finished") from None
            raise
        except EngineFailure as error:
            settled = True
            recorder.settle(entry, "error", error=str(error))
            raise Refused(f"the engine failed: {error}", status=503, code="engine_failure") from error
        finally:
            if not settled:
                recorder.settle(entry, "error", error="ajet: an unexpected error in the engine")
            del self._active[entry.call.index]
        if entry.settled:
            raise Refused("this episode has ended", status=410, code="episode_finished")
        recorder.settle(entry, finish, message=message)
        self._look(entry.call, message)
        return Turn(entry.call.index, message, finish, usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0))

    def _look(self, call: Call, message: dict[str, Any]) -> None:
        if self._inspect is None:
            return
        fired = self._inspect(call, message)
        if fired:
            self._recorder.check(fired, call)
            if self._terminate:
                self._recorder.capture.terminated = fired[0]


def _refuse_passed(passed: Mapping[str, Any]) -> None:
    for name in passed:
        if name != "seed":
            raise Refused(f"{name} cannot be honoured by this model's engine", param=name, code="unsupported_parameter")
