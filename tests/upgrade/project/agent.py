"""The agent of the upgrade fixtures: a tool, and a last turn that remembers another reply than was given (a fork)."""

import asyncio
import json
import os
import random

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
PAUSE_S = float(os.environ.get("UPGRADE_PAUSE_S", "0"))
"""How long an episode rests, so that it can be killed in the middle."""


class Prices:
    """A number of tasks that no fixture uses up."""

    def __init__(self, config):
        self.seed = config.ajet.seed

    def tasks(self, split):
        draw = random.Random(f"{self.seed}/{split}")
        count = {"train": 64, "validation": 2}[split]
        return [
            Task(
                task_id=f"{split}-{number}",
                main_query=f"What does the {draw.choice(ITEMS)} cost?",
                metadata={"prices": {item: draw.randint(10, 99) for item in ITEMS}},
            )
            for number in range(count)
        ]


class PriceAgent(Workflow):
    """The reward is drawn from the words, so that a model that knows nothing has something to learn, too."""

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        task = workflow_task.task
        client = tuner.as_raw_openai_sdk_client()
        asked = {"role": "user", "content": task.main_query}
        messages = [SYSTEM, asked]
        lookups = 0
        for _ in range(tuner.config.ajet.rollout.multi_turn.max_steps):
            reply = await client.chat.completions.create(model="tuned", messages=messages, tools=[TOOL])
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            await asyncio.sleep(PAUSE_S)
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                lookups += 1
                result = look_up(task.metadata["prices"], call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        edited = [SYSTEM, asked, {"role": "assistant", "content": "It is dear."}, {**asked, "content": "How dear?"}]
        last = await client.chat.completions.create(model="tuned", messages=edited, tools=[TOOL])
        text = last.choices[0].message.content or ""
        reward = sum(text.encode()) % 5 / 4
        return WorkflowOutput(
            reward=reward,
            is_success=reward > 0.5,
            metadata={"final_answer": text},
            log_metrics={"lookups": float(lookups)},
        )


def look_up(prices, arguments):
    try:
        item = json.loads(arguments)["item"]
    except (ValueError, KeyError, TypeError):
        return 'arguments must be {"item": NAME}'
    return str(prices.get(item, f"there is no {item}"))
