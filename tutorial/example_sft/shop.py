"""The tasks: what an item costs. Prices are drawn for each task, so that only the tool knows. `python shop.py` writes
32 demonstrations to demonstrations.jsonl."""

import json
import random
from pathlib import Path
from typing import Any

from ajet import Task

ITEMS = ("eel", "fig", "ham", "jam", "nut", "oat", "pea", "yam")
HELD_OUT, TRAINED, DEMONSTRATIONS = 64, 256, 32
SYSTEM = {"role": "system", "content": "You know no prices. Look them up, then answer in \\boxed{}."}
TOOL = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "The price of an item.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}


class Shop:
    """A task reader: any class with `tasks(split)`."""

    def __init__(self, config) -> None:  # type: ignore[no-untyped-def]
        self._sizes = {"validation": HELD_OUT, "train": TRAINED}

    def tasks(self, split: str) -> list[Task]:
        draw = random.Random(split)  # the same whatever the run's seed, so that runs can be compared
        return [
            Task(task_id=f"{split}-{number}", main_query=f"What does the {item} cost?",
                 metadata={"item": item, "price": draw.randint(10, 99)})
            for number in range(self._sizes[split]) for item in (draw.choice(ITEMS),)
        ]  # fmt: skip


def answer(price: int) -> str:
    """The right one."""
    return f"\\boxed{{{price}}}"


def demonstration(draw: random.Random) -> dict[str, Any]:
    """A row for `ajet sft`: the question, the call, its result, the answer."""
    item, price = draw.choice(ITEMS), draw.randint(10, 99)
    call = {"id": "1", "type": "function", "function": {"name": "price", "arguments": json.dumps({"item": item})}}
    messages = [
        SYSTEM,
        {"role": "user", "content": f"What does the {item} cost?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": str(price)},
        {"role": "assistant", "content": answer(price)},
    ]
    return {"messages": messages, "tools": [TOOL]}


if __name__ == "__main__":
    draw = random.Random(0)
    text = "".join(json.dumps(demonstration(draw)) + "\n" for _ in range(DEMONSTRATIONS))
    Path(__file__).with_name("demonstrations.jsonl").write_text(text, encoding="utf-8")
