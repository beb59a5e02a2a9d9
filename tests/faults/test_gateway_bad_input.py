"""Whatever a client or an engine does, it gets an answer in OpenAI's shape, and nobody else notices."""

import asyncio
import json
import socket
import threading

import httpx
import openai
import pytest

from tests.support.chat_templates import variant
from tests.support.gateways import (
    ASK,
    Renderer,
    Sampling,
    ScriptedChat,
    ScriptedEngine,
    ScriptedReply,
    client_of,
    limit_bodies,
    post,
    start_gateway,
    wait_on_loop,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def on():
    with start_gateway(lambda request: "It is 3.", max_model_len=400, max_response_tokens=50) as made:
        yield made


@pytest.fixture
def endpoint(on):
    session = on.open()
    yield session.endpoint("a")
    session.close()


def refused(answer: httpx.Response, status: int, code: str | None = None, param: str | None = None) -> dict:
    """The error, of the expected kind; and its shape."""
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert answer.status_code == status, error
    assert code is None or error["code"] == code, error
    assert param is None or error["param"] == param, error
    return error


def with_tool(**function):
    return {"messages": ASK, "tools": [{"type": "function", "function": {"name": "f", **function}}]}


def with_message(**message):
    return {"messages": [{"role": "user", "content": "hi", **message}]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        (with_message(role="robot"), "messages[0].role"),
        (with_message(role=None), "messages[0].role"),
        (with_message(role=["user"]), "messages[0].role"),
        (with_message(content=None), "messages[0].content"),
        (with_message(content=3), "messages[0].content"),
        (
            with_message(content=[{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]),
            "messages[0].content[0].type",
        ),
        (with_message(content=[{"type": "text"}]), "messages[0].content[0].text"),
        (with_message(name=3), "messages[0].name"),
        (with_message(role="assistant", tool_calls=3), "messages[0].tool_calls"),
        (with_message(role="assistant", tool_calls=[{}]), "messages[0].tool_calls[0].function"),
        (with_message(role="assistant", tool_calls=[{"function": {}}]), "messages[0].tool_calls[0].function.name"),
        (with_message(role="assistant", function_call={"name": "f"}), "messages[0].function_call"),
        ({"messages": ASK, "tools": {}}, "tools"),
        ({"messages": ASK, "tools": [3]}, "tools[0]"),
        ({"messages": ASK, "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"messages": ASK, "tools": [{"type": "function"}]}, "tools[0].function"),
        (with_tool(name=""), "tools[0].function.name"),
        (with_tool(description=3), "tools[0].function.description"),
        (with_tool(parameters=3), "tools[0].function.parameters"),
        (with_tool(parameters={"type": "string"}), "tools[0].function.parameters.type"),
        (with_tool(parameters={"properties": [1]}), "tools[0].function.parameters.properties"),
        (with_tool(parameters={"required": "a"}), "tools[0].function.parameters.required"),
        ({"messages": ASK, "tool_choice": "required"}, "tool_choice"),
        ({**with_tool(), "tool_choice": "maybe"}, "tool_choice"),
        ({**with_tool(), "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice.function.name"),
        ({"messages": ASK, "temperature": -1}, "temperature"),
        ({"messages": ASK, "temperature": "hot"}, "temperature"),
        ({"messages": ASK, "temperature": True}, "temperature"),
        ({"messages": ASK, "top_p": 0}, "top_p"),
        ({"messages": ASK, "max_tokens": 0}, "max_tokens"),
        ({"messages": ASK, "max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"messages": ASK, "n": 0}, "n"),
        ({"messages": ASK, "n": 1000}, "n"),
        ({"messages": ASK, "stop": ""}, "stop"),
        ({"messages": ASK, "stop": [3]}, "stop"),
        ({"messages": ASK, "stop": ["a"] * 17}, "stop"),
        ({"messages": ASK, "seed": "x"}, "seed"),
        ({"messages": ASK, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": ASK, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": ASK, "stream": "yes"}, "stream"),
        ({"messages": ASK, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": ASK, "model": 3}, "model"),
        ({"messages": ASK, "response_format": {"type": "xml"}}, "response_format.type"),
        (
            {"messages": ASK, "response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.name",
        ),
        ({"messages": ASK, "logit_bias": {"5": 1}}, "logit_bias"),
        ({"messages": ASK, "presence_penalty": 0.5}, "presence_penalty"),
        ({"messages": ASK, "frequency_penalty": 0.5}, "frequency_penalty"),
        ({"messages": ASK, "modalities": ["audio"]}, "modalities"),
        ({"messages": ASK, "functions": [{"name": "f"}]}, "functions"),
        ({"messages": ASK, "prediction": {}}, "prediction"),
        ({"messages": ASK, "best_of": 3}, "best_of"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_field_that_cannot_be_honoured_is_named(endpoint, body, param, stream):
    body = {**body, "stream": True} if stream and "stream" not in param else body
    refused(post(endpoint, body), 400, param=param)


def test_fields_that_ask_for_nothing_are_let_be(endpoint):
    harmless = {
        "user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "logit_bias": {},
        "response_format": {"type": "text"}, "presence_penalty": 0, "frequency_penalty": 0.0,
        "tools": [], "stop": None, "n": None,
        "stream": False, "modalities": ["text"], "seed": 3, "functions": None, "tool_choice": "none",
    }  # fmt: skip
    assert post(endpoint, {"messages": ASK, **harmless}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"3", b"null", b"\xff\xfe", b"{" * 100_000, b"[" * 100_000,
     b'{"messages": ' + b"9" * 5000 + b"}", b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
     json.dumps({"messages": ASK}).encode("utf-16")[:-1]],
)  # fmt: skip
def test_a_body_that_is_no_json_object(endpoint, body):
    refused(post(endpoint, body), 400)


@pytest.mark.parametrize("key", ["wrong", "0" * 32, "two words"])
def test_a_wrong_key(endpoint, key):
    refused(post(endpoint, {"messages": ASK}, key=key), 401, "invalid_api_key")
    models = httpx.get(f"{endpoint.base_url}/models", headers={"authorization": f"Bearer {key}"})
    refused(models, 401, "invalid_api_key")


def test_no_key_at_all(endpoint):
    refused(httpx.post(f"{endpoint.base_url}/chat/completions", json={"messages": ASK}), 401, "invalid_api_key")
    basic = {"authorization": "Basic abc"}
    refused(httpx.post(f"{endpoint.base_url}/chat/completions", json={}, headers=basic), 401)


def test_a_finished_episode_and_an_unknown_place(on):
    session = on.open()
    endpoint = session.endpoint("a")
    session.close()
    refused(post(endpoint, {"messages": ASK}), 410, "episode_finished")
    refused(httpx.get(f"{endpoint.base_url}/nowhere"), 404)
    refused(httpx.get(f"{endpoint.base_url}/chat/completions"), 405)


def test_a_body_that_is_too_large(endpoint):
    large = {"messages": [{"role": "user", "content": "x" * 2000}]}

    def parts():
        yield json.dumps(large).encode()

    headers = {"authorization": f"Bearer {endpoint.api_key}"}
    with limit_bodies(1000):
        refused(post(endpoint, large), 413, "request_too_large")
        chunked = httpx.post(f"{endpoint.base_url}/chat/completions", content=parts(), headers=headers)
        refused(chunked, 413, "request_too_large")
        assert post(endpoint, {"messages": ASK}).status_code == 200


def test_a_prompt_longer_than_the_model(on, endpoint):
    long = {"messages": [{"role": "user", "content": "word " * 400}]}
    error = refused(post(endpoint, long), 400, "context_length_exceeded", "messages")
    assert "400 tokens" in error["message"]
    almost = {"messages": [{"role": "user", "content": "x y " * 95}]}
    answer = post(endpoint, almost).json()
    assert answer["usage"]["total_tokens"] <= 400


def test_many_messages(endpoint):
    many = {"messages": [{"role": "user", "content": "hi"}] * 10_000}
    refused(post(endpoint, many), 400, "context_length_exceeded")


def test_a_template_that_raises():
    strict = "{{ raise_exception('roles must alternate') if messages | length > 2 else messages[0].content }}"
    renderer = Renderer(variant("smollm2", template=strict))
    with start_gateway(lambda request: "ok", words=renderer, max_model_len=400, max_response_tokens=50) as on:
        session = on.open(sampling=Sampling(8))
        endpoint = session.endpoint("a")
        error = refused(post(endpoint, {"messages": [*ASK, *ASK]}), 400, "template_refused", "messages")
        assert "roles must alternate" in error["message"]
        assert post(endpoint, {"messages": ASK}).status_code == 200
        assert len(session.close().calls) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [0, 2])
def test_an_engine_that_fails_is_an_error_and_its_tokens_are_kept(stream, after):
    replies = iter([ScriptedReply("one two three", fail_after=after, chunk=1), "fine"])
    with start_gateway(lambda request: next(replies)) as on:
        session, other = on.open(), on.open()
        endpoint = session.endpoint("a")

        async def ask():
            async with client_of(endpoint) as client:
                answer = await client.chat.completions.create(model="m", messages=ASK, stream=stream)
                return [chunk async for chunk in answer] if stream else answer

        with pytest.raises(openai.APIError) as caught:
            asyncio.run(ask())
        assert caught.value.code == "engine_failure"
        if not stream or not after:
            assert caught.value.status_code == 503
        assert post(other.endpoint("a"), {"messages": ASK}).status_code == 200
        call = session.close().calls[0]
        assert call.finish == "error" and call.reply is None and "fails after" in call.error
        assert len(call.response_ids) == len(call.logprobs) == after


def test_a_retry_after_a_failure_is_a_call_of_its_own():
    replies = iter([ScriptedReply("one", fail_after=1), "two"])
    with start_gateway(lambda request: next(replies)) as on:
        session = on.open()
        endpoint = session.endpoint("a")

        async def ask():
            http = httpx.AsyncClient(transport=endpoint.transport())
            async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, http_client=http) as c:
                return await c.chat.completions.create(model="m", messages=ASK)

        assert asyncio.run(ask()).choices[0].message.content == "two"
        assert [call.finish for call in session.close().calls] == ["error", "stop"]


def test_an_engine_with_a_bug_is_an_error_too():
    class Buggy(ScriptedEngine):
        async def generate(self, request):
            async for chunk in super().generate(request):
                yield chunk
                raise ZeroDivisionError

    with start_gateway(engine=Buggy(lambda request: [30, 31, 32], chunk=2)) as on:
        session = on.open()
        refused(post(session.endpoint("a"), {"messages": ASK}), 500, "internal_error")
        call = session.close().calls[0]
        assert call.finish == "error" and len(call.response_ids) == 2


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{"message": None}]}])
def test_a_debug_model_that_answers_nonsense(answer):
    class Odd(ScriptedChat):
        async def chat(self, request):
            return answer

    with start_gateway(chat_engine_for=lambda name: Odd([])) as on:
        session = on.open(trainable=[])
        refused(post(session.endpoint("a", debug_model="big"), {"messages": ASK}), 503, "engine_failure")
        assert session.close().calls[0].finish == "error"


def test_a_client_that_never_reads_holds_nobody_up():
    """The whole reply is captured, as one that no client received."""
    with start_gateway(lambda request: "so " * 400, chunk=1, max_model_len=5000, max_response_tokens=3000) as on:
        session = on.open(sampling=Sampling(3000))
        endpoint = session.endpoint("a")
        host, port = endpoint.base_url.removeprefix("http://").removesuffix("/v1").split(":")
        body = json.dumps({"messages": ASK, "stream": True, "logprobs": True, "top_logprobs": 20}).encode()
        with socket.socket() as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect((host, int(port)))
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {endpoint.api_key}\r\n"
            silent.sendall(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
            session.wait_until(lambda: session.is_first_call_complete)
            assert post(on.open().endpoint("b"), {"messages": ASK, "max_tokens": 3}).status_code == 200
        session.wait_until(lambda: session.undelivered == 1 and session.readers == 0)
        call = session.close().calls[0]
        assert (call.finish, call.error) == ("aborted", "the client left")
        assert on.renderer.decode(call.response_ids) == "so " * 400 + "<|im_end|>"


def test_characters_split_over_tokens_reach_the_client_whole(on):
    text = "né深✓🙂"
    with start_gateway(chunk=1) as on:
        ids = [token for letter in text for token in on.renderer.encode(letter).tolist()]
        assert len(ids) > len(text)
        on.answer_with(lambda request: [*ids[:-1], on.renderer.end_ids[0]])  # the last character stays broken
        session = on.open()

        async def ask():
            async with client_of(session.endpoint("a")) as client:
                answer = await client.chat.completions.create(model="m", messages=ASK, stream=True)
                return [chunk.choices[0].delta.content async for chunk in answer]

        pieces = [piece for piece in asyncio.run(ask()) if piece]
        assert "".join(pieces) == "né深✓\ufffd" and pieces[:4] == list("né深✓")


def test_a_gateway_that_has_closed_refuses_connections():
    with start_gateway() as on:
        endpoint = on.open().endpoint("a")

    async def ask():
        async with client_of(endpoint) as client:
            await client.chat.completions.create(model="m", messages=ASK)

    with pytest.raises(openai.APIConnectionError):
        asyncio.run(ask())
    with pytest.raises(httpx.ConnectError):
        post(endpoint, {"messages": ASK})


def test_closing_the_gateway_ends_waiting_clients():
    with start_gateway([ScriptedReply("late", latency=600)]) as on:
        endpoint = on.open().endpoint("a")
        ended = []

        def wait():
            async def ask():
                async with client_of(endpoint) as client:
                    await client.chat.completions.create(model="m", messages=ASK)

            try:
                asyncio.run(ask())
            except openai.OpenAIError as error:
                ended.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_on_loop(on, lambda: on.engine.running)
    thread.join(60)
    assert len(ended) == 1 and on.engine.running == 0


def test_a_read_timeout_of_the_client_aborts_the_call():
    with start_gateway(lambda _: ScriptedReply("late", latency=600)) as on:
        session = on.open()

        async def ask(seconds):
            async with client_of(session.endpoint("a"), timeout=seconds) as client:
                await client.chat.completions.create(model="m", messages=ASK)

        patience = 0.05
        while not on.engine.requests:  # on a busy machine the engine may not have been asked by then
            with pytest.raises(openai.APITimeoutError):
                asyncio.run(ask(patience))
            patience *= 4
        session.wait_until(lambda: not on.engine.running)
        assert session.close().calls[-1].finish == "aborted"
