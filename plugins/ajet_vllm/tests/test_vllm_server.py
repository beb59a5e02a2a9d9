"""A vLLM server's token route as an engine, against a server that is played here: what is asked of it, with which
weights a reply is stamped, who is told when the engine closes. (The extra slow tests ask vLLM's own.)"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest

from ajet.engine.contract import DrawKey, Sampling, TokenChunk, TokenRequest
from ajet.engine.remote_server import RemoteServer
from ajet.schema.errors import EngineFailure, UserError
from ajet_vllm.versions import SUPPORTED_VERSIONS
from ajet_vllm.vllm_server import ROUTE, RemoteVllm
from tests.support.odd_endpoint import warnings_said
from tests.support.vllm_events import encode_array

DRAWN, KEY = [3, 5, 8], "its-key"


class Server:
    """It draws `DRAWN` always, with logprobs of -id / 8 at temperature 1 and of half as much where it is hotter."""

    def __init__(self, *, processed: bool, noise: float = 0.0) -> None:
        """`noise`: between what it says as it draws and as it scores, in nats."""
        self.processed, self.noise, self.bodies = processed, noise, list[dict[str, Any]]()
        self.scores = "json"
        """"text": what it says of a score is no JSON."""
        self.held: asyncio.Event | None = None
        """A stream goes on when it is set."""
        self.version: str | None = None
        self.name, self.names_sent = "", list[str]()
        """Of its weights: what it answers when asked, and what it sends with each token of a reply."""
        self.name_requests = 0
        self.experts: str | None = None

    def model(self, request: httpx.Request) -> httpx.Response:
        """What is asked without a loop."""
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return httpx.Response(401, text=f"not {request.headers.get('authorization')}")
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 100}]})
        if request.url.path == "/version":
            return httpx.Response(200 if self.version else 404, json={"version": self.version})
        if request.url.path == "/weight_info":
            self.name_requests += 1
            return httpx.Response(200, json={"weight_version": self.name})
        assert request.url.path == ROUTE
        body = json.loads(request.content)
        self.bodies.append(body)
        wanted = body["sampling_params"]
        if "prompt_logprobs" in wanted:
            if self.scores == "text":
                return httpx.Response(200, text="<html>busy</html>")
            rows = [{str(token): {"logprob": -token / 8 - self.noise}} for token in body["token_ids"]]
            return httpx.Response(200, json={"prompt_logprobs": [None, *rows[1:]]})
        drawn = DRAWN[: wanted["max_tokens"]]
        hot = self.processed and wanted["temperature"] not in (0.0, 1.0)
        said = [{"token": f"token_id:{token}", "logprob": -token / (16 if hot else 8)} for token in drawn]
        choice = {"token_ids": drawn, "logprobs": {"content": said}, "finish_reason": "length"}
        named = [{"version": name, "start": k, "end": k + 1} for k, name in enumerate(self.names_sent)]
        choice["weight_versions"], choice["routed_experts"] = named or None, self.experts
        if not body["stream"]:
            return httpx.Response(200, json={"choices": [choice]})
        events = [{"choices": [choice]}, {"choices": [], "usage": {"completion_tokens": len(drawn)}}]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        return httpx.Response(200, text=f"{text}data: [DONE]\n\n")

    async def stream(self, request: httpx.Request) -> httpx.Response:
        """What is asked from one."""
        if self.held is not None:
            await self.held.wait()
        return self.model(request)


def engine_of(server: Server, monkeypatch: pytest.MonkeyPatch, key: str | None = KEY) -> RemoteVllm:
    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(server.model)))
    monkeypatch.setattr(httpx, "AsyncClient", partial(httpx.AsyncClient, transport=httpx.MockTransport(server.stream)))
    return RemoteVllm("http://server/v1", vocabulary=99, api_key=key)


async def reply(engine: RemoteVllm, **sampling: Any) -> list[TokenChunk]:
    request = TokenRequest(np.array([1, 2], np.int32), Sampling(3, **sampling), DrawKey(0, 0, 0, 0))
    return [chunk async for chunk in engine.generate(request)]


def joined(chunks: list[TokenChunk], name: str) -> list[Any]:
    return [each for chunk in chunks for each in getattr(chunk, name)]


@pytest.mark.parametrize(
    ("sampling", "sampled"),
    [({}, 1.0), ({"temperature": 0.0}, 0.0), ({"temperature": 0.7}, 0.5), ({"top_k": 4}, 1.0)],
    ids=str,
)
def test_both_logprobs_of_every_token_are_said(
    monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any], sampled: float
) -> None:
    server = Server(processed=True)
    engine = engine_of(server, monkeypatch)
    assert engine.reports_sampled and engine.constrains and engine.max_model_len == 100
    chunks = asyncio.run(reply(engine, **sampling))
    unit = [-token / 8 for token in DRAWN]
    assert joined(chunks, "ids") == DRAWN and joined(chunks, "logprobs_unit") == unit
    assert joined(chunks, "logprobs") == [value * sampled for value in unit]
    last = server.bodies[-1]
    again = "temperature" in sampling and sampling["temperature"] or "top_k" in sampling
    assert last["token_ids"] == ([1, 2, *DRAWN] if again else [1, 2]), "what two numbers are needed for is scored"


def test_a_server_that_says_one_logprob_is_asked_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(Server(processed=False), monkeypatch)
    assert not engine.reports_sampled and not engine.constrains
    assert joined(asyncio.run(reply(engine)), "logprobs") == [-token / 8 for token in DRAWN]
    with pytest.raises(EngineFailure, match="processed_logprobs"):
        asyncio.run(reply(engine, temperature=0.5))


def test_a_server_that_rounds_is_not_taken_for_one_that_says_what_was_sampled_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not engine_of(Server(processed=False, noise=0.02), monkeypatch).reports_sampled
    server = Server(processed=True, noise=0.02)
    engine = engine_of(server, monkeypatch)
    assert engine.reports_sampled
    server.scores = "text"
    with pytest.raises(EngineFailure, match="invalid JSON: '<html>busy"):
        asyncio.run(reply(engine, temperature=0.7))


def test_a_reply_has_the_version_it_was_asked_of_and_no_prefix_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(processed=True)
    engine = engine_of(server, monkeypatch)

    async def scenario() -> list[TokenChunk]:
        server.held = asyncio.Event()
        call = asyncio.ensure_future(reply(engine))
        while not engine.calls and not call.done():
            await asyncio.sleep(0)
        changed = asyncio.get_running_loop().run_in_executor(None, engine.weights_changed, 7)
        await asyncio.sleep(0.02)
        assert engine.version == 0 and not changed.done(), "new weights wait for the calls under way"
        server.held.set()
        first = await call
        await changed
        return [*first, *await reply(engine)]

    chunks = asyncio.run(scenario())
    assert {chunk.version for chunk in chunks[: len(chunks) // 2]} == {0}
    assert {chunk.version for chunk in chunks[len(chunks) // 2 :]} == {7} == {engine.version}
    before, after = (body["cache_salt"] for body in server.bodies[-2:])
    assert before != after
    with pytest.raises(ValueError, match="older"):
        engine.weights_changed(6)


def test_tokens_of_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(processed=True)
    engine = engine_of(server, monkeypatch)
    server.names_sent = ["first", "first", "second"]
    with pytest.raises(EngineFailure, match=r"changed within the reply: \['first', 'second'\]"):
        asyncio.run(reply(engine))
    server.name = "first"
    for sampling in ({}, {"temperature": 0.7}):
        engine.confirm_weights(5, "first")
        with pytest.raises(EngineFailure, match=r"\['first', 'second'\] sampled instead of first"):
            asyncio.run(reply(engine, **sampling))
        assert engine.has_unknown_weights
    engine.confirm_weights(5, "first")
    server.names_sent, server.name_requests = ["first"] * 3, 0
    assert joined(asyncio.run(reply(engine)), "ids") == DRAWN
    assert server.name_requests == 1, "the names in the reply say what a request after it would"


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_routed_experts_come_with_the_last_chunk(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    server = Server(processed=True)
    engine = engine_of(server, monkeypatch)
    experts = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(4, 2, 3)
    server.experts = encode_array(experts)
    sent = [chunk.routed_experts for chunk in asyncio.run(reply(engine, temperature=temperature))]
    assert np.array_equal(next(each for each in sent if each is not None), experts)


@pytest.mark.parametrize("version", ["0.27.1", "0.33.0", "0.33.0rc1", "of my own"])
def test_a_version_that_is_not_tested_is_named(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    server = Server(processed=True)
    server.version = version
    with warnings_said() as said:
        engine_of(server, monkeypatch)
    assert [f"has version {version}, and ajet is tested with {SUPPORTED_VERSIONS}" in line for line in said] == [True]


@pytest.mark.parametrize("version", ["0.28.0", "0.32.1+cpu", None])
def test_a_tested_version_is_not_mentioned(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    server = Server(processed=True)
    server.version = version
    with warnings_said() as said:
        engine_of(server, monkeypatch)
    assert not said


def test_a_server_without_the_route_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(processed=True)
    server.version, server.scores = "0.34.0", "text"
    with pytest.raises(UserError, match="The vLLM server does not answer at the route") as refused:
        engine_of(server, monkeypatch)
    assert refused.value.expected.endswith(f"version {SUPPORTED_VERSIONS}; this server has 0.34.0")


def test_close_fails_who_waits_and_who_comes_after(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(processed=True)
    engine = engine_of(server, monkeypatch)

    async def scenario() -> list[Any]:
        server.held = asyncio.Event()
        calls = [asyncio.ensure_future(reply(engine)) for _ in range(3)]
        while len(engine.calls) < 3 and not any(call.done() for call in calls):
            await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, engine.close)
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)

    assert [type(end) for end in asyncio.run(scenario())] == [EngineFailure] * 3
    engine.close()
    with pytest.raises(EngineFailure, match="closed"):
        asyncio.run(reply(engine))


def test_a_server_that_is_none_is_refused_and_its_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="The vLLM server does not answer") as said:
        engine_of(Server(processed=True), monkeypatch, key="another-key")
    assert "another-key" not in str(said.value) and "[redacted]" in str(said.value)


def test_no_message_of_a_server_elsewhere_has_its_key() -> None:
    server = RemoteServer("http://server", "hunter2-hunter2")
    for said in ("who is hunter2-hunter2?", '{"error": "hunter2-hunter2 is unknown"}'):
        with pytest.raises(EngineFailure) as refused:
            server.parse_event(said)
        assert "hunter2" not in str(refused.value)
    told = [
        server.make_refusal_error(401, "hunter2-hunter2"),
        server.make_connection_error(httpx.ReadError("to hunter2-hunter2")),
    ]
    assert not any("hunter2" in str(each) for each in told)
