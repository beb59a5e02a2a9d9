"""Agents that nothing was told: no client argument, hints of other models, addresses with /v1 too many."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import httpx
import openai
import pytest
from anthropic import AsyncAnthropic
from loguru import logger

from ajet.config.other_models import find_other_server
from ajet.schema.episode import Episode
from ajet.schema.errors import UserError
from ajet.schema.task import WorkflowOutput
from ajet.workflow.ambient import RunEnvironment
from tests.support.rollouts import stage
from tests.support.workflow_fixtures import scene

pytestmark = pytest.mark.slow
VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@cache
def shared() -> openai.OpenAI:
    """As a module of an agent's makes one when it is imported."""
    return openai.OpenAI(max_retries=0)


@cache
def of_loop(loop: Any) -> openai.AsyncOpenAI:
    """An async one cannot be shared between event loops."""
    return openai.AsyncOpenAI(max_retries=0)


def asked(task: Any, words: str) -> dict[str, Any]:
    return {"model": "gpt-5", "messages": [{"role": "user", "content": f"{task.main_query}: {words}"}]}


class KnowsNothing:
    """Every way in which libraries make clients of the environment."""

    trainable_targets = None

    async def execute(self, task, tuner):
        task, loop, sync = task.task, asyncio.get_running_loop(), shared()
        await openai.AsyncOpenAI(max_retries=0).chat.completions.create(**asked(task, "mine"))
        await asyncio.gather(
            of_loop(loop).chat.completions.create(**asked(task, "shared")),
            of_loop(loop).chat.completions.create(**asked(task, "at once")),
        )
        await asyncio.to_thread(lambda: sync.chat.completions.create(**asked(task, "in a thread")))
        await loop.run_in_executor(None, lambda: sync.chat.completions.create(**asked(task, "in the executor")))
        await AsyncAnthropic(max_retries=0).messages.create(**asked(task, "anthropic"), max_tokens=9)
        return WorkflowOutput(reward=1.0)


WORDS = ("mine", "shared", "at once", "in a thread", "in the executor", "anthropic")


def captured(episodes: Sequence[Episode], *more: str) -> None:
    """Each has its own calls, all of them, and nobody else's."""
    for episode in episodes:
        assert episode.failure is None, episode.failure
        texts = [episode.messages[call.messages[-1]]["content"] for call in episode.calls]
        assert Counter(texts) == Counter(f"{episode.task.main_query}: {each}" for each in (*WORDS, *more))


@pytest.mark.parametrize("isolation", ["thread", "loop"])
def test_an_agent_without_any_client_argument_is_captured_as_its_own_episode(isolation):
    shared.cache_clear()
    with stage(KnowsNothing, isolation=isolation, max_env_worker=64, num_repeat=2) as made:
        groups = made.play(32)
    episodes = [episode for group in groups for episode in group.episodes]
    assert len(episodes) == 64
    captured(episodes)
    assert not [name for name in os.environ if name.startswith("AJET_OUTSIDE_") or name in VARIABLES]


class CallsFromElsewhere:
    """In a thread that nobody knows to be an episode's, and by a client that is not httpx's."""

    trainable_targets = None

    async def execute(self, task, tuner):
        errors: list[str] = []

        def call() -> None:
            try:
                openai.OpenAI(max_retries=0).chat.completions.create(**asked(task.task, "lost"))
            except openai.PermissionDeniedError as error:
                errors.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        await asyncio.to_thread(thread.join)
        return WorkflowOutput(reward=1.0, metadata={"errors": errors})


@pytest.mark.parametrize("isolation", ["thread", "loop"])
def test_a_call_that_cannot_be_tied_is_refused_and_named(isolation):
    said: list[str] = []
    number = logger.add(said.append, level="WARNING", format="{message}")
    with stage(CallsFromElsewhere, isolation=isolation) as made:
        episode = made.episode()
    logger.remove(number)
    assert episode.failure is not None and episode.failure.kind == "no_model_call" and not episode.calls
    (line,) = [each for each in said if "the gateway refused a model call" in each]
    assert "OpenAI/Python" in line and "tuner.as_oai_baseurl_apikey()" in line


class KeepsAClient:
    """A module that makes its client once: of the attempt that came first."""

    trainable_targets = None
    kept: list[Any] = []
    lock = threading.Lock()
    both = threading.Barrier(2, timeout=60)

    def execute(self, task, tuner):
        with self.lock:
            if not self.kept:
                at = tuner.as_oai_baseurl_apikey()
                self.kept.append(openai.OpenAI(base_url=at.base_url, api_key=at.api_key, max_retries=0))
        self.both.wait()
        try:
            self.kept[0].chat.completions.create(**asked(task.task, "kept"))
        finally:
            self.both.wait()  # the first attempt has not ended when the second asks
        return WorkflowOutput(reward=1.0)


def test_a_client_that_another_attempt_made_is_refused_and_what_it_asks_is_nobodys():
    KeepsAClient.kept.clear()
    with stage(KeepsAClient, max_env_worker=2, num_repeat=2) as made:
        (group,) = made.play(1)
    good, bad = sorted(group.episodes, key=lambda episode: episode.failure is not None)
    assert good.failure is None and len(good.calls) == 1
    assert bad.failure is not None and not bad.calls and "belongs to another attempt" in bad.failure.message


def test_a_client_that_an_attempt_made_which_has_ended_is_told_apart_from_a_wrong_key():
    KeepsAClient.kept.clear()
    with stage(KeepsAClient, max_env_worker=2, num_repeat=2) as made:
        made.play(1)
        (group,) = made.play(1)
    assert all("another attempt" in episode.failure.message for episode in group.episodes), group.episodes[0].failure


class KnowsNothingAlone(KnowsNothing):
    async def execute(self, task, tuner):
        await super().execute(task, tuner)
        return await CallsFromElsewhere().execute(task, tuner)


def test_in_a_process_even_a_call_from_elsewhere_is_captured_and_the_worker_is_used_again():
    with stage(KnowsNothingAlone, isolation="process", max_env_worker=1, num_repeat=2) as made:
        (group,) = made.play(1)
        assert len(made.rollout.attempts.isolation._idle) == 1
    captured(group.episodes, "lost")
    assert [episode.metadata["errors"] for episode in group.episodes] == [[], []]


def test_a_persons_own_server_stays_theirs(nothing_named):
    nothing_named.setenv("OPENAI_API_KEY", "sk-mine")
    with scene("yes") as played:
        ambient = RunEnvironment(played.gateway.ambient)
        assert os.environ["OPENAI_API_KEY"] == "sk-mine" and "OPENAI_BASE_URL" not in os.environ
        assert os.environ["ANTHROPIC_BASE_URL"] + "/v1" == played.gateway.base_url
        assert find_other_server().keys == ("sk-mine",)
        ambient.close()
        ambient.close()
        nothing_named.delenv("OPENAI_API_KEY")
        ambient = RunEnvironment(played.gateway.ambient)
        with pytest.raises(UserError, match="gives the server's address"):
            find_other_server()
        ambient.close()
    assert not {*VARIABLES} & {*os.environ}


HINTS = {
    "/chat/completions": {"reasoning_effort": "low", "verbosity": "low", "store": True, "service_tier": "auto"},
    "/responses": {"reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "store": True},
    "/messages": {"output_config": {"effort": "low"}, "max_tokens": 9, "service_tier": "auto"},
}


@pytest.mark.parametrize("path", HINTS)
def test_hints_are_noted_once_and_recorded(path):
    said: list[str] = []
    number = logger.add(said.append, level="INFO", format="{message}")
    prompt = {"input": "hi"} if path == "/responses" else {"messages": [{"role": "user", "content": "hi"}]}
    with scene("one", "two") as played:
        at = played.tuner.as_oai_baseurl_apikey()
        for _ in range(2):
            headers = {"authorization": f"Bearer {at.api_key}"}
            answer = httpx.post(at.base_url + path, json={"model": "m", **prompt, **HINTS[path]}, headers=headers)
            assert answer.status_code == 200, answer.text
        calls = played.session.close().calls
    logger.remove(number)
    assert len([line for line in said if "reasoning_effort" in line and "they do not change the reply" in line]) == 1
    assert [call.extra["ignored"]["reasoning_effort"] for call in calls] == ["low", "low"]


NOTHING = {
    "/chat/completions": {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto",
                          "safety_identifier": "s", "prompt_cache_key": "k"},
    "/completions": {"user": "u"},
    "/responses": {"user": "u", "metadata": {"a": "b"}, "service_tier": "auto", "safety_identifier": "s",
                   "prompt_cache_key": "k", "max_tool_calls": 3},
    "/messages": {"metadata": {"user_id": "u"}, "service_tier": "auto"},
}  # fmt: skip


@pytest.mark.parametrize("path", NOTHING)
def test_what_asks_nothing_of_the_reply_is_said_once_and_recorded_and_values_without_effect_pass(path):
    said: list[str] = []
    number = logger.add(said.append, level="INFO", format="{message}")
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    prompt = {"/responses": {"input": "hi"}, "/completions": {"prompt": "hi"}}.get(path, prompt)
    without: dict[str, Any] = {} if path == "/messages" else {"presence_penalty": 0, "frequency_penalty": 0.0}
    if "completions" in path:
        without |= {"logit_bias": {"5": 0}, "repetition_penalty": 1.0, "min_p": 0}
    with scene("one", "two") as played:
        at = played.tuner.as_oai_baseurl_apikey()
        for _ in range(2):
            headers = {"authorization": f"Bearer {at.api_key}"}
            body = {"model": "m", **prompt, **NOTHING[path], **without}
            answer = httpx.post(at.base_url + path, json=body, headers=headers)
            assert answer.status_code == 200, answer.text
        calls = played.session.close().calls
    logger.remove(number)
    told = [line for line in said if "they do not change the reply" in line]
    assert len(told) == 1 and all(name in told[0] for name in NOTHING[path])
    assert [call.extra["ignored"] for call in calls] == [NOTHING[path]] * 2


@pytest.mark.parametrize("field", ["frequency_penalty", "presence_penalty", "logit_bias"])
def test_what_would_change_the_distribution_is_refused_with_the_reason(field):
    async def ask(client: Any) -> None:
        value: Any = {"5": 1} if field == "logit_bias" else 0.5
        await client.chat.completions.create(messages=[{"role": "user", "content": "hi"}], **{field: value})

    with (
        scene("yes") as played,
        pytest.raises(openai.BadRequestError, match=f"{field} would sample"),
    ):
        asyncio.run(ask(played.tuner.as_raw_openai_sdk_client()))


def test_one_v1_too_many_and_an_address_for_anthropic():
    async def ask(base_url: str, key: str) -> str:
        client = AsyncAnthropic(base_url=base_url, api_key=key)
        reply = await client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
        return reply.content[0].text

    with scene("a", "b", "c") as played:
        oai, own = played.tuner.as_oai_baseurl_apikey(), played.tuner.as_anthropic_baseurl_apikey()
        assert own.base_url + "/v1" == oai.base_url and own.api_key == oai.api_key
        assert asyncio.run(ask(own.base_url, own.api_key)) == "a"
        assert asyncio.run(ask(oai.base_url, oai.api_key)) == "b"
        assert asyncio.run(ask(oai.keyed_url, "none")) == "c"
