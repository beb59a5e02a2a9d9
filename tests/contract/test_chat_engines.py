"""One suite over every ChatEngine; the endpoint's server behaves, refuses, breaks off or is gone."""

import asyncio
import socket
import threading
from contextlib import contextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

from ajet.config import Experiment
from ajet.engine.contract import ChatEngine
from ajet.engine.endpoint import EndpointEngine
from ajet.engine.scripted import ScriptedChat
from ajet.schema.errors import NO_COMPLETION, ConfigError, EngineFailure
from tests.support.ports import free_port

KEY = "sk-very-secret"
REQUEST = {"model": "ajet", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5}


class Server:
    """An OpenAI-compatible server on a port of its own; `requests` is what it was sent."""

    def __init__(self):
        self.requests, self.keys = [], []
        self.abandoned = threading.Event()
        self.app = Starlette(routes=[Route("/v1/chat/completions", self.answer, methods=["POST"])])

    async def answer(self, request):
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("authorization"))
        case = body["messages"][-1]["content"]
        if case.isdigit():
            message = f"refused, {self.keys[-1]}"
            return JSONResponse({"error": {"message": message}}, status_code=int(case))
        if case == "no json":
            return PlainTextResponse("<html>")
        if case == "no completion":
            return JSONResponse({"detail": "?"})
        if body["stream"]:
            return StreamingResponse(self.chunks(case), media_type="text/event-stream")
        message = {"role": "assistant", "content": f"said {case}"}
        return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    async def chunks(self, case):
        try:
            for part in ("said", " ", case):
                yield f'data: {{"choices": [{{"index": 0, "delta": {{"content": "{part}"}}}}]}}\n\n'
            if case == "endless":
                while True:
                    yield 'data: {"choices": [{"index": 0, "delta": {"content": "."}}]}\n\n'
                    await asyncio.sleep(0.001)
            if case == "breaks off":
                return
            if case == "fails":
                yield 'data: {"error": {"message": "out of memory"}}\n\n'
                return
            yield 'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n: ping\n\n'
            if case != "no done":
                yield "data: [DONE]\n\n"
        finally:
            self.abandoned.set()


@contextmanager
def serving(server):
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(server.app, log_level="error", lifespan="off")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        running.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture(scope="module")
def server():
    made = Server()
    with serving(made) as made.base_url:
        yield made


@pytest.fixture
def engine(server):
    made = EndpointEngine(server.base_url, "served-name", api_key=KEY)
    yield made
    made.close()


@pytest.fixture(params=["endpoint", "scripted"])
def any_engine(request, server):
    if request.param == "endpoint":
        made = EndpointEngine(server.base_url, "served-name", api_key=KEY)
    else:
        made = ScriptedChat(lambda request: f"said {request['messages'][-1]['content']}")
    yield made
    made.close()


def saying(text):
    return {**REQUEST, "messages": [{"role": "user", "content": text}]}


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


async def streamed(engine, text):
    return [chunk async for chunk in engine.stream(saying(text))]


def content(chunks):
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


def test_it_is_a_chat_engine(any_engine):
    assert isinstance(any_engine, ChatEngine)


def test_a_reply_and_the_same_in_chunks(any_engine):
    (choice,) = run(any_engine.chat(saying("hi")))["choices"]
    assert choice["message"] == {"role": "assistant", "content": "said hi"} and choice["finish_reason"] == "stop"
    chunks = run(streamed(any_engine, "hi"))
    assert content(chunks) == "said hi"
    finishes = [chunk["choices"][0].get("finish_reason") for chunk in chunks]
    assert finishes[-1] == "stop" and not any(finishes[:-1])


def test_what_the_server_is_sent(engine, server):
    run(engine.chat(saying("hi")))
    assert server.requests[-1] == {**saying("hi"), "model": "served-name", "stream": False}
    assert server.keys[-1] == f"Bearer {KEY}"


def test_a_stream_may_end_without_done(engine):
    assert content(run(streamed(engine, "no done"))) == "said no done"


def test_many_at_once_from_several_loops(any_engine):
    async def many():
        replies = await asyncio.gather(*(any_engine.chat(saying(f"m{number}")) for number in range(20)))
        return [reply["choices"][0]["message"]["content"] for reply in replies]

    expected = [f"said m{number}" for number in range(20)]
    assert run(many()) == expected and run(many()) == expected


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_refusal_is_final(engine, status):
    for call in (engine.chat(saying(str(status))), streamed(engine, str(status))):
        with pytest.raises(EngineFailure, match=f"status {status}: refused") as failure:
            run(call)
        assert not failure.value.retryable


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_trouble_may_be_tried_again(engine, status):
    for call in (engine.chat(saying(str(status))), streamed(engine, str(status))):
        with pytest.raises(EngineFailure) as failure:
            run(call)
        assert failure.value.retryable


@pytest.mark.parametrize("case", ["no json", "no completion"])
def test_what_is_no_reply(engine, case):
    with pytest.raises(EngineFailure, match=f"invalid JSON|{NO_COMPLETION}"):
        run(engine.chat(saying(case)))


@pytest.mark.parametrize("case", ["breaks off", "fails", "no json"])
def test_a_stream_that_ends_badly(engine, case):
    with pytest.raises(EngineFailure):
        run(streamed(engine, case))


def test_a_stream_that_is_left_is_closed(engine, server):
    async def leave():
        stream = engine.stream(saying("endless"))
        async for chunk in stream:
            if content([chunk]) == ".":
                break
        await stream.aclose()
        return await asyncio.to_thread(server.abandoned.wait, 30)

    server.abandoned.clear()
    assert run(leave())


def test_a_server_that_is_gone():
    engine = EndpointEngine(f"http://127.0.0.1:{free_port()}/v1", "m")
    for call in (engine.chat(saying("hi")), streamed(engine, "hi")):
        with pytest.raises(EngineFailure, match="did not answer") as failure:
            run(call)
        assert failure.value.retryable


def test_closing_twice(any_engine):
    async def used_and_closed():
        await any_engine.chat(saying("hi"))
        any_engine.close()
        any_engine.close()
        await asyncio.sleep(0)

    run(used_and_closed())


def test_the_key_is_in_no_error_and_no_repr(engine):
    with pytest.raises(EngineFailure) as failure:
        run(engine.chat(saying("401")))
    assert KEY not in str(failure.value) and "[redacted]" in str(failure.value)
    assert KEY not in repr(engine)


def test_the_endpoint_of_an_experiment(tmp_path, monkeypatch, server):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("MY_KEY", KEY)

    def settings(**endpoint):
        tree = {"ajet": {"rollout": {"engine": "endpoint", "endpoint": {"api_key_env": "MY_KEY", **endpoint}}}}
        return Experiment.from_dict(tree, base=tmp_path).ajet

    engine = EndpointEngine.from_config(settings(base_url=server.base_url, model="big"))
    run(engine.chat(saying("hi")))
    assert server.requests[-1]["model"] == "big" and server.keys[-1] == f"Bearer {KEY}"
    with pytest.raises(ConfigError, match="base_url"):
        EndpointEngine.from_config(settings(model="big"))
    with pytest.raises(ConfigError, match="model"):
        EndpointEngine.from_config(settings(base_url=server.base_url))


def test_a_debug_model_by_name(monkeypatch, server):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    assert EndpointEngine.for_model("judge") is EndpointEngine.for_model("judge")
    run(EndpointEngine.for_model("judge").chat(saying("hi")))
    assert server.requests[-1]["model"] == "judge" and server.keys[-1] is None
    monkeypatch.delenv("OPENAI_BASE_URL")
    with pytest.raises(EngineFailure, match="judge has no server: set OPENAI_BASE_URL") as failure:
        run(EndpointEngine.for_model("judge").chat(saying("hi")))
    assert not failure.value.retryable
