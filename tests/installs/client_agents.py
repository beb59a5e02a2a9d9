"""Agents of three clients, pointed at the gateway as in docs/clients.md, for an environment without this checkout."""

from __future__ import annotations

from typing import Any

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask


class OpenAIAgent(Workflow):
    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        import openai

        endpoint = tuner.as_oai_baseurl_apikey()
        messages: list[Any] = [{"role": "user", "content": workflow_task.task.main_query}]
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
            await client.chat.completions.create(model=endpoint.model, messages=messages)
            await client.responses.create(model=endpoint.model, input=workflow_task.task.main_query)
        return WorkflowOutput(reward=1.0)


class AnthropicAgent(Workflow):
    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        import anthropic

        endpoint = tuner.as_anthropic_baseurl_apikey()
        messages: list[Any] = [{"role": "user", "content": workflow_task.task.main_query}]
        async with anthropic.AsyncAnthropic(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
            await client.messages.create(model=endpoint.model, max_tokens=40, messages=messages)
        return WorkflowOutput(reward=1.0)


class LangChainAgent(Workflow):
    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        from langchain_openai import ChatOpenAI

        endpoint = tuner.as_oai_baseurl_apikey()
        chat = ChatOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, model=endpoint.model)  # type: ignore[arg-type]
        await chat.ainvoke(workflow_task.task.main_query)
        return WorkflowOutput(reward=1.0)
