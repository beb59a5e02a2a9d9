"""What goes wrong, in every dialect: the client is told in its own terms, and no other episode notices."""

import asyncio
import json
import socket
import threading

import httpx
import pytest

from ajet.schema.errors import EngineFailure
from tests.support.chat_templates import variant
from tests.support.dialect_fixtures import (
    CHAT,
    COMPLETIONS,
    COUNT,
    INPUT_TOKENS,
    LANGUAGES,
    MESSAGES,
    REPLYING,
    RESPONSES,
    named,
)
from tests.support.dialect_replies import ADD_UP
from tests.support.gateways import (
    Renderer,
    Sampling,
    ScriptedEngine,
    ScriptedReply,
    limit_bodies,
    renderer_of_style,
    start_gateway,
)

pytestmark = pytest.mark.slow

HTTP = httpx.Client(verify=False, timeout=60)
every = pytest.mark.parametrize("language", LANGUAGES, ids=named)
replying = pytest.mark.parametrize("language", REPLYING, ids=named)


@pytest.fixture(scope="module")
def on():
    with start_gateway(lambda request: "It is 3.", max_model_len=400, max_response_tokens=50) as made:
        yield made


@pytest.fixture
def endpoint(on):
    session = on.open()
    yield session.endpoint("a")
    session.close()


def ask(endpoint, language, body, *, key=None):
    """One request over the socket; `body` bytes are sent as they are."""
    sent = {"content": body} if isinstance(body, bytes) else {"json": body}
    return HTTP.post(language.url(endpoint), headers=language.headers(key or endpoint.api_key), timeout=60, **sent)


def refused(language, answer, status, *words):
    """The error, of the expected status, in the shape of the language; its message or details hold the words."""
    assert answer.status_code == status, answer.text
    error = language.check_error(answer.json())
    for word in words:
        assert word in json.dumps(error), error
    return error


def fine(on):
    """Another episode is served."""
    session = on.open()
    for language in LANGUAGES:
        assert ask(session.endpoint("b"), language, language.plain).status_code == 200
    session.close()


def long(language, text):
    """A request with so much to read."""
    name = {COMPLETIONS.path: "prompt", RESPONSES.path: "input", INPUT_TOKENS.path: "input"}.get(language.path)
    told = {name: text} if name else {"messages": [{"role": "user", "content": text}]}
    return {**language.plain, **told}


@every
def test_who_asks_wrongly_is_told_so(on, endpoint, language):
    for body in (b"", b"{", b"[]", b"\xff", b"{" * 50_000, b'{"model": "\\ud800"}'):
        refused(language, ask(endpoint, language, body), 400, "invalid_json")
    refused(language, ask(endpoint, language, language.plain, key="0" * 32), 401, "authentication_error")
    bare = HTTP.post(language.url(endpoint), json=language.plain, headers={"anthropic-version": "1"})
    assert bare.status_code == 401
    refused(language, ask(endpoint, language, {**language.plain, "bogus": 1}), 400, "bogus")
    with limit_bodies(1000):
        refused(language, ask(endpoint, language, long(language, "x" * 2000)), 413)
    session = on.open()
    ended = session.endpoint("a")
    session.close()
    refused(language, ask(ended, language, language.plain), 410, "ended")
    fine(on)


@replying
def test_a_prompt_that_does_not_fit_samples_nothing(on, language):
    session = on.open()
    error = refused(language, ask(session.endpoint("a"), language, long(language, "word " * 900)), 400)
    assert "400 tokens" in error["message"]
    assert not session.close().calls


@pytest.mark.parametrize(
    ("language", "tool"),
    [
        (CHAT, {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}),
        (RESPONSES, {"type": "function", "name": "f", "parameters": {"type": "string"}}),
        (INPUT_TOKENS, {"type": "function", "name": "f", "parameters": {"properties": 3}}),
        (MESSAGES, {"name": "f", "input_schema": {"type": "string"}}),
        (COUNT, {"name": "f", "input_schema": {"required": "a"}}),
    ],
)
def test_a_tool_with_an_invalid_schema(endpoint, language, tool):
    refused(language, ask(endpoint, language, {**language.plain, "tools": [tool]}), 400, "tools[0]")


@pytest.mark.parametrize("language", [CHAT, RESPONSES, INPUT_TOKENS, MESSAGES, COUNT], ids=named)
def test_a_template_that_raises(language):
    strict = "{{ raise_exception('never') if messages[0].content == 'No' else messages[0].content }}"
    renderer = Renderer(variant("smollm2", template=strict))
    with start_gateway(lambda request: "ok", words=renderer, max_model_len=400, max_response_tokens=50) as on:
        session = on.open(sampling=Sampling(8))
        endpoint = session.endpoint("a")
        refused(language, ask(endpoint, language, long(language, "No")), 400, "template_refused", "never")
        assert ask(endpoint, language, long(language, "Yes")).status_code == 200
        session.close()


@replying
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_dies_before_it_said_anything(language, stream):
    replies = iter([ScriptedReply("one two three", fail_after=0)])
    with start_gateway(lambda request: next(replies, "fine")) as on:
        session = on.open()
        answer = ask(session.endpoint("a"), language, {**language.plain, "stream": stream})
        refused(language, answer, 503, "engine failed")
        [call] = session.close().calls
        assert call.finish == "error" and len(call.response_ids) == 0
        fine(on)


@replying
def test_an_engine_that_dies_mid_stream(language):
    heard = threading.Event()

    class Dying(ScriptedEngine):
        async def generate(self, request):
            async for chunk in super().generate(request):
                yield chunk
                if len(chunk.ids) == 2:
                    await asyncio.to_thread(heard.wait, 240)
                    raise EngineFailure("it died")

    renderer = renderer_of_style()
    replies = iter([ScriptedReply("one two three", chunk=2)])
    encode = {"encode": lambda text: renderer.encode(text).tolist(), "end_id": renderer.end_ids[0]}
    with start_gateway(engine=Dying(lambda request: next(replies, "fine"), **encode)) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        sent = {
            "headers": language.headers(endpoint.api_key),
            "json": {**language.plain, "stream": True},
            "timeout": 60,
        }
        with HTTP.stream("POST", language.url(endpoint), **sent) as answer:
            told = answer.iter_text()
            text = next(told)
            heard.set()
            text += "".join(told)
        assert answer.status_code == 200 and language.check_events(text)
        assert "it died" in text.rstrip("\n").rpartition("\n\n")[2]
        [call] = session.close().calls
        assert call.finish == "error" and len(call.response_ids) == 2
        fine(on)


@replying
def test_a_client_that_leaves_midway_frees_the_engine(language):
    class Halting(ScriptedEngine):
        async def generate(self, request):
            async for chunk in super().generate(request):
                yield chunk
                await asyncio.get_running_loop().create_future()

    renderer = renderer_of_style()
    engine = Halting(lambda request: renderer.encode("one two three").tolist(), chunk=3)
    with start_gateway(engine=engine) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        body = {**language.plain, "stream": True}
        with HTTP.stream(
            "POST", language.url(endpoint), headers=language.headers(endpoint.api_key), json=body
        ) as answer:
            assert next(answer.iter_bytes())
        session.wait_until_calls_end()
        assert engine.running == 0 and engine.closed_early == 1
        [call] = session.close().calls
        assert call.finish == "aborted" and len(call.response_ids) == 3


@replying
def test_characters_split_over_tokens_are_never_cut(language):
    text = "né深✓🙂 naïve π"
    with start_gateway(chunk=1) as on:
        ids = [token for letter in text for token in on.renderer.encode(letter).tolist()]
        on.answer_with(lambda request: [*ids, on.renderer.end_ids[0]])
        body = {**language.plain, **({"max_tokens": 99} if language is COMPLETIONS else {}), "stream": True}
        answer = ask(on.open().endpoint("a"), language, body)
        events = language.check_events(answer.text)
        assert ADD_UP[language.path](events)[0] == text
        assert not any("\ufffd" in event.model_dump_json() for event in events)


@replying
def test_a_slow_reader_gets_everything_and_holds_nobody_up(language):
    words = "so " * 300
    with start_gateway(lambda request: words, chunk=1, max_model_len=5000, max_response_tokens=3000) as on:
        session = on.open(sampling=Sampling(3000))
        endpoint = session.endpoint("a")
        host, port = endpoint.base_url.removeprefix("http://").removesuffix("/v1").split(":")
        body = {**language.plain, "stream": True}
        body |= {name: 3000 for name in ("max_tokens",) if language in (COMPLETIONS, MESSAGES)}
        content = json.dumps(body).encode()
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            slow.connect((host, int(port)))
            headers = {**language.headers(endpoint.api_key), "host": "x", "content-length": str(len(content))}
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            slow.sendall(f"POST /v1{language.path} HTTP/1.1\r\n{head}connection: close\r\n\r\n".encode() + content)
            first = slow.recv(64)
            session.wait_until(lambda: session.is_first_call_complete)
            fine(on)
            parts = [first]
            while part := slow.recv(2048):
                parts.append(part)
        raw = b"".join(parts)
        assert raw.startswith(b"HTTP/1.1 200") and raw.endswith(b"0\r\n\r\n")
        text = _dechunked(raw.partition(b"\r\n\r\n")[2]).decode()
        assert ADD_UP[language.path](language.check_events(text))[0].startswith(words.strip())


def _dechunked(data):
    parts = []
    while True:
        size, _, rest = data.partition(b"\r\n")
        count = int(size, 16)
        if not count:
            return b"".join(parts)
        parts.append(rest[:count])
        data = rest[count + 2 :]


@pytest.mark.parametrize("language", [CHAT, MESSAGES], ids=named)
def test_a_body_of_100_megabytes_is_refused_without_being_kept(on, endpoint, language):
    piece = b"x" * (1 << 20)

    def parts():
        yield b'{"model": "'
        for _ in range(100):
            yield piece

    refused(language, ask(endpoint, language, b" " * (100 << 20)), 413)
    sent = {"headers": language.headers(endpoint.api_key)}
    try:
        answer = HTTP.post(language.url(endpoint), content=parts(), **sent)
    except httpx.TransportError:  # refused at 64 MiB and hung up on while it was still sending
        pass
    else:
        refused(language, answer, 413)
    fine(on)


@pytest.mark.parametrize("language", [CHAT, RESPONSES, MESSAGES], ids=named)
def test_ten_thousand_messages_are_read_and_go_on(language):
    name = "input" if language is RESPONSES else "messages"
    turns = [{"role": role, "content": f"{at}"} for at in range(5000) for role in ("user", "assistant")]
    with start_gateway(lambda request: "ok", max_model_len=1 << 20) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        body = {**language.plain, name: [*turns, {"role": "user", "content": "?"}]}
        answered: list[bool] = []

        def others():
            other = on.open().endpoint("b")
            while not done.is_set():
                assert ask(other, CHAT, CHAT.plain).status_code == 200
                answered.append(True)

        done = threading.Event()
        thread = threading.Thread(target=others)
        thread.start()
        try:
            assert ask(endpoint, language, body).status_code == 200
            body[name] = [*body[name], {"role": "assistant", "content": "ok"}, {"role": "user", "content": "more"}]
            assert ask(endpoint, language, body).status_code == 200
        finally:
            done.set()
            thread.join()
        first, second = session.close().calls
        assert second.parent == first.index and second.fork is None and len(second.suffix_ids) < 40
        assert answered, "the others went on"
        assert len(first.messages) == 10_001
