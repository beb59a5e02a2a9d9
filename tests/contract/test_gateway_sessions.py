"""Who asks, and what is one call: keys, paths, agents, retries, seeds, and a bound on what waits; on every way in."""

import asyncio
import json
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import openai
import pytest
from starlette.responses import JSONResponse

from ajet.schema.call import full_ids, prompt_ids
from tests.support.gateways import (
    ASK,
    Sampling,
    ScriptedChat,
    ScriptedEngine,
    ScriptedReply,
    client_of,
    gather_stream_events,
    post,
    renderer_of_style,
    start_gateway,
)

pytestmark = pytest.mark.slow

WAYS = ["in-process", "socket"]
TEXT = "one two three four"
RETRY = {"x-stainless-retry-count": "1"}


class Halting(ScriptedEngine):
    """Answers with `text`; the first `halts` replies stop after `after` tokens until they are let go or cancelled, and
    come one token in `pace` seconds from then on. A prompt that holds the beginning of the text gets the rest."""

    def __init__(self, *, after=3, halts=1, text=TEXT, pace=0.0):
        self.renderer = renderer_of_style()
        self.whole = [*self.renderer.encode(text).tolist(), self.renderer.end_ids[0]]
        super().__init__(self._rest, chunk=1)
        self.after, self.halts, self.between = after, halts, pace
        self.asked = []
        self.halted, self.go = threading.Semaphore(0), threading.Event()

    def _rest(self, request):
        self.asked.append(request)
        done = len(request.prompt_ids) - len(self.asked[0].prompt_ids)
        return self.whole[done:]

    async def generate(self, request):
        given = 0
        halt, self.halts = self.halts > 0, self.halts - 1
        async for chunk in super().generate(request):
            yield chunk
            given += len(chunk.ids)
            if halt and given == self.after:
                self.halted.release()
                while not self.go.is_set():
                    await asyncio.sleep(0.001)
            if halt and self.between:
                await asyncio.sleep(self.between)


def http_of(endpoint, way):
    return httpx.AsyncClient(transport=endpoint.transport() if way == "in-process" else None, timeout=60)


async def ask(endpoint, way, headers=None, *, http=None, url=None, **fields):
    """One POST; (status, the text said, ids of the completion). A stream is read to its end."""
    async with http or http_of(endpoint, way) as client:
        answer = await client.post(
            url or f"{endpoint.base_url}/chat/completions",
            json={"messages": ASK, **fields},
            headers={"authorization": f"Bearer {endpoint.api_key}", **(headers or {})},
        )
    if answer.status_code != 200:
        return answer.status_code, answer.json()["error"]["code"], None
    if not fields.get("stream"):
        told = answer.json()
        return 200, told["choices"][0]["message"]["content"], told["id"]
    events = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
    return 200, "".join(e["choices"][0]["delta"].get("content") or "" for e in events), events[0]["id"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("headers", [RETRY, {"idempotency-key": "k"}])
def test_a_retry_joins_the_call_that_runs(way, stream, headers):
    engine = Halting()
    with start_gateway(engine=engine) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        first_headers = headers if "idempotency-key" in headers else {"x-stainless-retry-count": "0"}

        async def both():
            first = asyncio.create_task(ask(endpoint, way, first_headers, stream=stream))
            await asyncio.to_thread(engine.halted.acquire)
            second = asyncio.create_task(ask(endpoint, way, headers, stream=stream))
            await asyncio.to_thread(session.wait_until, lambda: (session.undelivered, session.readers) == (1, 2))
            engine.go.set()
            return await first, await second

        first, second = asyncio.run(both())
        assert first == second and first[:2] == (200, TEXT)
        (call,) = session.close().calls
        assert call.response_ids.tolist() == engine.whole and engine.requests == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_retry_goes_on_with_the_call_that_its_leaving_aborted(way, stream):
    engine = Halting()
    with start_gateway(engine=engine) as on:
        session = on.open(sampling=Sampling(100))
        endpoint = session.endpoint("a")

        async def leave_and_return():
            task = asyncio.create_task(ask(endpoint, way, stream=stream))
            await asyncio.to_thread(engine.halted.acquire)
            task.cancel()
            await asyncio.wait([task])
            await asyncio.to_thread(session.wait_until_calls_end)
            (call,) = session.calls
            assert (call.finish, call.error) == ("aborted", "the client left") and engine.running == 0
            assert call.response_ids.tolist() == engine.whole[:3], "recorded as cancelled, the slot is free"
            return await ask(endpoint, way, RETRY, stream=stream)

        assert asyncio.run(leave_and_return())[:2] == (200, TEXT)
        capture = session.close()
        (call,) = capture.calls
        assert call.response_ids.tolist() == engine.whole and call.finish == "stop" and call.error is None
        assert len(call.logprobs) == len(call.logprobs_unit) == len(engine.whole)
        assert call.resumed == 1
        first, second = engine.asked
        assert second.prompt_ids.tolist() == [*first.prompt_ids.tolist(), *engine.whole[:3]]
        assert second.sampling.max_tokens == first.sampling.max_tokens - 3
        assert second.draws != first.draws, "the rest is drawn with random numbers of its own"


class PatientUntil(httpx.AsyncBaseTransport):
    """A client's connection whose time is over as soon as a reply has halted."""

    def __init__(self, transport, halted):
        self.transport, self.halted = transport, halted

    async def handle_async_request(self, request):
        answer = asyncio.ensure_future(self.transport.handle_async_request(request))
        while not answer.done():
            if self.halted.acquire(blocking=False):
                answer.cancel()
                await asyncio.wait([answer])
                raise httpx.ReadTimeout("its time is over", request=request)
            await asyncio.sleep(0.001)
        return await answer


def test_an_unmodified_client_whose_patience_ends_gets_its_one_reply():
    engine = Halting(halts=2)
    with start_gateway(engine=engine) as on:
        session = on.open()
        endpoint = session.endpoint("a")

        async def play():
            http = httpx.AsyncClient(transport=PatientUntil(endpoint.transport(), engine.halted))
            async with openai.AsyncOpenAI(
                base_url=endpoint.base_url, api_key=endpoint.api_key, http_client=http, max_retries=2
            ) as client:
                return await client.chat.completions.create(model="m", messages=ASK)

        answer = asyncio.run(play())
        assert answer.choices[0].message.content == TEXT
        (call,) = session.close().calls
        assert call.response_ids.tolist() == engine.whole and call.resumed == 2
        assert answer.usage.completion_tokens == len(call.response_ids)
        assert answer.usage.prompt_tokens == len(call.suffix_ids)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_retry_of_what_was_sampled_but_never_read_replays_it(way, stream):
    """The call is complete; the client closes without having read the reply, and asks again."""
    with start_gateway(["first " * 300, "second"], max_model_len=5000, max_response_tokens=3000) as on:
        session = on.open(sampling=Sampling(2000), trainable=None)
        endpoint = session.endpoint("a")
        body = json.dumps({"messages": ASK, "stream": stream}, separators=(",", ":")).encode()

        async def never_read():
            if way == "in-process":
                async with http_of(endpoint, way) as client:
                    request = client.build_request(
                        "POST",
                        f"{endpoint.base_url}/chat/completions",
                        content=body,
                        headers={"authorization": f"Bearer {endpoint.api_key}"},
                    )
                    answer = await client.send(request, stream=True)
                    await asyncio.to_thread(session.wait_until, lambda: not session.undelivered)
                    await answer.aclose()
            else:
                await asyncio.to_thread(close_unread)
            await asyncio.to_thread(session.wait_until, lambda: session.undelivered)

        def close_unread():
            host, port = endpoint.base_url.removeprefix("http://").removesuffix("/v1").split(":")
            with socket.socket() as silent:
                silent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                silent.connect((host, int(port)))
                head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {endpoint.api_key}\r\n"
                silent.sendall(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
                session.wait_until(lambda: session.calls and not session.undelivered)

        asyncio.run(never_read())
        status, said, _ = asyncio.run(ask(endpoint, way, RETRY, stream=stream))
        assert (status, said) == (200, "first " * 300)
        (call,) = session.close().calls
        assert on.engine.requests == 1 and not call.resumed


@pytest.mark.parametrize("way", WAYS)
def test_eight_equal_requests_are_eight_calls(way):
    with start_gateway(lambda request: "3", latency=0.05) as on:
        session = on.open()
        endpoint = session.endpoint("a")

        async def eight():
            return await asyncio.gather(*(ask(endpoint, way) for _ in range(8)))

        answers = asyncio.run(eight())
        assert [answer[:2] for answer in answers] == [(200, "3")] * 8
        assert len({answer[2] for answer in answers}) == 8
        assert len(session.close().calls) == 8


@pytest.mark.parametrize("way", WAYS)
def test_eight_equal_requests_that_all_come_back_stay_eight_calls(way):
    engine = Halting(halts=8)
    with start_gateway(engine=engine) as on:
        session = on.open()
        endpoint = session.endpoint("a")

        async def play():
            tasks = [asyncio.create_task(ask(endpoint, way)) for _ in range(8)]
            for _ in tasks:
                await asyncio.to_thread(engine.halted.acquire)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await asyncio.to_thread(session.wait_until_calls_end)
            return await asyncio.gather(*(ask(endpoint, way, RETRY) for _ in tasks))

        assert [answer[:2] for answer in asyncio.run(play())] == [(200, TEXT)] * 8
        calls = session.close().calls
        assert len(calls) == 8 and all(call.response_ids.tolist() == engine.whole for call in calls)


@pytest.mark.parametrize(
    "first, second, other",
    [
        ({}, {}, {}),
        ({}, RETRY, {"temperature": 0.5}),
        ({}, {"x-stainless-retry-count": "no"}, {}),
        ({"idempotency-key": "k"}, {"idempotency-key": "other"}, {}),
        ({"idempotency-key": "k"}, {"idempotency-key": "other", **RETRY}, {}),
        ({"idempotency-key": "k"}, {"idempotency-key": "k"}, {"max_tokens": 50}),
        ({}, {**RETRY, "x-ajet-agent": "b"}, {}),
    ],
)
def test_what_is_no_retry_is_a_call_of_its_own(first, second, other):
    engine = Halting()
    with start_gateway(engine=engine) as on:
        session = on.open()
        endpoint = session.endpoint("a")

        async def play():
            task = asyncio.create_task(ask(endpoint, "in-process", first))
            await asyncio.to_thread(engine.halted.acquire)
            answer = await ask(endpoint, "in-process", second, **other)
            engine.go.set()
            return answer, await task

        answers = asyncio.run(play())
        assert [answer[:2] for answer in answers] == [(200, TEXT)] * 2 and answers[0][2] != answers[1][2]
        assert len(session.close().calls) == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("headers", [RETRY, {"idempotency-key": "k"}])
def test_after_a_delivered_reply_a_retry_signal_means_nothing(way, headers):
    with start_gateway(["one", "two"]) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        assert asyncio.run(ask(endpoint, way, headers))[1] == "one"
        assert asyncio.run(ask(endpoint, way, headers))[1] == "two"
        assert len(session.close().calls) == 2 and not session.undelivered


def test_another_key_is_another_client():
    engine = Halting()
    with start_gateway(engine=engine) as on:
        session = on.open()
        one, two = session.endpoint("a"), session.endpoint("b")

        async def play():
            task = asyncio.create_task(ask(one, "in-process"))
            await asyncio.to_thread(engine.halted.acquire)
            answer = await ask(two, "in-process", RETRY)
            engine.go.set()
            return answer, await task

        asyncio.run(play())
        assert [call.agent for call in session.close().calls] == ["a", "b"]


def test_all_choices_of_a_retried_request_go_on():
    engine = Halting(halts=2)
    with start_gateway(engine=engine) as on:
        session = on.open()
        endpoint = session.endpoint("a")

        async def play():
            task = asyncio.create_task(ask(endpoint, "socket", n=2))
            for _ in range(2):
                await asyncio.to_thread(engine.halted.acquire)
            task.cancel()
            await asyncio.wait([task])
            await asyncio.to_thread(session.wait_until_calls_end)
            return await ask(endpoint, "socket", RETRY, n=2)

        assert asyncio.run(play())[:2] == (200, TEXT)
        assert [call.response_ids.tolist() for call in session.close().calls] == [engine.whole] * 2


def test_a_retry_of_a_debug_models_call_is_asked_anew_where_it_was_aborted():
    class Slow(ScriptedChat):
        began = threading.Event()

        async def chat(self, request):
            if not self.began.is_set():
                self.began.set()
                await asyncio.get_running_loop().create_future()
            return await super().chat(request)

    critic = Slow(["fine"])
    with start_gateway(chat_engine_for=lambda name: critic) as on:
        session = on.open(trainable=[])
        endpoint = session.endpoint("c", debug_model="big")

        async def play():
            task = asyncio.create_task(ask(endpoint, "in-process"))
            await asyncio.to_thread(critic.began.wait)
            task.cancel()
            await asyncio.wait([task])
            await asyncio.to_thread(session.wait_until_calls_end)
            return await ask(endpoint, "in-process", RETRY)

        assert asyncio.run(play())[:2] == (200, "fine")
        assert [call.finish for call in session.close().calls] == ["aborted", "stop"]


def test_a_session_remembers_few_of_the_clients_that_left():
    engine = Halting(halts=1000)
    with start_gateway(engine=engine) as on:
        session = on.open()
        endpoint = session.endpoint("a")

        async def play():
            for number in range(70):
                task = asyncio.create_task(ask(endpoint, "in-process", user=str(number)))
                await asyncio.to_thread(engine.halted.acquire)
                task.cancel()
                await asyncio.wait([task])
            await asyncio.to_thread(session.wait_until_calls_end)

        asyncio.run(play())
        assert session.undelivered == 64
        assert [call.finish for call in session.close().calls] == ["aborted"] * 70


# Paths, agents and targets.


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_can_set_no_key_has_it_in_its_address(stream):
    with start_gateway(lambda request: "3") as on:
        session = on.open()
        endpoint = session.endpoint("a")
        assert endpoint.keyed_url == endpoint.base_url.replace("/v1", f"/s/{endpoint.api_key}/v1")
        with openai.OpenAI(base_url=endpoint.keyed_url, api_key="none", max_retries=0) as client:
            answer = client.chat.completions.create(model="m", messages=ASK, stream=stream)
            said = [c.choices[0].delta.content for c in answer] if stream else [answer.choices[0].message.content]
            assert "".join(piece or "" for piece in said) == "3"
            assert [model.id for model in client.models.list()] == ["ajet"]
        bare = httpx.post(f"{endpoint.keyed_url}/chat/completions", json={"messages": ASK})
        assert bare.status_code == 200
        nowhere = httpx.get(f"{endpoint.keyed_url}/nowhere")
        assert nowhere.status_code == 404 and endpoint.api_key not in nowhere.text
        assert httpx.post(f"{endpoint.keyed_url}/chat/completions/", json={"messages": ASK}).status_code == 404
        assert len(session.close().calls) == 2
        ended = httpx.post(f"{endpoint.keyed_url}/chat/completions", json={"messages": ASK})
        assert ended.status_code == 410 and ended.json()["error"]["code"] == "episode_finished"
        for wrong in ("wrong", "", "a/b"):
            url = endpoint.base_url.replace("/v1", f"/s/{wrong}/v1/chat/completions")
            assert httpx.post(url, json={"messages": ASK}).status_code in (401, 404)


@pytest.mark.parametrize(
    "key, headers, model, told",
    [
        (("a", "t"), {}, "ajet", ("a", "t")),
        (("a", "t"), {"x-ajet-agent": "b"}, "ajet", ("b", "b")),
        (("a", "t"), {"x-ajet-agent": "a"}, "ajet", ("a", "t")),
        (("a", "t"), {"x-ajet-target": "u"}, "ajet", ("a", "u")),
        (("a", "t"), {"x-ajet-agent": "b", "x-ajet-target": "u"}, "ajet", ("b", "u")),
        (("a", "t"), {}, "ajet@b", ("b", "b")),
        (("a", "t"), {}, "ajet@b:u", ("b", "u")),
        (("a", "t"), {}, "served/model@b:u", ("b", "u")),
        (("a", "t"), {"x-ajet-agent": "c", "x-ajet-target": "v"}, "ajet@b", ("b", "v")),
        (("a", "t"), {"x-ajet-agent": "c", "x-ajet-target": "v"}, "ajet@b:u", ("b", "u")),
        (("a", "t"), {}, "gpt-4o@2024", ("a", "t")),
        (("a", ""), {}, "ajet", ("a", "a")),
    ],
)
def test_agent_and_target_by_key_header_and_model(key, headers, model, told):
    with start_gateway(lambda request: "3") as on:
        session = on.open(model_name="served/model")
        assert asyncio.run(ask(session.endpoint(*key), "in-process", headers, model=model))[0] == 200
        (call,) = session.close().calls
        assert (call.agent, call.target) == told


@pytest.mark.parametrize(
    "headers, model, param",
    [
        ({}, "ajet@", "model"),
        ({}, "ajet@b:", "model"),
        ({}, "ajet@b:c:d", "model"),
        ({}, "ajet@" + "x" * 200, "model"),
        ({"x-ajet-agent": ""}, "ajet", "x-ajet-agent"),
        ({"x-ajet-target": "a:b"}, "ajet", "x-ajet-target"),
    ],
)
def test_a_malformed_name_is_refused(headers, model, param):
    with start_gateway(lambda request: "3") as on:
        endpoint = on.open().endpoint("a")
        answer = httpx.post(
            f"{endpoint.base_url}/chat/completions",
            json={"messages": ASK, "model": model},
            headers={"authorization": f"Bearer {endpoint.api_key}", **headers},
        )
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param


def test_a_named_target_decides_what_trains():
    with start_gateway(lambda request: "3", chat_engine_for=lambda name: ScriptedChat(["critique"])) as on:
        session = on.open(trainable=["solver"])
        endpoint = session.endpoint("solver", debug_model="big")
        assert asyncio.run(ask(endpoint, "in-process"))[1] == "3"
        assert asyncio.run(ask(endpoint, "in-process", model="ajet@critic"))[1] == "critique"
        assert [call.trained for call in session.close().calls] == [True, False]


def test_the_first_key_that_is_one_counts():
    with start_gateway(lambda request: "3") as on:
        endpoint = on.open().endpoint("a")
        headers = {"authorization": "Bearer placeholder", "x-api-key": endpoint.api_key}
        assert asyncio.run(ask(endpoint, "in-process", headers))[0] == 200


# Seeds and bounds.


def test_equal_seeds_draw_equally_where_nothing_trains():
    drawn = []
    with start_gateway(lambda request: drawn.append(request.draws) or "3") as on:
        session = on.open(trainable=["solver"])
        critic = session.endpoint("critic")
        for seed in (5, 5, 6, None):
            asyncio.run(ask(critic, "in-process", seed=seed))
        asyncio.run(ask(critic, "in-process", seed=5, n=2))
        assert drawn[0] == drawn[1] and len(set(drawn[:4])) == 3
        assert drawn[4] == drawn[0] and drawn[5] != drawn[4], "choices differ"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", [False, True])
def test_more_calls_than_the_gateway_takes_are_told_to_come_later(way, stream):
    engine = Halting(halts=2)
    with start_gateway(engine=engine, max_calls=2) as on:
        session, other = on.open(), on.open()
        endpoint = session.endpoint("a")

        async def play():
            running = [asyncio.create_task(ask(endpoint, way)) for _ in range(2)]
            for _ in running:
                await asyncio.to_thread(engine.halted.acquire)
            third = other.endpoint("b")
            async with client_of(third, in_process=way == "in-process") as client:
                with pytest.raises(openai.RateLimitError) as caught:
                    await client.chat.completions.create(model="m", messages=ASK, stream=stream)
            engine.go.set()
            await asyncio.gather(*running)
            return caught.value, await ask(third, way, RETRY)

        error, answer = asyncio.run(play())
        assert error.code == "overloaded" and int(error.response.headers["retry-after"]) >= 1
        assert answer[:2] == (200, TEXT)
        assert len(session.close().calls) == 2 and len(other.close().calls) == 1


@pytest.mark.parametrize("way", WAYS)
def test_streams_of_many_clients_gather_tokens_and_lose_none(way):
    """40 clients, and room for one event a second: each gathers until its reply ends."""
    engine = Halting(after=1, halts=40, pace=0.02)
    with gather_stream_events(per_second=1), start_gateway(engine=engine) as on:
        session = on.open()
        endpoint = session.endpoint("a")

        async def stream():
            async with client_of(endpoint, in_process=way == "in-process") as client:
                usage = {"include_usage": True}
                answer = await client.chat.completions.create(
                    model="m", messages=ASK, stream=True, stream_options=usage, logprobs=True
                )
                return [chunk async for chunk in answer]

        async def many():
            streams = [asyncio.create_task(stream()) for _ in range(40)]
            for _ in streams:
                await asyncio.to_thread(engine.halted.acquire)
            engine.go.set()
            return await asyncio.gather(*streams)

        for chunks in asyncio.run(many()):
            said = [chunk.choices[0] for chunk in chunks if chunk.choices]
            assert "".join(choice.delta.content or "" for choice in said) == TEXT
            tokens = [entry for choice in said if choice.logprobs for entry in choice.logprobs.content]
            assert "".join(entry.token for entry in tokens) == TEXT + "<|im_end|>"
            assert chunks[-1].usage.completion_tokens == len(tokens) > 10 > 5 >= len(said)
        assert len({tuple(call.response_ids.tolist()) for call in session.close().calls}) == 1
        assert session.clients == session.calls_under_way == 0


def test_a_stream_whose_reply_is_there_is_one_write():
    """Its last tokens, its finish and its end leave together: a write costs more than a token. By an ASGI server that
    knows nothing of ours, too."""
    with start_gateway(["3"]) as on:
        key = on.open().endpoint("a").api_key
        sent = []

        async def ask():
            incoming = [{"type": "http.request", "body": json.dumps({"messages": ASK, "stream": True}).encode()}]

            async def receive():
                return incoming.pop() if incoming else await asyncio.get_running_loop().create_future()

            async def send(message):
                sent.append(message)

            headers = [(b"authorization", f"Bearer {key}".encode())]
            scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers, "state": {}}
            await on.asgi_app(scope, receive, send)

        on.run_on_loop(ask()).result()
        head, body = sent
        assert head["status"] == 200 and not body["more_body"]
        assert b'"content":"3"' in body["body"] and body["body"].endswith(b"data: [DONE]\n\n")


def test_a_conversation_goes_on_from_a_resumed_reply():
    engine = Halting()
    with start_gateway(engine=engine) as on:
        session = on.open()
        endpoint = session.endpoint("a")

        async def play():
            task = asyncio.create_task(ask(endpoint, "in-process"))
            await asyncio.to_thread(engine.halted.acquire)
            task.cancel()
            await asyncio.wait([task])
            await asyncio.to_thread(session.wait_until_calls_end)
            _, said, _ = await ask(endpoint, "in-process", RETRY)
            on.answer_with(lambda request: engine.whole)
            more = [*ASK, {"role": "assistant", "content": said}, {"role": "user", "content": "and?"}]
            return await ask(endpoint, "in-process", messages=more)

        assert asyncio.run(play())[0] == 200
        calls = session.close().calls
        first, second = calls
        assert (second.parent, second.prefix, second.fork) == (0, len(full_ids(calls, 0)), None)
        assert np.array_equal(prompt_ids(calls, 1)[: second.prefix], full_ids(calls, 0))
        assert first.response_ids.tolist() == engine.whole


def test_a_plain_post_still_works():
    with start_gateway([ScriptedReply("3")]) as on:
        assert post(on.open().endpoint("a"), {"messages": ASK}).status_code == 200


def test_who_comes_before_all_routes_are_there_is_asked_to_come_again():
    """A client of a server that was started again knows addresses that are there in a moment."""

    async def there(request):
        return JSONResponse({})

    with start_gateway(opens_later=True) as on:
        url = f"{on.base_url.removesuffix('/v1')}/soon"
        early = httpx.get(url, timeout=60)
        assert (early.status_code, early.headers["retry-after"]) == (503, "1")
        assert early.json()["error"]["code"] == "starting"
        on.add_route("/soon", there)
        assert [httpx.get(each, timeout=60).status_code for each in (url, f"{url}er")] == [200, 404]


def test_what_is_just_being_answered_at_the_end_is_answered():
    """Nobody is told of a mistake of ours because the gateway ends."""
    begun = threading.Event()

    async def soon(request):
        begun.set()
        await asyncio.sleep(0.02)
        return JSONResponse({"told": True})

    with start_gateway() as on:
        on.add_route("/soon", soon)
        url = f"{on.base_url.removesuffix('/v1')}/soon"
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(httpx.get, url, timeout=60)
            assert begun.wait(60)
            on.close()
            assert answer.result().json() == {"told": True}
