"""Requests whose prompts take long to render: they hold up their own session, and no other."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import numpy as np
import pytest

from ajet.schema.call import prompt_ids
from tests.support.gateways import (
    ADD,
    ASK,
    LONG_PROMPT,
    GatedRenderer,
    post,
    render_in_threads,
    start_gateway,
)

pytestmark = pytest.mark.slow

MANY = [
    {"role": ("user", "assistant")[at % 2], "content": f"Message {at}: please add {at} and {at + 1}, and say how."}
    for at in range(9_999)
]
LONG = [{"role": "user", "content": "word " * LONG_PROMPT}]


@contextmanager
def gated():
    renderer = GatedRenderer()
    with start_gateway(lambda request: "Well.", words=renderer, max_model_len=1 << 20) as on:
        try:
            yield on
        finally:
            renderer.go.set()


@contextmanager
def heartbeat(on):
    """The seconds between the beats of the gateway's loop: of this process's own time, which passes for nobody else's
    work."""
    gaps = []

    async def beat():
        last = time.process_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.process_time()
            gaps.append(now - last)
            last = now

    beating = on.run_on_loop(beat())
    try:
        yield gaps
    finally:
        beating.cancel()


def streams(endpoint, until, tokens):
    """Stream one reply after the other; when each token came."""
    with httpx.Client(timeout=60) as client:
        while not until.is_set():
            body, headers = {"messages": ASK, "stream": True}, {"authorization": f"Bearer {endpoint.api_key}"}
            with client.stream("POST", f"{endpoint.base_url}/chat/completions", json=body, headers=headers) as answer:
                for line in answer.iter_lines():
                    if '"content":"x' in line:
                        tokens.append(time.process_time())


def test_while_ten_thousand_messages_are_rendered_other_streams_go_on():
    with start_gateway(lambda request: "x " * 100, chunk=1, pace=0.001, max_model_len=1 << 22) as on:
        began = time.process_time()
        on.renderer.render(MANY)
        alone = time.process_time() - began
        worst = []
        for _ in range(3):
            tokens, done = [], threading.Event()
            long, other = on.open(), on.open()
            with ThreadPoolExecutor() as threads, heartbeat(on) as gaps:
                heard = threads.submit(streams, other.endpoint("b"), done, tokens)
                while len(tokens) < 20:
                    assert not heard.done(), "the stream ended"
                    time.sleep(0.001)
                gaps.clear()
                asked = time.process_time()
                answer = post(long.endpoint("a"), {"messages": MANY, "max_tokens": 1})
                answered = time.process_time()
                stalled = max(gaps)
                done.set()
                heard.result()
            assert answer.status_code == 200
            (call,) = long.close().calls
            assert np.array_equal(call.suffix_ids, on.renderer.render(MANY).ids)
            meanwhile = [at for at in tokens if asked < at < answered]
            silent = max(np.diff([asked, *meanwhile, answered]))
            worst.append(max(stalled, silent) / alone)
            if worst[-1] < 0.4:
                break
        assert min(worst) < 0.4, f"of the rendering's {alone:.2f} s the loop stood still for {worst}"


@pytest.mark.parametrize("other", ["messages", "agent"])
def test_a_session_s_calls_enter_in_the_order_in_which_they_came(other):
    with gated() as on, ThreadPoolExecutor() as threads:
        session, elsewhere = on.open(), on.open()
        endpoint = session.endpoint("a")
        second = endpoint if other == "messages" else session.endpoint("b")
        long = threads.submit(post, endpoint, {"messages": LONG})
        assert on.renderer.begun.acquire(timeout=60)
        short = threads.submit(post, second, {"messages": ASK})
        for _ in range(3):
            assert post(elsewhere.endpoint("a"), {"messages": ASK}).status_code == 200, "others are not held up"
        assert not short.done() and not long.done()
        on.renderer.go.set()
        assert long.result().status_code == short.result().status_code == 200
        calls = session.close().calls
        assert [len(call.suffix_ids) > 1000 for call in calls] == [True, False]


def test_an_episode_that_ends_while_a_prompt_is_rendered_has_no_such_call():
    with gated() as on, ThreadPoolExecutor() as threads:
        session = on.open()
        long = threads.submit(post, session.endpoint("a"), {"messages": LONG})
        assert on.renderer.begun.acquire(timeout=60)
        capture = session.close()
        on.renderer.go.set()
        answer = long.result()
        assert answer.status_code == 410 and answer.json()["error"]["code"] == "episode_finished"
        assert capture.calls == [] and on.engine.requests == 0


def test_a_client_that_leaves_while_its_prompt_is_rendered_and_asks_again_has_made_one_call():
    with gated() as on:
        session = on.open()
        endpoint = session.endpoint("a")
        headers = {"authorization": f"Bearer {endpoint.api_key}"}
        url = f"{endpoint.base_url}/chat/completions"

        async def play():
            async with httpx.AsyncClient(timeout=60) as client:
                leaving = asyncio.create_task(client.post(url, json={"messages": LONG}, headers=headers))
                assert await asyncio.to_thread(on.renderer.begun.acquire, timeout=60)
                leaving.cancel()
                await asyncio.wait([leaving])
                until = time.monotonic() + 60
                while session.readers:
                    assert time.monotonic() < until
                    await asyncio.sleep(0.001)
                on.renderer.go.set()
                retry = {**headers, "x-stainless-retry-count": "1"}
                return await client.post(url, json={"messages": LONG}, headers=retry)

        assert asyncio.run(play()).status_code == 200
        (call,) = session.close().calls
        assert call.error is None and not call.resumed and on.engine.requests == 1


def play(on):
    """Two agents, tools, a fork, raw prompts as text and ids; what was captured of it."""
    session = on.open()
    one, two = session.endpoint("a"), session.endpoint("b")

    def complete(prompt):
        headers = {"authorization": f"Bearer {one.api_key}"}
        return httpx.post(f"{one.base_url}/completions", json={"prompt": prompt}, headers=headers).json()

    asked = [*ASK]
    for turn in range(3):
        said = post(one, {"messages": asked, "tools": [ADD]}).json()["choices"][0]["message"]
        asked += [{"role": "assistant", "content": said["content"]}, {"role": "user", "content": f"And {turn}?"}]
    post(two, {"messages": asked[:2]})
    post(one, {"messages": [asked[0], {"role": "user", "content": "Otherwise."}, *asked[2:]]})
    first = complete("1 + 2 =")
    complete("1 + 2 =" + first["choices"][0]["text"] + " and")
    complete(on.renderer.encode("1 + 2 =").tolist())
    calls = session.close().calls
    return [
        (
            call.agent,
            call.parent,
            call.fork,
            call.prefix,
            prompt_ids(calls, call.index).tolist(),
            call.terms,
            call.extra,
        )
        for call in calls
    ]


def test_what_is_rendered_aside_is_what_would_be_rendered_on_the_loop():
    played = []
    for longest in (1 << 30, -1):
        script = lambda request: "Fine." + " Yes." * (len(request.prompt_ids) % 3)  # noqa: E731
        with render_in_threads(above=longest), start_gateway(script) as on:
            played.append(play(on))
    assert played[0] == played[1]
    assert {call[2] for call in played[0]} == {None, "client_edit"} and len(played[0]) == 8


def test_a_long_prompt_is_counted_and_refused_as_a_short_one():
    with start_gateway(lambda request: "ok", max_model_len=1 << 20) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        headers = {"authorization": f"Bearer {endpoint.api_key}"}
        body = {"model": "m", "input": LONG[0]["content"]}
        counted = httpx.post(f"{endpoint.base_url}/responses/input_tokens", json=body, headers=headers, timeout=60)
        assert counted.json()["input_tokens"] == len(on.renderer.render(LONG).ids)
        assert session.close().calls == []
    with start_gateway(lambda request: "ok") as on:
        session = on.open()
        endpoint = session.endpoint("a")
        answer = post(endpoint, {"messages": LONG})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert session.close().calls == []
