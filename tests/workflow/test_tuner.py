"""The tuner's clients reach the episode's gateway and nothing else."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from ajet import AjetTuner, ModelTuner
from ajet.context_tracker import timelines
from ajet.schema.endpoint import Endpoint
from tests.support.workflow_fixtures import scene

MESSAGES = [{"role": "user", "content": "40 + 2?"}]


@pytest.mark.slow
def test_importing_it_loads_no_framework():
    script = (
        "import sys; from ajet import ModelTuner, Workflow, bp\n"
        "found = {'agentscope', 'openai', 'torch', 'transformers', 'ray', 'debugpy'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_both_names_are_one_class():
    assert AjetTuner is ModelTuner


def test_the_openai_client_needs_no_model_and_keeps_a_conversation_in_one_timeline():
    async def talk(tuner):
        client = tuner.as_raw_openai_sdk_client()
        first = await client.chat.completions.create(messages=MESSAGES)
        said = first.choices[0].message
        history = [*MESSAGES, {"role": "assistant", "content": said.content}, {"role": "user", "content": "Sure?"}]
        second = await client.chat.completions.create(messages=history, temperature=0.3)
        return said.content, second.choices[0].message.content

    with scene("42", "Yes.") as episode:
        assert asyncio.run(talk(episode.tuner)) == ("42", "Yes.")
        found, untrained = timelines(episode.session.close().calls)
    assert len(found) == 1 and len(found[0].spans) == 2 and not untrained


def test_a_call_starts_no_thread():
    async def executor_after_a_call(tuner):
        await tuner.as_raw_openai_sdk_client().chat.completions.create(messages=MESSAGES)
        return asyncio.get_running_loop()._default_executor

    with scene("42") as episode:
        assert asyncio.run(executor_after_a_call(episode.tuner)) is None


def test_a_client_of_one_agent_and_target_is_made_once():
    with scene() as episode:
        tuner = episode.tuner
        assert tuner.as_raw_openai_sdk_client() is tuner.as_raw_openai_sdk_client()
        assert tuner.as_raw_openai_sdk_client("a") is not tuner.as_raw_openai_sdk_client("b")
        assert tuner.as_raw_openai_sdk_client("a", "x") is tuner.as_raw_openai_sdk_client(
            agent_name="a", target_tag="x"
        )
        assert tuner.as_raw_openai_sdk_client("a", "x") is not tuner.as_raw_openai_sdk_client("a", "y")


def test_one_client_serves_several_loops_and_threads_in_process_and_over_the_network():
    async def ask(client):
        return (await client.chat.completions.create(messages=MESSAGES)).choices[0].message.content

    with scene(*["42"] * 8) as episode, ThreadPoolExecutor(2) as threads:
        endpoint = episode.tuner.as_oai_baseurl_apikey()
        outside = Endpoint(endpoint.base_url, endpoint.api_key, endpoint.model)
        over_network = ModelTuner(None, lambda *_: outside)
        answers = []
        for tuner in (episode.tuner, over_network):
            client = tuner.as_raw_openai_sdk_client()
            answers += [asyncio.run(ask(client)), asyncio.run(ask(client))]
            answers += threads.map(lambda one: asyncio.run(ask(one)), [client, client])
    assert answers == ["42"] * 8


def test_streaming_and_options_of_the_sdk():
    async def talk(tuner):
        client = tuner.as_raw_openai_sdk_client().with_options(timeout=30)
        stream = await client.chat.completions.create(messages=MESSAGES, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        named = await client.chat.completions.create(messages=MESSAGES, model="gpt-4o")
        return text, named.choices[0].message.content

    with scene("forty-two", "42") as episode:
        assert asyncio.run(talk(episode.tuner)) == ("forty-two", "42")


def test_sync_clients_work_from_inside_a_loop():
    async def execute(tuner):
        address = tuner.as_oai_baseurl_apikey(agent_name="solver")
        reply = httpx.post(
            f"{address.base_url}/chat/completions",
            json={"model": address.model, "messages": MESSAGES},
            headers={"Authorization": f"Bearer {address.api_key}"},
        )
        sync = openai.OpenAI(base_url=address.base_url, api_key=address.api_key)
        again = sync.chat.completions.create(model=address.model, messages=MESSAGES)
        return reply.json()["choices"][0]["message"]["content"], again.choices[0].message.content

    with scene("42", "43") as episode:
        assert asyncio.run(execute(episode.tuner)) == ("42", "43")
        calls = episode.session.close().calls
    assert [call.agent for call in calls] == ["solver", "solver"]


def test_agents_and_targets_reach_the_record():
    async def talk(tuner):
        for agent, target in (("alice", "villager"), ("bob", "wolf"), ("carol", None)):
            client = tuner.as_raw_openai_sdk_client(agent_name=agent, target_tag=target)
            await client.chat.completions.create(messages=MESSAGES)

    with scene("1", "2", "3", trainable=["wolf", "carol"]) as episode:
        asyncio.run(talk(episode.tuner))
        calls = episode.session.close().calls
    assert [(call.agent, call.target, call.trained) for call in calls] == [
        ("alice", "villager", False),
        ("bob", "wolf", True),
        ("carol", "carol", True),
    ]


def test_a_debug_model_given_as_an_object_answers_for_untrained_targets_only():
    own = openai.AsyncOpenAI(api_key="x", base_url="http://127.0.0.1:9/v1")
    with scene(trainable=["wolf"]) as episode:
        tuner = episode.tuner
        assert tuner.as_raw_openai_sdk_client("alice", "villager", own) is own
        assert tuner.as_raw_openai_sdk_client("bob", "wolf", own) is not own


def test_after_the_episode_a_clear_error():
    async def talk(tuner):
        client = tuner.as_raw_openai_sdk_client()
        return await client.chat.completions.create(messages=MESSAGES)

    with scene("42") as episode:
        episode.tuner.as_raw_openai_sdk_client()
        episode.session.close()
        with pytest.raises(openai.APIStatusError) as error:
            asyncio.run(talk(episode.tuner))
    assert "ended" in str(error.value)
    assert not episode.engine.requests


def test_a_refused_request_is_not_sent_again():
    async def talk(tuner):
        client = tuner.as_raw_openai_sdk_client()
        return await client.chat.completions.create(messages=MESSAGES)

    with scene() as episode:
        with pytest.raises(openai.InternalServerError):
            asyncio.run(talk(episode.tuner))
        assert episode.engine.requests == 1


def test_no_key_is_ever_printed():
    with scene() as episode:
        address = episode.tuner.as_oai_baseurl_apikey()
        assert address.api_key not in repr(address) and address.api_key not in repr(episode.tuner)


def test_config_is_handed_through():
    marker = object()
    assert ModelTuner(marker, lambda *_: Endpoint("http://x/v1", "k")).config is marker
