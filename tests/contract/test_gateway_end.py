"""A gateway that is closed while it answers: its clients are told so, and nobody is shown a traceback."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.gateways import ASK, start_gateway
from tests.support.waiting import until


@pytest.mark.parametrize("pace", [0.0, 0.05])
def test_what_is_cut_off_by_the_end_is_said_to_be(caplog, pace):
    """`pace` 0: nothing has been said yet."""
    latency = 60.0 if not pace else 0.0
    with (
        ThreadPoolExecutor() as clients,
        start_gateway(["Three. " * 50] * 3, latency=latency, pace=pace, chunk=1) as made,
    ):
        session = made.open()
        to = session.endpoint("agent")
        streamed: list[bytes] = []

        def ask(path: str, stream: bool, version: dict[str, str]) -> httpx.Response:
            body = {"model": "m", "messages": ASK[1:], "stream": stream, "max_tokens": 400}
            head = {"authorization": f"Bearer {to.api_key}", **version}
            with httpx.stream("POST", f"{to.base_url}/{path}", json=body, headers=head, timeout=60) as reply:
                parts = []
                for part in reply.iter_raw():
                    parts.append(part)
                    streamed.extend([part] if stream else [])
            return httpx.Response(reply.status_code, headers=reply.headers, content=b"".join(parts))

        asks = [("chat/completions", False, {}), ("messages", True, {"anthropic-version": "2023-06-01"})]
        asked = [clients.submit(ask, *each) for each in asks]
        assert until(lambda: session.calls_under_way == 2 and bool(streamed) == bool(pace), seconds=30)
    whole, stream = asked
    assert whole.result().status_code == 503 and whole.result().headers["retry-after"] == "1"
    assert whole.result().json()["error"]["code"] == "ended"
    if pace:
        assert isinstance(stream.exception(), httpx.RemoteProtocolError)
    else:
        assert stream.result().json()["type"] == "error" and stream.result().status_code == 503
    assert not [each for each in caplog.records if "ASGI" in each.getMessage()]
