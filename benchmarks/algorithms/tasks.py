"""Tasks and agents of the algorithm runs: questions of the model tiny-tools, played under different rules.

Prices are 10 to 99. `LookUp` draws them anew for each task, so that only the tool knows them. `Fixed` has one price per
item, the same in every task and split.
"""

import json
import random
import re

from ajet import ProcessReward, Task, WorkflowOutput

ITEMS = ("eel", "fig", "ham", "jam", "nut", "oat", "pea", "yam")
PRICES = dict(zip(ITEMS, (71, 18, 43, 90, 26, 57, 34, 82), strict=True))
SYSTEM = {"role": "system", "content": "You know no prices. Look them up, then answer in \\boxed{}."}
TOOL = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "The price of an item.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}
MODEL = "tuned"
HARD = ITEMS[:4]
"""Items whose price the model `mixed` rarely looks up."""
EDGE = 20
"""By how much the first player of the game may be lower and still win."""


def ask(item):
    return f"What does the {item} cost?"


def box(number):
    return f"\\boxed{{{number}}}"


def read_box(text):
    found = re.search(r"\\boxed\{(\d+)\}", text or "")
    return int(found.group(1)) if found else None


class LookUp:
    """New prices in each task."""

    def __init__(self, config):
        self.counts = {"train": 1024, "validation": 64}

    def tasks(self, split):
        draw = random.Random(split)
        return [self.make_task(f"{split}-{number}", draw) for number in range(self.counts[split])]

    def make_task(self, name, draw):
        item, prices = draw.choice(ITEMS), {each: draw.randint(10, 99) for each in ITEMS}
        return Task(task_id=name, main_query=ask(item), metadata={"prices": prices, "answer": prices[item]})


class Fixed(LookUp):
    """The same prices in each task. `limit` is the number that a lone player of the game must exceed."""

    def make_task(self, name, draw):
        item = draw.choice(ITEMS)
        metadata = {"answer": PRICES[item], "limit": draw.randint(10, 99), "alone": name.startswith("validation")}
        return Task(task_id=name, main_query=ask(item), metadata=metadata)


async def reply(tuner, messages, agent="default", **more):
    client = tuner.as_raw_openai_sdk_client(agent_name=agent, target_tag=agent)
    answer = await client.chat.completions.create(model=MODEL, messages=messages, **more)
    message = answer.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    return message


async def look_up(task, tuner):
    """Answer with the tool's help. Reward 1 for the right price."""
    messages = [SYSTEM, {"role": "user", "content": task.main_query}]
    for _ in range(3):
        message = await reply(tuner, messages, tools=[TOOL])
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            try:
                found = task.metadata["prices"].get(json.loads(call.function.arguments)["item"], "unknown")
            except (ValueError, KeyError, TypeError):
                found = "unknown"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(found)})
    reward = float(read_box(message.content) == task.metadata["answer"])
    is_hard = any(item in task.main_query for item in HARD)
    return WorkflowOutput(reward=reward, log_metrics={"hard" if is_hard else "easy": reward})


async def answer_at_once(task, tuner):
    """Answer from memory. Reward 1 for the right price."""
    message = await reply(tuner, [{"role": "user", "content": task.main_query}])
    return float(read_box(message.content) == task.metadata["answer"])


async def answer_and_be_corrected(task, tuner):
    """Answer from memory, get the right price and answer again. Reward 1 if the first answer is right."""
    messages = [{"role": "user", "content": task.main_query}]
    first = await reply(tuner, messages)
    messages.append({"role": "user", "content": box(task.metadata["answer"])})
    await reply(tuner, messages)
    return float(read_box(first.content) == task.metadata["answer"])


async def play(task, tuner):
    """Two copies of the policy name a number; the higher wins, the first with an edge.

    In validation one copy plays against a number drawn by chance, and the reward is 1 for the higher number.
    """
    messages = [{"role": "user", "content": task.main_query}]
    if task.metadata["alone"]:
        number = read_box((await reply(tuner, messages)).content) or 0
        return WorkflowOutput(reward=float(number > task.metadata["limit"]))
    numbers = [read_box((await reply(tuner, [*messages], agent=agent)).content) or 0 for agent in ("first", "second")]
    result = 1.0 if numbers[0] + EDGE > numbers[1] else -1.0
    process = [ProcessReward(reward=result, agent="first"), ProcessReward(reward=-result, agent="second")]
    return WorkflowOutput(reward=0.0, process=process, log_metrics={"number": sum(numbers) / 2})
