"""Tasks and agent of `scripts/same_as`: a price that only a tool knows, and a reward with several values."""

import json
import random
import re

from ajet import ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask

ITEMS = ("eel", "fig", "ham", "jam", "nut", "oat", "pea", "yam")
SYSTEM = {"role": "system", "content": "You know no prices. Look them up, then answer in \\boxed{}."}
TOOL = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "The price of an item.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}


class Prices:
    def __init__(self, config):
        self.seed = config.ajet.seed

    def tasks(self, split):
        draw = random.Random(f"{self.seed}/{split}")
        count = {"train": 64, "validation": 4}[split]
        return [
            Task(
                task_id=f"{split}-{number}",
                main_query=f"What does the {draw.choice(ITEMS)} cost?",
                metadata={"price": draw.randint(10, 99)},
            )
            for number in range(count)
        ]


class PriceAgent(Workflow):
    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client()
        price = str(workflow_task.task.metadata["price"])
        messages = [SYSTEM, {"role": "user", "content": workflow_task.task.main_query}]
        text = ""
        for _ in range(3):
            reply = await client.chat.completions.create(model="tuned", messages=messages, tools=[TOOL])
            message = reply.choices[0].message
            text = message.content or ""
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": known(price, call)})
        box = re.search(r"\\boxed\{([^}]*)\}", text)
        given = box.group(1).strip() if box else ""
        near = sum(one == other for one, other in zip(given, price, strict=False)) / len(price)
        reward = 1.0 if given == price else near / 2 + (0.1 if box else 0.0)
        return WorkflowOutput(reward=reward, is_success=given == price, metadata={"final_answer": text})


def known(price, call):
    try:
        json.loads(call.function.arguments)["item"]
    except (ValueError, KeyError, TypeError):
        return 'arguments must be {"item": NAME}'
    return price
