"""Workflows that play in an environment, in a module of their own so that another process can import them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from ajet.schema.errors import EnvironmentFailure
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.workflow import Workflow


async def plays(task: WorkflowTask, tuner: Any) -> list[Any]:
    """As AgentJet's tutorials do: blocking steps in an async function, messages by position."""
    client, env, messages, seen = tuner.as_raw_openai_sdk_client(), task.gym_env, [*task.task.init_messages], []
    for _ in range(3):
        reply = await client.chat.completions.create(messages)
        said = reply.choices[0].message.content
        obs, _, terminate, _ = env.step(action={"content": said, "role": "assistant"})
        seen.append(obs)
        if terminate or tuner.get_context_tracker().context_overflow:
            break
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": obs}]
    return seen


class Plays(Workflow):
    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        return WorkflowOutput(metadata={"seen": await plays(task, tuner), "query": task.task.main_query})


class PlaysPlain(Workflow):
    def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:  # type: ignore[override]
        import asyncio

        return WorkflowOutput(metadata={"seen": asyncio.run(plays(task, tuner))})


class Swallows(Workflow):
    """What fails is a reward of 0, as agents' code has it by habit."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        try:
            await plays(task, tuner)
            return WorkflowOutput(reward=float(task.gym_env.evaluate(task.episode_uuid, {})))
        except EnvironmentFailure:
            return WorkflowOutput(reward=0.0)


class Stumbles(Workflow):
    """Its own code breaks over what did not come."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        seen: list[Any] = []
        with suppress(EnvironmentFailure):
            seen = await plays(task, tuner)
        return WorkflowOutput(reward=float(seen[0] == "on"))


class CallsSay(Workflow):
    """Calls the tool `say`, then answers; what fails is a reward of 0."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        reply = await tuner.as_raw_openai_sdk_client().chat.completions.create(task.task.init_messages)
        said = reply.choices[0].message.content
        function = {"name": "say", "arguments": json.dumps({"text": said})}
        calls = [{"id": "c1", "type": "function", "function": function}]
        try:
            task.gym_env.step({"role": "assistant", "content": None, "tool_calls": calls})
            return WorkflowOutput(reward=task.gym_env.step(said).reward)
        except EnvironmentFailure:
            return WorkflowOutput(reward=0.0)
