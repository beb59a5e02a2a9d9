"""Odd requests to the front of an environment."""

import asyncio
import json

import httpx

from ajet_environments.front import Front, FrontEpisodes, build_front
from ajet_environments.front.app import AccessRule
from tests.support.hostile_requests import objects

JSON = {"content-type": "application/json"}


def ask(*requests):
    """The replies to POST requests (path, body, headers) of a front without servers."""

    async def run():
        front = Front("shop", FrontEpisodes((), capacity=1, idle=60.0), AccessRule(), {})
        transport = httpx.ASGITransport(build_front(front))
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
            return [
                await client.post(path, content=body, headers={**JSON, **headers}) for path, body, headers in requests
            ]

    return asyncio.run(run())


def test_origin_that_is_no_url_is_refused():
    origins = ("http://[", "http://[::1", "null", "//", "http://front.example")
    assert {each.status_code for each in ask(*(("/mcp", b"{}", {"origin": origin}) for origin in origins))} == {403}


def test_lone_surrogates_are_answered():
    odd = "\ud800"
    messages = [
        {"jsonrpc": "2.0", "id": odd, "method": "ping"},
        {"jsonrpc": "2.0", "id": 1, "method": odd},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": odd}},
    ]
    replies = ask(*(("/mcp", json.dumps(each).encode(), {}) for each in messages))
    assert [each.status_code < 500 and set(each.json()) >= {"jsonrpc", "id"} for each in replies] == [True] * 3
    [created] = ask(("/episodes", json.dumps({"servers": [odd]}).encode(), {}))
    assert created.status_code == 400


def test_request_of_many_values_is_refused():
    assert [each.status_code for each in ask(("/mcp", objects(3 << 20), {}))] == [400]
