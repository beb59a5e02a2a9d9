"""The agent: one question through the OpenAI SDK."""

from puzzles import SYSTEM, question

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask


class ExampleCountdownLearn(Workflow):
    name: str = "countdown"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        row = workflow_task.task.metadata
        asked = {"role": "user", "content": question(row["nums"], row["target"])}
        client = tuner.as_raw_openai_sdk_client()
        reply = await client.chat.completions.create(model="tuned", messages=[SYSTEM, asked])
        return WorkflowOutput(metadata={"final_answer": reply.choices[0].message.content or ""})
