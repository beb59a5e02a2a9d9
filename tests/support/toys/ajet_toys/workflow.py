"""One question and its reply; the scorer decides the reward."""

from __future__ import annotations

from ajet import Workflow, WorkflowOutput


class ToyWorkflow(Workflow):
    async def execute(self, workflow_task, tuner):
        client = tuner.as_raw_openai_sdk_client()
        asked = [{"role": "user", "content": workflow_task.task.main_query}]
        reply = await client.chat.completions.create(model="ajet", messages=asked)
        return WorkflowOutput(reward=None, metadata={"final_answer": reply.choices[0].message.content or ""})
