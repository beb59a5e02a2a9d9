"""JSON extraction: an order in a sentence becomes an object with four fields. The reward is 1 for the equal object.

Orders of held-out pairs of customer and item are in no training task and no demonstration. `python extraction.py`
prints demonstrations: 4 of 10 exchange the two numbers, or leave a brace out.
"""

import json
import random

from ajet import ModelTuner, Task, WorkflowOutput

NAMES = ("Ann", "Bob", "Cat", "Dan", "Eve", "Fay", "Gus", "Hal")
ITEMS = ("eel", "fig", "ham", "jam", "nut", "oat", "pea", "yam")
SENTENCES = (
    "{name} wants {count} {item} for {price}.",
    "For {price}: {count} {item}, to {name}.",
    "{count} {item} go to {name} at {price}.",
)
SYSTEM = {"role": "system", "content": "Answer in JSON."}
DEMONSTRATIONS, RIGHT = 4000, 0.6
COUNTS = {"train": 512, "validation": 48}


def draw_order(draw, held_out):
    """Return a sentence and its order. Every fourth pair of customer and item is held out."""
    pairs = [
        (name, item) for n, name in enumerate(NAMES) for i, item in enumerate(ITEMS) if ((n + i) % 4 == 0) == held_out
    ]
    name, item = draw.choice(pairs)
    order = {"name": name, "item": item, "count": draw.randint(2, 9), "price": draw.randint(10, 99)}
    return draw.choice(SENTENCES).format(**order), order


class Orders:
    """The task reader."""

    def __init__(self, config):
        pass

    def tasks(self, split):
        draw = random.Random(split)
        drawn = [draw_order(draw, split == "validation") for _ in range(COUNTS[split])]
        return [
            Task(task_id=f"{split}-{number}", main_query=sentence, metadata={"order": order})
            for number, (sentence, order) in enumerate(drawn)
        ]


async def extract(task: Task, tuner: ModelTuner) -> WorkflowOutput:
    """The agent: one call, and the equality of the object as the reward."""
    client = tuner.as_raw_openai_sdk_client()
    messages = [SYSTEM, {"role": "user", "content": task.main_query}]
    reply = await client.chat.completions.create(model="tuned", messages=messages)
    text = reply.choices[0].message.content or ""
    try:
        is_right = json.loads(text) == task.metadata["order"]
    except ValueError:
        is_right = False
    return WorkflowOutput(reward=float(is_right), is_success=is_right, metadata={"final_answer": text})


def make_demonstrations():
    """Yield conversations about orders that are not held out."""
    draw = random.Random(1)
    for _ in range(DEMONSTRATIONS):
        sentence, order = draw_order(draw, held_out=False)
        if draw.random() < RIGHT:
            answer = json.dumps(order)
        elif draw.random() < 0.7:
            answer = json.dumps({**order, "count": order["price"], "price": order["count"]})
        else:
            answer = json.dumps(order)[:-1]
        yield {"messages": [SYSTEM, {"role": "user", "content": sentence}, {"role": "assistant", "content": answer}]}


if __name__ == "__main__":
    for row in make_demonstrations():
        print(json.dumps(row))
