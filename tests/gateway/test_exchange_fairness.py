"""One client's request never keeps the other clients of a server waiting."""

import json
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.support.gateways import ASK, post, start_gateway
from tests.support.hostile_requests import lattice, objects
from tests.support.observed import endpoint, observed
from tests.support.served import start_serving

pytestmark = pytest.mark.slow

REPLY = json.dumps({"choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]}).encode()


def order_of(hostile, other, arrived):
    """Send `other` once `hostile` has arrived; the names in the order in which they were answered."""
    ended = []

    def run():
        hostile()
        ended.append("hostile")

    thread = threading.Thread(target=run)
    thread.start()
    assert arrived.wait(60)
    other()
    ended.append("other")
    thread.join()
    return ended


@pytest.mark.parametrize("kind", ["response_format", "strict tool"])
def test_lattice_schema_does_not_stop_other_clients(kind):
    arrived = threading.Event()
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'

    def reply(request):
        arrived.set()
        return call if kind == "strict tool" else "{}"

    tool = {"type": "function", "function": {"name": "add", "strict": True, "parameters": lattice(26)}}
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": lattice(26)}}
    asked = {"tools": [tool]} if kind == "strict tool" else {"response_format": schema}
    statuses = []
    with start_gateway(reply) as on:
        to = on.open().endpoint("a")

        def hostile():
            statuses.append(post(to, {"model": "m", "messages": ASK, **asked}).status_code)

        order = order_of(hostile, lambda: post(to, {"model": "m", "messages": ASK}).raise_for_status(), arrived)
    assert order == ["other", "hostile"] and statuses == [422]


def in_two_parts(values: bytes) -> tuple[Callable[[], Iterator[bytes]], threading.Event]:
    """A body whose last byte is held back, and the event of all else having been sent."""
    sent = threading.Event()

    def body() -> Iterator[bytes]:
        yield values[:-1]
        sent.set()
        yield values[-1:]

    return body, sent


def test_long_episode_request_does_not_stop_other_clients():
    values = b'{"task": {"main_query": "a", "metadata": {"a": ' + objects(700_000) + b"}}}"
    statuses = []
    with start_serving() as desk:
        desk.client.get("/episodes").raise_for_status()
        body, sent = in_two_parts(values)

        def hostile():
            statuses.append(desk.client.post("/episodes", content=body()).status_code)

        order = order_of(
            hostile, lambda: httpx.get(desk.client.base_url.join("/openapi.json"), headers=desk.client.headers), sent
        )
    assert order == ["other", "hostile"] and statuses == [201]


def test_long_observed_request_does_not_stop_other_clients(tmp_path):
    values = b'{"model": "m", "messages": ' + objects(1_400_000) + b"}"
    with endpoint([REPLY]) as (url, server), observed(url, tmp_path) as proxy:
        body, sent = in_two_parts(values)

        def hostile():
            httpx.post(proxy.url + "/v1/chat/completions", content=body(), timeout=60).raise_for_status()

        order = order_of(hostile, lambda: httpx.get(proxy.url + "/health").raise_for_status(), sent)
    assert order == ["other", "hostile"] and len(server.asked) == 1


@pytest.mark.parametrize("size", [4 << 20, 16 << 20])
def test_chat_request_of_many_values_is_refused(size):
    with start_gateway(lambda request: "yes") as on:
        to = on.open().endpoint("a")
        answer = post(to, b'{"model": "m", "messages": ' + objects(size) + b"}")
        assert answer.status_code == 413 and answer.json()["error"]["code"] == "request_too_large"
        text = "[{,:" * 500_000  # in a string they are no values
        assert post(to, {"model": "m", "messages": ASK, "user": text}).status_code == 200


@pytest.mark.parametrize("path", ["/episodes", "/episodes/any/finish"])
def test_episode_request_of_many_values_is_refused(path):
    with start_serving() as desk:
        answer = desk.client.post(path, content=b'{"metadata": ' + objects(8 << 20) + b"}")
        assert answer.status_code == 413 and answer.json()["error"]["code"] == "request_too_large"


def test_observed_request_of_many_values_is_passed_on(tmp_path):
    body = b'{"model": "m", "messages": ' + objects(8 << 20) + b"}"
    with endpoint([REPLY]) as (url, server), observed(url, tmp_path) as proxy:
        answer = httpx.post(proxy.url + "/v1/chat/completions", content=body, timeout=60)
        assert answer.content == REPLY and server.asked[0][2] == body
    assert len(str(proxy.episodes[0].messages)) < 1 << 20


def test_observe_refuses_pages_of_other_machines(tmp_path):
    foreign = [
        ({"origin": "https://page.example"}, 403),
        ({"origin": "http://["}, 403),
        ({"origin": "null"}, 403),
        ({"host": "page.example"}, 421),
        ({"host": "["}, 421),
        ({"host": "127.0.0.1.page.example:80"}, 421),
        ({"host": "page.example@127.0.0.1"}, 421),
        ({"host": "page.example\\@127.0.0.1"}, 421),
        ({"host": "[::1].page.example"}, 421),
        ({"host": "[::1%25page]"}, 421),
        ({"host": "localhost:page"}, 421),
        ({"host": "127.1"}, 421),
        ({"host": "0.0.0.0"}, 421),
        ({"origin": "http://page.example@localhost"}, 403),
        ({"origin": "http://localhost, https://page.example"}, 403),
        ({"origin": "file://"}, 403),
        ([("origin", "http://localhost"), ("origin", "https://page.example")], 403),
        ([("origin", "https://page.example"), ("origin", "http://localhost")], 403),
    ]
    with endpoint([REPLY]) as (url, server), observed(url, tmp_path) as proxy:
        for path in ("/v1/chat/completions", "/v1/models", "/feedback"):
            for headers, status in foreign:
                assert httpx.post(proxy.url + path, content=b"{}", headers=headers).status_code == status
        own = [
            ("origin", "http://localhost:3000"),
            ("origin", "https://[::1]:1"),
            ("host", "LOCALHOST"),
            ("host", "[::1]:80"),
        ]
        for header in own:
            assert httpx.post(proxy.url + "/v1/models", content=b"{}", headers=[header]).status_code == 200
    assert len(server.asked) == len(own) and not proxy.episodes


def test_observe_passes_no_path_that_leads_out(tmp_path):
    odd = ["%2e%2e%2fadmin", "a/..%2f..%2fadmin", "%252e%252e/admin", "..;/admin", "a%5c..%5cadmin", "a%0d%0ab"]
    odd += ["%25252e%25252e/admin", "%2525252525252e/x", "%c0%ae%c0%ae/admin", "%00"]
    with endpoint([REPLY]) as (url, server), observed(url, tmp_path) as proxy:
        for path in odd:
            assert httpx.post(f"{proxy.url}/v1/{path}", content=b"{}").status_code == 404
    assert not server.asked
