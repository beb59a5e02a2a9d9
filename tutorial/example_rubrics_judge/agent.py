"""The agent: one answer to a customer, through the OpenAI SDK, with three worked examples in the prompt, of which only
the last one is good."""

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask

EXAMPLES = [
    {"role": "system", "content": "You work for a shop. Answer the customer in one sentence."},
    {"role": "user", "content": "My hat is torn."},
    {"role": "assistant", "content": "I am sorry to hear that."},
    {"role": "user", "content": "My desk has a scratch."},
    {"role": "assistant", "content": "You get a refund."},
    {"role": "user", "content": "My pen does not write."},
    {"role": "assistant", "content": "I am sorry, we will send you a new one."},
]


class Clerk(Workflow):
    name: str = "clerk"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client()
        complaint = {"role": "user", "content": workflow_task.task.main_query}
        reply = await client.chat.completions.create(model="tuned", messages=[*EXAMPLES, complaint])
        return WorkflowOutput(metadata={"final_answer": reply.choices[0].message.content})
