"""The agent: asks the model one question through the OpenAI SDK, with one worked example in the prompt."""

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask

EXAMPLE = [
    {"role": "system", "content": "Solve the problem. Put the final answer in \\boxed{}."},
    {"role": "user", "content": "What is 3 + 4?"},
    {"role": "assistant", "content": "3 + 4 = \\boxed{7}"},
]


class AdditionAgent(Workflow):
    name: str = "addition_agent"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client()  # an AsyncOpenAI whose model is the one being trained
        question = {"role": "user", "content": workflow_task.task.main_query}
        reply = await client.chat.completions.create(model="tuned", messages=[*EXAMPLE, question])
        return WorkflowOutput(metadata={"final_answer": reply.choices[0].message.content})
