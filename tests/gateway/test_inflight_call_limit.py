"""`gateway.max_calls` bounds the calls under way, however long their prompts take to render."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from ajet.engine.contract import TokenChunk, TokenRequest
from ajet.schema.endpoint import Endpoint
from ajet.schema.errors import EngineFailure
from tests.support.dialect_fixtures import (
    CHAT,
    COMPLETIONS,
    COUNT,
    INPUT_TOKENS,
    MESSAGES,
    REPLYING,
    RESPONSES,
    Language,
    named,
)
from tests.support.gateways import (
    LONG_PROMPT,
    GatedRenderer,
    RunningGateway,
    ScriptedEngine,
    renderer_of_style,
    start_gateway,
)

LONG_TEXT = "word " * (LONG_PROMPT // 5 + 1)
every_dialect = pytest.mark.parametrize("language", REPLYING, ids=named)


@contextmanager
def gated_gateway(max_calls: int, script: Any = lambda request: "It is 3.") -> Iterator[tuple[RunningGateway, Any]]:
    renderer = GatedRenderer()
    with start_gateway(script, words=renderer, max_model_len=40_000, max_calls=max_calls) as on:
        try:
            yield on, renderer.go
        finally:
            renderer.go.set()


def long_body(language: Language, **more: Any) -> dict[str, Any]:
    name = {COMPLETIONS.path: "prompt", RESPONSES.path: "input", INPUT_TOKENS.path: "input"}.get(language.path)
    content = {name: LONG_TEXT} if name else {"messages": [{"role": "user", "content": LONG_TEXT}]}
    return {**language.plain, **content, **more}


async def send(
    client: httpx.AsyncClient,
    endpoint: Endpoint,
    language: Language,
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
) -> httpx.Response:
    sent = {**language.headers(endpoint.api_key), **(headers or {})}
    return await client.post(language.url(endpoint), headers=sent, json=body)


@every_dialect
@pytest.mark.parametrize("stream", [False, True])
def test_long_prompts_count_before_they_are_rendered(language: Language, stream: bool) -> None:
    with gated_gateway(max_calls=2) as (on, go):
        sessions = [on.open() for _ in range(10)]
        body = long_body(language, **({"stream": True} if stream else {}))

        async def play() -> list[int]:
            async with httpx.AsyncClient(timeout=60) as client:
                asks = [send(client, session.endpoint("a"), language, body) for session in sessions]
                statuses = []
                for ended in asyncio.as_completed(asks):
                    answer = await ended
                    statuses.append(answer.status_code)
                    if answer.status_code == 429:
                        language.check_error(answer.json())
                    if len(statuses) == 8:
                        assert on.engine.requests == 0
                        go.set()
                return statuses

        assert asyncio.run(play()) == [429] * 8 + [200] * 2
        on.open().wait_until(lambda: on.calls_under_way == 0)
        assert sum(len(session.close().calls) for session in sessions) == 2


@pytest.mark.parametrize(
    ("language", "more"),
    [(CHAT, {"n": 2}), (COMPLETIONS, {"n": 2}), (COMPLETIONS, {"prompt": [LONG_TEXT, LONG_TEXT]})],
    ids=["chat n", "completions n", "completions prompts"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_each_of_several_replies_counts(language: Language, more: dict[str, Any], stream: bool) -> None:
    with gated_gateway(max_calls=3) as (on, go):
        two, one = long_body(language, stream=stream, **more), long_body(language, stream=stream)

        async def play() -> list[int]:
            async with httpx.AsyncClient(timeout=60) as client:
                first = asyncio.create_task(send(client, on.open().endpoint("a"), language, two))
                await asyncio.to_thread(on.open().wait_until, lambda: on.calls_under_way == 2)
                refused = await send(client, on.open().endpoint("a"), language, two)
                third = asyncio.create_task(send(client, on.open().endpoint("a"), language, one))
                await asyncio.to_thread(on.open().wait_until, lambda: on.calls_under_way == 3)
                go.set()
                return [refused.status_code, (await first).status_code, (await third).status_code]

        assert asyncio.run(play()) == [429, 200, 200]
        on.open().wait_until(lambda: on.calls_under_way == 0)


def fail(request: Any) -> str:
    raise EngineFailure("it broke")


@pytest.mark.parametrize(
    ("body", "script", "status"),
    [
        (long_body(CHAT, tool_choice="required", tools=[{"type": "function", "function": {"name": "f"}}]), fail, 503),
        (long_body(CHAT, presence_penalty=1), fail, 400),
        (long_body(CHAT), fail, 503),
        ({"messages": [{"role": "user", "content": LONG_TEXT * 6}]}, fail, 400),
    ],
    ids=["forced call", "unsupported field", "engine fails", "too long"],
)
def test_failed_call_gives_its_place_back(body: dict[str, Any], script: Any, status: int) -> None:
    with gated_gateway(max_calls=1, script=script) as (on, go):
        go.set()

        async def play() -> list[int]:
            async with httpx.AsyncClient(timeout=60) as client:
                return [(await send(client, on.open().endpoint("a"), CHAT, body)).status_code for _ in range(3)]

        assert asyncio.run(play()) == [status] * 3
        assert on.calls_under_way == 0


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_leaves_gives_its_place_back(stream: bool) -> None:
    with gated_gateway(max_calls=1) as (on, go):
        body, session = long_body(CHAT, stream=stream), on.open()

        async def play() -> list[int]:
            async with httpx.AsyncClient(timeout=60) as client:
                first = asyncio.create_task(send(client, on.open().endpoint("a"), CHAT, body))
                await asyncio.to_thread(on.open().wait_until, lambda: on.calls_under_way == 1)
                refused = await send(client, session.endpoint("a"), CHAT, body)
                first.cancel()
                await asyncio.to_thread(on.open().wait_until, lambda: on.calls_under_way == 0)
                go.set()
                return [refused.status_code, (await send(client, on.open().endpoint("a"), CHAT, body)).status_code]

        assert asyncio.run(play()) == [429, 200]
        assert [code for code, _ in session.close().refusals] == ["overloaded"]


def test_episode_that_ends_gives_its_places_back() -> None:
    with gated_gateway(max_calls=1) as (on, go):
        session = on.open()

        async def play() -> int:
            async with httpx.AsyncClient(timeout=60) as client:
                first = asyncio.create_task(send(client, session.endpoint("a"), CHAT, long_body(CHAT)))
                await asyncio.to_thread(session.wait_until, lambda: on.calls_under_way == 1)
                await asyncio.to_thread(session.close)
                go.set()
                return (await first).status_code

        assert asyncio.run(play()) == 410
        on.open().wait_until(lambda: on.calls_under_way == 0)


@pytest.mark.parametrize("language", [COUNT, INPUT_TOKENS], ids=named)
def test_counting_tokens_takes_no_place(language: Language) -> None:
    with gated_gateway(max_calls=1) as (on, go):

        async def play() -> list[int]:
            async with httpx.AsyncClient(timeout=60) as client:
                first = asyncio.create_task(send(client, on.open().endpoint("a"), MESSAGES, long_body(MESSAGES)))
                await asyncio.to_thread(on.open().wait_until, lambda: on.calls_under_way == 1)
                counted = await send(client, on.open().endpoint("a"), language, language.plain)
                go.set()
                return [counted.status_code, (await first).status_code]

        assert asyncio.run(play()) == [200, 200]


@every_dialect
def test_retry_that_joins_takes_no_place(language: Language) -> None:
    with gated_gateway(max_calls=1) as (on, go):
        session = on.open()
        endpoint, body = session.endpoint("a"), long_body(language)

        async def play() -> list[httpx.Response]:
            async with httpx.AsyncClient(timeout=60) as client:
                first = asyncio.create_task(send(client, endpoint, language, body))
                await asyncio.to_thread(session.wait_until, lambda: on.calls_under_way == 1)
                retry = {"x-stainless-retry-count": "1"}
                second = asyncio.create_task(send(client, endpoint, language, body, retry))
                await asyncio.to_thread(session.wait_until, lambda: session.readers == 2)
                assert on.calls_under_way == 1
                go.set()
                return [await first, await second]

        first, second = asyncio.run(play())
        assert (first.status_code, second.status_code) == (200, 200) and first.json() == second.json()
        assert len(session.close().calls) == 1


def test_abandoned_call_resumes_when_there_is_room() -> None:
    with gated_gateway(max_calls=1) as (on, go):
        session, other = on.open(), on.open()
        endpoint, body = session.endpoint("a"), long_body(CHAT)

        async def play() -> list[int]:
            async with httpx.AsyncClient(timeout=60) as client:
                first = asyncio.create_task(send(client, endpoint, CHAT, body))
                await asyncio.to_thread(session.wait_until, lambda: on.calls_under_way == 1)
                first.cancel()
                await asyncio.to_thread(session.wait_until, lambda: on.calls_under_way == 0)
                second = asyncio.create_task(send(client, other.endpoint("a"), CHAT, body))
                await asyncio.to_thread(session.wait_until, lambda: on.calls_under_way == 1)
                refused = await send(client, endpoint, CHAT, body, {"x-stainless-retry-count": "1"})
                go.set()
                ended = await second
                resumed = await send(client, endpoint, CHAT, body, {"x-stainless-retry-count": "1"})
                return [refused.status_code, ended.status_code, resumed.status_code]

        assert asyncio.run(play()) == [429, 200, 200]
        capture = session.close()
        assert len(capture.calls) == 1 and [code for code, _ in capture.refusals] == ["overloaded"]


class SlowToStopEngine(ScriptedEngine):
    """An engine whose aborted replies end only when `go` is set."""

    def __init__(self, renderer: Any) -> None:
        super().__init__(
            lambda request: "It is 3. " * 20,
            encode=lambda text: renderer.encode(text).tolist(),
            end_id=renderer.end_ids[0],
            chunk=1,
            pace=0.01,
        )
        self.sampled, self.stopping, self.go = threading.Event(), threading.Event(), threading.Event()

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        is_complete = False
        try:
            async for chunk in super().generate(request):
                self.sampled.set()
                is_complete = chunk.finish is not None
                yield chunk
        finally:
            if not is_complete:
                self.stopping.set()
                await asyncio.to_thread(self.go.wait, 60)


def test_retry_takes_over_the_place_of_a_call_being_aborted() -> None:
    renderer = renderer_of_style()
    engine = SlowToStopEngine(renderer)
    with start_gateway(engine=engine, words=renderer, max_calls=1) as on:
        session = on.open()
        endpoint, body = session.endpoint("a"), {**CHAT.plain, "stream": True}

        async def play() -> httpx.Response:
            async with httpx.AsyncClient(timeout=60) as client:
                first = asyncio.create_task(send(client, endpoint, CHAT, body))
                await asyncio.to_thread(engine.sampled.wait, 60)
                first.cancel()
                await asyncio.to_thread(engine.stopping.wait, 60)
                second = asyncio.create_task(send(client, endpoint, CHAT, body, {"x-stainless-retry-count": "1"}))
                await asyncio.to_thread(session.wait_until, lambda: session.readers == 1)
                assert on.calls_under_way == 1
                engine.go.set()
                return await second

        assert asyncio.run(play()).status_code == 200
        session.wait_until(lambda: on.calls_under_way == 0)
        (call,) = session.close().calls
        assert call.resumed == 1 and call.finish == "stop"
