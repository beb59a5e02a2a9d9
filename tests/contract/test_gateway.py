"""What any client may rely on, over every way into the gateway; and what the capture then holds."""

import asyncio
import json
import re
import threading

import httpx
import openai
import pytest
import requests
from loguru import logger

from ajet.schema.call import VersionRun, full_ids, prompt_ids
from tests.support.gateways import (
    ADD,
    ASK,
    Sampling,
    ScriptedChat,
    ScriptedEngine,
    ScriptedReply,
    client_of,
    post,
    renderer_of_style,
    scripted_logprob,
    spelled_out,
    start_gateway,
)

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
WAYS = ["in-process", "socket", "sync"]


async def complete(endpoint, way, **fields):
    """One chat completion by an unmodified client; with stream=True the chunks."""
    if way == "sync":
        with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as client:
            answer = client.chat.completions.create(model="m", **fields)
            return list(answer) if fields.get("stream") else answer
    async with client_of(endpoint, in_process=way == "in-process") as client:
        answer = await client.chat.completions.create(model="m", **fields)
        return [chunk async for chunk in answer] if fields.get("stream") else answer


@pytest.mark.parametrize("way", WAYS)
def test_two_turns_with_a_tool_are_captured_as_one_line_of_tokens(way):
    with start_gateway() as on:
        replies = iter([spelled_out(on, CALL), spelled_out(on, "It is 3.")])
        on.answer_with(lambda request: next(replies))
        session = on.open()
        endpoint = session.endpoint("agent")

        async def agent():
            first = await complete(endpoint, way, messages=ASK, tools=[ADD])
            told = first.choices[0].message
            assert first.choices[0].finish_reason == "tool_calls" and told.content is None
            assert told.tool_calls[0].function.arguments == '{"a": 1}'
            result = {"role": "tool", "tool_call_id": told.tool_calls[0].id, "content": "3"}
            messages = [*ASK, told.model_dump(exclude_none=True), result]
            second = await complete(endpoint, way, messages=messages, tools=[ADD])
            assert second.choices[0].message.content == "It is 3."
            return first, second

        answers = asyncio.run(agent())
        capture = session.close()
        assert len(capture.calls) == 2
        first, second = capture.calls
        assert (second.parent, second.prefix, second.fork) == (0, len(full_ids(capture.calls, 0)), None)
        assert len(first.response_ids) == len(CALL) + 1, "as sampled, a token a character"
        for call, answer in zip(capture.calls, answers, strict=True):
            assert answer.usage.completion_tokens == len(call.response_ids)
            assert answer.usage.prompt_tokens == len(prompt_ids(capture.calls, call.index))
            expected = [scripted_logprob(token) for token in call.response_ids.tolist()]
            assert call.logprobs.tolist() == expected
            assert call.logprobs_unit.tolist() == [2 * logprob for logprob in expected]
            assert call.versions == (VersionRun(0, 0, 0),) and call.trained and call.temperature == 0.9
            assert 0 < call.started <= call.ended
        assert [capture.messages[index]["role"] for index in second.messages] == ["system", "user", "assistant", "tool"]
        assert second.messages[:2] == first.messages and first.tools == second.tools == 0
        assert capture.messages[second.reply] == {"role": "assistant", "content": "It is 3."}
        assert capture.tools == [[ADD]]
        whole = on.renderer.decode(full_ids(capture.calls, 1))
        assert (
            whole
            == on.renderer.render([*ASK, capture.messages[first.reply], {"role": "tool", "content": "3"}], [ADD]).text
            + "It is 3.<|im_end|>"
        )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("chunk", [0, 1, 3])
def test_a_stream_adds_up_to_the_whole_reply(way, chunk):
    text = "Ok é深✓.\n" + CALL + CALL
    with start_gateway([text, text], chunk=chunk) as on:
        session = on.open()
        endpoint = session.endpoint("agent")
        whole = asyncio.run(complete(endpoint, way, messages=ASK, tools=[ADD]))
        chunks = asyncio.run(
            complete(endpoint, way, messages=ASK, tools=[ADD], stream=True, stream_options={"include_usage": True})
        )
        message = whole.choices[0].message
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        assert deltas[0].role == "assistant"
        assert "".join(delta.content or "" for delta in deltas) == message.content == "Ok é深✓."
        calls = [call for delta in deltas for call in delta.tool_calls or ()]
        assert [(call.index, call.function.name, call.function.arguments) for call in calls] == [
            (index, call.function.name, call.function.arguments) for index, call in enumerate(message.tool_calls)
        ]
        ids = [call.id for call in calls] + [call.id for call in message.tool_calls]
        assert len(set(ids)) == 4
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
        assert chunks[-1].usage == whole.usage
        first, second = session.close().calls
        assert first.response_ids.tolist() == second.response_ids.tolist()
        if chunk == 1:
            assert len(deltas) > 8


def test_a_plain_post_works_inside_an_event_loop_of_the_users():
    with start_gateway(["3"]) as on:
        endpoint = on.open().endpoint("agent")

        async def execute():
            return requests.post(
                f"{endpoint.base_url}/chat/completions",
                headers={"Authorization": f"Bearer {endpoint.api_key}"},
                json={"messages": ASK},
                timeout=60,
            )

        answer = asyncio.run(execute()).json()
        assert answer["choices"][0]["message"]["content"] == "3"
        assert answer["choices"][0]["finish_reason"] == "stop"


def test_clients_of_many_loops_share_the_gateway():
    with start_gateway(lambda request: "3") as on:
        session = on.open()
        endpoint = session.endpoint("agent")
        said = []

        def thread():
            said.append(asyncio.run(complete(endpoint, "in-process", messages=ASK)).choices[0].message.content)

        threads = [threading.Thread(target=thread) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert said == ["3"] * 8
        calls = session.close().calls
        assert [call.index for call in calls] == list(range(8))
        assert {call.fork for call in calls} == {None}
        assert sum(len(call.suffix_ids) for call in calls[1:]) == 0, "the same prompt is stored once"


@pytest.mark.parametrize("stream", [False, True])
def test_a_length_stop_is_said_and_the_next_turn_closes_the_reply(stream):
    with start_gateway(["one two three", "ok"]) as on:
        session = on.open()
        endpoint = session.endpoint("agent")
        answer = asyncio.run(complete(endpoint, "in-process", messages=ASK, max_tokens=3, stream=stream))
        if stream:
            said = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
            assert answer[-1].choices[0].finish_reason == "length"
        else:
            said, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
            assert finish == "length" and answer.usage.completion_tokens == 3
        more = [*ASK, {"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]
        asyncio.run(complete(endpoint, "in-process", messages=more))
        first, second = session.close().calls
        assert first.finish == "length" and len(first.response_ids) == 3
        assert second.parent == 0 and second.prefix == len(first.suffix_ids) + 3
        assert second.suffix_ids[0] == on.renderer.end_ids[0]


@pytest.mark.parametrize(
    ("limits", "asked", "limit"),
    [
        ({}, 2, "max_tokens"),
        ({"max_response_tokens": 2}, None, "rollout.max_response_length_in_one_turn"),
        ({"max_response_tokens": 2}, 2, "rollout.max_response_length_in_one_turn"),
        ({"max_model_len": 35}, None, "rollout.max_model_len"),
    ],
)
def test_call_names_the_limit_that_cut_it(limits, asked, limit):
    with start_gateway(["one " * 100], **limits) as on:
        session = on.open()
        fields = {"messages": ASK} | ({"max_tokens": asked} if asked else {})
        asyncio.run(complete(session.endpoint("agent"), "in-process", **fields))
        (call,) = session.close().calls
        assert call.is_cut and call.extra["cut_by"] == limit


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_cuts_the_ids_at_the_token_that_completes_it(stream):
    with start_gateway(chunk=2) as on:
        reply = spelled_out(on, "Thought 1.\nObservation: 7, and so on")
        on.answer_with(lambda request: reply)
        session = on.open()
        endpoint = session.endpoint("agent")
        answer = asyncio.run(
            complete(endpoint, "in-process", messages=ASK, stop=["\nObservation:", "zzz"], stream=stream)
        )
        if stream:
            assert "".join(chunk.choices[0].delta.content or "" for chunk in answer) == "Thought 1."
            assert answer[-1].choices[0].finish_reason == "stop"
        else:
            assert answer.choices[0].message.content == "Thought 1."
            assert answer.choices[0].finish_reason == "stop"
            assert answer.usage.completion_tokens == len("Thought 1.\nObservation:")
        more = [*ASK, {"role": "assistant", "content": "Thought 1."}, {"role": "user", "content": "Observation: 8"}]
        asyncio.run(complete(endpoint, "in-process", messages=more))
        first, second = session.close().calls
        assert on.renderer.decode(first.response_ids) == "Thought 1.\nObservation:"
        assert len(first.logprobs) == len(first.response_ids)
        assert first.finish == "stop" and first.stop == "\nObservation:"
        assert second.fork == "stop" and second.parent == 0
        assert on.engine.closed_early == 1 and on.engine.running == 0


def test_n_replies_are_n_calls():
    texts = iter("abc")
    with start_gateway(lambda request: next(texts)) as on:
        session = on.open()
        endpoint = session.endpoint("agent")
        answer = asyncio.run(complete(endpoint, "in-process", messages=ASK, n=2))
        assert sorted(choice.message.content for choice in answer.choices) == ["a", "b"]
        assert [choice.index for choice in answer.choices] == [0, 1]
        assert answer.usage.completion_tokens == 4
        chunks = asyncio.run(complete(endpoint, "socket", messages=ASK, n=1, stream=True))
        assert chunks[0].choices[0].index == 0
        assert [call.index for call in session.close().calls] == [0, 1, 2]


def test_logprobs_are_those_of_the_captured_tokens():
    with start_gateway(["It is 3.", "It is 3."], chunk=2) as on:
        session = on.open()
        endpoint = session.endpoint("agent")
        whole = asyncio.run(complete(endpoint, "in-process", messages=ASK, logprobs=True, top_logprobs=2))
        chunks = asyncio.run(complete(endpoint, "in-process", messages=ASK, logprobs=True, top_logprobs=2, stream=True))
        call = session.close().calls[0]
        content = whole.choices[0].logprobs.content
        assert [entry.logprob for entry in content] == call.logprobs_unit.tolist()
        assert "".join(entry.token for entry in content) == "It is 3.<|im_end|>"
        assert bytes(byte for entry in content for byte in entry.bytes) == b"It is 3.<|im_end|>"
        assert all(len(entry.top_logprobs) == 2 for entry in content)
        streamed = [entry for c in chunks if c.choices[0].logprobs for entry in c.choices[0].logprobs.content]
        assert streamed == content


def test_the_runs_sampling_rules_what_trains_and_the_clients_what_does_not():
    seen = []
    with start_gateway(lambda request: seen.append(request) or "3") as on:
        session = on.open(trainable=["solver"], sampling=Sampling(64, temperature=0.9, top_p=0.95))
        fields = {"messages": ASK, "temperature": 0.1, "top_p": 0.5, "max_tokens": 9, "seed": 5}
        asyncio.run(complete(session.endpoint("s", "solver"), "in-process", **fields))
        asyncio.run(complete(session.endpoint("c", "critic"), "in-process", **fields))
        asyncio.run(complete(session.endpoint("c", "critic"), "in-process", messages=ASK, max_tokens=4000))
        trained, other, third = session.close().calls
        assert (seen[0].sampling.temperature, seen[0].sampling.top_p, seen[0].sampling.max_tokens) == (0.9, 0.95, 9)
        assert (seen[1].sampling.temperature, seen[1].sampling.top_p, seen[1].sampling.max_tokens) == (0.1, 0.5, 9)
        assert seen[2].sampling.temperature == 0.9 and seen[2].sampling.max_tokens == 64
        assert trained.trained and trained.temperature == 0.9
        assert trained.extra["ignored"] == {"temperature": 0.1, "top_p": 0.5, "seed": 5}
        assert not other.trained and other.temperature == 0.1 and "ignored" not in other.extra
        assert [request.sampling.seed for request in seen] == [None, 5, None]
        assert [request.draws for request in seen] == [(7, 3, 1, 0), (5, 0, 0, 0), (7, 3, 1, 2)]
        assert [request.key for request in seen] == [(7, 3, 1, 0), (7, 3, 1, 1), (7, 3, 1, 2)]


def test_replaced_sampling_fields_are_logged_once_with_their_key():
    said: list[str] = []
    number = logger.add(said.append, level="INFO", format="{message}")
    with start_gateway(lambda _: "3", max_response_tokens=64) as on:
        fields = {"temperature": 0.25, "top_p": 0.5, "seed": 5, "max_tokens": 4000, "extra_body": {"top_k": 7}}
        for _ in range(2):
            session = on.open(trainable=["solver"], sampling=Sampling(64, temperature=0.9, top_p=0.95))
            for agent in ("solver", "critic"):
                asyncio.run(complete(session.endpoint(agent), "in-process", messages=ASK, **fields))
            trained, other = session.close().calls
    logger.remove(number)
    assert trained.extra["ignored"] == {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "seed": 5, "max_tokens": 4000}
    assert other.extra["ignored"] == {"max_tokens": 4000}
    for asked, key in [
        ("temperature = 0.25", "rollout.temperature"),
        ("top_p = 0.5", "rollout.top_p"),
        ("top_k = 7", "rollout.top_k"),
        ("seed = 5", "seed"),
        ("max_tokens = 4000", "rollout.max_response_length_in_one_turn"),
    ]:
        assert len([line for line in said if asked in line and key in line]) == 1, said


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_with_a_debug_model_is_proxied_and_not_trained(way, stream):
    calls = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    critic = ScriptedChat([{"role": "assistant", "content": "fine", "tool_calls": calls}])
    with start_gateway(["3"], chat_engine_for={"big": critic}.__getitem__) as on:
        session = on.open(trainable=["solver"])
        answer = asyncio.run(
            complete(
                session.endpoint("c", "critic", debug_model="big"),
                way,
                messages=ASK,
                tools=[ADD],
                seed=5,
                presence_penalty=1,
                stream=stream,
            )
        )
        asyncio.run(complete(session.endpoint("s", "solver", debug_model="big"), way, messages=ASK))
        if stream:
            assert "".join(chunk.choices[0].delta.content or "" for chunk in answer) == "fine"
            assert answer[-1].choices[0].finish_reason == "tool_calls"
        else:
            assert answer.choices[0].message.tool_calls[0].id == "c1"
        capture = session.close()
        proxied, own = capture.calls
        assert (proxied.trained, len(proxied.response_ids), len(proxied.suffix_ids)) == (False, 0, 0)
        assert capture.messages[proxied.reply]["tool_calls"] == calls
        assert own.trained and len(own.response_ids)
        assert critic.requests[0]["seed"] == 5 and critic.requests[0]["presence_penalty"] == 1
        assert critic.requests[0]["tools"] == [ADD]


def test_a_chat_engine_alone_serves_a_gateway_without_a_renderer():
    with start_gateway(engine=ScriptedChat(["3"]), max_model_len=100, max_response_tokens=50) as on:
        session = on.open(sampling=Sampling(8))
        answer = asyncio.run(complete(session.endpoint("a"), "in-process", messages=ASK))
        assert answer.choices[0].message.content == "3"
        assert session.close().calls[0].trained is False


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_demanded_tool_call_begins_the_reply(choice):
    forced = '<tool_call>\n{"name": "' + ("" if choice == "required" else 'add", "arguments": ')
    rest = CALL.removeprefix(forced.rstrip()).lstrip() if choice != "required" else CALL.removeprefix(forced)
    with start_gateway([rest, "3"]) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        answer = asyncio.run(complete(endpoint, "in-process", messages=ASK, tools=[ADD], tool_choice=choice))
        message = answer.choices[0].message
        assert answer.choices[0].finish_reason == ("tool_calls" if choice == "required" else "stop")
        assert message.tool_calls[0].function.arguments == '{"a": 1}'
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}
        more = [*ASK, message.model_dump(exclude_none=True), result]
        asyncio.run(complete(endpoint, "in-process", messages=more, tools=[ADD]))
        first, second = session.close().calls
        assert on.renderer.decode(first.suffix_ids).endswith(forced)
        assert on.renderer.decode(first.response_ids) == rest + "<|im_end|>"
        assert (second.parent, second.fork, second.prefix) == (0, None, len(first.suffix_ids) + len(first.response_ids))


def test_tool_choice_none_reads_no_calls_and_one_call_at_a_time_ends_after_the_first():
    with start_gateway([CALL, CALL + "\n" + CALL, "3"], chunk=4) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        none = asyncio.run(complete(endpoint, "in-process", messages=ASK, tools=[ADD], tool_choice="none"))
        assert none.choices[0].message.content == CALL and not none.choices[0].message.tool_calls
        one = asyncio.run(complete(endpoint, "in-process", messages=ASK, tools=[ADD], parallel_tool_calls=False))
        message = one.choices[0].message
        assert len(message.tool_calls) == 1 and one.choices[0].finish_reason == "tool_calls"
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}
        more = [*ASK, message.model_dump(exclude_none=True), result]
        asyncio.run(complete(endpoint, "in-process", messages=more, tools=[ADD]))
        calls = session.close().calls
        assert on.renderer.decode(calls[1].response_ids) == CALL
        assert calls[2].parent == 1 and calls[2].fork is None
        assert calls[2].suffix_ids[0] == on.renderer.end_ids[0]


def test_a_malformed_call_stays_in_the_content_for_a_check_to_see():
    text = '<tool_call>\n{"name": "add", "arguments": {"a": 1}\n</tool_call>'
    with start_gateway([text, "x", "y"]) as on:

        def inspect(call, message):
            return ["wrong_toolcall"] if "<tool_call>" in (message["content"] or "") else []

        session = on.open(inspect=inspect, terminate_on_inspect=True)
        endpoint = session.endpoint("a")
        answer = asyncio.run(complete(endpoint, "in-process", messages=ASK, tools=[ADD]))
        assert answer.choices[0].message.content == text and answer.choices[0].finish_reason == "stop"
        refused = post(endpoint, {"messages": ASK})
        assert refused.status_code == 410 and refused.json()["error"]["code"] == "episode_terminated"
        capture = session.close()
        assert capture.checks == ["wrong_toolcall"] and capture.terminated == "wrong_toolcall"
        assert capture.calls[0].checks == ("wrong_toolcall",)


def test_force_disable_toolcalls_drops_tools_and_says_so():
    with start_gateway([CALL], force_disable_toolcalls=True) as on:
        session = on.open()
        answer = asyncio.run(complete(session.endpoint("a"), "in-process", messages=ASK, tools=[ADD]))
        assert answer.choices[0].message.content == CALL
        call = session.close().calls[0]
        assert call.tools is None and call.extra["dropped"] == "tools"


@pytest.mark.parametrize("path", ["responses", "chat/completions", "messages"])
def test_named_tools_and_fields_are_left_out(path):
    search = {"type": "web_search", "name": "web_search"}
    send = {"messages": ASK[1:], "max_tokens": 50}
    if path == "responses":
        send = {"input": "What is 1 + 2?", "truncation": "auto"}
    with start_gateway(["3"], leave_out_tools=["web_search"], leave_out_fields=["truncation"]) as on:
        session = on.open()
        answer = post(session.endpoint("a"), {**send, "tools": [search, search]}, path=path)
        assert answer.status_code == 200, answer.text
        assert not answer.json().get("tools")
        call = session.close().calls[0]
        assert call.tools is None
        assert call.extra["left_out"] == (["truncation"] if path == "responses" else []) + ["web_search"]
    with start_gateway(["3"], leave_out_tools=["web_search"]) as on:
        endpoint = on.open().endpoint("a")
        other = post(endpoint, {**send, "truncation": None, "tools": [{"type": "image_generation"}]}, path=path)
        assert other.status_code == 400 and "ajet.gateway.leave_out_tools" in other.json()["error"]["message"]
        if path == "responses":
            refused = post(endpoint, send, path=path)
            assert refused.status_code == 400 and "ajet.gateway.leave_out_fields" in refused.json()["error"]["message"]


def test_forks_share_their_common_beginning_and_carry_a_reason():
    with start_gateway(lambda request: "It is 3.") as on:
        session = on.open()
        endpoint = session.endpoint("a")

        def ask(messages, **fields):
            return asyncio.run(complete(endpoint, "in-process", messages=messages, **fields))

        ask(ASK)
        edited = [*ASK, {"role": "assistant", "content": "It is four."}, {"role": "user", "content": "Sure?"}]
        ask(edited)
        told = [*ASK, {"role": "assistant", "content": "It is 3."}, {"role": "user", "content": "Sure?"}]
        ask(told, tools=[ADD])
        capture = session.close()
        _, edit, tools = capture.calls
        assert edit.fork == "client_edit" and edit.parent == 0
        assert len(capture.calls[0].suffix_ids) < edit.prefix < len(full_ids(capture.calls, 0))
        assert tools.fork == "tools" and tools.parent == 0 and 0 < tools.prefix < 20
        for call, messages, given in ((edit, edited, None), (tools, told, [ADD])):
            rendered = on.renderer.render(messages, given)
            assert prompt_ids(capture.calls, call.index).tolist() == rendered.ids.tolist()


def test_stripped_thinking_forks_with_the_reason_template():
    with start_gateway(["<think>\nso\n</think>\n\n3", "4"], style="qwen3") as on:
        session = on.open()
        endpoint = session.endpoint("a")
        first = asyncio.run(complete(endpoint, "in-process", messages=ASK)).choices[0].message
        assert first.content == "3" and first.model_extra["reasoning_content"] == "so"
        more = [*ASK, {"role": "assistant", "content": "3"}, {"role": "user", "content": "Sure?"}]
        asyncio.run(complete(endpoint, "in-process", messages=more))
        capture = session.close()
        assert capture.calls[1].fork == "template" and capture.calls[1].prefix >= len(capture.calls[0].suffix_ids)


def test_an_update_in_the_middle_of_a_reply_shows_in_its_versions():
    renderer = renderer_of_style()

    class Updated(ScriptedEngine):
        async def generate(self, request):
            async for chunk in super().generate(request):
                yield chunk
                if len(chunk.ids) == 4:
                    self.weights_changed(5)

    engine = Updated(lambda request: list(range(20, 40)), chunk=4, end_id=renderer.end_ids[0])
    with start_gateway(engine=engine) as on:
        session = on.open(sampling=Sampling(6))
        asyncio.run(complete(session.endpoint("a"), "in-process", messages=ASK))
        assert session.close().calls[0].versions == (VersionRun(0, 0, 0), VersionRun(4, 5, 5))


@pytest.mark.parametrize("way", ["in-process", "socket"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_slot_and_its_tokens_are_kept(way, stream):
    """Half of the reply has been sampled when the client goes; then the engine's iterator is closed."""

    class Halting(ScriptedEngine):
        halted = threading.Event()

        async def generate(self, request):
            async for chunk in super().generate(request):
                yield chunk
                if len(chunk.ids) == 3:
                    self.halted.set()
                    await asyncio.get_running_loop().create_future()

    renderer = renderer_of_style()
    engine = Halting(lambda request: renderer.encode("one two three").tolist(), chunk=3)
    with start_gateway(engine=engine) as on:
        session = on.open()
        endpoint = session.endpoint("a")

        async def leave():
            task = asyncio.create_task(complete(endpoint, way, messages=ASK, stream=stream))
            await asyncio.to_thread(engine.halted.wait, 240)
            task.cancel()
            await asyncio.wait([task])

        asyncio.run(leave())

        session.wait_until_calls_end()
        assert engine.running == 0 and engine.closed_early == 1
        call = session.close().calls[0]
        assert call.finish == "aborted" and call.reply is None
        assert call.response_ids.tolist() == renderer.encode("one two three").tolist()[:3]
        assert len(call.logprobs) == 3 and call.versions == (VersionRun(0, 0, 0),)


def test_closing_a_session_aborts_what_runs_and_kills_its_keys():
    with start_gateway([ScriptedReply("late", latency=600)]) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        got = []
        thread = threading.Thread(target=lambda: got.append(post(endpoint, {"messages": ASK})))
        thread.start()

        session.wait_until(lambda: on.engine.running)
        capture = session.close()
        assert capture.calls[0].finish == "aborted"
        thread.join(60)
        assert got[0].status_code == 410 and got[0].json()["error"]["code"] == "episode_finished"
        assert post(endpoint, {"messages": ASK}).status_code == 410
        key = {"authorization": f"Bearer {endpoint.api_key}"}
        assert httpx.get(f"{endpoint.base_url}/models", headers=key).status_code == 410, "what needs no episode, too"
        assert session.close() is capture
        with pytest.raises(Exception, match="ended"):
            session.endpoint("b")


def test_a_turn_on_the_gateways_own_loop_survives_its_sessions_end():
    """A coroutine that plays an episode sees an error, and is not itself cancelled."""
    with start_gateway([ScriptedReply("late", latency=600)]) as on:
        session = on.open()
        endpoint = session.endpoint("a")

        async def episode():
            asyncio.get_running_loop().call_later(0.01, session.close)
            with pytest.raises(openai.APIStatusError) as ended:
                await complete(endpoint, "in-process", messages=ASK)
            return ended.value.code

        assert on.run_on_loop(episode()).result(60) == "episode_finished"


def test_a_stream_on_the_gateways_own_loop_adds_up_to_the_recorded_call():
    with start_gateway(["one two three"], chunk=2) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        usage = {"include_usage": True}
        asked = complete(endpoint, "in-process", messages=ASK, stream=True, logprobs=True, stream_options=usage)
        *chunks, last = on.run_on_loop(asked).result(60)
        capture = session.close()
        (call,) = capture.calls
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert said == capture.messages[call.reply]["content"] == "one two three"
        tokens = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
        assert [entry.token for entry in tokens] == [on.renderer.decode([token]) for token in call.response_ids]
        assert chunks[-1].choices[0].finish_reason == call.finish == "stop"
        assert last.usage.completion_tokens == len(call.response_ids)


def test_endpoints_are_cached_and_keys_say_nothing():
    with start_gateway() as on:
        session = on.open()
        endpoint = session.endpoint("agent", "solver")
        assert session.endpoint("agent", "solver") is endpoint
        assert session.endpoint("agent", "critic").api_key != endpoint.api_key
        assert len(endpoint.api_key) == 32 and endpoint.api_key not in repr(endpoint)
        assert endpoint.base_url == on.base_url and endpoint.base_url.endswith("/v1")
        assert endpoint.base_url.startswith("http://127.0.0.1:")


def test_models_and_health():
    with start_gateway() as on:
        endpoint = on.open(model_name="tuned").endpoint("a")
        assert httpx.get(on.root_url + "/health").json() == {"status": "ok"}

        async def listed():
            async with client_of(endpoint) as client:
                return [model.id async for model in client.models.list()], (await client.models.retrieve("tuned")).id

        assert asyncio.run(listed()) == (["tuned"], "tuned")
        headers = {"authorization": f"Bearer {endpoint.api_key}"}
        assert httpx.get(f"{endpoint.base_url}/models/else", headers=headers).json()["error"]["param"] == "model"


def test_where_the_gateway_says_it_is():
    options = {"max_model_len": 10, "max_response_tokens": 5}
    engine = ScriptedEngine([])
    for host, advertise, expected in [
        (None, "auto", r"http://127\.0\.0\.1:\d+/v1"),
        ("127.0.0.1", "gateway.internal", r"http://gateway\.internal:\d+/v1"),
        (None, "gateway.internal:8080", "http://gateway.internal:8080/v1"),
        (None, "https://proxy/ajet", "https://proxy/ajet/v1"),
    ]:
        with start_gateway(engine=engine, host=host, advertise=advertise, **options) as on:
            assert re.fullmatch(expected, on.base_url)
            on.close()  # and once more at the end of the block


@pytest.mark.extra_slow
def test_ten_thousand_calls_may_wait_at_once():
    renderer = renderer_of_style()
    ids = renderer.encode("3").tolist()
    engine = ScriptedEngine(lambda request: ids, latency=5.0, end_id=renderer.end_ids[0])
    with start_gateway(engine=engine) as on:
        peak = []

        async def everyone():
            sessions = [on.open(key=(0, index, 0)) for index in range(10_000)]
            endpoints = [session.endpoint("a") for session in sessions]
            async with httpx.AsyncClient(transport=endpoints[0].transport(), timeout=None) as http:
                tasks = [asyncio.create_task(ask(http, endpoint)) for endpoint in endpoints]
                while not any(task.done() for task in tasks):
                    await asyncio.sleep(0)
                    peak.append(engine.running)
                answers = await asyncio.gather(*tasks)
            assert {answer.status_code for answer in answers} == {200}
            return [session.close() for session in sessions]

        async def ask(http, endpoint):
            headers = {"authorization": f"Bearer {endpoint.api_key}"}
            return await http.post(f"{endpoint.base_url}/chat/completions", json={"messages": ASK}, headers=headers)

        captures = on.run_on_loop(everyone()).result(300)
        assert len(captures) == 10_000 and engine.running == 0
        assert max(peak) > 1_000
        assert all(len(capture.calls[0].response_ids) == 1 for capture in captures)


def test_a_session_grows_with_distinct_tokens_not_with_calls_squared():
    with start_gateway(lambda request: "It is so.", max_model_len=100_000) as on:
        session = on.open()

        endpoint = session.endpoint("a")

        async def talk():
            messages = list(ASK)
            async with client_of(endpoint) as client:
                for turn in range(60):
                    reply = await client.chat.completions.create(model="m", messages=messages)
                    said = {"role": "assistant", "content": reply.choices[0].message.content}
                    messages += [said, {"role": "user", "content": f"And {turn}?"}]

        asyncio.run(talk())
        text = session.stored_text_size()
        capture = session.close()
        stored = sum(len(call.suffix_ids) + len(call.response_ids) for call in capture.calls)
        assert stored == len(full_ids(capture.calls, 59))
        assert text == len(on.renderer.decode(full_ids(capture.calls, 59)))
        assert len(capture.messages) == len(ASK) + 1 + 59, "one reply, said sixty times, is one message"
        assert json.dumps(capture.messages)
