"""Near-valid, broken and hostile requests in every dialect, and replies of every kind: the gateway answers each in the
client's own terms, by the types of the clients' libraries, and goes on."""

import asyncio
import copy
import json
import socket
from contextlib import suppress

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.dialect_fixtures import GEMINI, LANGUAGES, REPLYING, RESPONSES, named
from tests.support.dialect_replies import ADD_UP, SUM
from tests.support.gateways import start_gateway

pytestmark = pytest.mark.slow

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
SAYS = ["It is 3.", CALL, '{"total": 3}', "", "<think>\nhm\n</think>\n\nIs it é深✓?\n" + CALL + CALL]


@pytest.fixture(scope="module", params=["qwen3", "llama3"])
def on(request):
    script = lambda asked: SAYS[len(asked.prompt_ids) % len(SAYS)]  # noqa: E731
    with start_gateway(script, style=request.param, chunk=2, max_model_len=1500, max_response_tokens=60) as made:
        yield made


ODD_TEXTS = [
    "", " ", "\n", "\0", "é深✓🙂", "\ud800", "<|im_end|>", "<|im_start|>system\n", "<tool_call>", "</think>",
    "{{ 7 * 7 }}", "{% raise %}", "__class__", "../..", "x" * 3000, "text", "auto", "none", "user", "assistant",
    "system", "function", "json_schema", "message", "tool_result", "ajet@", "ajet@a:b:c", "null", "-1", "1e999",
]  # fmt: skip
ODD_NUMBERS = [0, -1, 1, 2, 1.5, 10**30, -(10**30), 2**31, 2**63, 1e308, float("nan"), float("inf"), True, False]
SCALARS = st.none() | st.sampled_from(ODD_NUMBERS) | st.sampled_from(ODD_TEXTS) | st.text(max_size=5)
KEYS = ["type", "role", "content", "text", "name", "id", "input", "arguments", "schema", "function", "$ref", "x"]
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)


def places(value, found=None, parent=None, key=None):
    """(container, key) of everything inside a JSON value."""
    found = [] if found is None else found
    if parent is not None:
        found.append((parent, key))
    if isinstance(value, dict):
        for name in value:
            places(value[name], found, value, name)
    elif isinstance(value, list):
        for at, each in enumerate(value):
            places(each, found, value, at)
    return found


@st.composite
def near_valid(draw, language):
    """A request of the language with up to three things changed."""
    bodies = (language.plain, *language.rich)
    body = copy.deepcopy(draw(st.sampled_from(bodies)))
    if language in REPLYING and draw(st.booleans()):
        body["stream"] = True
    elif "stream_options" in body:
        del body["stream_options"]
    for _ in range(draw(st.integers(0, 3))):
        known = places(body)
        if not known:
            break
        parent, key = draw(st.sampled_from(known))
        what = draw(st.sampled_from(["replace", "graft", "delete", "repeat", "add"]))
        if what == "replace":
            parent[key] = draw(VALUES)
        elif what == "graft":
            other, at = draw(st.sampled_from(places(draw(st.sampled_from(bodies)))))
            parent[key] = copy.deepcopy(other[at])
        elif what == "delete":
            del parent[key]
        elif what == "repeat" and isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        elif isinstance(parent, dict):
            parent[draw(st.sampled_from(KEYS) | st.text(max_size=4))] = draw(VALUES)
    return body


def ask(endpoint, language, content, **headers):
    """One request, in process."""

    async def send():
        async with httpx.AsyncClient(transport=endpoint.transport()) as client:
            sent = {**language.headers(endpoint.api_key), **headers}
            return await client.post(language.url(endpoint), content=content, headers=sent, timeout=30)

    return asyncio.run(send())


def settled(session, statuses=("stop", "length", "tool_calls", "aborted")):
    """The calls of a session that has ended, found in order."""
    capture = session.close()
    for call in capture.calls:
        assert call.finish in statuses, call.error
        assert len(call.response_ids) == len(call.logprobs) == len(call.logprobs_unit)
        if call.finish == "aborted":
            assert call.rejected, "only what breaks a schema may be dropped here"
    return capture.calls


def check(language, answer):
    """Whatever was asked: a good reply, or a refusal that blames the client; never our own mistake."""
    if answer.status_code != 200:
        assert 400 <= answer.status_code < 500, answer.text
        language.check_error(answer.json())
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert language.check_events(answer.text)
    else:
        language.check_reply(answer.json())


FUZZ = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("language", LANGUAGES, ids=named)
@FUZZ
@given(st.data())
def test_near_valid_requests_are_answered_or_refused(on, language, data):
    body = data.draw(near_valid(language))
    session = on.open()
    answer = ask(session.endpoint("a"), language, json.dumps(body))
    calls = settled(session)
    check(language, answer)
    told = [call for call in calls if call.rejected is None]
    if answer.status_code == 200:
        assert len(told) == replies_of(language, body)
    elif not isinstance(body.get("prompt"), list):  # of several prompts, some may be good
        assert not told, "a refused request is told nothing"


@FUZZ
@given(st.data())
def test_near_valid_requests_of_gemini_are_answered_or_refused(on, data):
    session = on.open()
    answer = ask(session.endpoint("a"), GEMINI, json.dumps(data.draw(near_valid(GEMINI))))
    told = [call for call in settled(session) if call.rejected is None]
    check(GEMINI, answer)
    assert bool(told) == (answer.status_code == 200)


def replies_of(language, body):
    """How many replies a good request asks for."""
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and not all(isinstance(token, int) for token in prompt)
    return (len(prompt) if several else 1) * (body.get("n") or 1) if language in REPLYING else 0


@pytest.mark.parametrize("language", LANGUAGES, ids=named)
def test_the_requests_that_fuzzing_begins_with_are_good(on, language):
    for body in (language.plain, *language.rich):
        for stream in [False, True] if language in REPLYING else [False]:
            body = {name: value for name, value in body.items() if stream or name != "stream_options"}
            session = on.open()
            answer = ask(session.endpoint("a"), language, json.dumps({**body, "stream": True} if stream else body))
            settled(session)
            check(language, answer)
            constrained = {"response_format", "text", "output_config"} & set(body)
            no_room = "tools" in body and answer.status_code == 400 and "tool_choice" in answer.text
            assert answer.status_code in ((200, 422) if constrained else (200,)) or no_room, answer.text


@pytest.mark.parametrize("language", LANGUAGES, ids=named)
@FUZZ
@given(st.data())
def test_bytes_that_are_no_request_are_refused(on, language, data):
    whole = json.dumps(data.draw(st.sampled_from((language.plain, *language.rich)))).encode()
    cut = data.draw(st.integers(0, len(whole)))
    upto = data.draw(st.integers(cut, min(len(whole), cut + 5)))
    content = whole[:cut] + data.draw(st.binary(max_size=5)) + whole[upto:]
    session = on.open()
    answer = ask(session.endpoint("a"), language, content)
    settled(session)
    check(language, answer)


NAMES = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=6) | st.sampled_from(
    ["a", "a:b", "x" * 200]
)


@pytest.mark.parametrize("language", REPLYING, ids=named)
@settings(FUZZ, max_examples=20)
@given(st.data())
def test_names_in_headers_models_and_paths_are_taken_or_refused(on, language, data):
    session = on.open()
    endpoint = session.endpoint("a")
    names = ("x-ajet-agent", "x-ajet-target", "idempotency-key", "x-stainless-retry-count")
    headers = {name: data.draw(NAMES).strip() for name in data.draw(st.sets(st.sampled_from(names)))}
    headers = {name: value.encode("latin-1") for name, value in headers.items()}
    body = {**language.plain, "model": "ajet@" + data.draw(NAMES)}
    answer = ask(endpoint, language, json.dumps(body), **headers)
    calls = settled(session)
    check(language, answer)
    assert len(calls) == (answer.status_code == 200)


PARTS = st.sampled_from([
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "\n", " ", "so", "é深✓🙂", "{", "}", '"',
    CALL, '{"name": "add", "parameters": {"a": 1}}', '{"name": "add", "arguments": ', '{"a": "\\ud83d"}', "; ", "[1]",
])  # fmt: skip


@pytest.mark.parametrize("language", REPLYING, ids=named)
@FUZZ
@given(st.data())
def test_whatever_a_model_says_its_stream_says_what_the_whole_says(on, language, data):
    said = "".join(data.draw(st.lists(PARTS | st.text(max_size=3), max_size=7))).encode("utf-8", "ignore").decode()
    ids = on.renderer.encode(said).tolist()
    ended = data.draw(st.booleans())
    step = data.draw(st.integers(1, 4))
    tools = next((body["tools"] for body in language.rich if body.get("tools")), None)
    body = {**language.plain, **({"tools": tools} if tools and data.draw(st.booleans()) else {})}
    if language.anthropic and data.draw(st.booleans()):
        body["thinking"] = {"type": "adaptive"}
    with on.answers(lambda request: [*ids, on.renderer.end_ids[0]] if ended else ids, chunk=step):
        session = on.open()
        endpoint = session.endpoint("a")
        whole = ask(endpoint, language, json.dumps(body))
        streamed = ask(endpoint, language, json.dumps({**body, "stream": True}))
        one, two = settled(session)
    assert whole.status_code == streamed.status_code == 200
    assert one.response_ids.tolist() == two.response_ids.tolist()
    reply, events = language.check_reply(whole.json()), language.check_events(streamed.text)
    assert ADD_UP[language.path](events) == SUM[language.path](reply)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["go on", "refer", "get", "items", "delete", "cancel", "odd"]), st.integers(0, 3), st.booleans()
    ),
    max_size=8,
)


@settings(FUZZ, max_examples=30)
@given(STEPS)
def test_kept_responses_survive_any_order_of_requests(on, steps):
    session = on.open()
    endpoint = session.endpoint("a")
    kept: dict[str, bool] = {}
    client = httpx.Client(headers=RESPONSES.headers(endpoint.api_key), timeout=30, verify=False)
    with client:
        for what, which, store in [("go on", 0, True), *steps]:
            names = [*kept, "resp_unknown"]
            name = names[which % len(names)]
            url = f"{RESPONSES.url(endpoint)}/{name}"
            alive = kept.get(name, False)
            if what in ("go on", "refer", "odd"):
                body = {**RESPONSES.plain, "store": store}
                if what == "odd":
                    body["previous_response_id"] = ["x", 3, "", name + "x"][which]
                elif kept:
                    body["previous_response_id"] = name
                if what == "refer":
                    body["input"] = [{"type": "item_reference", "id": name.replace("resp_", "msg_")}]
                answer = client.post(RESPONSES.url(endpoint), json=body)
                if answer.status_code == 200:
                    assert what != "odd" and (alive or not kept)
                    kept[RESPONSES.check_reply(answer.json()).id] = store
                elif what == "go on":
                    assert not alive
            elif what == "delete":
                answer = client.delete(url)
                kept.update({name: False} if alive else {})
            elif what == "cancel":
                answer = client.post(url + "/cancel")
                assert answer.status_code != 200
            else:
                answer = client.get(url + ("/input_items" if what == "items" else ""))
            if what in ("get", "items", "delete"):
                assert answer.status_code == (200 if alive else 404), answer.text
            if answer.status_code != 200:
                assert 400 <= answer.status_code < 500
                RESPONSES.check_error(answer.json())
    settled(session)


@pytest.mark.parametrize(
    "noise",
    [
        b"", b"\0" * 100, b"GET", b"GET / HTTP/1.1\r\n", b"POST /v1/messages HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02",
        b"POST /v1/messages HTTP/1.1\r\ncontent-length: -5\r\n\r\n", b"A" * 100_000,
        b"POST /v1/messages HTTP/1.1\r\ncontent-length: 10\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/messages HTTP/1.1\r\ncontent-length: 99999\r\n\r\n{",
        b"GET /s/" + b"%ff%00" * 50 + b"/v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /s//v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=range(13),
)  # fmt: skip
def test_what_is_no_http_at_all_hurts_nobody(on, noise):
    session = on.open()
    endpoint = session.endpoint("a")
    host, port = endpoint.base_url.removeprefix("http://").removesuffix("/v1").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as line, suppress(ConnectionError):  # a reset, at most
        line.sendall(noise)
        with suppress(OSError):  # it is cut off already
            line.shutdown(socket.SHUT_WR)
        while line.recv(4096):
            pass
    for language in LANGUAGES:
        assert ask(endpoint, language, json.dumps(language.plain)).status_code == 200
    settled(session)
