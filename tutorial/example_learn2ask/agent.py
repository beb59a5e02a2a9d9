"""The agent: asks the customer back once, hears the simulated user's answer, and orders."""

from orders import says

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask

EXAMPLE = [
    {"role": "system", "content": "You take orders. Ask one short question, then confirm the order."},
    {"role": "user", "content": "A boat, please."},
    {"role": "assistant", "content": "Which colour do you want?"},
    {"role": "user", "content": "White."},
    {"role": "assistant", "content": "One white boat."},
    {"role": "user", "content": "Can I book a tour?"},
    {"role": "assistant", "content": "Which day do you want?"},
    {"role": "user", "content": "Sunday."},
    {"role": "assistant", "content": "One tour on Sunday."},
]


class Asker(Workflow):
    name: str = "asker"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        client, row = tuner.as_raw_openai_sdk_client(), workflow_task.task.metadata
        messages = [*EXAMPLE, {"role": "user", "content": workflow_task.task.main_query}]

        async def turn() -> str:
            reply = await client.chat.completions.create(model="tuned", messages=messages)
            said = reply.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": said})
            return said

        question = await turn()
        answer = says(question, row["missing"], row["wish"])
        messages.append({"role": "user", "content": answer})
        order = await turn()
        shown = [f"{who}: {' '.join(text.split())}" for who, text in
                 (("Clerk", question), ("Customer", answer), ("Clerk", order))]  # fmt: skip
        return WorkflowOutput(metadata={"final_answer": "\n".join(shown)})
