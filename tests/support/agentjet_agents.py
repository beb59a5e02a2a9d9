"""Agents and judges of our own that use ajet as AgentJet's tutorials use theirs: each form of its interface, once.

What a form is stands in its docstring; `tests/contract/test_agentjet_tutorials.py` plays them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from textwrap import dedent

import requests
from pydantic import BaseModel, Field

from ajet import AjetTuner, ModelTuner, Workflow, WorkflowOutput, WorkflowTask
from ajet.schema.task import WorkflowTask as SchemaTask
from ajet.task_judge.base_judge import BaseJudge
from ajet.task_rollout.dashscope_llm_bridge import create_external_llm_fn
from ajet.workflow import WorkflowOutput as WorkflowsOutput

BOXED = re.compile(r"\\boxed\{([^}]*)\}")
SYSTEM = "Solve it. The answer stands in \\boxed{}."


class Result(BaseModel):
    result: str = Field(description="The answer, boxed.")


def react(model, **more):
    """agentscope's agent, as the tutorials make it: imports within, no output on the console."""
    from agentscope.agent import ReActAgent
    from agentscope.formatter import DashScopeChatFormatter
    from agentscope.memory import InMemoryMemory

    given = {"formatter": DashScopeChatFormatter(), "memory": InMemoryMemory(), "sys_prompt": SYSTEM, "name": "Qwen"}
    agent = ReActAgent(model=model, **{**given, **more})
    agent.set_console_output_enabled(False)
    return agent


def user(text):
    from agentscope.message import Msg

    return Msg("user", text, role="user")


class MathWithTools(Workflow):
    """A toolkit, an answer in the shape of a pydantic model, fields of its own on self; the judge reads metadata."""

    name: str = "math_agent_workflow"

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        from agentscope.tool import Toolkit, execute_python_code

        self.toolkit = Toolkit()
        self.toolkit.register_tool_function(execute_python_code)
        self.agent = react(tuner.as_agentscope_model(), toolkit=self.toolkit, max_iters=4)
        reply = await self.agent.reply(user(workflow_task.task.main_query), structured_model=Result)
        return WorkflowOutput(reward=None, metadata={"final_answer": reply.metadata["result"]})


class MathTunerIsTheModel(Workflow):
    """The older names: ModelTuner, `model_tuner`, and the tuner itself as agentscope's model."""

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        reply = await react(model_tuner, toolkit=None).reply(user(workflow_task.task.main_query))
        return WorkflowOutput(reward=None, metadata={"final_answer": reply.content[0]["text"]})


class MathRewardsItself(Workflow):
    """The reward in the workflow, from the row's own columns."""

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        reply = await react(tuner.as_agentscope_model(), max_iters=2).reply(user(workflow_task.task.main_query))
        found = BOXED.search(str(reply.content))
        answer = workflow_task.task.metadata["answer"].split("####")[-1].strip()
        return WorkflowOutput(reward=1.0 if found and found[1] == answer else 0.0, metadata={"final_answer": answer})


class MathByUrlAndKey(Workflow):
    """agentscope's own OpenAI model at the tuner's address, with its older argument."""

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        from agentscope.formatter import OpenAIChatFormatter
        from agentscope.model import OpenAIChatModel

        at = tuner.as_oai_baseurl_apikey()
        model = OpenAIChatModel(
            model_name="whatever", client_args={"base_url": at.base_url}, api_key=at.api_key, stream=False
        )
        reply = await react(model, formatter=OpenAIChatFormatter()).reply(user(workflow_task.task.main_query))
        return WorkflowOutput(reward=None, metadata={"final_answer": str(reply.content)})


class MathByOpenAI(Workflow):
    """OpenAI's client without a model's name; a tool's call and its result by hand."""

    system_prompt: str = dedent("""
        Solve it. The answer stands in \\boxed{}.
    """)
    available_functions: list = [
        {
            "type": "function",
            "function": {
                "name": "execute_python_code",
                "description": "Run code.",
                "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
            },
        }
    ]

    async def execute(self, workflow_task: WorkflowTask, model_tuner: AjetTuner) -> WorkflowOutput:
        client = model_tuner.as_raw_openai_sdk_client()
        messages = [
            {"role": "system", "content": self.system_prompt},
            {"role": "user", "content": workflow_task.task.main_query},
        ]
        first = await client.chat.completions.create(messages=messages, tools=self.available_functions)
        said = first.choices[0].message
        if said.content:
            messages.append({"role": "assistant", "content": said.content})
        for call in said.tool_calls or ():
            command = [sys.executable, "-S", "-c", json.loads(call.function.arguments)["code"]]
            done = await asyncio.to_thread(lambda c=command: subprocess.run(c, capture_output=True, text=True).stdout)
            name = call.function.name
            content = json.dumps({"out": done})
            messages.append({"role": "tool", "tool_call_id": call.id, "name": name, "content": content})
        last = await client.chat.completions.create(messages=messages)
        return WorkflowOutput(reward=None, metadata={"final_answer": last.choices[0].message.content})


class MathByHttp(Workflow):
    """Plain HTTP that blocks, within an async function."""

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        at = tuner.as_oai_baseurl_apikey()
        asked = {"model": "whatever", "messages": [{"role": "user", "content": workflow_task.task.main_query}]}
        reply = requests.post(
            f"{at.base_url}/chat/completions", json=asked, headers={"Authorization": f"Bearer {at.api_key}"}
        )
        return WorkflowOutput(reward=None, metadata={"final_answer": reply.json()["choices"][0]["message"]["content"]})


class MathByLangChain(Workflow):
    """LangChain's agent, called without await, its key given as a function."""

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        from langchain.agents import create_agent
        from langchain_openai import ChatOpenAI

        at = tuner.as_oai_baseurl_apikey()
        agent = create_agent(model=ChatOpenAI(base_url=at.base_url, api_key=lambda: at.api_key), system_prompt=SYSTEM)
        done = agent.invoke({"messages": [{"role": "user", "content": workflow_task.task.main_query}]})
        return WorkflowOutput(reward=None, metadata={"final_answer": done["messages"][-1].content})


class BoxedJudge(BaseJudge):
    """A judge of a file beside it: no call of super().__init__, a plain tuple, an int as a reward."""

    def __init__(self, config):
        self.config = config

    def compute_reward(self, workflow_task: SchemaTask, workflow_output: WorkflowsOutput) -> tuple:
        found = BOXED.search(workflow_output.metadata["final_answer"])
        is_success = bool(found) and found[1] == workflow_task.task.metadata["answer"].split("####")[-1].strip()
        return int(is_success), is_success


class AskingJudge(BoxedJudge):
    """A judge that asks a model: its name and length from the YAML."""

    def compute_reward(self, workflow_task: SchemaTask, workflow_output: WorkflowsOutput) -> tuple:
        ask = create_external_llm_fn(
            alien_llm_model=self.config.ajet.task_judge.alien_llm_model,
            alien_llm_response_length=self.config.ajet.task_judge.alien_llm_response_length,
        )
        said = ask(messages=[{"role": "user", "content": workflow_output.metadata["final_answer"]}])["content"]
        return ("<Correct>" in said) * 1.0, "<Correct>" in said


class Countdown(Workflow):
    """A row without a question: its columns are metadata, and reach the judge by the output's."""

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        target, nums = (workflow_task.task.metadata.get(key) for key in ("target", "nums"))
        reply = await react(tuner.as_agentscope_model(), max_iters=2).reply(user(f"{target} of {nums}"))
        told = {"final_answer": str(reply.content), "target": target, "nums": nums}
        return WorkflowOutput(reward=None, metadata=told)


class CountdownJudge(BaseJudge):
    def __init__(self, config):
        self.config = config
        self.format_score = 0.1

    def compute_reward(self, workflow_task, workflow_output) -> tuple:
        found, told = BOXED.search(workflow_output.metadata["final_answer"]), workflow_output.metadata
        right = bool(found) and sum(int(each) for each in found[1].split("+")) == told["target"]
        return (1.0 if right else self.format_score), right


class Lake(Workflow):
    """A section of its own, `tuner.config`, no memory, several turns, the environment in its own code."""

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        config = tuner.config
        self.size, self.seed = config.frozen_lake.frozen_lake_size, workflow_task.task.metadata["random_number"]
        self.steps: int = 0
        from agentscope.agent import ReActAgent
        from agentscope.formatter import DashScopeChatFormatter

        agent = ReActAgent(
            name="lake", sys_prompt=SYSTEM, model=tuner.as_agentscope_model(), formatter=DashScopeChatFormatter(),
            max_iters=2,
        )  # fmt: skip
        agent.set_console_output_enabled(False)
        at = 0
        for _ in range(config.ajet.rollout.multi_turn.max_steps):
            self.steps += 1
            reply = await agent.reply(user(f"You are at {at} of {self.size} (map {self.seed})."))
            said = reply.content if isinstance(reply.content, str) else reply.content[0].get("text")
            at += re.findall(r"```(.*?)```", said, re.DOTALL)[-1:] == ["Right"]
            if at >= self.size and not config.frozen_lake.is_slippery:
                break
        return WorkflowOutput(reward=float(at >= self.size), metadata={"step_count": self.steps})


class Asks(Workflow):
    """init_messages as agentscope's messages; a model of another server scores, which the module opened."""

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        from agentscope.message import Msg
        from agentscope.model import ChatResponse

        from ajet.utils.robust_dashscope import RobustDashScopeChatModel

        llm = RobustDashScopeChatModel("qwen-plus", stream=False)
        messages = workflow_task.task.init_messages
        assert isinstance(messages, list)
        told = [Msg(name=each["role"], content=each["content"], role=each["role"]) for each in messages]
        reply = await react(tuner.as_agentscope_model(), toolkit=None, max_iters=1).reply(told)
        response = reply.content[0]["text"]
        if workflow_task.task.metadata["decision_truth"] != ("stop" if "<stop />" in response else "continue"):
            return WorkflowOutput(reward=0.0)
        graded = await llm([{"role": "user", "content": f"{workflow_task.task.metadata['info_truth']}: {response}"}])
        assert isinstance(graded, ChatResponse)
        return WorkflowOutput(reward=float("".join(each["text"] for each in graded.content if "text" in each)))


class Vote(BaseModel):
    vote: str = Field(description="whom")


class Wolves(Workflow):
    """Several agents in one conversation: roles as tags, one trained, the others' model at another server."""

    trainer: str = Field(default="ajet-trinity")
    trainable_targets: list[str] | None = Field(default=["werewolf"], description="who is trained")

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        from agentscope.agent import AgentBase
        from agentscope.formatter import DashScopeMultiAgentFormatter, OpenAIMultiAgentFormatter
        from agentscope.message import Msg
        from agentscope.model import OpenAIChatModel
        from agentscope.pipeline import MsgHub, fanout_pipeline, sequential_pipeline

        class Echo(AgentBase):
            async def reply(self, content: str) -> Msg:
                return Msg("Moderator", content, role="assistant")

            async def observe(self, msg) -> None: ...

        moderator = Echo()
        moderator.set_console_output_enabled(False)
        roles = ["werewolf", "seer"] if int(workflow_task.task.metadata["random_number"]) >= 0 else []
        players = []
        for number, role in enumerate(roles):
            other = OpenAIChatModel(
                model_name="Qwen3-235B", stream=False, client_args={"base_url": os.environ["OPPONENTS_URL"]},
                api_key=os.environ["OPPONENTS_KEY"], generate_kwargs={"temperature": 0.01},
            )  # fmt: skip
            trained = role in self.trainable_targets
            model = tuner.as_agentscope_model(agent_name=f"Player{number}", target_tag=role, debug_model=other)
            formatter = DashScopeMultiAgentFormatter() if trained else OpenAIMultiAgentFormatter()
            players.append(react(model, name=f"Player{number}", formatter=formatter, max_iters=3 if trained else 5))
        async with MsgHub(participants=players, enable_auto_broadcast=False) as hub:
            await hub.broadcast(await moderator("The game begins."))
            await players[0].observe(await moderator("You are the werewolf."))
            hub.set_auto_broadcast(True)
            await sequential_pipeline(players)
            hub.set_auto_broadcast(False)
            votes = await fanout_pipeline(players, await moderator("Vote."), structured_model=Vote, enable_gather=False)
        whom = [each.metadata.get("vote") for each in votes]
        return WorkflowOutput(reward=int(whom == ["Player1", "Player0"]), is_success=True, metadata={"votes": whom})


class World(Workflow):
    """An environment service's episode: the agent's blocks as the action, the config from the model."""

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        from agentscope.message import Msg

        messages = workflow_task.task.init_messages
        first, rest = (messages[0], messages[1:]) if len(messages) >= 2 else ({"content": "Play."}, messages)
        told = [
            Msg(name=each.get("name", "user"), content=each.get("content", ""), role=each.get("role", "user"))
            for each in rest
        ]
        model, env = tuner.as_agentscope_model(), workflow_task.gym_env
        agent = react(model, sys_prompt=first["content"], toolkit=None, print_hint_msg=False)
        for _ in range(model.config.ajet.rollout.multi_turn.max_steps):
            reply = await agent(told)
            observed, _, terminate, _ = env.step(action={"content": reply.content, "role": "assistant"})
            told = Msg(name="env", content=observed, role="user")
            if terminate or tuner.get_context_tracker().context_overflow:
                break
        return WorkflowOutput(reward=None, metadata={"last": told.content})


class WorldByOpenAI(Workflow):
    """The same by OpenAI's client, which is given agentscope's messages by position."""

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        from agentscope.message import Msg

        messages = workflow_task.task.init_messages
        told = [Msg(name="user", content=each["content"], role=each["role"]) for each in messages]
        client, env = tuner.as_raw_openai_sdk_client(), workflow_task.gym_env
        for _ in range(tuner.config.ajet.rollout.multi_turn.max_steps):
            reply = await client.chat.completions.create(told)
            said = {"content": reply.choices[0].message.content, "role": "assistant"}
            observed, _, terminate, _ = env.step(action=said)
            told = Msg(name="env", content=observed, role="user")
            if terminate or tuner.get_context_tracker().context_overflow:
                break
        return WorkflowOutput(reward=None, metadata={"last": told.content})


class Elsewhere(Workflow):
    """An agent's server plays: it is sent address, key and the environment's, and answers an output's fields."""

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        at = tuner.as_oai_baseurl_apikey()
        sent = {
            "base_url": at.base_url, "api_key": at.api_key, "task_id": workflow_task.task.task_id,
            "main_query": workflow_task.task.main_query, "init_messages": workflow_task.task.init_messages,
            "max_steps": tuner.config.ajet.rollout.multi_turn.max_steps,
            "env_service_url": workflow_task.gym_env.service_url,
        }  # fmt: skip
        reply = requests.post(os.environ["AGENT_SERVER_URL"], json=sent)
        return WorkflowOutput(**reply.json())


class Reports(Workflow):
    """Results of tools as the user's blocks; nested metrics; lists in metadata."""

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        from agentscope.message import Msg

        agent = react(tuner.as_agentscope_model(), toolkit=None, print_hint_msg=False)
        first = await agent([user(workflow_task.task.main_query)])
        block = {"type": "tool_result", "id": "call_1", "output": "42", "name": "search"}
        last = await agent([Msg(name="tool", content=[block], role="user")])
        text = "".join(each.get("text", "") for each in last.content if each.get("type") == "text")
        history = [{"role": "assistant", "content": str(first.content)}, {"role": "assistant", "content": text}]
        stats = {"total_calls": 1, "success_rate": 100.0, "tool_time": {"search": [0.5]}}
        return WorkflowOutput(
            reward=float("42" in text), metadata={"conversation_history": history}, log_metrics={"tool_stats": stats}
        )
