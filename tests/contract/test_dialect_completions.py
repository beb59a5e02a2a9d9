"""Completions: what a client of raw prompts may rely on, and what the capture then holds."""

import asyncio
import gc
import json

import httpx
import openai
import pytest
from openai.types import Completion

from ajet.schema.call import full_ids, prompt_ids
from tests.support.chat_templates import variant
from tests.support.gateways import (
    Renderer,
    Sampling,
    ScriptedChat,
    ScriptedReply,
    client_of,
    spelled_out,
    start_gateway,
    timelines,
)

pytestmark = pytest.mark.slow

WAYS = ["in-process", "socket", "sync"]
PROMPT = "Question: 1 + 2?\n"


async def complete(endpoint, way="in-process", **fields):
    """One completion by an unmodified client; with stream=True the chunks."""
    if way == "sync":
        with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as client:
            answer = client.completions.create(model="m", **fields)
            return list(answer) if fields.get("stream") else answer
    async with client_of(endpoint, in_process=way == "in-process") as client:
        answer = await client.completions.create(model="m", **fields)
        return [chunk async for chunk in answer] if fields.get("stream") else answer


def said(answer):
    """(text, finish reason) of one choice, streamed or not."""
    chunks = answer if isinstance(answer, list) else [answer]
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    return "".join(choice.text for choice in choices), choices[-1].finish_reason


def scripted(on, *replies):
    script = iter(replies)
    on.answer_with(lambda request: next(script))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_that_appends_to_its_text_is_one_line_of_sampled_tokens(way, stream):
    """A text agent as of old: it stops at "Observation:", appends the result, asks again."""
    with start_gateway(chunk=2) as on:
        scripted(on, spelled_out(on, "Thought é: add.\nObservation: made up"), spelled_out(on, "It is 3."))
        session = on.open()
        endpoint = session.endpoint("agent")

        async def agent():
            first = await complete(endpoint, way, prompt=PROMPT, stop="Observation:", max_tokens=99, stream=stream)
            text, finish = said(first)
            assert (text, finish) == ("Thought é: add.\n", "stop")
            text = PROMPT + text + "Observation: 3\n"
            second = await complete(endpoint, way, prompt=text, max_tokens=99, stream=stream)
            assert said(second) == ("It is 3.", "stop")
            return second

        answer = asyncio.run(agent())
        capture = session.close()
        first, second = capture.calls
        assert on.renderer.decode(first.response_ids) == "Thought é: add.\nObservation:"
        assert len(first.response_ids) == len("Thought é: add.\nObservation:"), "as sampled, a token a character"
        assert (second.parent, second.prefix, second.fork) == (0, len(full_ids(capture.calls, 0)), None)
        assert second.suffix_ids.tolist() == on.ids(" 3\n", ended=False)
        lines, untrained = timelines(capture.calls)
        assert len(lines) == 1 and not untrained
        assert lines[0].ids.tolist() == full_ids(capture.calls, 1).tolist()
        assert lines[0].ids[lines[0].mask].tolist() == [*first.response_ids.tolist(), *second.response_ids.tolist()]
        assert on.renderer.decode(prompt_ids(capture.calls, 1)) == PROMPT + "Thought é: add.\nObservation: 3\n"
        assert capture.messages[second.reply] == {"role": "assistant", "content": "It is 3."}
        if not stream:
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (
                len(prompt_ids(capture.calls, 1)), len(second.response_ids),
            )  # fmt: skip


def test_a_prompt_that_writes_the_end_token_itself_extends_too():
    with start_gateway(["ab", "cd"]) as on:
        session = on.open()
        endpoint = session.endpoint("agent")
        text, _ = said(asyncio.run(complete(endpoint, prompt="<|im_start|>x\n")))
        asyncio.run(complete(endpoint, prompt=f"<|im_start|>x\n{text}<|im_end|>\n<|im_start|>y\n"))
        calls = session.close().calls
        assert (calls[1].parent, calls[1].prefix, calls[1].fork) == (0, len(full_ids(calls, 0)), None)
        assert calls[1].suffix_ids.tolist() == on.ids("\n<|im_start|>y\n", ended=False)


def test_going_on_where_the_model_had_ended_is_a_fork_at_its_end_token():
    with start_gateway() as on:
        scripted(on, spelled_out(on, "quick"), "fox")
        session = on.open()
        endpoint = session.endpoint("agent")
        asyncio.run(complete(endpoint, prompt="The "))
        asyncio.run(complete(endpoint, prompt="The quick brown "))
        calls = session.close().calls
        assert calls[1].fork == "client_edit" and calls[1].parent == 0
        assert calls[1].prefix == len(full_ids(calls, 0)) - 1, "the sampled ids, but for the end token"
        lines, _ = timelines(calls)
        assert [line.ids[line.mask].tolist() for line in lines] == [call.response_ids.tolist() for call in calls]


def test_a_stop_string_that_the_client_leaves_out_is_a_fork():
    with start_gateway() as on:
        scripted(on, spelled_out(on, "one STOP"), "two")
        session = on.open()
        endpoint = session.endpoint("agent")
        text, _ = said(asyncio.run(complete(endpoint, prompt="Go: ", stop=" STOP")))
        asyncio.run(complete(endpoint, prompt=f"Go: {text}, and"))
        first, second = session.close().calls
        assert second.fork == "client_edit"
        assert prompt_ids([first, second], 1).tolist() == on.ids("Go: one, and", ended=False)


def test_ids_are_taken_as_they_are():
    with start_gateway(["ab", "cd", "ef"]) as on:
        session = on.open()
        endpoint = session.endpoint("agent")
        letters = [token for letter in "What is" for token in on.ids(letter, ended=False)]
        assert letters != on.ids("What is", ended=False)
        asyncio.run(complete(endpoint, prompt=letters))
        more = [*letters, *on.ids("ab"), *on.ids("?", ended=False)]
        asyncio.run(complete(endpoint, prompt=more))
        asyncio.run(complete(endpoint, prompt=on.ids("What isab??", ended=False)))
        calls = session.close().calls
        assert prompt_ids(calls, 0).tolist() == letters
        assert (calls[1].parent, calls[1].fork, calls[1].suffix_ids.tolist()) == (0, None, on.ids("?", ended=False))
        assert calls[2].fork == "client_edit", "the same text in other tokens"
        assert prompt_ids(calls, 2).tolist() == on.ids("What isab??", ended=False)


@pytest.mark.parametrize("stream", [False, True])
def test_each_prompt_and_each_choice_is_a_call(stream):
    with start_gateway() as on:
        texts = {"a": iter(["1", "2"]), "b": iter(["3", "4"])}
        on.answer_with(lambda request: next(texts[on.renderer.decode(request.prompt_ids)]))
        session = on.open()
        options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        answer = asyncio.run(complete(session.endpoint("agent"), prompt=["a", "b"], n=2, echo=True, **options))
        chunks = answer if stream else [answer]
        told = dict.fromkeys(range(4), "")
        for chunk in chunks:
            for choice in chunk.choices:
                told[choice.index] += choice.text
        assert [told[0][0], told[2][0]] == ["a", "b"]
        assert sorted(told.values()) == ["a1", "a2", "b3", "b4"]
        assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (2, 8)
        assert len(session.close().calls) == 4


def test_logprobs_are_the_captured_ones_and_a_stream_adds_up_to_them():
    with start_gateway(lambda request: "Ok é深.", chunk=1) as on:
        session = on.open()
        endpoint = session.endpoint("agent")
        whole = asyncio.run(complete(endpoint, prompt="x", logprobs=2)).choices[0]
        chunks = asyncio.run(complete(endpoint, prompt="x", logprobs=2, stream=True))
        told = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [value for part in told for value in getattr(part, name)] == getattr(whole.logprobs, name)
        call = session.close().calls[0]
        assert whole.logprobs.token_logprobs == call.logprobs_unit.tolist()
        assert len(whole.logprobs.tokens) == len(call.response_ids)
        for token, top in zip(whole.logprobs.tokens, whole.logprobs.top_logprobs, strict=True):
            assert token in top and len(top) <= 3, "the likeliest two, and the one that was drawn"
        assert whole.logprobs.tokens[-1] == "<|im_end|>" and whole.logprobs.text_offset[-1] == len("Ok é深.")
        assert whole.logprobs.text_offset == sorted(whole.logprobs.text_offset)
        for token, at in zip(whole.logprobs.tokens, whole.logprobs.text_offset, strict=True):
            assert "\ufffd" in token or whole.text.startswith(token, at) or token == "<|im_end|>"


@pytest.mark.parametrize("stream", [False, True])
def test_without_a_limit_it_is_sixteen_tokens(stream):
    with start_gateway(lambda request: "a" * 40) as on:
        session = on.open()
        answer = asyncio.run(complete(session.endpoint("agent"), prompt="x", stream=stream))
        assert said(answer) == ("a" * 16, "length")
        assert len(session.close().calls[0].response_ids) == 16


def test_what_is_sent_is_of_the_clients_type():
    with start_gateway(lambda request: "ok", chunk=1) as on:
        endpoint = on.open().endpoint("agent")
        url, headers = f"{endpoint.base_url}/completions", {"authorization": f"Bearer {endpoint.api_key}"}
        asked = {"prompt": ["a", [67]], "logprobs": 1}
        whole = httpx.post(url, json=asked, headers=headers)
        assert len(Completion.model_validate_json(whole.text, strict=True).choices) == 2
        events = httpx.post(url, json={**asked, "stream": True}, headers=headers).text.strip().split("\n\n")
        assert events.pop() == "data: [DONE]"
        chunks = [json.loads(event.removeprefix("data: ")) for event in events]
        assert {tuple(chunk) for chunk in chunks} == {("id", "object", "created", "model", "choices")}
        assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]].count("stop") == 2


def test_markup_is_text_here():
    reply = '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call> '
    with start_gateway([reply], style="qwen3") as on:
        session = on.open()
        assert said(asyncio.run(complete(session.endpoint("agent"), prompt="x", max_tokens=400))) == (
            reply, "stop",
        )  # fmt: skip


def test_a_text_begins_as_the_tokenizer_begins_texts():
    from tokenizers.processors import TemplateProcessing

    plain = variant("llama3")
    own = plain.backend_tokenizer.from_str(plain.backend_tokenizer.to_str())
    made = plain.__class__(tokenizer_object=own, eos_token="<|eot_id|>", bos_token="<|begin_of_text|>")
    made.chat_template = plain.chat_template
    begin = made.bos_token_id
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)]
    )
    renderer = Renderer(made)
    assert renderer.raw("x").ids.tolist() == [begin, *renderer.encode("x").tolist()]
    assert renderer.raw("<|begin_of_text|>x").ids.tolist() == renderer.raw("x").ids.tolist()
    assert renderer.raw([5, 6]).ids.tolist() == [5, 6]
    with start_gateway(words=renderer) as on:
        scripted(on, ScriptedReply(ids=renderer.encode("ab").tolist(), ended=False), ScriptedReply(ids=[1]))
        session = on.open()
        endpoint = session.endpoint("agent")
        asyncio.run(complete(endpoint, prompt="x", max_tokens=len(renderer.encode("ab"))))
        asyncio.run(complete(endpoint, prompt="xabc"))
        calls = session.close().calls
        assert (calls[1].parent, calls[1].fork) == (0, None), "the begin token is no part of the client's text"
        assert calls[1].suffix_ids.tolist() == renderer.encode("c").tolist()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[0]"),
        ({"prompt": ["a", None]}, "prompt[1]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [10**30], "echo": True}, "prompt"),
        ({"prompt": "x" * 3000}, "prompt"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "n": 0}, "n"),
        ({"prompt": ["x"] * 65, "n": 2}, "prompt"),
        ({"prompt": "x", "logprobs": True}, "logprobs"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": "x", "echo": True, "logprobs": 0}, "echo"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "logit_bias": {"3": 1}}, "logit_bias"),
        ({"prompt": "x", "presence_penalty": 1}, "presence_penalty"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "stop": ["a", ""]}, "stop"),
        ({"prompt": "x", "messages": []}, "messages"),
        ({"prompt": "x", "tools": []}, "tools"),
        ({"prompt": "x", "seed": "s"}, "seed"),
        ({"prompt": "x", "stream_options": {}}, "stream_options"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_named(endpoint, fields, param):
    fields = {"prompt": None, **fields}
    with pytest.raises(openai.BadRequestError) as refused:
        asyncio.run(complete(endpoint, extra_body=fields, prompt=fields.pop("prompt")))
    assert refused.value.param == param and refused.value.body["message"]


@pytest.fixture(scope="module")
def endpoint():
    with start_gateway(lambda request: "ok") as on:
        yield on.open().endpoint("agent")


def test_fields_that_ask_for_nothing_are_let_be(endpoint):
    harmless = {
        "user": "u", "suffix": None, "best_of": 1, "logit_bias": {}, "presence_penalty": 0, "seed": 3, "n": None,
        "echo": False, "stop": None, "frequency_penalty": 0.0, "logprobs": None,
    }  # fmt: skip
    assert said(asyncio.run(complete(endpoint, prompt="x", extra_body=harmless))) == ("ok", "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_model_takes_no_raw_prompts(stream):
    with start_gateway(engine=ScriptedChat(["hi"]), max_model_len=100, max_response_tokens=10) as on:
        session = on.open(sampling=Sampling(10))
        with pytest.raises(openai.BadRequestError) as refused:
            asyncio.run(complete(session.endpoint("agent"), prompt="x", stream=stream))
        assert refused.value.param == "prompt"
        assert session.close().calls == []


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_dies_says_so(stream):
    with start_gateway([ScriptedReply("abcdef", fail_after=3)], chunk=1) as on:
        session = on.open()
        kind = openai.APIError if stream else openai.InternalServerError
        with pytest.raises(kind) as failed:
            asyncio.run(complete(session.endpoint("agent"), prompt="x", stream=stream))
        assert "fails after 3 tokens" in str(failed.value)
        call = session.close().calls[0]
        assert call.finish == "error" and len(call.response_ids) == 3


def test_raw_and_chat_calls_of_an_episode_do_not_mix():
    with start_gateway(["ab", "cd", "ef"]) as on:
        session = on.open()
        endpoint = session.endpoint("agent")

        async def agent():
            async with client_of(endpoint) as client:
                await client.completions.create(model="m", prompt="x")
                ask = [{"role": "assistant", "content": "ab"}, {"role": "user", "content": "?"}]
                await client.chat.completions.create(model="m", messages=ask)
                await client.completions.create(model="m", prompt="xab|")

        asyncio.run(agent())
        calls = session.close().calls
        assert [call.parent for call in calls] == [None, None, 0]
        assert [call.fork for call in calls] == [None, None, "client_edit"]
        assert [len(call.messages) for call in calls] == [0, 2, 0]


@pytest.fixture(scope="module")
def collected():
    """Nothing is left of other tests that asyncio would complain of in this one."""
    gc.collect()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("bad", [[1 << 30], [-1], [], "word " * 2000, [40] * 2000], ids="abcde")
@pytest.mark.parametrize("at", [0, 2])
def test_one_bad_prompt_of_several_refuses_them_all_before_anything_is_sampled(stream, bad, at, collected, caplog):
    prompts = [[40, 41], [42], [43]]
    prompts[at] = bad if isinstance(bad, list) else [40] * 2000
    if isinstance(bad, str):
        prompts = [bad if index == at else "1 + 2 =" for index in range(3)]
    with start_gateway(lambda request: "fine") as on:
        session = on.open()
        with pytest.raises(openai.BadRequestError) as caught:
            asyncio.run(complete(session.endpoint("a"), prompt=prompts, n=2, stream=stream))
        assert f"prompt {at} of 3" in caught.value.message and caught.value.param == "prompt"
        assert session.close().calls == [] and on.engine.requests == 0
        gc.collect()
        assert not caplog.records, "asyncio complains of errors that nobody heard of"


def test_more_choices_than_may_wait_are_refused_before_anything_is_sampled():
    with start_gateway(lambda request: "fine", max_calls=3) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        for prompt, n in (("1 + 2 =", 4), (["1 + 2 =", "3 + 4 ="], 2)):
            with pytest.raises(openai.RateLimitError):
                asyncio.run(complete(endpoint, prompt=prompt, n=n))
        assert len(asyncio.run(complete(endpoint, prompt="1 + 2 =", n=3)).choices) == 3
        assert len(session.close().calls) == 3 == on.engine.requests


def test_a_client_that_leaves_while_its_prompts_are_checked_gets_them_when_it_asks_again():
    """The check of a long prompt takes its time, and its result holds for the retry."""
    with start_gateway(lambda request: "fine", max_model_len=1 << 20) as on:
        session = on.open()
        endpoint = session.endpoint("a")
        prompts = ["word " * 20_000, "1 + 2 ="]

        async def play():
            with pytest.raises(openai.APITimeoutError):
                async with client_of(endpoint) as client:
                    await client.with_options(timeout=1e-4).completions.create(model="m", prompt=prompts)
            return await complete(endpoint, prompt=prompts, extra_headers={"x-stainless-retry-count": "1"})

        assert [choice.text for choice in asyncio.run(play()).choices] == ["fine", "fine"]
        assert [call.error for call in session.close().calls] == [None, None]
