"""Token turns: replies that a token engine samples. What trains comes from here.

Invariant: a reply's ids are the engine's, recorded whatever becomes of the client. A reply that breaks a demand of its
client (`demands`) is recorded as aborted with the reason, counted, and drawn again; no client sees it, so nothing
trains on it.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ajet.engine.contract import DrawKey, Sampling, TokenEngine, TokenRequest
from ajet.gateway.hints import Heard, hints_of, refuse_unhonoured
from ajet.gateway.prompting import Prompt, prompt_of, sampling_of, terms_of
from ajet.gateway.reply import Draft, Reply
from ajet.gateway.reply_format import Broken, broken_by, demands
from ajet.gateway.running_calls import RunningCalls
from ajet.gateway.tool_call_ids import with_ids
from ajet.gateway.turn import Refused, Turn, TurnRequest, refuse_images
from ajet.gateway.worker_threads import Aside
from ajet.schema.call import FinishReason
from ajet.schema.errors import EngineFailure
from ajet.tokens import Renderer
from ajet.tokens.image_tokens import image_urls

TRIES = 4
"""Replies drawn for one that keeps to its client's demands, where the engine cannot be held to them."""
_RESUMED, _REDRAWN = 32, 48
"""Bits by which the count of tokens that a reply begins with, and that of rejected ones, are shifted into the name of
its draws: below them lies the number of the call, or a client's seed."""


class TokenTurns:
    """Makes replies for one session. `room` bounds prompt + reply; `key` is (seed, task order, repeat)."""

    def __init__(
        self,
        ledger: RunningCalls,
        engine: TokenEngine,
        renderer: Renderer,
        aside: Aside,
        heard: Heard,
        *,
        key: tuple[int, int, int],
        sampling: Sampling,
        max_model_len: int,
    ) -> None:
        self._ledger, self._engine, self._renderer, self._aside = ledger, engine, renderer, aside
        self._key, self._run, self._heard = key, sampling, heard
        self._room = min(max_model_len, engine.max_model_len)

    async def make(
        self, reply: Reply, request: TurnRequest, target: str, trained: bool, adapter: str | None = None
    ) -> Turn:
        """Sample the reply, or go on with it where its client came back. `adapter`: which of several. Raises
        Refused."""
        refuse_unhonoured(request)
        while True:
            draft = reply.draft
            if draft is None:
                async with self._ledger.turnstile:
                    draft = reply.draft = await self._begin(request, target, trained, reply.rejected, adapter)
                    reply.entry = draft.entry
            judged = demands(request, constrained=draft.sampling.json_schema is not None)
            if not judged:
                reply.show(draft)
            await self._sample(reply, draft)
            message, finish = self._read(draft)
            # The schema is the client's: its check may take a second.
            broken = await asyncio.to_thread(broken_by, request, message, finish) if judged else None
            if broken is None:
                break
            self._reject(reply, draft, broken)
        if judged:
            reply.show(draft)
        return self._settle(draft, message, finish)

    async def count(self, request: TurnRequest) -> int:
        """The tokens of the prompt that this request would be given now. Nothing is recorded. Raises Refused."""
        return len((await self._prompt(request)).rendered.ids)

    async def check(self, request: TurnRequest, trained: bool) -> None:
        """Raises Refused where `make` would before it samples. Nothing is recorded."""
        refuse_unhonoured(request)
        self._sampling(request, await self._prompt(request), trained)

    async def _prompt(self, request: TurnRequest) -> Prompt:
        images = self._images(request)
        prompt = await prompt_of(request, self._ledger.recorder, self._renderer, self._aside)
        return replace(prompt, images=images) if images else prompt

    def _images(self, request: TurnRequest) -> tuple[str, ...]:
        """The request's, as data: URLs. Raises Refused."""
        if self._renderer.images is None:
            refuse_images(request)
            return ()
        urls = image_urls(request.messages)
        for place, url in zip(request.images, urls, strict=False):
            if not url.startswith("data:"):
                raise Refused(
                    f"Unsupported value for '{place}': nothing is fetched here, send the image as a data: URL.",
                    param=place,
                    code="unsupported_value",
                )
        return urls

    def _sampling(self, request: TurnRequest, prompt: Prompt, trained: bool) -> tuple[Sampling, dict[str, Any]]:
        return sampling_of(
            request,
            self._run,
            trained=trained,
            prompt_tokens=len(prompt.rendered.ids),
            room=self._room,
            end_ids=self._renderer.end_ids,
        )

    async def _begin(
        self, request: TurnRequest, target: str, trained: bool, rejected: int, adapter: str | None
    ) -> Draft:
        self._ledger.refuse_ended()
        recorder, renderer = self._ledger.recorder, self._renderer
        prompt = await self._prompt(request)
        self._ledger.refuse_ended()  # a long prompt takes its time
        sampling, ignored = self._sampling(request, prompt, trained)
        self._heard.say_replaced(ignored, self._run)
        if sampling.seed is not None:  # a client's seed names one reply: another draw is another seed
            sampling = replace(sampling, seed=sampling.seed ^ (rejected << _REDRAWN))
        may_call = bool(request.tools) and request.tool_choice != "none"
        free = may_call or prompt.rendered.opens_thought
        if request.json_schema is not None and self._engine.constrains and not free:
            sampling = replace(sampling, json_schema=json.dumps(request.json_schema or {"type": "object"}))
        entry = recorder.enter(
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
        entry.call.terms = terms_of(request, sampling, prompt.encoded, adapter)
        hints = hints_of(request)
        self._heard.say(hints)
        ignored |= hints
        entry.call.extra |= {**request.notes, **({"ignored": ignored} if ignored else {})}
        stream = renderer.reply_stream(
            request.tools if may_call else None,
            before=prompt.rendered,
            stop=request.stop,
            single_call=not request.parallel_tool_calls,
        )
        key = DrawKey(*self._key, entry.call.index)
        return Draft(entry, prompt.rendered, stream, sampling, key, prompt.images)

    async def _sample(self, reply: Reply, draft: Draft) -> None:
        sampled, stream, request = draft.sampled, draft.stream, reply.request
        watched = bool(request.stop) or not request.parallel_tool_calls
        load, add = self._ledger.load, sampled.add  # looked up once: the loop runs for every token
        with self._ledger.under_way(draft.entry, sampled):
            if draft.finish is not None:  # the client left when all was sampled, and came back
                return
            asked = _asked(draft)
            draft.begun += 1
            async with aclosing(cast(Any, self._engine.generate(asked))) as chunks:
                async for chunk in chunks:
                    add(chunk.ids, chunk.logprobs, chunk.logprobs_unit, chunk.version, chunk.newest)
                    if chunk.top:
                        sampled.top += chunk.top
                    draft.finish = chunk.finish
                    if watched or (reply.streamed and reply.shown and not load.busy):
                        draft.catch_up()
                        reply.mark()
                        if stream.cut:
                            draft.finish = "stop"
                            break
                    reply.news()
            if draft.finish is None:
                raise EngineFailure("the engine ended a reply without a finish reason")

    def _read(self, draft: Draft) -> tuple[dict[str, Any], FinishReason]:
        stream, finish = draft.stream, draft.finish
        assert finish is not None
        draft.catch_up()
        stream.close()
        ids = draft.sampled.ids
        # SGLang says "length" where the last token that was allowed is the one that ends the reply.
        if stream.stopped is not None or (ids and ids[-1] in draft.sampling.stop_ids):
            finish = "stop"
        message = with_ids(stream.message(), draft.entry.call.index)
        if finish == "stop" and message.get("tool_calls"):
            finish = "tool_calls"
        return message, finish

    def _settle(self, draft: Draft, message: dict[str, Any], finish: FinishReason) -> Turn:
        entry, sampled, stream, call = draft.entry, draft.sampled, draft.stream, draft.entry.call
        sampled.write(call, stream.kept)
        text = self._renderer.decode(call.response_ids, after=draft.prompt.ids)
        self._ledger.recorder.settle(entry, finish, message=message, reply_text=text, stopped=stream.stopped)
        call.stop, call.resumed = stream.stopped, max(0, draft.begun - 1)
        if finish == "length":
            call.extra["cut_by"] = self._length_limit(len(draft.prompt.ids), len(call.response_ids))
        self._ledger.look(call, message)
        return Turn(
            call.index,
            message,
            finish,
            len(draft.prompt.ids),
            len(call.response_ids),
            sampled.ids[: stream.kept],
            sampled.logprobs_unit[: stream.kept],
            sampled.top[: stream.kept],
            stream.stopped,
        )

    def _length_limit(self, prompt_tokens: int, reply_tokens: int) -> str:
        """Return the name of the limit that a reply of this length reached."""
        if prompt_tokens + reply_tokens >= self._room:
            return "rollout.max_model_len"
        return "rollout.max_response_length_in_one_turn" if reply_tokens >= self._run.max_tokens else "max_tokens"

    def _reject(self, reply: Reply, draft: Draft, broken: Broken) -> None:
        call = draft.entry.call
        draft.sampled.write(call, draft.stream.kept)
        call.rejected = broken.why
        self._ledger.recorder.settle(draft.entry, "aborted", error=f"not what its client asked for: {broken.why}")
        reply.draft = None
        reply.rejected += 1
        if reply.rejected == TRIES:
            raise Refused(
                f"None of {TRIES} replies {broken.demand}. The last: {broken.why}",
                status=422,
                code="json_schema_not_met",
                param=broken.param,
            )


def _asked(draft: Draft) -> TokenRequest:
    """The request to the engine: for the reply, or for the rest of it with draws of its own."""
    ids, sampling, draw = draft.sampled.ids, draft.sampling, draft.draw
    adapter = draft.entry.call.terms.adapter
    if not draft.begun:
        return TokenRequest(draft.prompt.ids, sampling, draw, draft.images, adapter)
    # The rest is drawn under a name of its own: the draws of the beginning were used up to a place that only the engine
    # knew. No session has 2^32 calls, so no other call has that name.
    again = draft.begun << _RESUMED
    seed = None if sampling.seed is None else sampling.seed ^ again
    return TokenRequest(
        np.concatenate([draft.prompt.ids, np.array(ids, dtype=np.int32)]),
        replace(sampling, max_tokens=sampling.max_tokens - len(ids), seed=seed),
        draw._replace(call=draw.call + again),
        draft.images,
        adapter,
    )
