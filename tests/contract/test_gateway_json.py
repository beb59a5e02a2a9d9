"""Replies that must be JSON of a schema: held to it by the engine, or judged and drawn again within a bound."""

import asyncio
import json
import threading

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.schema.call import full_ids, prompt_ids
from ajet.schema.json_schema import find_reply_problem, find_schema_problem
from tests.support.chat_templates import tokenizer, variant
from tests.support.gateways import (
    ADD,
    ASK,
    TRIES,
    Renderer,
    Sampling,
    ScriptedChat,
    ScriptedEngine,
    ScriptedReply,
    client_of,
    post,
    renderer_of_style,
    start_gateway,
    timelines,
)

ANSWER = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": ANSWER}}
GOOD, BAD = '{"answer": 3}', '{"answer": "three"}'


def complete(endpoint, **fields):
    async def ask():
        async with client_of(endpoint) as client:
            answer = await client.chat.completions.create(
                **{"model": "m", "messages": ASK, "response_format": FORMAT, **fields}
            )
            return [chunk async for chunk in answer] if fields.get("stream") else answer

    return asyncio.run(ask())


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_breaks_the_schema_is_recorded_counted_and_drawn_again(stream):
    replies = iter(["no JSON", BAD, GOOD, "thanks"])
    with start_gateway(lambda request: next(replies), chunk=1) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        answer = complete(endpoint, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
        if stream:
            said = "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
            usage = answer[-1].usage
        else:
            said, usage = answer.choices[0].message.content, answer.usage
        assert said == GOOD, "no client sees what was rejected"
        more = [*ASK, {"role": "assistant", "content": said}, {"role": "user", "content": "Thank you."}]
        complete(endpoint, messages=more, response_format=None)
        capture = session.close()
        one, two, three, four = capture.calls
        for call, reason in ((one, "not JSON"), (two, "$.answer")):
            assert (call.finish, call.reply) == ("aborted", None) and reason in call.rejected
            assert len(call.response_ids) == len(call.logprobs) > 0 and call.rejected in call.error
        assert three.finish == "stop" and three.rejected is None
        assert usage.completion_tokens == len(three.response_ids)
        assert usage.prompt_tokens == len(prompt_ids(capture.calls, 2)) == len(prompt_ids(capture.calls, 0))
        assert len(two.suffix_ids) == len(three.suffix_ids) == 0, "the same prompt is stored once"
        assert (four.parent, four.fork, four.prefix) == (2, None, len(full_ids(capture.calls, 2)))
        lines, untrained = timelines(capture.calls)
        assert untrained == {"aborted_call": len(one.response_ids) + len(two.response_ids)}
        assert [int(line.mask.sum()) for line in lines] == [len(three.response_ids) + len(four.response_ids)]


def test_the_bound_is_kept_and_the_client_does_not_try_again():
    with start_gateway(lambda request: BAD) as on:
        session = on.open()
        endpoint = session.endpoint("a")

        async def ask():
            async with client_of(endpoint) as client:
                await client.with_options(max_retries=3).chat.completions.create(
                    model="m", messages=ASK, response_format=FORMAT
                )

        with pytest.raises(openai.UnprocessableEntityError) as caught:
            asyncio.run(ask())
        assert caught.value.code == "json_schema_not_met" and "$.answer" in caught.value.message
        assert caught.value.param == "response_format"
        assert [call.finish for call in session.close().calls] == ["aborted"] * TRIES


@pytest.mark.parametrize(
    "reply, fields, finish",
    [
        ('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', {"tools": [ADD]}, "tool_calls"),
        ('{"answer": 3, "and": "so on and so forth"}', {"max_tokens": 4}, "length"),
    ],
)
def test_a_tool_call_is_no_answer_yet_and_what_was_cut_says_so(reply, fields, finish):
    with start_gateway([reply]) as on:
        session = on.open()
        answer = complete(session.endpoint("a"), **fields)
        assert answer.choices[0].finish_reason == finish
        assert [call.finish for call in session.close().calls] == [finish]


def test_any_json_object_will_do_where_no_schema_is_given():
    replies = iter(["[1]", "3", '{"any": [1]}'])
    with start_gateway(lambda request: next(replies)) as on:
        session = on.open()
        answer = complete(session.endpoint("a"), response_format={"type": "json_object"})
        assert json.loads(answer.choices[0].message.content) == {"any": [1]}
        assert len(session.close().calls) == 3


class Constrained(ScriptedEngine):
    """Says what it was asked to hold replies to."""

    constrains = True

    def __init__(self, renderer, text):
        self.asked = []
        super().__init__(
            lambda request: self.asked.append(request.sampling.json_schema) or text,
            encode=lambda text: renderer.encode(text).tolist(),
            end_id=renderer.end_ids[0],
            chunk=1,
        )


@pytest.mark.parametrize(
    "fields, held",
    [
        ({}, ANSWER),
        ({"response_format": {"type": "json_object"}}, {"type": "object"}),
        ({"tools": [ADD], "tool_choice": "none"}, ANSWER),
        ({"tools": [ADD]}, None),
        ({"response_format": {"type": "text"}}, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_can_is_held_to_the_schema(fields, held, stream):
    engine = Constrained(renderer_of_style(), GOOD)
    with start_gateway(engine=engine) as on:
        session = on.open()
        complete(session.endpoint("a"), stream=stream, **fields)
        (asked,) = engine.asked
        assert (asked and json.loads(asked)) == held
        assert len(session.close().calls) == 1


def test_an_opened_thought_is_not_held_to_the_schema():
    plain = tokenizer("qwen3")
    renderer = Renderer(variant("qwen3", template=plain.chat_template + "{{ '<think>\\n' }}"))
    assert renderer.render(ASK).text.endswith("<think>\n")
    engine = Constrained(renderer, "so\n</think>\n\n" + GOOD)
    with start_gateway(engine=engine, words=renderer) as on:
        session = on.open(sampling=Sampling(200))
        message = complete(session.endpoint("a")).choices[0].message
        assert engine.asked == [None] and message.content == GOOD and message.model_extra["reasoning_content"] == "so"


def test_a_debug_model_is_asked_for_the_schema_itself():
    critic = ScriptedChat([GOOD, "{}"])
    with start_gateway(chat_engine_for=lambda name: critic) as on:
        session = on.open(trainable=[])
        endpoint = session.endpoint("c", debug_model="big")
        complete(endpoint)
        complete(endpoint, response_format={"type": "json_object"})
        formats = [request["response_format"] for request in critic.requests]
        assert formats[0]["json_schema"]["schema"] == ANSWER and formats[1] == {"type": "json_object"}
        assert all(call.finish == "stop" for call in session.close().calls)


def test_a_client_that_leaves_between_two_tries_gets_the_one_call_back():
    """The second draft is aborted half-way, and goes on when the client asks again."""
    renderer = renderer_of_style()
    bad, good = ([*renderer.encode(text).tolist(), renderer.end_ids[0]] for text in (BAD, GOOD))
    halted = threading.Event()

    class Halting(ScriptedEngine):
        async def generate(self, request):
            turn = self.requests
            async for chunk in super().generate(request):
                yield chunk
                if turn == 1 and not halted.is_set():
                    halted.set()
                    await asyncio.get_running_loop().create_future()

    def script(request):
        turn = engine.requests - 1
        return bad if turn == 0 else good if turn == 1 else good[1:]

    engine = Halting(script, chunk=1)
    with start_gateway(engine=engine) as on:
        session = on.open()
        endpoint = session.endpoint("a")

        async def play():
            async with client_of(endpoint) as client:
                fields = {"model": "m", "messages": ASK, "response_format": FORMAT}
                task = asyncio.create_task(client.chat.completions.create(**fields))
                await asyncio.to_thread(halted.wait)
                task.cancel()
                await asyncio.wait([task])
                await asyncio.to_thread(session.wait_until_calls_end)
                retry = {"x-stainless-retry-count": "1"}
                return await client.chat.completions.create(**fields, extra_headers=retry)

        assert asyncio.run(play()).choices[0].message.content == GOOD
        first, second = session.close().calls
        assert first.finish == "aborted" and first.rejected
        assert second.finish == "stop" and second.resumed == 1 and second.response_ids.tolist() == good


@pytest.mark.parametrize(
    "schema, problem",
    [
        ({"type": "thing"}, "'thing'"),
        ({"type": "object", "required": "answer"}, "required"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "leads out"),
        ({"properties": {"a": {"$ref": "#/$defs/nowhere"}}}, "does not exist in the schema"),
        ({"properties": {"a": {"pattern": "("}}}, "is not a 'regex'"),
        ({"patternProperties": {"^a": {"type": "string"}}}, "patternProperties"),
    ],
)
def test_a_schema_that_nothing_can_be_held_to_is_refused(schema, problem):
    with start_gateway(lambda request: GOOD) as on:
        endpoint = on.open().endpoint("a")
        asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        answer = post(endpoint, {"messages": ASK, "response_format": asked})
        error = answer.json()["error"]
        assert answer.status_code == 400 and problem in error["message"]
        assert error["param"] == "response_format.json_schema.schema"


@pytest.mark.parametrize(
    "schema, text, fits",
    [
        (ANSWER, GOOD, True),
        (ANSWER, f"  {GOOD}\n", True),
        (ANSWER, f"```json\n{GOOD}\n```", False),
        (ANSWER, "", False),
        (ANSWER, "NaN", False),
        ({}, '{"a": Infinity}', False),
        ({}, "[" * 100_000, False),
        ({"type": "integer"}, "3", True),
        ({"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}, '{"a": "x"}', False),
        ({"properties": {"enum": {"pattern": "^a+$"}}}, '{"enum": "b"}', False),
        ({"properties": {"enum": {"pattern": "^a+$"}}}, '{"enum": "aa"}', True),
        ({"$ref": "#"}, "{}", False),
    ],
)
def test_what_keeps_to_a_schema(schema, text, fits):
    assert find_schema_problem(schema) is None
    assert (find_reply_problem(text, schema) is None) == fits


def test_a_pattern_that_would_take_for_ever_does_not():
    schema = {"type": "string", "pattern": "^(a|aa)+$"}
    assert "too long" in find_reply_problem(json.dumps("a" * 60 + "b"), schema)


KEYS = st.sampled_from(["type", "properties", "items", "$ref", "pattern", "enum", "anyOf", "required", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_no_schema_and_no_reply_make_the_judge_fail(value):
    schema = value if isinstance(value, dict) else {"enum": [value]}
    text = json.dumps(value)
    wrong = find_reply_problem(text, schema)
    assert isinstance(wrong, str) or (wrong is None and find_schema_problem(schema) is None)


def test_what_a_failed_engine_said_is_no_rejection():
    with start_gateway([ScriptedReply(BAD), ScriptedReply(GOOD, fail_after=1)]) as on:
        session = on.open(sampling=Sampling(100))
        assert post(session.endpoint("a"), {"messages": ASK, "response_format": FORMAT}).status_code == 503
        assert [call.finish for call in session.close().calls] == ["aborted", "error"]
