"""Everybody who asks an OpenAI-compatible server, before one that hangs or answers no reply: each says within its time
which server it was and what came, as a failure that another attempt may mend, and never takes it for an answer."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from ajet.config.schema.algorithm import TeacherConfig
from ajet.config.services import find_model_problem
from ajet.engine import remote_server
from ajet.engine.endpoint import EndpointEngine
from ajet.engine.teacher_endpoint import TeacherEndpoint
from ajet.environment import chat_model
from ajet.environment.chat_model import ChatModel, NoAnswerError, request_completion, request_embeddings
from ajet.environment.loop import tools_loop
from ajet.gateway import Gateway, Refused
from ajet.record.rate_limiter import RateLimiter
from ajet.schema.errors import (
    NO_COMPLETION,
    ConfigError,
    EngineFailure,
    EngineHangs,
    JudgeFailure,
    TeacherFailure,
    UserError,
)
from ajet.task_judge import other_model
from ajet.task_judge.other_model import make_model_caller
from ajet_judges.config import ModelJudgeConfig
from ajet_judges.model_judge.panel import ModelPanel, PanelMember
from ajet_judges.model_judge.prompt import JudgeQuestion
from ajet_vllm.vllm_server import RemoteVllm
from tests.support.odd_endpoint import HANGS, ODD, OddServer, odd_endpoint, warnings_said

ASK = {"messages": [{"role": "user", "content": "2 + 2?"}]}
SECONDS = 0.8


@pytest.fixture
def server(request: pytest.FixtureRequest):
    with odd_endpoint(request.param) as made:
        yield made


def on_tools_loop(work):
    return asyncio.run_coroutine_threadsafe(work, tools_loop()).result(60)


async def streamed(engine):
    return [chunk async for chunk in engine.stream(ASK)]


def endpoint_engine(server: OddServer) -> EndpointEngine:
    return EndpointEngine(server.url, "m", silence=SECONDS, named="rollout.endpoint.timeout")


@pytest.mark.parametrize("server", HANGS, indirect=True)
def test_an_evaluated_endpoint_that_hangs_is_given_up_and_named(server):
    engine = endpoint_engine(server)
    began = "began its reply and then" if server.way == "sends a token" else "accepted the request and"
    with warnings_said() as said:
        for _ in range(2):
            with pytest.raises(EngineHangs, match=f"hangs: it {began} sent nothing for 0.8 s") as failure:
                asyncio.run(asyncio.wait_for(streamed(engine), 20))
            assert failure.value.retryable and server.url in str(failure.value)
    [line] = said  # once a minute, however many attempts wait for it
    assert server.url in line and "rollout.endpoint.timeout" in line
    if server.way not in ("sends signs of life", "sends a token"):  # httpx hears those of a whole reply
        with pytest.raises(EngineHangs, match="accepted the request and sent nothing for 0.8 s"):
            asyncio.run(asyncio.wait_for(engine.chat(ASK), 20))


@pytest.mark.parametrize("server", ODD, indirect=True)
def test_an_evaluated_endpoint_that_answers_no_reply_is_named_with_what_it_said(server):
    engine = endpoint_engine(server)
    words = {
        "a page": "DOCTYPE html",
        "nothing": "sent an empty",
        "other JSON": "detail",
        "half": "choices",
        "nested": "choices",
        "long integers": "choices",
        "half a stream": "before the reply was complete|invalid JSON",
    }
    for call in (engine.chat(ASK), streamed(engine)):
        with pytest.raises(EngineFailure, match=words[server.way]) as failure:
            asyncio.run(call)
        assert failure.value.retryable and server.url in str(failure.value)


def test_a_client_hears_that_it_need_not_ask_a_server_again_that_hangs(monkeypatch):
    """OpenAI's and Anthropic's clients ask again by themselves after a 5xx: three times as long for the same."""
    with odd_endpoint("never answers") as server:
        gateway = Gateway(endpoint_engine(server), None, max_model_len=100, max_response_tokens=10).start()
        try:
            from ajet.engine.contract import Sampling

            session = gateway.open("e", key=(0, 0, 0), sampling=Sampling(10), trainable=None)
            to = session("agent", "agent", None)
            answer = httpx.post(
                f"{to.base_url}/chat/completions",
                json={"model": "ajet", **ASK},
                headers={"authorization": f"Bearer {to.api_key}"},
                timeout=20,
            )
            capture = session.close()
        finally:
            gateway.close()
    assert answer.status_code == 504 and answer.headers["x-should-retry"] == "false" and server.asked == 1
    assert "hangs" in answer.json()["error"]["message"]
    assert capture.calls[0].finish == "error" and server.url in capture.calls[0].error
    assert Refused("x", final=True).within("y").final


@pytest.mark.parametrize("server", [*HANGS, *ODD], indirect=True)
def test_models_that_judge_write_and_embed(server, monkeypatch):
    monkeypatch.setattr(chat_model, "hung_endpoints", RateLimiter(60))
    model = ChatModel(base_url=server.url, model="m")
    with warnings_said() as said:
        for asked in (request_completion(model, ASK, SECONDS), request_embeddings(model, ["a"], SECONDS)):
            with pytest.raises(NoAnswerError) as problem:
                on_tools_loop(asked)
            if server.way in HANGS:
                assert "did not answer within 0.8 s" in str(problem.value) and problem.value.is_retryable
            else:
                begins = ODD[server.way][0].split(b"\n")[0].decode()[:20] or "nothing"
                assert begins in str(problem.value)
    hung = [line for line in said if "hangs" in line]
    assert len(hung) == (1 if server.way in HANGS else 0) and all(model.place in line for line in hung)


class Letters:
    """A tokenizer of three tokens."""

    def get_vocab(self):
        return {"a": 0, "b": 1, "c": 2}

    def get_added_vocab(self):
        return {}


@pytest.mark.parametrize("server", ["never answers", "a page"], indirect=True)
def test_no_judge_is_no_verdict_and_ajets_own_failure(server):
    """So that what is measured over all attempts leaves the attempt out, and does not take it for a wrong answer."""
    limits = ModelJudgeConfig(timeout=SECONDS, max_retries=0, cache=False)
    panel = ModelPanel([PanelMember(ChatModel(base_url=server.url, model="m"))], limits, None, "run")
    with pytest.raises(JudgeFailure, match="none of the judging models answers: m: (the model|the answer) ") as failure:
        asyncio.run(panel.ask(JudgeQuestion((), ""), {"type": "object"}, str))
    assert failure.value.own and failure.value.retryable


@pytest.mark.parametrize("server", ["never answers", "a page", "nothing", "other JSON"], indirect=True)
def test_a_judge_that_asks_by_the_sdk(server, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-a-test-12345")
    monkeypatch.delenv("DASHSCOPE_API_KEY", raising=False)
    monkeypatch.setattr(other_model, "TIMEOUT", SECONDS)
    monkeypatch.setattr(other_model, "RETRIES", 0)
    said = "it sent nothing for 0.8 s, 1 times" if server.way in HANGS else NO_COMPLETION
    with pytest.raises(JudgeFailure, match=f"m at {server.url} does not answer: {said}") as failure:
        make_model_caller("m", 10)(ASK["messages"])
    assert failure.value.own and failure.value.retryable


@pytest.mark.parametrize("server", ["never answers", "sends headers", "a page", "nothing", "other JSON"], indirect=True)
def test_the_teacher(server):
    teacher = TeacherEndpoint(TeacherConfig(base_url=server.url, model="m", timeout=SECONDS, max_retries=0))
    said = (
        r"hangs: it accepted the request and sent nothing for 0.8 s"
        if server.way in HANGS
        else "did not return prompt_logprobs"
    )
    with pytest.raises(
        ConfigError, match=f"The teacher cannot be used: (it )?(the teacher(.s server)? )?{said}"
    ) as refused:
        teacher.require_same_tokenizer(Letters())
    assert server.url in refused.value.where
    with pytest.raises(TeacherFailure, match=said) as failure:
        asyncio.run(teacher.request_rows([1, 2]))
    assert failure.value.own and failure.value.retryable == (server.way in HANGS)


@pytest.mark.parametrize("server", ["never answers", "a page", "nothing"], indirect=True)
def test_a_server_that_tokens_are_sampled_from(server):
    said = "sent nothing for 0.8 s" if server.way in HANGS else "The vLLM server does not answer"
    with pytest.raises(UserError, match=said) as refused:
        RemoteVllm(server.url, vocabulary=9, silence=SECONDS)
    assert server.url.removesuffix("/v1") in refused.value.where
    assert isinstance(refused.value, remote_server.ServerAwayError) == (server.way in HANGS)


def test_a_server_is_asked_before_a_run_and_says_what_it_is(monkeypatch):
    from tests.support.odd_endpoint import PAGE, Odd

    with odd_endpoint("a page") as server:
        assert find_model_problem(server.url, "m", None, 5.0, named="") == ""
        monkeypatch.setattr(Odd, "do_GET", lambda self: self._say(PAGE, "text/html"))
        assert "an HTML page" in find_model_problem(server.url, "m", None, 5.0, named="")
        monkeypatch.setattr(Odd, "do_GET", lambda self: server.released.wait())
        assert "hangs: it accepted the request and sent nothing for 0.8 s" in find_model_problem(
            server.url, "m", None, SECONDS, named=""
        )
