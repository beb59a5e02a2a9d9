"""Agents on Anthropic's Messages: the unmodified clients, each reply as captured, each refusal by name."""

import asyncio
import functools
import json
import operator

import anthropic
import httpx
import pytest
from pydantic import BaseModel

from ajet.schema.call import full_ids, prompt_ids
from tests.support.gateways import (
    ADD,
    ASK,
    Sampling,
    ScriptedChat,
    ScriptedEngine,
    ScriptedReply,
    client_of,
    renderer_of_style,
    spelled_out,
    start_gateway,
)

pytestmark = pytest.mark.slow

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TOOL = {"name": "add", "input_schema": ADD["function"]["parameters"]}
SYSTEM, USER = ASK[0]["content"], [ASK[1]]
WAYS = ["sync", "async", "sync-stream", "async-stream", "helper", "async-helper"]


def root(endpoint):
    return endpoint.base_url.removesuffix("/v1")


def options(endpoint):
    return {"base_url": root(endpoint), "api_key": endpoint.api_key, "max_retries": 0}


def create(endpoint, way="sync", **fields):
    """One message by an unmodified client, streams gathered by what the client library has for that."""
    fields = {"model": "m", "max_tokens": 200, **fields}
    if way.startswith("async"):
        return asyncio.run(_create(endpoint, way, fields))
    with anthropic.Anthropic(**options(endpoint)) as client:
        if way == "sync":
            return client.messages.create(**fields)
        if way == "sync-stream":
            return gathered(list(client.messages.create(stream=True, **fields)))
        with client.messages.stream(**fields) as stream:
            return stream.get_final_message()


async def _create(endpoint, way, fields):
    async with anthropic.AsyncAnthropic(**options(endpoint)) as client:
        if way == "async":
            return await client.messages.create(**fields)
        if way == "async-stream":
            return gathered([event async for event in await client.messages.create(stream=True, **fields)])
        async with client.messages.stream(**fields) as stream:
            return await stream.get_final_message()


def gathered(events):
    """The message that raw events add up to, put together here by the letter of the protocol."""
    [start] = [event for event in events if event.type == "message_start"]
    message = start.message.model_copy(deep=True)
    assert events[0] is start and events[-1].type == "message_stop" and message.content == []
    open_at = None
    partial: dict[int, str] = {}
    for event in events[1:-1]:
        if event.type == "content_block_start":
            assert open_at is None and event.index == len(message.content)
            open_at = event.index
            message.content.append(event.content_block)
        elif event.type == "content_block_delta":
            assert event.index == open_at
            block, delta = message.content[event.index], event.delta
            if delta.type == "text_delta":
                block.text += delta.text
            elif delta.type == "thinking_delta":
                block.thinking += delta.thinking
            elif delta.type == "signature_delta":
                block.signature = delta.signature
            else:
                partial[event.index] = partial.get(event.index, "") + delta.partial_json
        elif event.type == "content_block_stop":
            assert event.index == open_at
            if open_at in partial:
                message.content[open_at].input = json.loads(partial[open_at])
            open_at = None
        else:
            assert event.type == "message_delta" and open_at is None
            message.stop_reason, message.stop_sequence = event.delta.stop_reason, event.delta.stop_sequence
            assert event.usage.input_tokens == message.usage.input_tokens
            message.usage.output_tokens = event.usage.output_tokens
    return message


def told(message):
    """What a message says, without its ids."""
    blocks = [block.model_dump(exclude={"id", "signature", "parsed_output"}) for block in message.content]
    return blocks, message.stop_reason, message.stop_sequence, message.usage.model_dump()


def post(endpoint, body, path="/messages", **headers):
    headers = {"x-api-key": endpoint.api_key, "anthropic-version": "2023-06-01", **headers}
    sent = {"content": body} if isinstance(body, bytes) else {"json": body}
    return httpx.post(f"{endpoint.base_url}{path}", headers=headers, timeout=60, **sent)


@pytest.mark.parametrize("way", WAYS)
def test_two_turns_with_a_tool_are_captured_as_one_line_of_tokens(way):
    with start_gateway(chunk=3) as on:
        replies = iter([spelled_out(on, CALL), spelled_out(on, "It is 3.")])
        on.answer_with(lambda request: next(replies))
        session = on.open()
        endpoint = session.endpoint("agent")
        first = create(endpoint, way, system=SYSTEM, messages=USER, tools=[TOOL])
        [used] = first.content
        assert (used.type, used.name, used.input, first.stop_reason) == ("tool_use", "add", {"a": 1}, "tool_use")
        result = {"type": "tool_result", "tool_use_id": used.id, "content": "3"}
        messages = [*USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        second = create(endpoint, way, system=SYSTEM, messages=messages, tools=[TOOL])
        assert [block.text for block in second.content] == ["It is 3."] and second.stop_reason == "end_turn"
        capture = session.close()
        assert len(capture.calls) == 2
        one, two = capture.calls
        assert (two.parent, two.prefix, two.fork) == (0, len(full_ids(capture.calls, 0)), None)
        assert len(one.response_ids) == len(CALL) + 1, "as sampled, a token a character"
        for call, answer in zip(capture.calls, (first, second), strict=True):
            assert answer.usage.output_tokens == len(call.response_ids)
            assert answer.usage.input_tokens == len(prompt_ids(capture.calls, call.index))
            assert answer.id.startswith("msg_") and answer.model == "m" and answer.role == "assistant"
        assert [capture.messages[at]["role"] for at in two.messages] == ["system", "user", "assistant", "tool"]
        assert capture.tools == [[ADD]]
        expected = on.renderer.render([*ASK, capture.messages[one.reply], {"role": "tool", "content": "3"}], [ADD])
        assert on.renderer.decode(full_ids(capture.calls, 1)) == expected.shown + "It is 3.<|im_end|>"


@pytest.mark.parametrize("way", WAYS[2:])
@pytest.mark.parametrize("chunk", [0, 1, 3])
def test_a_stream_adds_up_to_the_whole_reply(way, chunk):
    text = "Ok é深✓.\n" + CALL + "\n" + CALL
    with start_gateway([text, text], chunk=chunk) as on:
        endpoint = on.open().endpoint("agent")
        fields = {"system": SYSTEM, "messages": USER, "tools": [TOOL]}
        whole, streamed = create(endpoint, "sync", **fields), create(endpoint, way, **fields)
        assert told(whole) == told(streamed)
        assert [block.type for block in whole.content] == ["text", "tool_use", "tool_use"]
        ids = [block.id for message in (whole, streamed) for block in message.content[1:]]
        assert len(set(ids)) == 4 and whole.id != streamed.id


def test_events_come_in_the_official_order():
    with start_gateway(["Ok.\n" + CALL], chunk=1) as on:
        endpoint = on.open().endpoint("agent")
        body = {"model": "m", "max_tokens": 99, "messages": USER, "tools": [TOOL], "stream": True}
        answer = post(endpoint, body)
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [part.split("\n") for part in answer.text.removesuffix("\n\n").split("\n\n")]
        assert all(len(pair) == 2 for pair in lines)
        names = [pair[0].removeprefix("event: ") for pair in lines]
        data = [json.loads(pair[1].removeprefix("data: ")) for pair in lines]
        assert names == [told["type"] for told in data]
        shown = [name for at, name in enumerate(names) if at == 0 or name != names[at - 1]]
        block = ["content_block_start", "content_block_delta", "content_block_stop"]
        assert shown == ["message_start", "ping", *block, *block, "message_delta", "message_stop"]
        assert data[0]["message"]["stop_reason"] is None and data[0]["message"]["usage"]["output_tokens"] == 0
        assert data[-2]["delta"]["stop_reason"] == "tool_use"


THOUGHT = "<think>\nOne and two.\n</think>\n\n"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("thinking", "kinds"),
    [
        (None, ["tool_use"]),
        ({"type": "disabled"}, ["tool_use"]),
        ({"type": "enabled", "budget_tokens": 1024}, ["thinking", "tool_use"]),
        ({"type": "adaptive"}, ["thinking", "tool_use"]),
        ({"type": "adaptive", "display": "omitted"}, ["thinking", "tool_use"]),
    ],
)
def test_thinking_is_shown_to_who_asks_and_recognised_from_all(way, thinking, kinds):
    with start_gateway([THOUGHT + CALL, "\n3"], style="qwen3", chunk=2) as on:
        session = on.open()
        endpoint = session.endpoint("agent")
        fields = {"tools": [TOOL], **({} if thinking is None else {"thinking": thinking})}
        first = create(endpoint, way, messages=USER, **fields)
        assert [block.type for block in first.content] == kinds
        if kinds[0] == "thinking":
            omitted = thinking.get("display") == "omitted"
            assert first.content[0].thinking == ("" if omitted else "One and two.")
            assert first.content[0].signature
        result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "3"}
        messages = [*USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        create(endpoint, way, messages=messages, **fields)
        capture = session.close()
        one, two = capture.calls
        assert (two.parent, two.fork, two.prefix) == (0, None, len(full_ids(capture.calls, 0)))
        assert capture.messages[one.reply]["reasoning_content"] == "One and two."
        assert first.usage.output_tokens == len(one.response_ids)


@pytest.mark.parametrize("way", WAYS)
def test_stop_reasons_are_honest(way):
    texts = ["It is 3.", "one two three four", "Thought.\nObservation: 7", CALL, "on and on " * 199]
    with start_gateway(texts, max_model_len=400, chunk=1) as on:
        session = on.open(sampling=Sampling(1000))
        endpoint = session.endpoint("agent")
        said = [
            create(endpoint, way, messages=USER),
            create(endpoint, way, messages=USER, max_tokens=3),
            create(endpoint, way, messages=USER, stop_sequences=["zzz", "\nObservation:"]),
            create(endpoint, way, messages=[{"role": "user", "content": "?"}], tools=[{**TOOL, "input_schema": {}}]),
            create(endpoint, way, messages=USER, max_tokens=4000),
        ]
        assert [(message.stop_reason, message.stop_sequence) for message in said] == [
            ("end_turn", None),
            ("max_tokens", None),
            ("stop_sequence", "\nObservation:"),
            ("tool_use", None),
            ("model_context_window_exceeded", None),
        ]
        assert said[2].content[0].text == "Thought."
        assert [message.usage.output_tokens for message in said] == [
            len(call.response_ids) for call in session.close().calls
        ]


def test_an_empty_reply_has_no_blocks():
    with start_gateway(["", ""]) as on:
        endpoint = on.open().endpoint("agent")
        for way in ("sync", "sync-stream"):
            message = create(endpoint, way, messages=USER)
            assert message.content == [] and message.stop_reason == "end_turn" and message.usage.output_tokens == 1


def test_count_tokens_is_what_the_call_then_has():
    with start_gateway([CALL, "3", CALL]) as on:
        session = on.open()
        endpoint = session.endpoint("agent")
        fields = {"system": SYSTEM, "messages": USER, "tools": [TOOL]}
        with anthropic.Anthropic(**options(endpoint)) as client:

            def count(**fields):
                return client.messages.count_tokens(model="m", **fields).input_tokens

            counted = [count(**fields)]
            first = create(endpoint, **fields)
            result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "3"}
            more = [*USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
            counted.append(count(**{**fields, "messages": more}))
            second = create(endpoint, **{**fields, "messages": more})
            counted.append(count(**fields, tool_choice={"type": "any"}))
            third = create(endpoint, **fields, tool_choice={"type": "any"})
            assert counted == [message.usage.input_tokens for message in (first, second, third)]
            assert counted[2] > counted[0]
            assert client.beta.messages.count_tokens(model="m", **fields).input_tokens == counted[0]
            long = [{"role": "user", "content": "so " * 5000}]
            assert count(messages=long) > 2000, "also where it would not fit"
            with pytest.raises(anthropic.BadRequestError, match="messages"):
                count(messages=[])
        assert len(session.close().calls) == 3


def test_models_have_the_shape_that_the_client_speaks():
    with start_gateway() as on:
        session = on.open(model_name="org/tiny")
        endpoint = session.endpoint("agent")
        with anthropic.Anthropic(**options(endpoint)) as client:
            [model] = list(client.models.list())
            assert (model.id, model.type, model.max_input_tokens, model.max_tokens) == ("org/tiny", "model", 2000, 500)
            with pytest.raises(anthropic.NotFoundError) as caught:
                client.models.retrieve("other")
            assert caught.value.body["type"] == "error" and caught.value.type == "not_found_error"
        assert post(endpoint, {}, "/nothing").json()["error"]["type"] == "not_found_error"

        async def ask():
            async with client_of(endpoint) as client:
                return [model.owned_by async for model in client.models.list()]

        assert asyncio.run(ask()) == ["ajet"]


def prompts(on, messages, tools, body):
    """The prompts of a conversation in Chat Completions and in Messages."""
    session = on.open()
    endpoint = session.endpoint("agent")

    async def chat():
        async with client_of(endpoint) as client:
            await client.chat.completions.create(model="m", messages=messages, **({"tools": tools} if tools else {}))

    asyncio.run(chat())
    create(endpoint, **body)
    calls = session.close().calls
    return [on.renderer.decode(prompt_ids(calls, at)) for at in (0, 1)]


def said(text):
    return {"type": "text", "text": text}


def chat_call(name, arguments, number="c1"):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


@pytest.mark.parametrize(
    ("chat", "tools", "body"),
    [
        (ASK, None, {"system": SYSTEM, "messages": USER}),
        (ASK, None, {"system": [said("Be "), said("brief.")], "messages": USER}),
        (ASK, None, {"system": [said("x-anthropic-billing-header: cch=1a2b;"), said(SYSTEM)], "messages": USER}),
        (
            [{"role": "user", "content": "ab"}, {"role": "system", "content": "S"}, {"role": "user", "content": "c"}],
            None,
            {
                "messages": [
                    {"role": "user", "content": [said("a"), said("b")]},
                    {"role": "system", "content": "S"},
                    {"role": "user", "content": "c"},
                ]
            },
        ),
        (
            [
                {"role": "user", "content": "q"},
                {
                    "role": "assistant",
                    "content": "w",
                    "tool_calls": [chat_call("add", {"a": "é"}), chat_call("add", {}, "c2")],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "1"},
                {"role": "tool", "tool_call_id": "c2", "content": "Error: no"},
                {"role": "user", "content": "go on"},
            ],
            [ADD],
            {
                "tools": [{**TOOL, "type": "custom", "cache_control": {"type": "ephemeral"}}],
                "tool_choice": {"type": "auto"},
                "messages": [
                    {"role": "user", "content": "q"},
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "redacted_thinking", "data": "x"},
                            {"type": "text", "text": "w"},
                            {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": "é"}},
                            {"type": "tool_use", "id": "c2", "name": "add", "input": {}},
                        ],
                    },
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "tool_use_id": "c1",
                                "content": [{"type": "text", "text": "1"}],
                                "cache_control": {"type": "ephemeral"},
                            },
                            {"type": "tool_result", "tool_use_id": "c2", "content": "no", "is_error": True},
                            {"type": "text", "text": "go on"},
                        ],
                    },
                ],
            },
        ),
    ],
)  # fmt: skip
def test_a_conversation_has_the_same_prompt_in_both_languages(chat, tools, body):
    with start_gateway(lambda request: "3") as on:
        one, other = prompts(on, chat, tools, body)
        assert one == other


def test_a_tools_examples_are_shown_in_its_schema():
    with start_gateway(["3"]) as on:
        session = on.open()
        create(session.endpoint("a"), messages=USER, tools=[{**TOOL, "input_examples": [{"a": 77}]}])
        calls = session.close().calls
        assert '"examples": [{"a": 77}]' in on.renderer.decode(prompt_ids(calls, 0))


def test_failed_and_empty_results_of_tools_are_told_to_the_model():
    with start_gateway(lambda request: "3") as on:
        session = on.open()
        results = [
            {"type": "tool_result", "tool_use_id": "t1", "content": "boom", "is_error": True},
            {"type": "tool_result", "tool_use_id": "t2", "content": "Error: boom", "is_error": True},
            {"type": "tool_result", "tool_use_id": "t3", "is_error": True},
            {"type": "tool_result", "tool_use_id": "t4"},
        ]
        uses = [{"type": "tool_use", "id": result["tool_use_id"], "name": "add", "input": {}} for result in results]
        turns = [*USER, {"role": "assistant", "content": uses}, {"role": "user", "content": results}]
        create(session.endpoint("a"), messages=turns, tools=[TOOL])
        said = [message["content"] for message in session.close().messages if message["role"] == "tool"]
        assert said == ["Error: boom", "Error: boom", "Error", ""]


def test_tool_choice_is_honoured():
    seen = []
    with start_gateway(lambda request: seen.append(request) or CALL * 2) as on:
        endpoint = on.open().endpoint("a")
        fields = {"messages": USER, "tools": [TOOL]}

        def chosen(**choice):
            return create(endpoint, **fields, tool_choice=choice)

        on.answer_with(lambda request: CALL * 2)
        assert len(chosen(type="auto").content) == 2
        assert len(chosen(type="auto", disable_parallel_tool_use=True).content) == 1
        [block] = chosen(type="none").content
        assert block.type == "text" and block.text == CALL * 2
        on.answer_with(lambda request: seen.append(request) or 'add", "arguments": {"a": 2}}\n</tool_call>')
        [block] = chosen(type="any").content
        assert (block.name, block.input) == ("add", {"a": 2})
        on.answer_with(lambda request: seen.append(request) or '{"a": 5}}\n</tool_call>')
        [block] = chosen(type="tool", name="add", disable_parallel_tool_use=True).content
        assert (block.name, block.input) == ("add", {"a": 5})
        assert on.renderer.decode(seen[0].prompt_ids).endswith('<tool_call>\n{"name": "')
        assert on.renderer.decode(seen[1].prompt_ids).endswith('{"name": "add", "arguments": ')


def use(**block):
    return {"messages": [*USER, {"role": "assistant", "content": [block]}, *USER]}


def user(*blocks):
    return {"messages": [{"role": "user", "content": list(blocks)}]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"model": 3}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [3]}]}, "messages[0].content[0]"),
        (user({"text": "a"}), "messages[0].content[0].type"),
        (user({"type": "text"}), "messages[0].content[0].text"),
        (user({"type": "image", "source": {"type": "url", "url": "https://x/y"}}), "messages[0].content[0].type"),
        (user({"type": "image", "source": {}}), "messages[0].content[0].source.type"),
        (user({"type": "image"}), "messages[0].content[0].source"),
        (user({"type": "document", "source": {}}), "messages[0].content[0].type"),
        (user({"type": "thinking", "thinking": "x"}), "messages[0].content[0].type"),
        (user({"type": "tool_result"}), "messages[0].content[0].tool_use_id"),
        (user({"type": "tool_result", "tool_use_id": "a", "is_error": 1}), "messages[0].content[0].is_error"),
        (user({"type": "tool_result", "tool_use_id": "a", "content": 3}), "messages[0].content[0].content"),
        (
            user({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}),
            "messages[0].content[0].content[0].type",
        ),
        (use(type="tool_use", name="f", input={}), "messages[1].content[0].id"),
        (use(type="tool_use", id="a", input={}), "messages[1].content[0].name"),
        (use(type="tool_use", id="a", name="f", input="{}"), "messages[1].content[0].input"),
        (use(type="tool_result", tool_use_id="a"), "messages[1].content[0].type"),
        (use(type="thinking"), "messages[1].content[0].thinking"),
        (use(type="server_tool_use"), "messages[1].content[0].type"),
        ({"messages": [*USER, {"role": "assistant", "content": "The answer is ("}]}, "messages"),
        ({"system": 3}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": {}}, "tools"),
        ({"tools": [3]}, "tools[0]"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": {"type": "string"}}]}, "tools[0].input_schema.type"),
        ({"tools": [{"name": "f", "input_schema": {"properties": 3}}]}, "tools[0].input_schema.properties"),
        ({"tools": [{"name": "f", "input_schema": {}, "description": 3}]}, "tools[0].description"),
        ({"tools": [{**TOOL, "input_examples": 3}]}, "tools[0].input_examples"),
        ({"tools": [{**TOOL, "strict": 1}]}, "tools[0].strict"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": ["x", ""]}, "stop_sequences[1]"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"stream": "yes"}, "stream"),
        ({"thinking": True}, "thinking"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "adaptive", "display": "updates"}}, "thinking.display"),
        ({"output_config": 3}, "output_config"),
        ({"output_config": {"effort": 3}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_format": {"type": "json_schema", "schema": {"type": "sum"}}}, "output_format.schema"),
        ({"container": "c"}, "container"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"context_management": {"edits": []}}, "context_management"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(refusing, body, param):
    answer = post(refusing, {"model": "m", "max_tokens": 9, "messages": USER, **body})
    error = answer.json()["error"]
    assert answer.status_code == 400 and answer.json()["type"] == "error", answer.text
    assert error["type"] == "invalid_request_error" and param in error["message"]
    assert error["details"]["param"] == param
    assert post(refusing, {"model": "m", "messages": USER, **body}, "/messages/count_tokens").status_code in (200, 400)


@pytest.fixture(scope="module")
def refusing():
    with start_gateway() as on:
        yield on.open().endpoint("a")


def test_harmless_fields_are_taken():
    fields = {
        "metadata": {"user_id": "u"}, "service_tier": "auto", "cache_control": {"type": "ephemeral"},
        "temperature": 0.5, "top_p": 0.9, "top_k": 0, "stop_sequences": [], "tools": [], "container": None,
        "output_config": {"effort": None, "format": None}, "tool_choice": {"type": "none"},
    }  # fmt: skip
    seen = []
    with start_gateway(lambda request: seen.append(request) or "3") as on:
        session = on.open(trainable=["solver"])
        body = {"model": "m", "max_tokens": 9, "messages": USER, **fields}
        assert post(session.endpoint("c", "critic"), body).status_code == 200
        sampling = seen[0].sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.5, 0.9, -1, 9)


def test_errors_have_anthropics_types():
    with start_gateway([ScriptedReply("so it goes", chunk=1, fail_after=2)] * 2, max_model_len=100) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as caught:
            create(endpoint, messages=[{"role": "user", "content": "so " * 500}])
        assert caught.value.type == "invalid_request_error"
        assert caught.value.body["error"]["details"]["error_code"] == "context_length_exceeded"
        assert (shown := caught.value.request_id) and shown == caught.value.body["request_id"]
        with pytest.raises(anthropic.InternalServerError) as caught:
            create(endpoint, messages=USER)
        assert (caught.value.status_code, caught.value.type) == (503, "api_error")
        with pytest.raises(anthropic.APIStatusError, match="engine failed") as caught:
            create(endpoint, "sync-stream", messages=USER)
        assert caught.value.type == "api_error"
        other = anthropic.Anthropic(base_url=root(endpoint), api_key="wrong", max_retries=0)
        with other, pytest.raises(anthropic.AuthenticationError) as caught:
            other.messages.create(model="m", max_tokens=3, messages=USER)
        assert caught.value.type == "authentication_error"
        assert post(endpoint, b"{").json()["error"]["details"]["error_code"] == "invalid_json"
        assert post(endpoint, b" " * (65 << 20)).json()["error"]["type"] == "request_too_large"
        session.close()
        with pytest.raises(anthropic.APIStatusError, match="ended") as caught:
            create(endpoint, messages=USER)
        assert caught.value.status_code == 410


def test_a_bearer_token_is_a_key_too():
    with start_gateway(["3"]) as on:
        endpoint = on.open().endpoint("a")
        client = anthropic.Anthropic(base_url=root(endpoint), auth_token=endpoint.api_key, max_retries=0)
        with client:
            assert client.messages.create(model="m", max_tokens=9, messages=USER).content[0].text == "3"


def test_a_client_that_leaves_a_stream_frees_the_engine():
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
        with anthropic.Anthropic(**options(endpoint)) as client:
            stream = client.messages.create(model="m", max_tokens=100, messages=USER, stream=True)
            assert next(event for event in stream if event.type == "content_block_delta").delta.text
            stream.close()

        session.wait_until_calls_end()
        assert engine.running == 0 and engine.closed_early == 1
        [call] = session.close().calls
        assert call.finish == "aborted" and len(call.response_ids) == 3


@pytest.mark.parametrize("way", WAYS)
def test_a_debug_models_replies_come_in_this_shape_too(way):
    calls = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    said = {"role": "assistant", "content": "fine", "reasoning_content": "hm", "tool_calls": calls}
    with start_gateway(chat_engine_for={"big": ScriptedChat([said])}.__getitem__) as on:
        session = on.open(trainable=["solver"])
        endpoint = session.endpoint("critic", debug_model="big")
        message = create(endpoint, way, messages=USER, tools=[TOOL])
        assert [block.type for block in message.content] == ["text", "tool_use"]
        assert message.content[1].input == {"a": 1} and message.content[1].id == "c1"
        assert not session.close().calls[0].trained
        endpoint = on.open(trainable=[]).endpoint("c", debug_model="big")
        assert post(endpoint, {"messages": USER}, "/messages/count_tokens").status_code == 400


def test_a_debug_models_broken_call_is_an_error_of_the_server():
    calls = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "[1"}}]
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    with start_gateway(chat_engine_for={"big": ScriptedChat([said])}.__getitem__) as on:
        endpoint = on.open(trainable=["solver"]).endpoint("critic", debug_model="big")
        with pytest.raises(anthropic.InternalServerError, match="add"):
            create(endpoint, messages=USER, tools=[TOOL])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_clients_tool_runner_plays_an_episode(kind, stream):
    with start_gateway(["I add.\n" + CALL, "It is 3."], chunk=2) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        fields = {"model": "m", "max_tokens": 99, "messages": USER, "system": SYSTEM, "stream": stream}
        seen = []

        def add(a: int) -> str:
            """Adds.

            Args:
                a: A number.
            """
            seen.append(a)
            return "3"

        async def aadd(a: int) -> str:
            """Adds.

            Args:
                a: A number.
            """
            return add(a)

        if kind == "sync":
            with anthropic.Anthropic(**options(endpoint)) as client:
                tool = anthropic.beta_tool(add)
                last = client.beta.messages.tool_runner(tools=[tool], **fields).until_done()
        else:

            async def play():
                async with anthropic.AsyncAnthropic(**options(endpoint)) as client:
                    tool = anthropic.beta_async_tool(aadd, name="add")
                    return await client.beta.messages.tool_runner(tools=[tool], **fields).until_done()

            last = asyncio.run(play())
        assert seen == [1] and last.content[0].text == "It is 3."
        capture = session.close()
        assert [call.fork for call in capture.calls] == [None, None]
        assert capture.calls[1].prefix == len(full_ids(capture.calls, 0))


class Sum(BaseModel):
    """An answer with a shape."""

    total: int


@pytest.mark.parametrize("way", ["create", "parse"])
def test_a_reply_keeps_to_the_schema_that_was_asked_for(way):
    with start_gateway(["three", '{"total": "3"}', '{"total": 3}']) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        with anthropic.Anthropic(**options(endpoint)) as client:
            fields = {"model": "m", "max_tokens": 99, "messages": USER}
            if way == "parse":
                assert client.messages.parse(**fields, output_format=Sum).parsed_output == Sum(total=3)
            else:
                schema = {"type": "json_schema", "schema": Sum.model_json_schema()}
                answer = client.messages.create(**fields, output_config={"format": schema})
                assert answer.content[0].text == '{"total": 3}'
        assert [call.finish for call in session.close().calls] == ["aborted", "aborted", "stop"]


def test_a_schema_that_no_reply_meets_is_an_error_that_names_the_field():
    with start_gateway(lambda request: "three") as on:
        body = {"model": "m", "max_tokens": 9, "messages": USER, "output_config": {
            "format": {"type": "json_schema", "schema": {"type": "object"}}}}  # fmt: skip
        error = post(on.open().endpoint("a"), body).json()["error"]
        assert error["details"]["param"] == "output_config.format"


langchain_anthropic = pytest.importorskip("langchain_anthropic", reason="needs langchain-anthropic")


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
def test_langchain_plays_an_episode(way):
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def add(a: int) -> str:
        """Adds."""
        return "3"

    with start_gateway(["I add.\n" + CALL, "It is 3."], chunk=2) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        model = langchain_anthropic.ChatAnthropic(
            model="ajet", base_url=root(endpoint), api_key=endpoint.api_key, max_tokens=99, max_retries=0
        ).bind_tools([add])

        async def ask(messages):
            if way == "invoke":
                return model.invoke(messages)
            if way == "ainvoke":
                return await model.ainvoke(messages)
            if way == "stream":
                return functools.reduce(operator.add, model.stream(messages))
            return functools.reduce(operator.add, [chunk async for chunk in model.astream(messages)])

        async def play():  # in one loop: the library shares its asynchronous connections between models
            messages = [SystemMessage(SYSTEM), HumanMessage("What is 1 + 2?")]
            first = await ask(messages)
            assert [(call["name"], call["args"]) for call in first.tool_calls] == [("add", {"a": 1})]
            return first, await ask([*messages, first, ToolMessage("3", tool_call_id=first.tool_calls[0]["id"])])

        first, second = asyncio.run(play())
        assert second.text == "It is 3."
        calls = session.close().calls
        assert [call.fork for call in calls] == [None, None]
        assert calls[1].prefix == len(full_ids(calls, 0))
        for call, answer in zip(calls, (first, second), strict=True):
            assert answer.usage_metadata["input_tokens"] == len(prompt_ids(calls, call.index))
            assert answer.usage_metadata["output_tokens"] == len(call.response_ids)
