"""Responses: what a client may rely on, in every way in which the protocol carries a conversation on; and what the
capture then holds."""

import asyncio
import json

import httpx
import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent

from ajet.schema.call import full_ids, prompt_ids
from tests.support.gateways import (
    ADD,
    Sampling,
    ScriptedChat,
    ScriptedEngine,
    ScriptedReply,
    client_of,
    spelled_out,
    start_gateway,
    timelines,
)

pytestmark = pytest.mark.slow

WAYS = ["in-process", "socket", "sync"]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TOOL = {"type": "function", "strict": False, **ADD["function"]}
SYSTEM = "Be brief."


async def respond(endpoint, way="in-process", **fields):
    """One response by an unmodified client; with stream=True (events, the response that the last of them holds)."""
    if way == "sync":
        with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as client:
            answer = client.responses.create(model="m", **fields)
            return list(answer) if fields.get("stream") else answer
    async with client_of(endpoint, in_process=way == "in-process") as client:
        answer = await client.responses.create(model="m", **fields)
        return [event async for event in answer] if fields.get("stream") else answer


def final(answer):
    return answer[-1].response if isinstance(answer, list) else answer


def scripted(on, *replies):
    script = iter(replies)
    on.answer_with(lambda request: next(script))


def as_given(response):
    return [item.model_dump(exclude_none=True) for item in response.output]


def without_ids(response):
    return [{k: v for k, v in item.items() if k not in ("id", "status")} for item in as_given(response)]


def as_references(response):
    return [{"type": "item_reference", "id": item.id} for item in response.output]


CARRIED = {"previous": None, "items": as_given, "items without ids": without_ids, "references": as_references}


@pytest.mark.parametrize("carried", CARRIED)
@pytest.mark.parametrize(
    ("way", "stream"), [(way, stream) for way in WAYS for stream in (False, True)]
)  # fmt: skip
def test_a_conversation_with_tools_is_one_line_of_sampled_tokens(way, stream, carried):
    with start_gateway(chunk=3) as on:
        replies = [spelled_out(on, text) for text in ("I add é深. " + CALL + "\n" + CALL, "3.", "Bye.")]
        scripted(on, *replies)
        session = on.open()
        endpoint = session.endpoint("agent")
        shared = {"tools": [TOOL], "instructions": SYSTEM, "stream": stream}

        async def agent():
            history, responses = [{"role": "user", "content": "What is 1 + 2?"}], []
            new = history
            for turn in range(3):
                state = {"previous_response_id": responses[-1].id} if responses and carried == "previous" else {}
                response = final(await respond(endpoint, way, input=new if state else history, **state, **shared))
                responses.append(response)
                calls = [item for item in response.output if item.type == "function_call"]
                new = [{"type": "function_call_output", "call_id": call.call_id, "output": "3"} for call in calls]
                new = new or [{"role": "user", "content": "Thanks."}]
                history = [*history, *(CARRIED[carried] or as_given)(response), *new]
                assert len(calls) == (2 if turn == 0 else 0)
            return responses

        responses = asyncio.run(agent())
        assert [response.output_text for response in responses] == ["I add é深.", "3.", "Bye."]
        capture = session.close()
        calls = capture.calls
        assert [(call.parent, call.fork) for call in calls] == [(None, None), (0, None), (1, None)]
        lines, untrained = timelines(calls)
        assert len(lines) == 1 and not untrained
        assert lines[0].ids[lines[0].mask].tolist() == [token for reply in replies for token in reply.ids]
        for call, response in zip(calls, responses, strict=True):
            usage = response.usage
            assert usage.output_tokens == len(call.response_ids)
            assert usage.input_tokens == len(prompt_ids(calls, call.index))
            assert usage.total_tokens == usage.input_tokens + usage.output_tokens
            assert response.status == "completed" and response.error is None
        roles = [capture.messages[index]["role"] for index in calls[2].messages]
        assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "user"]
        expected = on.renderer.render([capture.messages[index] for index in calls[0].messages], [ADD])
        assert calls[0].suffix_ids.tolist() == expected.ids.tolist(), "the prompt that Chat Completions would get"


def test_a_stream_tells_of_each_item_in_order_and_adds_up_to_the_whole():
    reply = "<think>\nHm é.\n</think>\n\nI add." + CALL + CALL
    with start_gateway(lambda request: reply, style="qwen3", chunk=1) as on:
        endpoint = on.open().endpoint("agent")
        asked = {"input": "What?", "tools": [TOOL]}
        events = asyncio.run(respond(endpoint, stream=True, **asked))
        whole = asyncio.run(respond(endpoint, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    shape = [kind for at, kind in enumerate(kinds) if not (kind.endswith("delta") and kinds[at - 1] == kind)]
    called = [
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
    ]  # fmt: skip
    assert shape == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done",
        *called, *called, "completed",
    ]  # fmt: skip
    assert kinds.count("output_text.delta") > 2
    streamed = final(events)
    opened = {event.output_index: event.item.id for event in events if event.type == "response.output_item.added"}
    assert opened == {index: item.id for index, item in enumerate(streamed.output)}
    for event in events:
        if hasattr(event, "item_id"):
            assert event.item_id == opened[event.output_index]
    for index, item in enumerate(streamed.output):
        text = "".join(e.delta for e in events if e.type.endswith("delta") and e.output_index == index)
        told = item.arguments if item.type == "function_call" else item.content[0].text
        assert text == told
    assert [[(k, v) for k, v in item.items() if k not in ("id", "call_id")] for item in as_given(streamed)] == [
        [(k, v) for k, v in item.items() if k not in ("id", "call_id")] for item in as_given(whole)
    ]
    assert streamed.usage == whole.usage and 0 < whole.usage.output_tokens_details.reasoning_tokens < 20


def test_what_is_sent_is_of_the_clients_types():
    """Clients build their types unchecked; here they are checked, down to the last field."""
    reply = "<think>\nHm é.\n</think>\n\nI add." + CALL
    asked = {
        "input": "x", "model": "m", "tools": [TOOL], "tool_choice": "auto", "reasoning": {"summary": "auto"},
        "include": ["message.output_text.logprobs"], "top_logprobs": 1, "metadata": {"a": "b"},
    }  # fmt: skip
    with start_gateway(lambda request: reply, style="qwen3", chunk=1) as on:
        endpoint = on.open().endpoint("agent")
        url, headers = f"{endpoint.base_url}/responses", {"authorization": f"Bearer {endpoint.api_key}"}
        whole = httpx.post(url, json=asked, headers=headers)
        events = httpx.post(url, json={**asked, "stream": True}, headers=headers)
    assert Response.model_validate_json(whole.text, strict=True).output_text == "I add."
    assert events.headers["content-type"] == "text/event-stream; charset=utf-8"
    adapter = pydantic.TypeAdapter(ResponseStreamEvent)
    for event in events.text.strip().split("\n\n"):
        name, data = event.split("\n")
        checked = adapter.validate_json(data.removeprefix("data: "), strict=True)
        assert name == f"event: {checked.type}"


@pytest.mark.parametrize("way", ["async", "sync"])
def test_the_clients_own_stream_helper_follows(way):
    class Sum(pydantic.BaseModel):
        total: int

    with start_gateway(lambda request: '{"total": 3}', chunk=1) as on:
        endpoint = on.open().endpoint("agent")

        def check(events, response):
            assert events[-1].type == "response.completed" and response.output_parsed == Sum(total=3)
            assert [e.snapshot for e in events if e.type == "response.output_text.delta"][-1] == '{"total": 3}'

        async def asynchronously():
            async with (
                client_of(endpoint) as client,
                client.responses.stream(model="m", input="1 + 2", text_format=Sum) as stream,
            ):
                check([event async for event in stream], await stream.get_final_response())

        if way == "async":
            asyncio.run(asynchronously())
            return
        with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as client:
            with client.responses.stream(model="m", input="1 + 2", text_format=Sum) as stream:
                check(list(stream), stream.get_final_response())
            assert client.responses.parse(model="m", input="1 + 2", text_format=Sum).output_parsed == Sum(total=3)


def test_a_reply_that_is_not_the_json_asked_for_is_no_reply():
    with start_gateway(lambda request: "three") as on:
        endpoint = on.open().endpoint("agent")
        with pytest.raises(openai.APIStatusError) as refused:
            asyncio.run(respond(endpoint, input="x", text={"format": {"type": "json_object"}}))
        assert refused.value.param == "text.format"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sent", ["open", "sealed", "summary", "left out"])
def test_reasoning_comes_back_in_any_form(stream, sent):
    with start_gateway(style="qwen3", chunk=4) as on:
        scripted(on, spelled_out(on, "<think>\nHm é.\n</think>\n\n" + CALL), "3.")
        session = on.open()
        endpoint = session.endpoint("agent")
        asked = {"tools": [TOOL], "store": False, "stream": stream, "include": ["reasoning.encrypted_content"],
                 "reasoning": {"summary": "auto"}}  # fmt: skip

        async def agent():
            answer = await respond(endpoint, input="What?", **asked)
            first = final(answer)
            reasoning, call = as_given(first)
            assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm é."}]
            assert reasoning["summary"] == [{"type": "summary_text", "text": "Hm é."}]
            if stream:
                kinds = [event.type for event in answer if "summary" in event.type]
                assert kinds[:2] == ["response.reasoning_summary_part.added", "response.reasoning_summary_text.delta"]
                assert kinds[-2:] == ["response.reasoning_summary_text.done", "response.reasoning_summary_part.done"]
            if sent in ("sealed", "summary"):
                del reasoning["content"]
            if sent == "sealed":
                reasoning["summary"] = []
            if sent == "summary":
                del reasoning["encrypted_content"]
            back = [] if sent == "left out" else [reasoning]
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "3"}
            await respond(endpoint, input=[{"role": "user", "content": "What?"}, *back, call, result], **asked)

        asyncio.run(agent())
        calls = session.close().calls
        assert (calls[1].parent, calls[1].prefix, calls[1].fork) == (0, len(full_ids(calls, 0)), None)


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_was_cut_is_incomplete_and_can_be_gone_on_with(stream):
    with start_gateway(["one two three", "ok"], chunk=1) as on:
        session = on.open()
        endpoint = session.endpoint("agent")

        async def agent():
            answer = await respond(endpoint, input="Count.", max_output_tokens=3, stream=stream)
            if stream:
                assert answer[-1].type == "response.incomplete"
            response = final(answer)
            assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
            assert response.output[-1].status == "incomplete" and response.usage.output_tokens == 3
            await respond(endpoint, input="Go on.", previous_response_id=response.id, stream=stream)

        asyncio.run(agent())
        first, second = session.close().calls
        assert first.finish == "length" and (second.parent, second.fork) == (0, None)
        assert second.suffix_ids[0] == on.renderer.end_ids[0]


class Halting(ScriptedEngine):
    """Waits after its first chunk until `gate` is set, where `halts`."""

    halts = False

    async def generate(self, request):
        self.gate = asyncio.Event()
        async for chunk in super().generate(request):
            yield chunk
            if self.halts:
                await self.gate.wait()


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_dies_fails_the_response(stream):
    engine = Halting([ScriptedReply(ids=[67, 68, 69, 70], fail_after=3)], chunk=1)
    with start_gateway(engine=engine) as on:
        engine.halts = stream
        session = on.open()
        endpoint = session.endpoint("agent")

        async def agent():
            async with client_of(endpoint) as client:
                if not stream:
                    with pytest.raises(openai.InternalServerError, match="fails after 3 tokens"):
                        await client.responses.create(model="m", input="x")
                    return
                events = []
                async for event in await client.responses.create(model="m", input="x", stream=True):
                    events.append(event)
                    on.set_on_loop(engine.gate)
                failed = events[-1]
                assert failed.type == "response.failed" and failed.sequence_number == len(events) - 1
                assert "fails after 3 tokens" in failed.response.error.message
                told = "".join(event.delta for event in events if event.type == "response.output_text.delta")
                assert told and failed.response.output_text == told
                assert (await client.responses.retrieve(failed.response.id)).status == "failed"
                with pytest.raises(openai.BadRequestError) as refused:
                    await client.responses.create(model="m", input="y", previous_response_id=failed.response.id)
                assert refused.value.param == "previous_response_id"

        asyncio.run(agent())
        assert session.close().calls[0].finish == "error"


def test_kept_responses_can_be_looked_at_listed_and_deleted():
    with start_gateway(lambda request: "ok") as on:
        session, other = on.open(), on.open()
        endpoint, stranger = session.endpoint("agent"), other.endpoint("agent")
        with (
            openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as client,
            openai.OpenAI(base_url=stranger.base_url, api_key=stranger.api_key, max_retries=0) as spy,
        ):
            first = client.responses.create(model="m", input="one", metadata={"a": "b"})
            second = client.responses.create(model="m", input="two", previous_response_id=first.id)
            streamed = list(client.responses.create(model="m", input="3", stream=True))[-1].response
            gone = client.responses.create(model="m", input="four", store=False)
            for response in (first, second, streamed):
                assert client.responses.retrieve(response.id) == response
            assert first.metadata == {"a": "b"} and second.previous_response_id == first.id
            listed = client.responses.input_items.list(second.id, limit=2, order="asc")
            texts = [item.content[0].text for item in listed]
            assert texts == ["one", "ok", "two"], "page by page"
            newest = client.responses.input_items.list(second.id, limit=1)
            assert newest.data[0].content[0].text == "two" and newest.has_more
            for limit in ("0", "101", "00509", "1e1"):
                with pytest.raises(openai.BadRequestError, match="from 1 to 100"):
                    client.responses.input_items.list(second.id, extra_query={"limit": limit})
            client.responses.delete(first.id)
            for response in (first, gone):
                with pytest.raises(openai.NotFoundError):
                    client.responses.retrieve(response.id)
                with pytest.raises(openai.BadRequestError) as refused:
                    client.responses.create(model="m", input="x", previous_response_id=response.id)
                assert refused.value.code == "previous_response_not_found"
            client.responses.create(model="m", input="five", previous_response_id=second.id)
            for request in (spy.responses.retrieve, spy.responses.delete, spy.responses.cancel):
                with pytest.raises(openai.NotFoundError):
                    request(second.id)
            with pytest.raises(openai.BadRequestError):
                client.responses.cancel(second.id)
            session.close()
            with pytest.raises(openai.APIStatusError) as ended:
                client.responses.retrieve(second.id)
            assert ended.value.status_code == 410
        calls = session.close().calls
        assert calls[4].parent == 1 and calls[4].fork is None, "what a deleted response began goes on"


def test_the_items_of_a_conversation_are_held_once():
    with start_gateway(lambda request: "ok") as on:
        session = on.open()
        endpoint = session.endpoint("agent")
        history = [{"role": "user", "content": f"{n}" * 50} for n in range(5)]
        names = [
            asyncio.run(respond(endpoint, input=history[: n + 1], tools=[TOOL])).id for n in range(5)
        ]  # fmt: skip
        stored = session.stored_responses(names)
        assert len({item for items, _ in stored for item in items}) == 5
        assert len({tools for _, tools in stored}) == 1


def test_instructions_are_of_one_response_alone():
    with start_gateway(lambda request: "ok") as on:
        session = on.open()
        endpoint = session.endpoint("agent")

        async def agent():
            first = await respond(endpoint, input="x", instructions="A")
            await respond(endpoint, input="y", instructions="B", previous_response_id=first.id)
            await respond(endpoint, input="z", previous_response_id=first.id)

        asyncio.run(agent())
        capture = session.close()
        said = [[capture.messages[index]["content"] for index in call.messages] for call in capture.calls]
        assert said == [["A", "x"], ["B", "x", "ok", "y"], ["x", "ok", "z"]]


def test_results_may_come_right_behind_their_calls():
    """Some clients put each result behind its call, though one reply made both calls."""
    with start_gateway() as on:
        scripted(on, CALL + "\n" + CALL, "3.", CALL, "6.")
        session = on.open()
        endpoint = session.endpoint("agent")

        async def agent():
            history = [{"role": "user", "content": "x"}]
            for turn in range(4):
                response = await respond(endpoint, input=history, tools=[TOOL], store=False)
                if turn == 1:
                    history += [*as_given(response), {"role": "user", "content": "y"}]
                    continue
                for item in as_given(response):
                    history.append(item)
                    if item["type"] == "function_call":
                        history.append({"type": "function_call_output", "call_id": item["call_id"], "output": "3"})

        asyncio.run(agent())
        capture = session.close()
        assert [(call.parent, call.fork) for call in capture.calls] == [(None, None), (0, None), (1, None), (2, None)]


@pytest.mark.parametrize("stream", [False, True])
def test_functions_of_a_namespace_have_one_name_for_the_model_and_two_for_the_client(stream):
    called = '<tool_call>\n{"name": "sums__add", "arguments": {"a": 1}}\n</tool_call>'
    spaced = {"type": "namespace", "name": "sums", "description": "Sums.", "tools": [{**TOOL, "description": "Adds."}]}
    with start_gateway() as on:
        scripted(on, spelled_out(on, called), "3.")
        session = on.open()
        endpoint = session.endpoint("agent")

        async def agent():
            asked = {"tools": [spaced, TOOL], "stream": stream}
            first = final(await respond(endpoint, input="x", **asked))
            call = first.output[0]
            assert (call.namespace, call.name, call.arguments) == ("sums", "add", '{"a": 1}')
            assert first.tools[0].type == "namespace"
            result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
            await respond(endpoint, input=[MESSAGE, *as_given(first), result], **asked)

        asyncio.run(agent())
        capture = session.close()
        assert [(call.parent, call.fork) for call in capture.calls] == [(None, None), (0, None)]
        functions = [tool["function"] for tool in capture.tools[0]]
        assert [function["name"] for function in functions] == ["sums__add", "add"]
        assert functions[0]["description"] == "Sums.\n\nAdds."


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_the_captured_ones(stream):
    with start_gateway(["Ok 深."], chunk=1) as on:
        session = on.open()
        asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "stream": stream}
        answer = asyncio.run(respond(session.endpoint("agent"), input="x", **asked))
        told = final(answer).output[0].content[0].logprobs
        call = session.close().calls[0]
        assert [entry.logprob for entry in told] == call.logprobs_unit.tolist()
        assert all(len(entry.top_logprobs) == 2 for entry in told)
        if stream:
            deltas = [
                entry for event in answer if event.type == "response.output_text.delta" for entry in event.logprobs
            ]
            assert [entry.logprob for entry in deltas] == [entry.logprob for entry in told][: len(deltas)]
            assert len(deltas) >= len(told) - 1


def test_input_tokens_are_those_that_the_request_would_have():
    with start_gateway(lambda request: "ok") as on:
        session = on.open()
        endpoint = session.endpoint("agent")
        asked = {"input": "What?", "instructions": SYSTEM, "tools": [TOOL]}
        with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as client:
            counted = client.responses.input_tokens.count(model="m", **asked).input_tokens
            assert counted == client.responses.create(model="m", **asked).usage.input_tokens
        assert len(session.close().calls) == 1


MESSAGE = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,A"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].image_url"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type"),
        ({"input": [MESSAGE, {"type": "function_call", "name": "f", "arguments": {}, "call_id": "c"}]},
         "input[1].arguments"),
        ({"input": [MESSAGE, {"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[1].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}]}, "input[0].encrypted_content"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "ajet:é"}]},
         "input[0].encrypted_content"),
        ({"input": "x" * 3000}, "input"),
        ({"input": "x", "instructions": 3}, "instructions"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "conversation": "c"}, "conversation"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "truncation": "auto"}, "truncation"),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt"),
        ({"input": "x", "messages": [MESSAGE]}, "messages"),
        ({"input": "x", "include": ["everything"]}, "include[0]"),
        ({"input": "x", "reasoning": {"effort": 3}}, "reasoning.effort"),
        ({"input": "x", "reasoning": {"summary": "concise"}}, "reasoning.summary"),
        ({"input": "x", "text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": 3}}}, "text.format.schema"),
        ({"input": "x", "text": {"verbosity": 3}}, "text.verbosity"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "x", "tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools"),
        ({"input": "x", "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]},
         "tools[0].tools[0].type"),
        ({"input": "x", "tools": [TOOL, {**TOOL, "name": "n__add"}, {"type": "namespace", "name": "n",
                                                                    "tools": [TOOL]}]}, "tools"),
        ({"input": "x", "tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"input": "x", "tools": [{**TOOL, "parameters": {"type": "array"}}]}, "tools[0].parameters.type"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": "x", "tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        ({"input": "x", "tools": [TOOL], "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "top_logprobs": 21}, "top_logprobs"),
        ({"input": "x", "stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"input": "x", "metadata": "m"}, "metadata"),
        ({"input": "x", "store": "no"}, "store"),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_honoured_is_named(endpoint, fields, param):
    headers = {"authorization": f"Bearer {endpoint.api_key}"}
    answer = httpx.post(f"{endpoint.base_url}/responses", json={"model": "m", **fields}, headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param) and error["message"]


@pytest.fixture(scope="module")
def endpoint():
    with start_gateway(lambda request: "ok") as on:
        yield on.open().endpoint("agent")


def test_an_unknown_item_cannot_be_referred_to(endpoint):
    with pytest.raises(openai.NotFoundError) as refused:
        asyncio.run(respond(endpoint, input=[{"type": "item_reference", "id": "msg_1"}]))
    assert refused.value.param == "input[0].id"


def test_fields_that_ask_for_nothing_are_let_be(endpoint):
    harmless = {
        "user": "u", "metadata": {"a": "b"}, "service_tier": "auto", "truncation": "disabled", "background": False,
        "prompt_cache_key": "k", "safety_identifier": "s", "include": ["web_search_call.action.sources"],
        "text": {"format": {"type": "text"}}, "reasoning": {"effort": None}, "max_tool_calls": 3, "tools": [],
        "tool_choice": "none", "conversation": None, "top_logprobs": 0,
    }  # fmt: skip
    response = asyncio.run(respond(endpoint, input="x", extra_body=harmless))
    assert response.output_text == "ok" and response.output[0].content[0].logprobs == []


@pytest.mark.parametrize(
    ("choice", "prompted"),
    [
        ("auto", ""),
        ("none", ""),
        ("required", '<tool_call>\n{"name": "'),
        ({"type": "function", "name": "add"}, '<tool_call>\n{"name": "add", "arguments": '),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]}, ""),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]},
         '<tool_call>\n{"name": "'),
    ],
)  # fmt: skip
def test_tool_choices_are_those_of_chat(choice, prompted):
    with start_gateway(lambda request: "ok") as on:
        session = on.open()
        response = asyncio.run(respond(session.endpoint("a"), input="x", tools=[TOOL], tool_choice=choice))
        assert json.loads(response.model_dump_json())["tool_choice"] == choice
        text = on.renderer.decode(session.close().calls[0].suffix_ids)
        assert text.endswith("<|im_start|>assistant\n" + prompted)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_model_answers_in_items_too(stream):
    call = {"id": "call_x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    engine = ScriptedChat([{"role": "assistant", "content": "Hm.", "tool_calls": [call]}])
    with start_gateway(engine=engine, max_model_len=100, max_response_tokens=10) as on:
        session = on.open(sampling=Sampling(10))
        asked = {"input": "x", "tools": [TOOL], "reasoning": {"effort": "low"}, "stream": stream}
        asked["text"] = {
            "verbosity": "low",
            "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}},
        }
        response = final(asyncio.run(respond(session.endpoint("a"), **asked)))
        assert [item.type for item in response.output] == ["message", "function_call"]
        assert (response.output[1].call_id, response.output[1].arguments) == ("call_x", '{"a": 1}')
        sent = engine.requests[0]
        assert sent["reasoning_effort"] == "low" and sent["verbosity"] == "low"
        assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_text_after_a_call_is_an_item_after_it_and_the_same_reply():
    with start_gateway(chunk=1) as on:
        scripted(on, "A." + CALL + "B.", "ok")
        session = on.open()
        endpoint = session.endpoint("agent")

        async def agent():
            first = final(await respond(endpoint, input="x", tools=[TOOL], stream=True))
            assert [item.type for item in first.output] == ["message", "function_call", "message"]
            result = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "3"}
            await respond(endpoint, input=[MESSAGE, *as_given(first), result], tools=[TOOL])

        asyncio.run(agent())
        capture = session.close()
        assert [call.parent for call in capture.calls] == [None, 0]
        reply = capture.messages[capture.calls[1].messages[1]]
        assert reply["content"] == "A.B." and len(reply["tool_calls"]) == 1
