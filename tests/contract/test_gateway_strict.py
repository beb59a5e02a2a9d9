"""Strict tools, one rule in every dialect: no client sees a call that breaks its schema, whole or streamed."""

import json

import httpx
import pytest

from tests.support.dialect_fixtures import CHAT, MESSAGES, PARAMETERS, RESPONSES, named
from tests.support.dialect_replies import ADD_UP, SUM
from tests.support.gateways import TRIES, Sampling, ScriptedChat, ScriptedReply, start_gateway, timelines

pytestmark = pytest.mark.slow

HTTP = httpx.Client(verify=False, timeout=60)
calling = pytest.mark.parametrize("language", (CHAT, RESPONSES, MESSAGES), ids=named)
streamed = pytest.mark.parametrize("stream", [False, True])


def tool(language, *, strict=True, name="add", parameters=PARAMETERS):
    """The tool as its language has it."""
    told = {"name": name, "description": "Adds.", "strict": strict}
    if language is MESSAGES:
        return {**told, "input_schema": parameters}
    told["parameters"] = parameters
    return {"type": "function", "function": told} if language is CHAT else {"type": "function", **told}


def call(name, **arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def ask(endpoint, language, **fields):
    body = {**language.plain, "tools": [tool(language)], **fields}
    return HTTP.post(language.url(endpoint), headers=language.headers(endpoint.api_key), json=body)


def said(language, answer, stream):
    """(text, calls with decoded arguments) of an answer."""
    assert answer.status_code == 200, answer.text
    if stream:
        told = ADD_UP[language.path](language.check_events(answer.text))
    else:
        told = SUM[language.path](language.check_reply(answer.json()))
    decoded = [(name, json.loads(given) if isinstance(given, str) else given) for name, given in told[2]]
    return told[0], decoded


GOOD, BAD, WORSE = call("add", a=1), call("add", a="zwei"), call("add")


@calling
@streamed
def test_a_call_that_breaks_its_strict_schema_is_recorded_counted_and_drawn_again(language, stream):
    replies = iter([f"Let me see.\n{BAD}", f"{GOOD}\n{WORSE}", f"Let me see.\n{GOOD}"])
    with start_gateway(lambda request: next(replies), chunk=1) as on:
        session = on.open()
        answer = ask(session.endpoint("a"), language, stream=stream)
        assert said(language, answer, stream) == ("Let me see.", [("add", {"a": 1})])
        assert "zwei" not in answer.text, "no client sees what was rejected"
        one, two, three = session.close().calls
        for rejected, reason in ((one, "$.a"), (two, "'a' is a required property")):
            assert (rejected.finish, rejected.reply) == ("aborted", None)
            assert reason in rejected.rejected and "'add'" in rejected.rejected
        assert three.finish == "tool_calls" and three.rejected is None
        lines, untrained = timelines([one, two, three])
        assert untrained == {"aborted_call": len(one.response_ids) + len(two.response_ids)}
        assert [int(line.mask.sum()) for line in lines] == [len(three.response_ids)]


@calling
@streamed
def test_the_bound_is_that_of_json_replies_and_the_refusal_names_the_tool(language, stream):
    with start_gateway(lambda request: BAD) as on:
        session = on.open()
        answer = ask(session.endpoint("a"), language, stream=stream)
        assert answer.status_code == 422
        error = language.check_error(answer.json())
        told = error["details"] if language is MESSAGES else error
        assert told.get("code", told.get("error_code")) == "json_schema_not_met" and told["param"] == "tools"
        assert "'add'" in error["message"] and "$.a" in error["message"]
        assert [one.finish for one in session.close().calls] == ["aborted"] * TRIES


@calling
@streamed
@pytest.mark.parametrize(
    ("reply", "fields"),
    [
        (BAD, {"strict": False}),
        (BAD, {"strict": None}),
        ("It is 3.", {}),
        (call("subtract", a="zwei"), {}),
        (BAD[:-14], {}),
    ],
    ids=["not strict", "not said", "no call", "another tool", "no whole call"],
)
def test_nothing_else_is_drawn_again(language, stream, reply, fields):
    with start_gateway([reply, "never drawn"]) as on:
        session = on.open()
        answer = ask(session.endpoint("a"), language, stream=stream, tools=[tool(language, **fields)])
        assert answer.status_code == 200, answer.text
        (one,) = session.close().calls
        assert one.finish in ("stop", "tool_calls") and one.response_ids.tolist() == on.ids(reply)


@calling
def test_a_stream_without_strict_tools_begins_before_its_reply_is_known(language):
    """The engine dies after two tokens: what a client heard of them tells whether it was made to wait."""

    def heard(strict):
        with start_gateway([ScriptedReply("XXX and more", fail_after=2)], chunk=1) as on:
            answer = ask(on.open().endpoint("a"), language, stream=True, tools=[tool(language, strict=strict)])
            return answer.status_code, "X" in answer.text

    assert heard(False) == (200, True)
    assert heard(True) == (503, False)


@calling
def test_a_call_in_a_cut_reply_is_held_to_its_schema_too(language):
    replies = iter([f"{BAD}\nand so on and so forth and on", GOOD])
    with start_gateway(lambda request: next(replies)) as on:
        session = on.open(sampling=Sampling(max_tokens=len(on.ids(BAD)) + 3))
        assert said(language, ask(session.endpoint("a"), language), False) == ("", [("add", {"a": 1})])
        assert [one.finish for one in session.close().calls] == ["aborted", "tool_calls"]


@calling
def test_a_forced_call_and_tool_choice_none(language):
    forced = {"type": "function", "function": {"name": "add"}}
    if language is not CHAT:
        forced = {"type": "tool" if language is MESSAGES else "function", "name": "add"}
    rest = ['"zwei"}}\n</tool_call>', "1}}\n</tool_call>"]
    with start_gateway([f' {{"a": {each}' for each in rest]) as on:
        session = on.open()
        answer = ask(session.endpoint("a"), language, tool_choice=forced)
        assert said(language, answer, False) == ("", [("add", {"a": 1})])
        assert [one.rejected is not None for one in session.close().calls] == [True, False]
    none = {"type": "none"} if language is MESSAGES else "none"
    with start_gateway([BAD, "never drawn"]) as on:
        text, calls = said(language, ask(on.open().endpoint("a"), language, tool_choice=none), False)
        assert (text, calls) == (BAD, []), "nothing may be called, so nothing is"


@calling
def test_a_strict_tool_without_parameters_takes_any_object_and_the_prompt_is_every_dialects(language):
    prompts = {}
    for each in (CHAT, language):
        with start_gateway([call("add", a=[1])]) as on:
            session = on.open()
            parameters = {} if each is MESSAGES else None
            assert ask(session.endpoint("a"), each, tools=[tool(each, parameters=parameters)]).status_code == 200
        with start_gateway([GOOD]) as on:
            session = on.open()
            assert ask(session.endpoint("a"), each).status_code == 200
            (one,) = session.close().calls
            prompts[each.path] = on.renderer.decode(one.suffix_ids)
    assert "strict" in prompts["/chat/completions"]
    assert len(set(map(len, prompts.values()))) == 1, "the same words, whatever the order of a tool's keys"


@calling
@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"properties": {"a": {"type": "thing"}}}, "'thing'"),
        ({"properties": {"a": {"$ref": "#/$defs/nowhere"}}}, "does not exist in the schema"),
        ({"patternProperties": {"^a": {}}}, "patternProperties"),
    ],
)
def test_a_schema_that_no_call_can_be_held_to_is_refused_by_name_where_it_is_strict(language, parameters, problem):
    place = {"/chat/completions": "tools[0].function.parameters", "/responses": "tools[0].parameters"}
    with start_gateway([GOOD]) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        answer = ask(endpoint, language, tools=[tool(language, parameters=parameters)])
        error = language.check_error(answer.json())
        where = place.get(language.path, "tools[0].input_schema")
        assert answer.status_code == 400 and problem in error["message"] and where in error["message"]
        assert (error.get("details") or error)["param"] == where
        loose = ask(endpoint, language, tools=[tool(language, parameters=parameters, strict=False)])
        assert loose.status_code == 200, "what is not strict is shown to the model as it is"
        wrong = ask(endpoint, language, tools=[tool(language, strict="yes")])
        assert wrong.status_code == 400 and "strict" in language.check_error(wrong.json())["message"]
        assert len(session.close().calls) == 1


def test_a_json_reply_and_a_strict_tool_are_both_held_to():
    answer = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
    asked = {"type": "json_schema", "json_schema": {"name": "sum", "schema": answer}}
    replies = iter(["no JSON", BAD, GOOD, '{"total": 3}'])
    with start_gateway(lambda request: next(replies)) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        assert said(CHAT, ask(endpoint, CHAT, response_format=asked), False) == ("", [("add", {"a": 1})])
        assert said(CHAT, ask(endpoint, CHAT, response_format=asked), False) == ('{"total": 3}', [])
        assert [one.rejected is not None for one in session.close().calls] == [True, True, False, False]


def test_a_client_s_seed_names_another_reply_at_each_draw():
    drawn = []

    def script(request):
        drawn.append(request.draws)
        return BAD if len(drawn) in (1, 3) else GOOD

    with start_gateway(script) as on:
        session = on.open(trainable=[])
        for _ in range(2):
            assert ask(session.endpoint("a"), CHAT, seed=5).status_code == 200
    assert drawn[0].seed == drawn[2].seed == 5 and drawn[1] == drawn[3] != drawn[0]


def test_a_debug_model_is_told_of_strictness_and_judges_itself():
    critic = ScriptedChat(["It is 3."])
    with start_gateway(chat_engine_for=lambda name: critic) as on:
        session = on.open(trainable=[])
        assert ask(session.endpoint("c", debug_model="big"), MESSAGES).status_code == 200
        (sent,) = critic.requests
        assert sent["tools"][0]["function"]["strict"] is True
