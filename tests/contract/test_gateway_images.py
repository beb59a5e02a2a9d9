"""Images in every dialect: a chat engine is shown them, a token engine of a model that sees gets them with their ids, a
text model refuses them by their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from ajet.schema.endpoint import Endpoint
from tests.support.gateways import Sampling, ScriptedChat, ScriptedReply, post, seeing_renderer, start_gateway
from tutorial.example_vision.colours import data_url, square

URL, LINK = data_url(square("blue", 28, 42)), "https://example.org/cat.jpg"
PNG = URL.partition(",")[2]
TEXT = {"type": "text", "text": "What is this?"}
Client = Callable[..., None]
"""Asks (endpoint, stream, URL of the second image)."""


def chat(endpoint: Endpoint, stream: bool, link: str = LINK) -> None:
    shown = [TEXT, *[{"type": "image_url", "image_url": {"url": url}} for url in (URL, link)]]
    with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as client:
        reply = client.chat.completions.create(model="m", messages=[{"role": "user", "content": shown}], stream=stream)
        _ = list(reply) if stream else reply


def responses(endpoint: Endpoint, stream: bool, link: str = LINK) -> None:
    content: list[Any] = [
        {"type": "input_text", "text": TEXT["text"]},
        {"type": "input_image", "image_url": URL, "detail": "auto"},
        {"type": "input_image", "image_url": link, "detail": "auto"},
    ]
    with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as client:
        reply = client.responses.create(model="m", input=[{"role": "user", "content": content}], stream=stream)
        _ = list(reply) if stream else reply


def messages(endpoint: Endpoint, stream: bool, link: str = LINK) -> None:
    content: list[Any] = [
        TEXT,
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {"type": "image", "source": {"type": "url", "url": link}},
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
def test_a_model_that_sees_is_shown_them(ask: Client, stream: bool) -> None:
    engine = ScriptedChat(["A cat."])
    with start_gateway(engine=engine, max_model_len=100, max_response_tokens=10) as on:
        session = on.open(sampling=Sampling(10))
        ask(session.endpoint("a"), stream)
        capture = session.close()
    (sent,) = engine.requests
    got = sent["messages"][0]["content"]
    assert got[0] == TEXT and [part["image_url"]["url"] for part in got[1:]] == [URL, LINK]
    assert capture.messages[0]["content"] == got and not capture.calls[0].trained


@CLIENTS
@pytest.mark.parametrize("stream", [False, True])
def test_a_text_model_refuses_them_by_their_place(ask: Client, stream: bool) -> None:
    with start_gateway(["never said"]) as on:
        session = on.open()
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as caught:
            ask(session.endpoint("a"), stream)
        place = "input[0].content[1].type" if ask is responses else "messages[0].content[1].type"
        assert f"'{place}': this model takes text only" in str(caught.value)
        assert session.close().calls == [] and on.engine.requests == 0


@CLIENTS
@pytest.mark.parametrize("stream", [False, True])
def test_a_token_engine_gets_them_with_the_ids_that_stand_for_them(ask: Client, stream: bool) -> None:
    renderer = seeing_renderer()
    requests = []

    def reply(request: Any) -> ScriptedReply:
        requests.append(request)
        return ScriptedReply("A square.")

    with start_gateway(reply, words=renderer, max_response_tokens=50) as on:
        session = on.open(sampling=Sampling(50))
        ask(session.endpoint("a"), stream, URL)
        capture = session.close()
    (request,), (call,) = requests, capture.calls
    assert request.images == (URL, URL)
    assert request.prompt_ids.tolist() == call.suffix_ids.tolist()
    assert (call.suffix_ids == renderer.images.token_id).sum() == 2 * 6
    assert call.finish == "stop" and call.trained


def test_nothing_is_fetched_for_it() -> None:
    link = {"type": "image_url", "image_url": {"url": LINK}}
    with start_gateway(words=seeing_renderer(), max_model_len=100, max_response_tokens=10) as on:
        session = on.open(sampling=Sampling(10))
        reply = post(session.endpoint("a"), {"model": "m", "messages": [{"role": "user", "content": [TEXT, link]}]})
        assert reply.status_code == 400 and "downloads no images" in reply.text
        assert reply.json()["error"]["param"] == "messages[0].content[1].type"
        assert session.close().calls == []
