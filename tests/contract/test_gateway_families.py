"""A tool-using episode through the gateway under every family's published chat template, token by token."""

import asyncio
import json

import httpx
import numpy as np
import openai
import pytest

from ajet.schema.call import full_ids
from tests.support.gateways import (
    TOOL,
    Renderer,
    Sampling,
    ScriptedEngine,
    ScriptedReply,
    call,
    own_reply,
    prove,
    result,
    start_gateway,
    timelines,
)
from tests.support.published_templates import FAMILIES, family

ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a skiff?"}]
CALLING = {"role": "assistant", "content": None, "tool_calls": [call("skiff", 1)]}
RESULT = result(CALLING["tool_calls"][0], "a small boat")
ANSWER = {"role": "assistant", "content": "A small boat."}
THOUGHT = {"reasoning_content": "I look it up."}


def replies_of(renderer: Renderer) -> list[np.ndarray]:
    """What the model samples: a call with JSON of its own spelling, then an answer."""
    thoughtful = renderer.thinks or renderer.template.style == "harmony"
    calling = {**CALLING, **(THOUGHT if thoughtful else {})}
    first = own_reply(renderer, ASK, calling, RESULT, [TOOL], respell=True)
    more = {"role": "user", "content": "Sure?"}
    return [first, own_reply(renderer, [*ASK, calling, RESULT], ANSWER, more, [TOOL])]


async def play(endpoint, streamed: bool) -> str:
    async with httpx.AsyncClient() as http:
        client = openai.AsyncOpenAI(
            base_url=endpoint.base_url, api_key=endpoint.api_key, http_client=http, max_retries=0
        )
        messages: list = list(ASK)
        for _ in range(4):
            request = {"model": "any", "messages": messages, "tools": [TOOL]}
            if streamed:
                async with client.chat.completions.stream(**request) as events:
                    said = (await events.get_final_completion()).choices[0].message
            else:
                said = (await client.chat.completions.create(**request)).choices[0].message
            messages.append({"role": "assistant", "content": said.content})
            if not said.tool_calls:
                return said.content
            told = []
            for each in said.tool_calls:  # a client that spells JSON its own way, and returns no reasoning
                function = {"name": each.function.name, "arguments": json.dumps(json.loads(each.function.arguments))}
                told.append({"id": each.id, "type": "function", "function": function})
                messages.append({"role": "tool", "tool_call_id": each.id, "content": "a small boat"})
            messages[-len(told) - 1]["tool_calls"] = told
        raise AssertionError("the model never answers")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_tool_using_episode_is_one_sequence(name, streamed):
    renderer = Renderer(family(name))
    sampled = replies_of(renderer)
    engine = ScriptedEngine([ScriptedReply(ids=ids.tolist(), ended=False, chunk=2) for ids in sampled])
    with start_gateway(engine=engine, words=renderer, max_model_len=4000) as on:
        session = on.open(sampling=Sampling(500, temperature=0.7))
        answer = asyncio.run(play(session.endpoint("a"), streamed))
        capture = session.close()
    calls = capture.calls
    assert answer == "A small boat."
    assert [each.fork for each in calls] == [None, None]
    assert [each.response_ids.tolist() for each in calls] == [ids.tolist() for ids in sampled]
    first = full_ids(calls, 0)
    assert full_ids(calls, 1)[: len(first)].tolist() == first.tolist()
    (timeline,), untrained = timelines(calls)
    assert timeline.ids[timeline.mask].tolist() == np.concatenate(sampled).tolist()
    assert not untrained
    proof = prove(calls, capture.messages, capture.tools, renderer, lines=[timeline], untrained=untrained, episode="e")
    assert proof.ok and proof.counts["sampled"].equal == sum(map(len, sampled)), proof.wrong
