"""The agent: one question, one answer. The tuner's client replaces your model's client."""

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask

# One worked example: without it this small model never writes a box, and a constant reward of 0 teaches nothing.
EXAMPLE = [
    {"role": "system", "content": "Solve the problem. Put the final answer in \\boxed{}."},
    {"role": "user", "content": "What is 3 + 4?"},
    {"role": "assistant", "content": "3 + 4 = \\boxed{7}"},
]


class Agent(Workflow):
    """Plays one attempt at one task."""

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        """Return the output with the answer for the judge."""
        client = tuner.as_raw_openai_sdk_client()  # an openai.AsyncOpenAI; its model is the one being trained
        messages = [*EXAMPLE, {"role": "user", "content": workflow_task.task.main_query}]
        reply = await client.chat.completions.create(messages=messages)
        return WorkflowOutput(metadata={"final_answer": reply.choices[0].message.content or ""})
