"""The agent: it is told what a function does, and writes it. Whether it is right, its tests say."""

from functions import SYSTEM

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask


class Programmer(Workflow):
    name: str = "programmer"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        asked = {"role": "user", "content": workflow_task.task.main_query}
        client = tuner.as_raw_openai_sdk_client()
        reply = await client.chat.completions.create(model="tuned", messages=[SYSTEM, asked])
        return WorkflowOutput(metadata={"final_answer": reply.choices[0].message.content or ""})
