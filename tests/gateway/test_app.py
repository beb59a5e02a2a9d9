"""The gateway's application: requests without a valid key."""

from __future__ import annotations

import asyncio

from tests.support.gateways import start_gateway


def test_refusal_of_a_client_that_left_is_no_failure():
    """A client of an ended episode leaves at once, for example at Ctrl-C."""

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        raise OSError("the client has left")

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [], "query_string": b""}
    with start_gateway() as gateway:
        asyncio.run(gateway.asgi_app(scope, receive, send))
