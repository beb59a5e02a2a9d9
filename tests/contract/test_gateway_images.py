"""Images: a model behind a chat engine is shown them in every dialect; a text model refuses them by their place."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from ajet.engine.contract import Sampling
from ajet.engine.scripted import ScriptedChat
from ajet.gateway import Gateway
from ajet.schema.endpoint import Endpoint
from tests.gateway_fixtures import bench

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
URL, LINK = f"data:image/png;base64,{PNG}", "https://example.org/cat.jpg"
TEXT = {"type": "text", "text": "What is this?"}
SHOWN = [TEXT, {"type": "image_url", "image_url": {"url": URL}}, {"type": "image_url", "image_url": {"url": LINK}}]


def chat(endpoint: Endpoint, stream: bool) -> None:
    with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as client:
        reply = client.chat.completions.create(model="m", messages=[{"role": "user", "content": SHOWN}], stream=stream)
        _ = list(reply) if stream else reply


def responses(endpoint: Endpoint, stream: bool) -> None:
    content: list[Any] = [
        {"type": "input_text", "text": TEXT["text"]},
        {"type": "input_image", "image_url": URL, "detail": "auto"},
        {"type": "input_image", "image_url": LINK, "detail": "auto"},
    ]
    with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as client:
        reply = client.responses.create(model="m", input=[{"role": "user", "content": content}], stream=stream)
        _ = list(reply) if stream else reply


def messages(endpoint: Endpoint, stream: bool) -> None:
    content: list[Any] = [
        TEXT,
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {"type": "image", "source": {"type": "url", "url": LINK}},
    ]
    root = endpoint.base_url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=root, api_key=endpoint.api_key, max_retries=0) as client:
        reply = client.messages.create(
            model="m", max_tokens=8, messages=[{"role": "user", "content": content}], stream=stream
        )
        _ = list(reply) if stream else reply


CLIENTS = pytest.mark.parametrize("ask", [chat, responses, messages])


@CLIENTS
@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_sees_is_shown_them(ask: Callable[[Endpoint, bool], None], stream: bool) -> None:
    engine = ScriptedChat(["A cat."])
    gateway = Gateway(engine, None, max_model_len=100, max_response_tokens=10).start()
    try:
        session = gateway.open("episode", key=(0, 0, 0), sampling=Sampling(10), trainable=None)
        ask(session("a", "a", None), stream)
        capture = session.close()
    finally:
        gateway.close()
    (sent,) = engine.requests
    got = sent["messages"][0]["content"]
    assert got[0] == TEXT and [part["image_url"]["url"] for part in got[1:]] == [URL, LINK]
    assert capture.messages[0]["content"] == got and not capture.calls[0].trained


@CLIENTS
@pytest.mark.parametrize("stream", [False, True])
def test_a_text_model_refuses_them_by_their_place(ask: Callable[[Endpoint, bool], None], stream: bool) -> None:
    with bench(["never said"]) as on:
        session = on.open()
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as caught:
            ask(session("a", "a", None), stream)
        place = "input[0].content[1].type" if ask is responses else "messages[0].content[1].type"
        assert f"'{place}': this is a text model, it cannot take images" in str(caught.value)
        assert session.close().calls == [] and on.engine.requests == 0
