"""How clients and models spell the same thing: numbers as JavaScript writes them, numbers beyond JSON, stop strings."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from ajet.schema.call import prompt_ids
from tests.support.gateways import (
    ADD,
    ASK,
    RunningGateway,
    post,
    prove,
    renderer_of_style,
    spelled_out,
    start_gateway,
    timelines,
)


def called(numbers: str) -> str:
    """A reply that calls the tool with these arguments."""
    return f'<tool_call>\n{{"name": "add", "arguments": {numbers}}}\n</tool_call>'


async def asked(endpoint: Any, messages: list[Any], **more: Any) -> dict[str, Any]:
    """The reply's message, over HTTP."""
    async with httpx.AsyncClient(transport=endpoint.transport()) as http:
        done = await http.post(
            f"{endpoint.base_url}/chat/completions",
            headers={"authorization": f"Bearer {endpoint.api_key}"},
            json={"model": "any", "messages": messages, **more},
        )
    assert done.status_code == 200, done.text

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} reached the client")

    message = json.loads(done.text, parse_constant=refuse)["choices"][0]["message"]
    for each in message.get("tool_calls") or ():
        json.loads(each["function"]["arguments"], parse_constant=refuse)
    return message


@pytest.mark.parametrize(
    "sampled, returned",
    [
        ('{"a": 1.0}', '{"a":1}'),
        ('{"a": 1e5}', '{"a":100000}'),
        ('{"a": -0.0}', '{"a":0}'),
        ('{"a": [2.50, {"b": 1E+2}]}', '{"a":[2.5,{"b":100}]}'),
        ('{"a": 12345678901234567890}', '{"a":12345678901234567000}'),
    ],
)
def test_numbers_as_javascript_spells_them_go_on_from_the_reply(sampled: str, returned: str) -> None:
    async def play(b: RunningGateway) -> Any:
        endpoint = (session := b.open()).endpoint("solver", "")
        said = await asked(endpoint, ASK, tools=[ADD])
        said["tool_calls"][0]["function"]["arguments"] = returned
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "3"}
        await asked(endpoint, [*ASK, said, result], tools=[ADD])
        return session.close()

    with start_gateway(lambda _: next(replies)) as b:
        replies = iter([spelled_out(b, called(sampled)), spelled_out(b, "It is 3.")])
        capture = asyncio.run(play(b))
    assert [call.fork for call in capture.calls] == [None, None]
    assert capture.calls[1].parent == 0
    assert prove(capture.calls, capture.messages, capture.tools, renderer_of_style()).ok


def test_other_numbers_are_other_arguments() -> None:
    async def play(b: RunningGateway) -> Any:
        endpoint = (session := b.open()).endpoint("solver", "")
        said = await asked(endpoint, ASK, tools=[ADD])
        said["tool_calls"][0]["function"]["arguments"] = '{"a": true}'
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "3"}
        await asked(endpoint, [*ASK, said, result], tools=[ADD])
        return session.close()

    with start_gateway(lambda _: next(replies)) as b:
        replies = iter([spelled_out(b, called('{"a": 1}')), spelled_out(b, "It is 3.")])
        assert [call.fork for call in asyncio.run(play(b)).calls] == [None, "client_edit"]


@pytest.mark.parametrize("number", ["1E400", "-1e999", "Infinity", "NaN"])
def test_a_number_that_json_cannot_hold_never_reaches_a_client(number: str) -> None:
    text = called(f'{{"x": {number}}}')

    async def play(b: RunningGateway) -> Any:
        return await asked(b.open().endpoint("solver", ""), ASK, tools=[ADD])

    with start_gateway(lambda _: spelled_out(b, text)) as b:
        said = asyncio.run(play(b))
    assert said["content"] == text and not said.get("tool_calls")


@pytest.mark.parametrize("number", ["1E400", "Infinity", "NaN"])
def test_a_request_with_such_a_number_is_refused(number: str) -> None:
    with start_gateway(["Yes."]) as b:
        body = f'{{"model": "any", "messages": [{{"role": "user", "content": "?"}}], "metadata": {{"x": {number}}}}}'
        done = post(b.open().endpoint("solver", ""), body.encode())
    assert done.status_code == 400 and done.json()["error"]["code"] == "invalid_json", done.text


@pytest.mark.parametrize("put_back, fork", [("", "stop"), ("Observation:", None)])
def test_a_stop_string_forks_as_stop_but_where_it_is_put_back(put_back: str, fork: str | None) -> None:
    async def play(b: RunningGateway) -> Any:
        endpoint = (session := b.open()).endpoint("solver", "")
        said = await asked(endpoint, ASK, stop=["Observation:"])
        assert said["content"] == "Look.\n"
        said["content"] += put_back
        await asked(endpoint, [*ASK, said, {"role": "user", "content": "Observation: 3"}], stop=["Observation:"])
        return session.close()

    with start_gateway(lambda _: next(replies)) as b:
        replies = iter([spelled_out(b, "Look.\nObservation: 4"), spelled_out(b, "It is 3.")])
        capture = asyncio.run(play(b))
    assert [call.fork for call in capture.calls] == [None, fork]
    assert prove(capture.calls, capture.messages, capture.tools, renderer_of_style()).ok


def test_an_observation_within_the_message_that_a_stop_string_cut_goes_on_from_its_ids() -> None:
    """As text agents do: each reply, the stop string and what the tool said are one message."""

    async def play(b: RunningGateway) -> Any:
        endpoint = (session := b.open()).endpoint("solver", "")
        messages = [*ASK]
        for seen in (" 3\nI see <b>é.", "4"):
            said = await asked(endpoint, messages, stop=["Observation:"])
            messages.append({"role": "assistant", "content": said["content"] + "Observation:" + seen})
        await asked(endpoint, [*messages, {"role": "user", "content": "Sum up."}])
        return session.close()

    with start_gateway(lambda _: next(replies)) as b:
        replies = iter(spelled_out(b, text) for text in ("Look.\nObservation: 9", "More.\nObservation: 9", "It is 7."))
        capture = asyncio.run(play(b))
    assert [(call.fork, call.parent) for call in capture.calls] == [(None, None), (None, 0), (None, 1)]
    words = renderer_of_style()
    spoken = [capture.messages[index] for index in capture.calls[2].messages]
    assert words.decode(prompt_ids(capture.calls, 2)) == words.render(spoken).shown
    (line,), untrained = timelines(capture.calls)
    assert (
        not untrained
        and words.decode(line.ids[line.mask]) == "Look.\nObservation:More.\nObservation:It is 7.<|im_end|>"
    )
    assert prove(capture.calls, capture.messages, capture.tools, words).ok


@pytest.mark.parametrize("inside", ["Look. Observation: 3", "Look.\nResult: 3"])
def test_a_message_that_does_not_begin_with_what_was_sampled_is_an_edit(inside: str) -> None:
    async def play(b: RunningGateway) -> Any:
        endpoint = (session := b.open()).endpoint("solver", "")
        await asked(endpoint, ASK, stop=["Observation:"])
        await asked(endpoint, [*ASK, {"role": "assistant", "content": inside}])
        return session.close()

    with start_gateway(lambda _: next(replies)) as b:
        replies = iter([spelled_out(b, "Look.\nObservation: 4"), spelled_out(b, "It is 3.")])
        assert [call.fork for call in asyncio.run(play(b)).calls] == [None, "client_edit"]
