"""The price task of `ajet init`'s tool template, for trainers other than ajet and for the evaluation of all of them.

Invariant: items, prices, prompts, tool and reward are those of the template's workflow.py, which is imported here.
`Ordered` gives ajet the training tasks in the order that `read_rows` gives to the other trainers.
"""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ajet.cli.templates.tool.workflow import SYSTEM, TOOL, PriceAgent, Prices, look_up

__all__ = ["TOOL", "Ordered", "PriceAgent", "Row", "look_up", "read_rows", "score_reply"]

Row = dict[str, Any]


class Ordered(Prices):
    """The task reader of the template, with its training tasks in an order that depends on the seed."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.seed: int = config.ajet.seed

    def tasks(self, split: str) -> list[Any]:
        tasks = super().tasks(split)
        if split == "train":
            random.Random(f"order-{self.seed}").shuffle(tasks)
        return tasks


def read_rows(split: str, seed: int) -> list[Row]:
    """Return the tasks as plain rows: prompt messages, prices of all items, and the right answer."""
    reader = Ordered.__new__(Ordered)
    Prices.__init__(reader, None)
    reader.seed = seed
    return [
        {
            "prompt": [SYSTEM, {"role": "user", "content": task.main_query}],
            "prices": json.dumps(task.metadata["prices"]),
            "answer": task.metadata["answer"],
        }
        for task in reader.tasks(split)
    ]


def score_reply(text: str, answer: int) -> float:
    """Return the template's reward of an agent's last reply."""
    box = re.search(r"\\boxed\{([^}]*)\}", text)
    return float(box is not None and box.group(1).strip() == str(answer))
