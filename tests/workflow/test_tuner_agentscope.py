"""Agents of AgentScope 1 over the tuner: the tutorial's agent, tools, structured output, several agents."""

import asyncio
import builtins

import pytest

pytest.importorskip("agentscope.memory", reason="AgentScope 1 is not installed")

import agentscope
from agentscope.agent import ReActAgent
from agentscope.formatter import DashScopeChatFormatter, OpenAIChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.message import Msg, TextBlock
from agentscope.model import ChatModelBase, ChatResponse, OpenAIChatModel
from agentscope.tool import Toolkit, ToolResponse
from pydantic import BaseModel

from ajet import ModelTuner
from ajet.context_tracker import timelines
from ajet.schema.commands import format_extra_install
from ajet.schema.errors import MissingExtraError
from ajet.task_judge.extraction import boxed_answer
from ajet.workflow.adapters import agentscope as adapter
from tests.support.workflow_fixtures import CALL, scene

pytestmark = pytest.mark.slow


async def add(a: int, b: int) -> ToolResponse:
    """Add two numbers.

    Args:
        a (`int`): one
        b (`int`): the other
    """
    return ToolResponse(content=[TextBlock(type="text", text=str(a + b))])


def agent(model, formatter=None, name="math_react_agent", **options):
    toolkit = Toolkit()
    toolkit.register_tool_function(add)
    made = ReActAgent(
        name=name,
        sys_prompt="Solve it. Answer within \\boxed{{}}.",
        model=model,
        formatter=formatter or DashScopeChatFormatter(),
        toolkit=toolkit,
        memory=InMemoryMemory(),
        **options,
    )
    made.set_console_output_enabled(False)
    return made


def ask(actor, **options):
    return asyncio.run(actor.reply(Msg("user", "What is 40 + 2?", role="user"), **options))


@pytest.mark.parametrize("formatter", [DashScopeChatFormatter, OpenAIChatFormatter])
@pytest.mark.parametrize("given", ["tuner", "model"])
@pytest.mark.parametrize("style", ["qwen25", "qwen3"])
def test_the_tutorials_agent_uses_a_tool_in_one_timeline(formatter, given, style):
    with scene(CALL, r"It is \boxed{42}.", style=style) as episode:
        model = episode.tuner if given == "tuner" else episode.tuner.as_agentscope_model()
        reply = ask(agent(model, formatter(), max_iters=2))
        capture = episode.session.close()
    assert boxed_answer(str(reply.content)) == "42"
    assert [call.finish for call in capture.calls] == ["tool_calls", "stop"]
    roles = [capture.messages[index]["role"] for index in capture.calls[1].messages]
    assert roles == ["system", "user", "assistant", "tool"]
    assert capture.messages[capture.calls[1].messages[-1]]["content"] == "42"
    found, untrained = timelines(capture.calls)
    assert len(found) == 1 and len(found[0].spans) == 2 and not untrained


def test_running_out_of_turns_ends_in_a_summary():
    with scene(CALL, CALL, "I ran out.") as episode:
        reply = ask(agent(episode.tuner, max_iters=2))
    assert reply.get_text_content() == "I ran out."


class Sum(BaseModel):
    total: int


def test_structured_output_comes_by_a_tool_call():
    begun_by_the_gateway = '<tool_call>\n{"name": "'  # as the agent requires a tool
    call = f'{begun_by_the_gateway}generate_response", "arguments": {{"total": 42}}}}\n</tool_call>'
    with scene(call.removeprefix(begun_by_the_gateway), "Done.") as episode:
        reply = ask(agent(episode.tuner), structured_model=Sum)
    assert reply.metadata == {"total": 42}


def test_a_streaming_model():
    with scene(CALL, "forty-two") as episode:
        episode.tuner.stream = True
        reply = ask(agent(episode.tuner))
        calls = episode.session.close().calls
    assert reply.get_text_content() == "forty-two"
    assert len(timelines(calls)[0]) == 1


def test_several_agents_with_targets():
    with scene("I am alice.", "I am bob.", trainable=["wolf"]) as episode:
        alice = agent(episode.tuner.as_agentscope_model("alice", target_tag="villager"), name="alice")
        bob = agent(episode.tuner.as_agentscope_model("bob", target_tag="wolf"), name="bob")
        ask(alice), ask(bob)
        calls = episode.session.close().calls
    assert [(call.agent, call.target, call.trained) for call in calls] == [
        ("alice", "villager", False),
        ("bob", "wolf", True),
    ]


def test_a_model_of_ones_own_answers_for_untrained_targets():
    class Own(ChatModelBase):
        async def __call__(self, *args, **kwargs):
            return ChatResponse(content=[TextBlock(type="text", text="mine")])

    own = Own("own", False)
    with scene("theirs", trainable=["wolf"]) as episode:
        alice = agent(episode.tuner.as_agentscope_model("alice", target_tag="villager", debug_model=own))
        bob = agent(episode.tuner.as_agentscope_model("bob", target_tag="wolf", debug_model=own))
        assert (ask(alice).get_text_content(), ask(bob).get_text_content()) == ("mine", "theirs")


def test_what_agentscope_checks_holds():
    with scene() as episode:
        tuner = episode.tuner
        assert isinstance(tuner, ChatModelBase) and isinstance(tuner, ModelTuner)
        assert isinstance(tuner.as_agentscope_model(), OpenAIChatModel)
        assert tuner.as_agentscope_model() is tuner.as_agentscope_model()
        assert tuner.as_agentscope_model().config is tuner.config
        config = ReActAgent.CompressionConfig.model_validate(
            {"enable": False, "agent_token_counter": Counter(), "trigger_threshold": 1, "compression_model": tuner}
        )
        assert config.compression_model is tuner
        assert (tuner.model_name, tuner.stream) == ("ajet", False)


class Counter(agentscope.token.TokenCounterBase):
    async def count(self, *args, **kwargs):
        return 0


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"role": "user", "content": [{"text": "a"}]}, "a"),
        ({"role": "user", "content": [{"text": None}]}, ""),
        ({"role": "user", "content": [{"type": "text", "text": "a"}]}, "a"),
        (
            {"role": "user", "content": [{"text": "a"}, {"text": "b"}]},
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        ),
        (
            {"role": "user", "content": [{"text": "a"}, {"image": "http://x"}]},
            [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://x"}}],
        ),
        ({"role": "assistant", "content": [], "tool_calls": [{}]}, None),
        ({"role": "assistant", "content": []}, ""),
        ({"role": "assistant", "content": None}, ""),
        ({"role": "tool", "content": "42"}, "42"),
    ],
)
def test_messages_reach_the_gateway_in_openais_shape(message, content):
    before = str(message)
    (found,) = adapter.openai_messages([message])
    assert found == {**message, "content": content}
    assert str(message) == before


def test_without_agentscope_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name.startswith("agentscope"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    adapter.find_model_class.cache_clear()
    monkeypatch.setattr(builtins, "__import__", absent)
    with scene() as episode, pytest.raises(MissingExtraError) as error:
        episode.tuner.as_agentscope_model()
    assert format_extra_install("agentscope") in str(error.value)
    monkeypatch.undo()
    adapter.find_model_class.cache_clear()
