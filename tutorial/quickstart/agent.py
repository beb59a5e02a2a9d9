"""A support agent: only a lookup says when an order arrives. The base model invents a date."""

import re

from openai import AsyncOpenAI

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask

EXAMPLE = [
    {
        "role": "system",
        "content": "You answer customers of a shop. Look the order up with LOOKUP, then say when it arrives.",
    },
    {"role": "user", "content": "MAIL Good morning, where is my sofa? My order is 31415. Best, Tom"},
    {"role": "assistant", "content": "LOOKUP 31415"},
    {"role": "user", "content": "RESULT arrives 9 May"},
    {"role": "assistant", "content": "It arrives on 9 May."},
]


class SupportAgent(Workflow):
    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        task = workflow_task.task
        client = tuner.as_raw_openai_sdk_client()  # its model is the one being trained
        messages = [*EXAMPLE, {"role": "user", "content": f"MAIL {task.main_query}"}]
        answer = await ask_model(client, messages)
        lookup = re.fullmatch(r"LOOKUP (\d+)", answer)
        is_right_order = lookup is not None and lookup[1] == task.metadata["order"]
        if lookup:
            result = task.metadata["arrives"] if is_right_order else "no such order"
            messages += [
                {"role": "assistant", "content": answer},
                {"role": "user", "content": f"RESULT arrives {result}"},
            ]
            answer = await ask_model(client, messages)
        return WorkflowOutput(metadata={"final_answer": answer, "looked_up": is_right_order})


async def ask_model(client: AsyncOpenAI, messages: list[dict[str, str]]) -> str:
    reply = await client.chat.completions.create(model="tuned", messages=messages)
    return (reply.choices[0].message.content or "").strip()
