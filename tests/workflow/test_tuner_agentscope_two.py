"""Agents of AgentScope 2 over the tuner, played where it is installed.

Invariant: tests/contract/test_agentscope_two.py runs them in an environment of that kind.
"""

import asyncio

import pytest
from pydantic import BaseModel

from ajet import ModelTuner
from ajet.context_tracker import timelines
from ajet.schema.errors import UserError
from ajet.task_judge.extraction import boxed_answer
from tests.support.agentscope_two import allow, needs_agentscope_two
from tests.support.workflow_fixtures import CALL, scene

pytestmark = [pytest.mark.extra_slow, needs_agentscope_two]


class Sum(BaseModel):
    total: int


def agent(model, name="math_react_agent"):
    from agentscope.agent import Agent, InjectionConfig
    from agentscope.tool import Toolkit

    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    plain = InjectionConfig(inject_runtime_state=False)
    return Agent(name, "Answer within \\boxed{{}}.", model, Toolkit([allow(add)]), injection_config=plain)


def ask(actor, **options):
    from agentscope.message import UserMsg

    return asyncio.run(actor.reply(UserMsg("user", "What is 40 + 2?"), **options))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("given", ["tuner", "model"])
@pytest.mark.parametrize("style", ["qwen25", "qwen3"])
def test_a_tool_is_used_in_one_timeline(given, style, streaming):
    with scene(CALL, r"It is \boxed{42}.", style=style) as episode:
        model = episode.tuner if given == "tuner" else episode.tuner.as_agentscope_model()
        model.stream = streaming
        reply = ask(agent(model))
        capture = episode.session.close()
    assert boxed_answer(reply.get_text_content()) == "42"
    assert [call.finish for call in capture.calls] == ["tool_calls", "stop"]
    assert capture.messages[capture.calls[1].messages[-1]]["content"] == "42"
    found, untrained = timelines(capture.calls)
    assert len(found) == 1 and len(found[0].spans) == 2 and not untrained


def test_structured_output_comes_by_a_tool_call():
    from agentscope.message import UserMsg

    with scene('{"total": 42}}\n</tool_call>') as episode:  # the gateway begins the call, whose name is required
        made = asyncio.run(episode.tuner.generate_structured_output([UserMsg("user", "What is 40 + 2?")], Sum))
    assert made.content == {"total": 42}


def test_several_agents_with_targets():
    own = object()
    with scene("I am alice.", "I am bob.", trainable=["wolf"]) as episode:
        tuner = episode.tuner
        assert tuner.as_agentscope_model("eve", target_tag="villager", debug_model=own) is own
        alice = agent(tuner.as_agentscope_model("alice", target_tag="villager"), name="alice")
        bob = agent(tuner.as_agentscope_model("bob", target_tag="wolf", debug_model=own), name="bob")
        assert (ask(alice).get_text_content(), ask(bob).get_text_content()) == ("I am alice.", "I am bob.")
        calls = episode.session.close().calls
    assert [(call.agent, call.trained) for call in calls] == [("alice", False), ("bob", True)]


def test_what_agentscope_checks_holds():
    from agentscope.agent import ModelConfig
    from agentscope.model import ChatModelBase, OpenAIChatModel

    with scene() as episode:
        tuner = episode.tuner
        assert isinstance(tuner, ChatModelBase) and isinstance(tuner, ModelTuner)
        assert isinstance(tuner.as_agentscope_model(), OpenAIChatModel)
        assert ModelConfig(fallback_model=tuner).fallback_model is tuner
        assert (tuner.model, tuner.model_name, tuner.stream) == ("ajet", "ajet", False)
        with pytest.raises(AttributeError, match="'ModelTuner' object has no attribute 'credentials'"):
            _ = tuner.credentials


def test_calls_of_version_one_are_refused_in_a_sentence():
    with scene() as episode:
        with pytest.raises(UserError, match="take Msg objects, not dictionaries"):
            asyncio.run(episode.tuner([{"role": "user", "content": "hello"}]))
        with pytest.raises(UserError, match="take no `structured_model`"):
            asyncio.run(episode.tuner([], structured_model=Sum))


def test_an_agentscope_model_at_any_server(monkeypatch):
    from agentscope.message import UserMsg

    from ajet.utils.robust_dashscope import RobustDashScopeChatModel

    other = RobustDashScopeChatModel("qwen-plus", stream=False, generate_kwargs={"temperature": 0.5})
    with scene("the opponent") as played:
        at = played.tuner.as_oai_baseurl_apikey()
        monkeypatch.setenv("OPENAI_BASE_URL", at.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", f"wrong|{at.api_key}")
        reply = asyncio.run(other([UserMsg("user", "play")]))
    assert reply.content[0].text == "the opponent"
