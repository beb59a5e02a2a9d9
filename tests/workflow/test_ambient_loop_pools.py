"""Asynchronous clients that episodes share, each episode in an event loop of its own."""

from __future__ import annotations

import asyncio
import gc
import http.server
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from ajet.schema.endpoint import Endpoint
from ajet.schema.task import WorkflowOutput
from ajet.workflow.adapters import openai_sdk
from ajet.workflow.ambient import split_pools
from tests.support.rollouts import stage
from tests.support.waiting import until

MESSAGES: Any = [{"role": "user", "content": "hi"}]
VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
made: dict[str, Any] = {}
"""The clients of these agents' modules."""


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made.clear()
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def shared(build: Callable[[], Any]) -> Any:
    return made.setdefault("client", made.get("client") or build())


class SharesAgentsProvider:
    trainable_targets = None

    async def execute(self, task, tuner):
        from agents import Agent, OpenAIProvider, RunConfig, Runner

        at = tuner.as_oai_baseurl_apikey()
        provider = OpenAIProvider(base_url=at.base_url, api_key=at.api_key, use_responses=False)
        for _ in range(2):
            run = RunConfig(model_provider=provider, tracing_disabled=True)
            await Runner.run(Agent(name="a", instructions="x", model=at.model), "hi", run_config=run)
        return WorkflowOutput(reward=1.0)


class SharesChatOpenAI:
    """Each attempt makes its model; LangChain keeps one HTTP client for them."""

    trainable_targets = None

    async def execute(self, task, tuner):
        from langchain_openai import ChatOpenAI

        at = tuner.as_oai_baseurl_apikey()
        model = ChatOpenAI(base_url=at.base_url, api_key=at.api_key, model="any", max_retries=0)
        await model.ainvoke("hi")
        async for _ in model.astream("hi"):
            pass
        return WorkflowOutput(reward=1.0)


class SharesChatAnthropic:
    trainable_targets = None

    async def execute(self, task, tuner):
        from langchain_anthropic import ChatAnthropic

        model = shared(lambda: ChatAnthropic(model="claude-x", max_retries=0, max_tokens=9))
        for _ in range(2):
            await model.ainvoke("hi")
        return WorkflowOutput(reward=1.0)


class SharesAsyncOpenAI:
    trainable_targets = None

    async def execute(self, task, tuner):
        client = shared(lambda: openai.AsyncOpenAI(max_retries=0))
        await client.chat.completions.create(model="any", messages=MESSAGES)
        async with await client.chat.completions.create(model="any", messages=MESSAGES, stream=True) as stream:
            async for _ in stream:
                pass
        return WorkflowOutput(reward=1.0)


class SharesAsyncAnthropic:
    trainable_targets = None

    async def execute(self, task, tuner):
        from anthropic import AsyncAnthropic

        client = shared(lambda: AsyncAnthropic(max_retries=0))
        for _ in range(2):
            await client.messages.create(model="any", messages=MESSAGES, max_tokens=9)
        return WorkflowOutput(reward=1.0)


class SharesLitellm:
    trainable_targets = None

    async def execute(self, task, tuner):
        import litellm

        at = tuner.as_oai_baseurl_apikey()
        for _ in range(2):
            await litellm.acompletion(
                model="openai/any", api_base=at.base_url, api_key=at.api_key, messages=MESSAGES, num_retries=0
            )
        return WorkflowOutput(reward=1.0)


class Retrying(httpx.AsyncBaseTransport):
    """A transport of one's own around that of the library."""

    def __init__(self) -> None:
        self.by_host = {"any": httpx.AsyncHTTPTransport()}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self.by_host["any"].handle_async_request(request)


class SharesOwnTransport:
    trainable_targets = None

    async def execute(self, task, tuner):
        at = tuner.as_oai_baseurl_apikey()
        client = shared(lambda: httpx.AsyncClient(transport=Retrying()))
        for _ in range(2):
            url, key = f"{at.base_url}/chat/completions", {"authorization": f"Bearer {at.api_key}"}
            (await client.post(url, json={"model": "any", "messages": MESSAGES}, headers=key)).raise_for_status()
        return WorkflowOutput(reward=1.0)


class SharesInLoopsOfItsOwn:
    """A plain function that runs loops itself."""

    trainable_targets = None

    def execute(self, task, tuner):
        async def ask() -> None:
            client = shared(lambda: openai.AsyncOpenAI(max_retries=0))
            for _ in range(2):
                await client.chat.completions.create(model="any", messages=MESSAGES)

        asyncio.run(ask())
        asyncio.run(ask())
        return WorkflowOutput(reward=1.0)


class LeavesStreamsOpen:
    trainable_targets = None

    async def execute(self, task, tuner):
        client = shared(lambda: openai.AsyncOpenAI(max_retries=0))
        stream = await client.chat.completions.create(model="any", messages=MESSAGES, stream=True)
        made.setdefault("streams", []).append(stream)
        await stream.response.aiter_lines().__anext__()
        return WorkflowOutput(reward=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "workflow",
    [SharesAgentsProvider, SharesChatOpenAI, SharesChatAnthropic, SharesAsyncOpenAI, SharesAsyncAnthropic,
     SharesLitellm, SharesOwnTransport, SharesInLoopsOfItsOwn, LeavesStreamsOpen],
)  # fmt: skip
def test_every_episode_uses_the_shared_client(workflow):
    with stage(workflow, max_env_worker=3, num_repeat=8) as played:
        groups = played.play(3)
    failures = [str(episode.failure) for group in groups for episode in group.episodes if episode.failure]
    assert sum(len(group.episodes) for group in groups) == 24 and not failures, failures[:2]


@pytest.mark.extra_slow  # an interpreter is started
def test_next_attempt_of_worker_uses_its_client():
    with stage(SharesAsyncOpenAI, isolation="process", max_env_worker=1, num_repeat=3) as played:
        (group,) = played.play(1)
    assert [episode.failure for episode in group.episodes] == [None] * 3


class KeepsTheFirstKey:
    trainable_targets = None
    both = threading.Barrier(2, timeout=60)

    async def execute(self, task, tuner):
        at = tuner.as_oai_baseurl_apikey()
        client = shared(lambda: openai.AsyncOpenAI(base_url=at.base_url, api_key=at.api_key, max_retries=0))
        await asyncio.to_thread(self.both.wait)
        try:
            await client.chat.completions.create(model="any", messages=MESSAGES)
        finally:
            await asyncio.to_thread(self.both.wait)
        return WorkflowOutput(reward=1.0)


def test_key_of_another_attempt_stays_refused():
    with stage(KeepsTheFirstKey, max_env_worker=2, num_repeat=2) as played:
        (group,) = played.play(1)
    good, bad = sorted(group.episodes, key=lambda episode: episode.failure is not None)
    assert good.failure is None and len(good.calls) == 1
    assert bad.failure is not None and not bad.calls and "another attempt" in bad.failure.message


class SharesASession:
    """Of aiohttp: it belongs to the loop that it was made in."""

    trainable_targets = None

    async def execute(self, task, tuner):
        import aiohttp

        at = tuner.as_oai_baseurl_apikey()
        session = shared(aiohttp.ClientSession)
        url, key = f"{at.base_url}/chat/completions", {"authorization": f"Bearer {at.api_key}"}
        async with session.post(url, json={"model": "any", "messages": MESSAGES}, headers=key) as reply:
            await reply.read()
        return WorkflowOutput(reward=1.0)


def test_failure_of_shared_session_says_what_to_do():
    with stage(SharesASession, max_env_worker=1, num_repeat=2) as played:
        (group,) = played.play(1)
    (failure,) = [episode.failure for episode in group.episodes if episode.failure]
    assert failure.boundary == "agent" and "rollout.isolation: loop" in failure.message


class Counted(http.server.ThreadingHTTPServer):
    """Answers each request, and counts connections."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Reply)
        self.opened, self.closed = 0, 0
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}"

    @property
    def open(self) -> int:
        return self.opened - self.closed


class Reply(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Counted

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.opened += 1

    def finish(self) -> None:
        super().finish()
        with self.server.lock:
            self.server.closed += 1

    def do_GET(self) -> None:
        body = b'{"id": "1", "object": "chat.completion", "choices": []}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Counted]:
    with Counted() as counted:
        thread = threading.Thread(target=counted.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield counted
        counted.shutdown()
        thread.join()


def split_client() -> httpx.AsyncClient:
    client = httpx.AsyncClient(mounts={"https://": httpx.AsyncHTTPTransport()})
    split_pools(client)
    split_pools(client)
    return client


def test_connections_are_reused_and_closed_with_loop(server):
    client = split_client()

    async def ask() -> None:
        for _ in range(3):
            assert (await client.get(server.url)).status_code == 200

    for count in range(1, 4):
        asyncio.run(ask())
        assert server.opened == count
        assert until(lambda: server.open == 0)


def test_closing_client_spares_other_loops(server):
    client = split_client()
    loops = [asyncio.new_event_loop() for _ in range(2)]
    for loop in loops:
        loop.run_until_complete(client.get(server.url))
    loops[0].run_until_complete(client.aclose())
    assert until(lambda: server.open == 1)
    with pytest.raises(RuntimeError, match="closed"):
        loops[1].run_until_complete(client.get(server.url))
    for loop in loops:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
    assert until(lambda: server.open == 0)


@pytest.mark.slow
def test_loops_closed_carelessly_leave_no_descriptors(server):
    client = split_client()
    for _ in range(20):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(client.get(server.url))
        loop.close()  # its generators are not closed
    gc.collect()
    assert server.opened == 20
    assert until(lambda: server.open <= 1)  # that of the last loop
    asyncio.run(client.get(server.url))
    gc.collect()
    assert until(lambda: server.open == 0)


@pytest.mark.slow
def test_forgotten_clients_leave_no_descriptors(server):
    async def ask() -> None:
        for _ in range(10):
            await split_client().get(server.url)
        gc.collect()
        assert until(lambda: server.open == 0)

    asyncio.run(ask())


def test_tuners_clients_share_connections_of_a_loop(server):
    endpoint = Endpoint(f"{server.url}/v1", "a-key", "any")

    async def ask() -> None:
        for _ in range(3):
            async with openai_sdk.make_client(endpoint) as client:
                await client.chat.completions.create(messages=MESSAGES)

    asyncio.run(ask())
    asyncio.run(ask())
    assert server.opened == 2
    assert until(lambda: server.open == 0)
