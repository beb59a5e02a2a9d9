"""RemoteEngine: a server's token-in-token-out route as a TokenEngine, whatever server it is.

Which logprob a server says depends on how it was started, so it is asked once, by drawing some tokens at temperature 2
and scoring them. Where it says the one sampled from, the one at temperature 1, where it differs, is scored by a second
request. What does not follow from what it says is refused (`ajet.engine.wire`, where what differs between servers is).

Invariant: nothing in here changes the server's weights. `version` is what whoever changes them says it is; a token
drawn before that is never stamped with it, since `weights_changed` waits for the calls under way. Where the server has
a name for its weights (`confirm_weights`), a reply after which it is another fails, and none begins while it is
another: it waits until somebody says what the server has now. Cached prefixes are salted with the version and a secret
of ours, so that neither another version nor another client answers from ours.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np

from ajet.engine.contract import DrawKey, Sampling, TokenChunk, TokenRequest, compute_reply_limit
from ajet.engine.remote_server import (
    MOST_VALUES,
    SILENCE,
    RemoteServer,
    ServerAwayError,
    build_timeout,
    choose_error_type,
)
from ajet.engine.streams import TokenStream
from ajet.engine.wire import StreamedReply, Wire, explain_missing_logprobs, is_one_logprob, truncates
from ajet.schema.bounded_json import load_json
from ajet.schema.errors import EngineFailure, UserError

if TYPE_CHECKING:
    from ajet.engine.server_weights import ServerWeights

SETTLE_POLL_S = 0.05
"""Seconds between two looks of a call that waits until the server's weights are settled."""
PROBE_TEMPERATURE = 2.0
"""A temperature at which the two kinds of logprobs differ."""
PROBE_TOKENS = 8
STARTUP_TIMEOUT_S = 60.0
"""Seconds for which a server may send nothing as it is asked who it is."""
SAME_LOGPROB_NATS = 0.05
"""Nats, on average of the probed tokens, within which two logprobs are the same: a server in bfloat16 that scores a
token says not quite what it said as it drew it; at another temperature tokens differ by tenths and more."""


class CallNotStartedError(EngineFailure):
    """A call that was not made: somebody else is changing the server's weights."""


class RemoteEngine:
    """Samples from the server at `base_url`. `vocabulary` is the number of ids the model knows. May be used from any
    event loop. Raises UserError when there is no such server."""

    def __init__(
        self,
        wire: Wire,
        base_url: str,
        *,
        vocabulary: int,
        max_model_len: int | None = None,
        api_key: str | None = None,
        silence: float = SILENCE,
        named: str = "",
    ) -> None:
        """`silence`, `named`: see RemoteServer."""
        self._wire = wire
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self.version = 0
        self._server = RemoteServer(self.base_url, api_key, silence=silence, named=named)
        self._vocabulary = vocabulary
        self._salt = secrets.token_urlsafe(16)
        self._idle = threading.Condition()
        self._closed = False
        self.calls: dict[asyncio.Task[None], TokenStream] = {}
        self._drains = 0
        """How many `drain_calls` blocks there are: then no call begins."""
        self._expected: str | None = None
        """The server's name for its weights; None: not asked for."""
        self.has_unknown_weights = False
        """Whether a call found another name, since `confirm_weights` said which: until it does so again no call
        begins."""
        first = min(silence, STARTUP_TIMEOUT_S)
        try:
            with httpx.Client(base_url=self.base_url, headers=self.headers, timeout=build_timeout(first)) as client:
                served = self._read_served_model(client)
                self.model = str(served["id"])
                longest = wire.longest(client, served)
                self.max_model_len = min(max_model_len or longest, longest)
                self.reports_sampled = self.constrains = self._probe_logprobs(client)
        except httpx.ReadTimeout as error:
            raise ServerAwayError(
                f"The {wire.kind} server hangs: it took a request and sent nothing for {first:g} s.",
                where=f"ajet.rollout.vllm.base_url: {self.base_url}",
                expected=f"an answer of {PROBE_TOKENS} tokens within that time",
                do="look at that server: it may be loading, or be stuck",
            ) from error
        except (httpx.HTTPError, EngineFailure, ValueError, KeyError, IndexError, TypeError) as error:
            raise choose_error_type(error)(
                f"There is no {wire.kind} server with the route {wire.route}: "
                f"{self._server.clean(str(error)) or type(error).__name__}",
                where=f"ajet.rollout.vllm.base_url: {self.base_url}",
                expected=wire.expected,
            ) from error

    def require_logprobs(self, sampling: Sampling) -> None:
        """Require that the server can say the logprobs which a rollout that draws so needs. Raises UserError."""
        if (problem := explain_missing_logprobs(self._wire, self.reports_sampled, sampling)) is not None:
            why, do = problem
            raise UserError(
                f"The {self._wire.kind} server {why}, and the rollout samples at {sampling.temperature}"
                f"{' with truncation' if truncates(sampling) else ''}.",
                where=f"ajet.rollout.vllm.base_url: {self.base_url}",
                expected="a server that says the logprobs sampled from",
                do=do,
            )

    def weights(self) -> ServerWeights:
        """The server's, and how it is given others."""
        return self._wire.weights(self.base_url, self.headers)

    @property
    def kind(self) -> str:
        """The server's name, for people."""
        return self._wire.kind

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """Stream one reply; closing the iterator early ends the connection, which aborts it there. Raises
        EngineFailure."""
        limit = compute_reply_limit(request, max_model_len=self.max_model_len, vocabulary=self._vocabulary)
        needs_unit = not is_one_logprob(request.sampling)
        if (problem := explain_missing_logprobs(self._wire, self.reports_sampled, request.sampling)) is not None:
            raise EngineFailure(f"the server {problem[0]}: {problem[1]}", retryable=False)
        loop = asyncio.get_running_loop()
        finished = False
        while not finished:
            stream = TokenStream(loop)
            while (task := self._start_call(loop, request, limit, stream, needs_unit)) is None:
                await asyncio.sleep(SETTLE_POLL_S)
            task.add_done_callback(self._forget_call)
            try:
                while not finished:
                    chunk = await stream.next()
                    finished = chunk.finish is not None
                    yield chunk
            except CallNotStartedError:
                continue
            finally:
                task.cancel()

    def weights_changed(self, version: int) -> None:
        """The server has the weights of `version` now, says whoever put them there. Waits for the calls under way.
        Raises ValueError when it is older than the present one."""
        if version < self.version:
            raise ValueError(f"the engine has policy version {self.version}, which {version} is older than")
        with self._idle:
            self._idle.wait_for(lambda: not self.calls)
            self.version = version

    def confirm_weights(self, version: int, name: str | None) -> None:
        """The server has the weights of `version` now, and a reply counts only while it calls them `name`; None: it has
        no name for them. For who knows what it is, within `drain_calls`: the version may also be an older one."""
        with self._idle:
            self.version, self._expected, self.has_unknown_weights = version, name, False
            self._salt = secrets.token_urlsafe(16)

    @contextmanager
    def drain_calls(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """Within the block no call is under way: those that are have ended, and others wait. `on_wait` is called about
        once a second until then."""
        with self._idle:
            self._drains += 1
        try:
            while True:
                with self._idle:
                    if self._idle.wait_for(lambda: not self.calls, timeout=1.0):
                        break
                on_wait()
            yield
        finally:
            with self._idle:
                self._drains -= 1

    def score(self, ids: Sequence[int]) -> list[float]:
        """The server's log-probabilities of `ids[1:]` at temperature 1. Raises UserError."""
        known = [int(token) for token in ids]
        try:
            with httpx.Client(
                base_url=self.base_url, headers=self.headers, timeout=build_timeout(self._server.silence)
            ) as client:
                body = self._wire.score_body(known, 1, secrets.token_urlsafe(16))
                return self._wire.scored(self._post_json(client, body), known[1:])
        except (httpx.HTTPError, EngineFailure, ValueError) as error:
            why = self._server.clean(str(error)) or type(error).__name__
            raise choose_error_type(error)(
                f"The {self._wire.kind} server cannot score a text: {why}",
                where=f"ajet.rollout.vllm.base_url: {self.base_url}",
            ) from error

    def close(self) -> None:
        """Release connections; running calls fail with EngineFailure. Idempotent."""
        with self._idle:
            self._closed = True
            calls = dict(self.calls)
        for task, stream in calls.items():
            if not stream.loop.is_closed():
                stream.loop.call_soon_threadsafe(task.cancel)
        self._server.close()

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request to the server: its key, if it has one."""
        return self._server.headers

    def _make_cache_salt(self, version: int) -> str:
        return f"{self._salt}-{version}"

    def _read_served_model(self, client: httpx.Client) -> dict[str, Any]:
        response = client.get("/v1/models", timeout=20.0)
        if response.status_code >= 400:
            raise self._server.refused(response.status_code, response.text)
        served: dict[str, Any] = load_json(response.content)["data"][0]
        return served

    def _probe_logprobs(self, client: httpx.Client) -> bool:
        """Whether the server says the logprob that was sampled from."""
        prompt = np.arange(1, 3, dtype=np.int32)
        limit = min(PROBE_TOKENS, self.max_model_len - len(prompt))
        request = TokenRequest(prompt, Sampling(limit, temperature=PROBE_TEMPERATURE), DrawKey(0, 0, 0, 0))
        body = {**self._wire.body(request, limit, self._make_cache_salt(0)), "stream": False}
        tokens, reported = self._wire.drawn(self._post_json(client, body))
        body = self._wire.score_body([*prompt.tolist(), *tokens], len(prompt), self._make_cache_salt(0))
        unit = self._wire.scored(self._post_json(client, body), tokens)
        return bool(np.abs(np.subtract(reported, unit)).mean() > SAME_LOGPROB_NATS)

    def _post_json(self, client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
        response = client.post(self._wire.route, json=body)
        if response.status_code >= 400:
            raise self._server.refused(response.status_code, response.text)
        answer: dict[str, Any] = load_json(response.content, most=MOST_VALUES)
        return answer

    async def _add_unit_logprobs(self, request: TokenRequest, held: list[TokenChunk], version: int) -> TokenChunk:
        """All chunks as one, with the log-probabilities at temperature 1 of a second request."""
        merged = TokenChunk([], [], [], version, held[-1].finish)
        for chunk in held:
            merged.ids += chunk.ids
            merged.logprobs += chunk.logprobs
            merged.top += chunk.top
        if merged.ids:
            prompt: list[int] = request.prompt_ids.tolist()
            body = self._wire.score_body([*prompt, *merged.ids], len(prompt), self._make_cache_salt(version))
            response = await self._open_client().post(self._wire.route, json=body)
            if response.status_code >= 400:
                raise self._server.refused(response.status_code, response.text)
            merged.logprobs_unit = self._wire.scored(self._server.parsed(response.text), merged.ids)
        return merged

    def _start_call(
        self, loop: asyncio.AbstractEventLoop, request: TokenRequest, limit: int, stream: TokenStream, needs_unit: bool
    ) -> asyncio.Task[None] | None:
        with self._idle:
            if self._closed:
                raise EngineFailure("the engine is closed", retryable=False)
            if self._drains or self.has_unknown_weights:
                return None
            task = loop.create_task(self._serve_call(request, limit, self.version, stream, needs_unit))
            self.calls[task] = stream
            return task

    async def _require_expected(self, failure: type[EngineFailure] = EngineFailure) -> None:
        """Raise `failure` unless the server's name for its weights is the expected one."""
        if self._expected is None:
            return
        answer = await self._open_client().get(self._wire.name_route)
        known = answer.status_code == 200
        name = self._server.parsed(answer.text).get("weight_version") if known else f"status {answer.status_code}"
        if name != self._expected:
            self.has_unknown_weights = True
            raise failure(f"somebody else changed the server's weights: {name} instead of {self._expected}")

    async def _serve_call(
        self, request: TokenRequest, limit: int, version: int, stream: TokenStream, needs_unit: bool
    ) -> None:
        reply = self._wire.reply(request, version)
        held: list[TokenChunk] = []
        failure = EngineFailure("the engine was closed")
        finished = False
        try:
            await self._require_expected(CallNotStartedError)
            async for chunk in self._stream_chunks(
                self._wire.body(request, limit, self._make_cache_salt(version)), reply
            ):
                if needs_unit:
                    held.append(chunk)
                    continue
                if chunk.finish is not None:
                    await self._require_expected()
                    finished = True
                stream.put(chunk)
            if needs_unit:
                merged = await self._add_unit_logprobs(request, held, version)
                await self._require_expected()
                stream.put(merged)
                finished = True
        except EngineFailure as error:
            failure = error
        except httpx.HTTPError as problem:
            failure = self._server.unreachable(problem)
        finally:
            if not finished:
                stream.put(failure)

    async def _stream_chunks(self, body: dict[str, Any], reply: StreamedReply) -> AsyncIterator[TokenChunk]:
        async with self._open_client().stream("POST", self._wire.route, json=body) as response:
            if response.status_code >= 400:
                raise self._server.refused(response.status_code, (await response.aread()).decode("utf-8", "replace"))
            async for line in response.aiter_lines():
                data = line[5:].strip() if line.startswith("data:") else ""
                if data == "[DONE]":
                    break
                chunk = reply.read(self._server.parsed(data)) if data else None
                if chunk is not None:
                    yield chunk
        yield reply.end()

    def _forget_call(self, task: asyncio.Task[None]) -> None:
        with self._idle:
            del self.calls[task]
            self._idle.notify_all()

    def _open_client(self) -> httpx.AsyncClient:
        with self._idle:
            if self._closed:
                raise EngineFailure("the engine is closed", retryable=False)
            return self._server.client()
