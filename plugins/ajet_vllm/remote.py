"""RemoteEngine: the token-in-token-out route of any kind of server as a TokenEngine.

The kind of logprobs depends on the server's start options, so it is probed once: some tokens are sampled at temperature
2 and scored. If the server returns logprobs of the sampled distribution, a second request scores the tokens at
temperature 1 if different. Requests without derivable logprobs are refused (`ajet_vllm.wire`, with the differences
between servers).

Invariant: RemoteEngine never changes the server's weights; `version` is set by the code that does. `weights_changed`
waits for running calls, so no token is stamped with a later version. If the server has a name for its weights
(`confirm_weights`), a reply fails if the name changed meanwhile, and no call starts until the new name is confirmed.
Cached prefixes are salted with the version and a secret, so they are shared neither between versions nor with other
clients.
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
from loguru import logger
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

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
from ajet.schema.bounded_json import load_json
from ajet.schema.errors import EngineFailure, UserError
from ajet_vllm.wire import StreamedReply, Wire, explain_missing_logprobs, is_one_logprob, truncates

if TYPE_CHECKING:
    from ajet_vllm.server_weights import ServerWeights

SETTLE_POLL_S = 0.05
"""Seconds between two checks of a call that waits for confirmed weights."""
PROBE_TEMPERATURE = 2.0
"""Temperature of the probe: raw and temperature-scaled logprobs differ at it."""
PROBE_TOKENS = 8
STARTUP_TIMEOUT_S = 60.0
"""Maximum seconds of silence during the server's first requests."""
SAME_LOGPROB_NATS = 0.05
"""Mean gap in nats up to which two sets of logprobs count as equal.

Scoring in bfloat16 differs slightly from sampling; another temperature differs by tenths and more.
"""


class CallNotStartedError(EngineFailure):
    """A call was not sent, because another process is changing the server's weights."""


class RemoteEngine:
    """Samples from a remote inference server. `generate` may be called from any event loop."""

    wire: Wire
    """Requests and responses of this kind of server."""

    def __init__(
        self,
        base_url: str,
        *,
        vocabulary: int,
        max_model_len: int | None = None,
        api_key: str | None = None,
        silence: float = SILENCE,
        named: str = "",
    ) -> None:
        """Connect to the server, read its limits, and find out which logprobs it reports.

        Args:
            base_url: the server's address, with or without `/v1`.
            vocabulary: number of token ids of the model.
            max_model_len: maximum length of prompt plus reply in tokens, or None for the server's limit.
            silence: seconds without data after which a request fails.
            named: name of the setting of `silence`, for errors.

        Raises:
            ServerAwayError: the server does not answer.
            UserError: the server cannot be used.
        """
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self.version = 0
        self._server = RemoteServer(self.base_url, api_key, silence=silence, named=named)
        self._vocabulary = vocabulary
        self._salt = secrets.token_urlsafe(16)
        self._idle = threading.Condition()
        """Guards the state below, and is notified when a call ends."""
        self._closed = False
        self.calls: dict[asyncio.Task[None], TokenStream] = {}
        """Running calls with the streams of their callers."""
        self._drain_count = 0
        """Number of active `drain_calls` blocks; no call starts while positive."""
        self._expected_weights: str | None = None
        """Confirmed name of the server's weights; None disables the check."""
        self.has_unknown_weights = False
        """True after a call found another name; no call starts until the next `confirm_weights`."""
        startup_timeout = min(silence, STARTUP_TIMEOUT_S)
        server_version = ""
        try:
            with httpx.Client(
                base_url=self.base_url, headers=self.headers, timeout=build_timeout(startup_timeout)
            ) as client:
                served = self._read_served_model(client)
                self.model = str(served["id"])
                server_version = self._read_server_version(client)
                server_limit = self.wire.find_max_length(client, served)
                self.max_model_len = min(max_model_len or server_limit, server_limit)
                # A request with a JSON schema needs logprobs of the sampled distribution, too.
                self.reports_sampled = self.constrains = self._probe_logprobs(client)
        except httpx.ReadTimeout as error:
            raise ServerAwayError(
                f"The {self.wire.kind} server hangs: it accepted a request and sent nothing for {startup_timeout:g} s.",
                where=f"ajet.rollout.vllm.base_url: {self.base_url}",
                expected=f"a reply of {PROBE_TOKENS} tokens within that time",
                do="check the server's log: it may still be loading the model, or it may be stuck",
            ) from error
        except (httpx.HTTPError, EngineFailure, ValueError, KeyError, IndexError, TypeError) as error:
            raise choose_error_type(error)(
                f"The {self.wire.kind} server does not answer at the route {self.wire.route}: "
                f"{self._server.clean(str(error)) or type(error).__name__}",
                where=f"ajet.rollout.vllm.base_url: {self.base_url}",
                expected=f"{self.wire.expected}, version {self.wire.tested_versions}"
                + (f"; this server has {server_version}" if server_version else ""),
            ) from error

    def require_logprobs(self, sampling: Sampling) -> None:
        """Check that the server reports the logprobs needed by the sampling parameters.

        Raises:
            UserError: the logprobs are not available.
        """
        if (problem := explain_missing_logprobs(self.wire, self.reports_sampled, sampling)) is not None:
            why, do = problem
            raise UserError(
                f"The {self.wire.kind} server {why}, but the run samples at temperature "
                f"{sampling.temperature}{' with truncation' if truncates(sampling) else ''}.",
                where=f"ajet.rollout.vllm.base_url: {self.base_url}",
                expected="a server that reports the log-probabilities of the distribution it samples from",
                do=do,
            )

    def weights(self) -> ServerWeights:
        """Return a client for the server's weights."""
        return self.wire.weights(self.base_url, self.headers)

    @property
    def kind(self) -> str:
        """Display name of the server's kind."""
        return self.wire.kind

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """Stream one reply; closing the iterator early closes the connection, and the server aborts.

        The call waits while other weights are loaded into the server.

        Raises:
            EngineFailure: the server refused, failed, or changed its weights meanwhile.
        """
        limit = compute_reply_limit(request, max_model_len=self.max_model_len, vocabulary=self._vocabulary)
        needs_unit = not is_one_logprob(request.sampling)  # logprobs at temperature 1 need a second request
        if (problem := explain_missing_logprobs(self.wire, self.reports_sampled, request.sampling)) is not None:
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
            except CallNotStartedError:  # other weights are being loaded: wait for them and start again
                continue
            finally:
                task.cancel()

    def weights_changed(self, version: int) -> None:
        """Set the policy version of the server's weights. Blocks until running calls have ended.

        Raises:
            ValueError: `version` is older than the current one.
        """
        if version < self.version:
            raise ValueError(f"policy version {version} is older than the engine's version {self.version}")
        with self._idle:
            self._idle.wait_for(lambda: not self.calls)
            self.version = version

    def confirm_weights(self, version: int, name: str | None) -> None:
        """Set version and name of the server's weights. Replies count only while the server reports this name.

        Call it within `drain_calls`. The version may be older than before.

        Args:
            version: policy step of the weights.
            name: the server's name for them; None if it has none.
        """
        with self._idle:
            self.version = version
            self._expected_weights = name
            self.has_unknown_weights = False
            self._salt = secrets.token_urlsafe(16)  # prefixes cached before are not reused

    @contextmanager
    def drain_calls(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """Within the block no call runs: running calls have ended, and new ones wait.

        Args:
            on_wait: called about once per second until running calls have ended.
        """
        with self._idle:
            self._drain_count += 1
        try:
            while True:
                with self._idle:
                    if self._idle.wait_for(lambda: not self.calls, timeout=1.0):
                        break
                on_wait()
            yield
        finally:
            with self._idle:
                self._drain_count -= 1

    def score(self, ids: Sequence[int]) -> list[float]:
        """Return the server's log-probabilities of `ids[1:]` at temperature 1, each given the tokens before it.

        Raises:
            ServerAwayError: the server does not answer.
            UserError: the server cannot score a text.
        """
        token_ids = [int(token) for token in ids]
        try:
            with httpx.Client(
                base_url=self.base_url, headers=self.headers, timeout=build_timeout(self._server.silence)
            ) as client:
                body = self.wire.build_score_body(token_ids, 1, secrets.token_urlsafe(16))
                return self.wire.parse_scores(self._post_json(client, body), token_ids[1:])
        except (httpx.HTTPError, EngineFailure, ValueError) as error:
            why = self._server.clean(str(error)) or type(error).__name__
            raise choose_error_type(error)(
                f"The {self.wire.kind} server cannot return the log-probabilities of a given text: {why}",
                where=f"ajet.rollout.vllm.base_url: {self.base_url}",
            ) from error

    def close(self) -> None:
        """Release all connections; running calls fail with EngineFailure. Idempotent."""
        with self._idle:
            self._closed = True
            calls = dict(self.calls)
        for task, stream in calls.items():
            if not stream.loop.is_closed():
                stream.loop.call_soon_threadsafe(task.cancel)
        self._server.close()

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of each request: the API key, if one is set."""
        return self._server.headers

    def _make_cache_salt(self, version: int) -> str:
        """Return the salt of a request's cached prefixes, so that neither versions nor clients share them."""
        return f"{self._salt}-{version}"

    def _read_served_model(self, client: httpx.Client) -> dict[str, Any]:
        """Return the server's description of its first model, with its `id`."""
        response = client.get("/v1/models", timeout=20.0)
        if response.status_code >= 400:
            raise self._server.make_refusal_error(response.status_code, response.text)
        served: dict[str, Any] = load_json(response.content)["data"][0]
        return served

    def _read_server_version(self, client: httpx.Client) -> str:
        """Return the server's version, "" if it reports none; log a warning for a version that is not tested."""
        response = client.get(self.wire.version_route, timeout=20.0)
        try:
            version = str(load_json(response.content)["version"]) if response.status_code == 200 else ""
        except (ValueError, KeyError, TypeError):
            version = ""
        if version and not _includes_version(self.wire.tested_versions, version):
            logger.warning(
                "the {} server at {} has version {}, and ajet is tested with {}. A reply that ajet cannot read is "
                "refused; use a tested version if that happens",
                *(self.wire.kind, self.base_url, version, self.wire.tested_versions),
            )
        return version

    def _probe_logprobs(self, client: httpx.Client) -> bool:
        """Return True if the server reports logprobs of the sampled distribution, False if at temperature 1.

        Some tokens are sampled at another temperature and then scored at temperature 1. If the reported logprobs differ
        from the scores, they are those of the sampled distribution.
        """
        prompt = np.arange(1, 3, dtype=np.int32)
        limit = min(PROBE_TOKENS, self.max_model_len - len(prompt))
        request = TokenRequest(prompt, Sampling(limit, temperature=PROBE_TEMPERATURE), DrawKey(0, 0, 0, 0))
        body = {**self.wire.build_body(request, limit, self._make_cache_salt(0)), "stream": False}
        tokens, reported = self.wire.parse_drawn(self._post_json(client, body))
        body = self.wire.build_score_body([*prompt.tolist(), *tokens], len(prompt), self._make_cache_salt(0))
        logprobs_unit = self.wire.parse_scores(self._post_json(client, body), tokens)
        return bool(np.abs(np.subtract(reported, logprobs_unit)).mean() > SAME_LOGPROB_NATS)

    def _post_json(self, client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
        """Send a body to the route for token requests, and return the response's JSON object.

        Raises:
            EngineFailure: the server refuses the request.
        """
        response = client.post(self.wire.route, json=body)
        if response.status_code >= 400:
            raise self._server.make_refusal_error(response.status_code, response.text)
        answer: dict[str, Any] = load_json(response.content, limit=MOST_VALUES)
        return answer

    async def _add_unit_logprobs(self, request: TokenRequest, held: list[TokenChunk], version: int) -> TokenChunk:
        """Return a reply's chunks as one, with logprobs at temperature 1 from a second request to the server.

        Args:
            request: the request that was answered.
            held: the chunks of the complete reply.
            version: policy version of the reply.
        """
        merged = TokenChunk([], [], [], version, held[-1].finish)
        for chunk in held:
            merged.ids += chunk.ids
            merged.logprobs += chunk.logprobs
            merged.top += chunk.top
            if chunk.routed_experts is not None:
                merged.routed_experts = chunk.routed_experts
        if merged.ids:
            prompt: list[int] = request.prompt_ids.tolist()
            body = self.wire.build_score_body([*prompt, *merged.ids], len(prompt), self._make_cache_salt(version))
            response = await self._open_client().post(self.wire.route, json=body)
            if response.status_code >= 400:
                raise self._server.make_refusal_error(response.status_code, response.text)
            merged.logprobs_unit = self.wire.parse_scores(self._server.parse_event(response.text), merged.ids)
        return merged

    def _start_call(
        self, loop: asyncio.AbstractEventLoop, request: TokenRequest, limit: int, stream: TokenStream, needs_unit: bool
    ) -> asyncio.Task[None] | None:
        """Start a call, and return its task, or None if no call may start now.

        Calls wait while the server's weights are changed, or while they are not the confirmed ones.

        Args:
            loop: the caller's event loop.
            limit: maximum number of tokens to sample.
            stream: receives the chunks.
            needs_unit: True to request logprobs at temperature 1 in a second request.

        Raises:
            EngineFailure: the engine is closed.
        """
        with self._idle:
            if self._closed:
                raise EngineFailure("the engine is closed", retryable=False)
            if self._drain_count or self.has_unknown_weights:
                return None
            task = loop.create_task(self._serve_call(request, limit, self.version, stream, needs_unit))
            self.calls[task] = stream
            return task

    async def _require_expected(self, failure: type[EngineFailure] = EngineFailure) -> None:
        """Request the server's name for its weights, and raise `failure` unless it is the confirmed one.

        Does nothing if the server has no names.
        """
        if self._expected_weights is None:
            return
        answer = await self._open_client().get(self.wire.name_route)
        is_ok = answer.status_code == 200
        name = self._server.parse_event(answer.text).get("weight_version") if is_ok else f"status {answer.status_code}"
        if name != self._expected_weights:
            self.has_unknown_weights = True
            raise failure(
                f"another process changed the server's weights: they are {name}, expected {self._expected_weights}"
            )

    def _check_weight_names(self, reply: StreamedReply) -> bool:
        """Check the names of the weights that sampled a reply, if the server sent them with it.

        Returns:
            False if it sent none: then `_require_expected` must be used.

        Raises:
            EngineFailure: other weights than the confirmed ones sampled some of them.
        """
        names = reply.weight_names
        if names is None:
            return False
        if self._expected_weights is not None and names != {self._expected_weights}:
            self.has_unknown_weights = True
            raise EngineFailure(
                f"another process changed the server's weights: {sorted(names)} sampled instead of "
                f"{self._expected_weights}"
            )
        if len(names) > 1:
            raise EngineFailure(f"the server's weights changed within the reply: {sorted(names)}")
        return True

    async def _serve_call(
        self, request: TokenRequest, limit: int, version: int, stream: TokenStream, needs_unit: bool
    ) -> None:
        """Send a request to the server, and put the chunks of its reply into the caller's stream.

        If the reply does not finish, an EngineFailure is put into the stream as its last item. The last chunk is sent
        once the weights that sampled the reply are verified.

        Args:
            limit: maximum number of tokens to sample.
            version: policy version of the server's weights at the start of the call.
            needs_unit: True if logprobs at temperature 1 need a second request. Then the reply is sent as one chunk.
        """
        reply = self.wire.reply(request, version)
        held: list[TokenChunk] = []
        failure = EngineFailure("the engine was closed")  # unless an error below says otherwise
        finished = False
        try:
            await self._require_expected(CallNotStartedError)
            async for chunk in self._stream_chunks(
                self.wire.build_body(request, limit, self._make_cache_salt(version)), reply
            ):
                if needs_unit:
                    held.append(chunk)
                    continue
                if chunk.finish is not None:
                    if not self._check_weight_names(reply):
                        await self._require_expected()
                    finished = True
                stream.put(chunk)
            if needs_unit:
                merged = await self._add_unit_logprobs(request, held, version)
                self._check_weight_names(reply)
                await self._require_expected()  # the second request may have seen other weights than the reply
                stream.put(merged)
                finished = True
        except EngineFailure as error:
            failure = error
        except httpx.HTTPError as problem:
            failure = self._server.make_connection_error(problem)
        finally:
            if not finished:
                stream.put(failure)

    async def _stream_chunks(self, body: dict[str, Any], reply: StreamedReply) -> AsyncIterator[TokenChunk]:
        """Send a request, and yield the chunks of its streamed reply. The last chunk has the finish reason.

        Args:
            body: JSON body of the request.
            reply: converts the server's events (lines `data: JSON`) to chunks.

        Raises:
            EngineFailure: the server refused the request, or its reply is incomplete or inconsistent.
        """
        async with self._open_client().stream("POST", self.wire.route, json=body) as response:
            if response.status_code >= 400:
                raise self._server.make_refusal_error(
                    response.status_code, (await response.aread()).decode("utf-8", "replace")
                )
            async for line in response.aiter_lines():
                data = line[5:].strip() if line.startswith("data:") else ""  # server-sent events; others are comments
                if data == "[DONE]":
                    break
                chunk = reply.read(self._server.parse_event(data)) if data else None
                if chunk is not None:
                    yield chunk
        yield reply.end()

    def _forget_call(self, task: asyncio.Task[None]) -> None:
        """Remove an ended call from the running ones, and wake the threads that wait for the last one to end."""
        with self._idle:
            del self.calls[task]
            self._idle.notify_all()

    def _open_client(self) -> httpx.AsyncClient:
        """Return the HTTP client of the running event loop. Raises EngineFailure if the engine is closed."""
        with self._idle:
            if self._closed:
                raise EngineFailure("the engine is closed", retryable=False)
            return self._server.client()


def _includes_version(specifier: str, version: str) -> bool:
    """True if a version matches a specifier such as ">=0.28,<0.33", prereleases included.

    A version in an unknown format does not match.
    """
    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except InvalidVersion:
        return False
