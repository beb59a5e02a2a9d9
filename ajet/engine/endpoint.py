"""EndpointEngine: any OpenAI-compatible server as a ChatEngine.

Invariant: the server returns neither token ids nor the policy's weights, so its replies are never trained on. It serves
debugging, evaluation and debug models, and logs a notice at creation. The key comes from the environment and never
appears in errors or logs. A failed request raises EngineFailure; the rollout retries.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import httpx
from loguru import logger

from ajet.config.other_models import read_api_key, read_outside_variable
from ajet.config.services import RequiredService, find_model_problem
from ajet.engine.remote_server import MOST_VALUES, SILENCE, RemoteServer, limit_silence
from ajet.schema.bounded_json import load_json
from ajet.schema.errors import NO_COMPLETION, ConfigError, EngineFailure

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.config.schema import AjetConfig

KEY_VARIABLE = "OPENAI_API_KEY"
URL_VARIABLE = "OPENAI_BASE_URL"
OPENAI = "https://api.openai.com/v1"
ENDPOINT_KEY = "ajet.rollout.endpoint"
TIMEOUT_KEY = "rollout.endpoint.timeout"
_EVENT_PREFIXES = (":", "event:", "id:", "retry:")
"""Prefixes of event-stream lines without data."""


class EndpointEngine:
    """Sends requests to `base_url` (ends in /v1) with model name `model`. Usable from any event loop."""

    def __init__(
        self, base_url: str, model: str, *, api_key: str | None = None, silence: float = SILENCE, named: str = ""
    ) -> None:
        """Prepare the connection to a server, and log that its replies cannot be trained on.

        Args:
            base_url: URL of the server, ending in /v1; "" if none is set: each call then fails.
            model: the model's name at the server.
            api_key: the key, or None.
            silence: seconds without data after which a request fails.
            named: name of the setting of `silence`, for messages.
        """
        self.base_url, self.model = base_url.rstrip("/"), model
        self._server = RemoteServer(self.base_url, api_key, silence=silence, named=named)
        if base_url:
            logger.info(
                "the model {} at {} returns text without token ids: it can be used for debug and evaluation, not "
                "for training",
                model,
                self.base_url,
            )

    @classmethod
    def from_config(cls, settings: AjetConfig) -> EndpointEngine:
        """Open the server of `rollout.endpoint`.

        Raises:
            ConfigError: base_url or model is not set.
        """
        base_url, model, key = _read_endpoint(settings)
        limit, episode = settings.rollout.endpoint.timeout, settings.rollout.episode_timeout
        silence, named = limit_silence(limit, TIMEOUT_KEY, episode)
        return cls(base_url, model, api_key=key, silence=silence, named=named)

    @classmethod
    def for_model(cls, name: str) -> EndpointEngine:
        """Return the engine for a model at the server in the environment variables. Equal names share one engine.

        The server is OPENAI_BASE_URL, or OpenAI's if only OPENAI_API_KEY is set. Calls raise EngineFailure if neither
        is set.
        """
        base_url, key = read_outside_variable(URL_VARIABLE), read_api_key(KEY_VARIABLE)
        return _open_shared_engine(base_url or (OPENAI if key else ""), name, key or None)

    async def chat(self, request: dict[str, Any]) -> dict[str, Any]:
        """Request one complete reply.

        Raises:
            EngineFailure: the server cannot be reached, refused, or sent an invalid reply.
        """
        body = {**request, "model": self.model, "stream": False}
        body.pop("stream_options", None)
        try:
            response = await self._open_client().post("/chat/completions", json=body)
        except httpx.HTTPError as problem:
            raise self._server.make_connection_error(problem) from problem
        if response.status_code >= 400:
            raise self._build_refusal(response)
        try:
            reply = load_json(response.content, limit=MOST_VALUES)
        except ValueError as problem:
            reply_text = (
                f"invalid JSON: {self._server.clean(response.text)[:200]!r}" if response.text else "an empty reply"
            )
            raise EngineFailure(f"{self.base_url} sent {reply_text} (status {response.status_code})") from problem
        if not isinstance(reply, dict) or not isinstance(reply.get("choices"), list):
            excerpt = self._server.clean(str(reply))[:200]
            raise EngineFailure(f"{self.base_url}: {NO_COMPLETION}: {excerpt}")
        return reply

    async def stream(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Request one reply in chunks.

        Raises:
            EngineFailure: the server cannot be reached, refused, or broke off.
        """
        body = {**request, "model": self.model, "stream": True}
        is_finished = has_begun = False
        last_chunk_at = time.monotonic()
        first_other_line = ""
        try:
            async with self._open_client().stream("POST", "/chat/completions", json=body) as response:
                status = response.status_code
                if status >= 400:
                    await response.aread()
                    raise self._build_refusal(response)
                async for line in response.aiter_lines():
                    if not line.startswith("data:"):  # keep-alive lines do not count as progress of the model
                        first_other_line = first_other_line or ("" if line.startswith(_EVENT_PREFIXES) else line)
                        if time.monotonic() - last_chunk_at > self._server.silence:
                            raise self._server.make_hang_error(begun=has_begun)
                        continue
                    data = line[5:].strip()
                    if data == "[DONE]":
                        is_finished = True
                        break
                    chunk = self._server.parse_event(data)
                    last_chunk_at, has_begun = time.monotonic(), True
                    is_finished = is_finished or any(
                        choice.get("finish_reason") for choice in chunk.get("choices") or ()
                    )
                    yield chunk
        except httpx.HTTPError as problem:
            raise self._server.make_connection_error(problem, begun=has_begun) from problem
        if not has_begun:
            problem_text = (
                f"a reply that is not an event stream: {self._server.clean(first_other_line)[:200]!r}"
                if first_other_line
                else "an empty stream"
            )
            raise EngineFailure(f"{self.base_url} sent {problem_text} (status {status})")
        if not is_finished:
            raise EngineFailure(f"{self.base_url} closed the connection before the reply was complete")

    def close(self) -> None:
        """Release all connections. Further calls have no effect."""
        self._server.close()

    def _open_client(self) -> httpx.AsyncClient:
        """Return the HTTP client of the running loop. Raises EngineFailure if no server is set."""
        if not self.base_url:
            raise EngineFailure(
                f"the debug model {self.model} has no server: set {URL_VARIABLE} or {KEY_VARIABLE} in the "
                "environment or in .env",
                retryable=False,
            )
        return self._server.client(verify=_make_tls_context())

    def _build_refusal(self, response: httpx.Response) -> EngineFailure:
        """Return the failure for an error status, with the error's message or else the whole body."""
        try:
            message = load_json(response.content)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = response.text
        return self._server.make_refusal_error(response.status_code, str(message))


@cache
def _open_shared_engine(base_url: str, model: str, key: str | None) -> EndpointEngine:
    return EndpointEngine(base_url, model, api_key=key)


def _read_endpoint(settings: AjetConfig) -> tuple[str, str, str | None]:
    """Return address, model and key of `rollout.endpoint`.

    Raises:
        ConfigError: base_url or model is not set.
    """
    config = settings.rollout.endpoint
    base_url = config.base_url or read_outside_variable(URL_VARIABLE)
    if not base_url or not config.model:
        missing = "base_url" if not base_url else "model"
        raise ConfigError(
            f"rollout.engine is endpoint, but rollout.endpoint.{missing} is not set.",
            where=f"rollout.endpoint.{missing}",
            expected="the URL of an OpenAI-compatible server, ending in /v1"
            if not base_url
            else "the name of a model that the server has",
        )
    return base_url.rstrip("/"), config.model, read_api_key(config.api_key_env) or None


def services_of(experiment: Experiment) -> Iterator[RequiredService]:
    """Yield the model server for the run's list of required services, if `rollout.engine` is endpoint."""
    if experiment.ajet.rollout.engine == "endpoint":
        base_url, model, key = _read_endpoint(experiment.ajet)
        yield RequiredService(
            "model server",
            base_url,
            ENDPOINT_KEY,
            lambda seconds: find_model_problem(base_url, model, key, seconds, named=base_url),
            f"an OpenAI-compatible server that has the model {model}",
            "start it, or correct ajet.rollout.endpoint.base_url and model",
        )


@cache
def _make_tls_context() -> ssl.SSLContext:
    """Return the TLS context of all clients: each new one would read the system's certificates again."""
    return ssl.create_default_context()
