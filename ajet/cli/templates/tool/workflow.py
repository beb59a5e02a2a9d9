"""Tasks, tool, agent and reward, in one file: name the price of an item, known only by the tool."""

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
    """Where the tasks come from: any class with `tasks(split)`. Prices differ from task to task."""

    def __init__(self, config):
        self.counts = {"train": 1024, "validation": 64}

    def tasks(self, split):
        draw = random.Random(split)  # equal for all seeds of a run, to compare runs
        tasks = []
        for number in range(self.counts[split]):
            item = draw.choice(ITEMS)
            prices = {each: draw.randint(10, 99) for each in ITEMS}
            tasks.append(
                Task(
                    task_id=f"{split}-{number}",
                    main_query=f"What does the {item} cost?",
                    metadata={"prices": prices, "answer": prices[item]},
                )
            )
        return tasks


class PriceAgent(Workflow):
    """The agent: a loop of model and tool. The tuner's client takes the place of your model's."""

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        task = workflow_task.task
        client = tuner.as_raw_openai_sdk_client()  # an openai.AsyncOpenAI
        messages = [SYSTEM, {"role": "user", "content": task.main_query}]
        text, lookups = "", 0
        for _ in range(tuner.config.ajet.rollout.multi_turn.max_steps):
            reply = await client.chat.completions.create(model="tuned", messages=messages, tools=[TOOL])
            message = reply.choices[0].message
            text = message.content or ""
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                lookups += 1
                function = call.function
                with tuner.tool(
                    function.name, function.arguments, call_id=call.id
                ) as used:  # records the use of the tool
                    used.result = look_up(task.metadata["prices"], function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": used.result})

        # The reward: 1 for the right number in the box, 0 for anything else, by any way of finding it.
        box = re.search(r"\\boxed\{([^}]*)\}", text)
        right = box is not None and box.group(1).strip() == str(task.metadata["answer"])
        return WorkflowOutput(
            reward=float(right),
            is_success=right,
            metadata={"final_answer": text},
            log_metrics={"lookups": float(lookups)},
        )


def look_up(prices, arguments):
    """The tool. A mistake of the model is answered with a message for the model, not with an exception."""
    try:
        item = json.loads(arguments)["item"]
    except (ValueError, KeyError, TypeError):
        return 'arguments must be {"item": NAME}'
    return str(prices.get(item, f"there is no {item}"))
