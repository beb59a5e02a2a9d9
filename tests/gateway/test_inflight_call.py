"""Retries, failures and ends of an episode that meet while an engine still ends an aborted reply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from ajet.engine.contract import TokenChunk, TokenRequest
from tests.support.gateways import (
    ASK,
    EpisodeSession,
    RunningGateway,
    ScriptedChat,
    ScriptedEngine,
    ScriptedReply,
    renderer_of_style,
    start_gateway,
)

pytestmark = pytest.mark.slow

CLEANUP_S = 1.0


class SlowlyEndingEngine(ScriptedEngine):
    """Takes a while to end a reply that is cancelled."""

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        try:
            async for chunk in super().generate(request):
                yield chunk
        except (asyncio.CancelledError, GeneratorExit):
            await asyncio.sleep(CLEANUP_S)
            raise


class SlowlyEndingChat(ScriptedChat):
    """Streams slowly, and takes a while to end a stream that is cancelled."""

    async def stream(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        try:
            async for chunk in super().stream(request):
                yield chunk
                await asyncio.sleep(0.02)
        except (asyncio.CancelledError, GeneratorExit):
            await asyncio.sleep(CLEANUP_S)
            raise


@pytest.fixture
def gateway(replies: list[str | ScriptedReply]) -> Iterator[RunningGateway]:
    words, script = renderer_of_style(), iter(replies)
    engine = SlowlyEndingEngine(
        lambda request: next(script), encode=lambda text: words.encode(text).tolist(), end_id=words.end_ids[0],
        chunk=1, pace=0.02,
    )  # fmt: skip
    with start_gateway(engine=engine, words=words) as running:
        yield running


async def request_reply(session: EpisodeSession, *, headers: dict[str, str], **body: Any) -> httpx.Response:
    """Request a reply over the loopback port."""
    endpoint = session.endpoint()
    key = {"authorization": f"Bearer {endpoint.api_key}"}
    async with httpx.AsyncClient(timeout=30) as client:
        return await client.post(
            f"{endpoint.base_url}/chat/completions", json={"messages": ASK, **body}, headers={**key, **headers}
        )


@pytest.mark.parametrize("replies", [[ScriptedReply("word " * 40, fail_after=5), "word " * 60]])
def test_a_running_reply_of_a_failed_call_is_settled_at_the_end(gateway: RunningGateway) -> None:
    session = gateway.open()

    async def play() -> list[tuple[str, str | None, int]]:
        retries = [request_reply(session, headers={"idempotency-key": "k"}, n=2) for _ in range(2)]
        answers = await asyncio.gather(*retries)
        assert [answer.status_code for answer in answers] == [503, 503]
        capture = await asyncio.to_thread(session.close)
        ends = [(call.finish, call.error, len(call.response_ids)) for call in capture.calls]
        await asyncio.sleep(1.5 * CLEANUP_S)
        assert ends == [(call.finish, call.error, len(call.response_ids)) for call in capture.calls]
        return ends

    failed, running = asyncio.run(play())
    assert failed[0] == "error" and failed[2] == 5
    assert running[:2] == ("aborted", "the episode ended") and running[2] > 0


@pytest.mark.parametrize("replies", [["word " * 60] * 3])
def test_a_retry_learns_that_the_episode_has_ended(gateway: RunningGateway) -> None:
    session = gateway.open()

    async def play() -> httpx.Response:
        first = asyncio.ensure_future(request_reply(session, headers={}))
        await asyncio.to_thread(session.wait_until, lambda: session.calls and session.is_sampling)
        await asyncio.sleep(0.1)
        first.cancel()
        await asyncio.to_thread(session.wait_until, lambda: session.readers == 0)
        retry = asyncio.ensure_future(request_reply(session, headers={"x-stainless-retry-count": "1"}))
        await asyncio.to_thread(session.wait_until, lambda: session.readers == 1)
        await asyncio.to_thread(session.close)
        return await retry

    answer = asyncio.run(play())
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "episode_finished")
    assert [(call.finish, call.error) for call in session.calls] == [("aborted", "the episode ended")]


@pytest.mark.parametrize("replies", [["word " * 20] * 4])
def test_clients_that_leave_and_return_quickly_share_one_reply(gateway: RunningGateway) -> None:
    session = gateway.open()

    async def play() -> httpx.Response:
        for count in range(2):
            client = asyncio.ensure_future(request_reply(session, headers={"x-stainless-retry-count": str(count)}))
            await asyncio.to_thread(session.wait_until, lambda: session.readers == 1)
            await asyncio.sleep(0.05)
            client.cancel()
            await asyncio.to_thread(session.wait_until, lambda: session.readers == 0)
        return await request_reply(session, headers={"x-stainless-retry-count": "2"})

    answer = asyncio.run(play())
    assert answer.status_code == 200
    assert [call.finish for call in session.close().calls] == ["stop"]


@pytest.mark.parametrize("replies", [[]])
def test_a_path_that_ends_in_a_newline_is_not_found(gateway: RunningGateway) -> None:
    answer = httpx.post(f"{gateway.base_url}/chat/completions%0A", json={"messages": ASK})
    assert answer.status_code == 404


def read_text(events: str) -> str:
    """Return the text of streamed chunks of Chat Completions."""
    chunks = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def test_a_client_that_returns_to_a_chat_engine_gets_one_reply() -> None:
    async def play(session: EpisodeSession) -> httpx.Response:
        endpoint = session.endpoint()
        key = {"authorization": f"Bearer {endpoint.api_key}"}
        request = {"method": "POST", "url": f"{endpoint.base_url}/chat/completions"}
        body = {"messages": ASK, "stream": True}
        async with httpx.AsyncClient(timeout=30) as client, client.stream(**request, json=body, headers=key) as begun:
            async for part in begun.aiter_text():
                if "c" in read_text(part):
                    break
        await asyncio.to_thread(session.wait_until, lambda: session.readers == 0)
        return await request_reply(session, headers={"x-stainless-retry-count": "1"}, stream=True)

    with start_gateway(engine=SlowlyEndingChat(["abcdefgh" * 20, "01234567"])) as running:
        session = running.open()
        answer = asyncio.run(play(session))
        assert read_text(answer.text) == "01234567"
        assert [call.finish for call in session.close().calls] == ["aborted", "stop"]
