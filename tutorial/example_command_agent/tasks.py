"""The tasks: what does an item cost? Prices differ from task to task, so only a look-up can know them."""

import random

from ajet import Task

ITEMS = ("eel", "fig", "ham", "jam", "nut", "oat", "pea", "yam")


class Prices:
    """A task reader: any class with `tasks(split)`."""

    def __init__(self, config):  # type: ignore[no-untyped-def]
        self.counts = {"train": 512, "validation": 16}

    def tasks(self, split: str) -> list[Task]:
        draw = random.Random(split)  # the same whatever the run's seed, so that runs can be compared
        made = []
        for number in range(self.counts[split]):
            item = draw.choice(ITEMS)
            prices = {each: draw.randint(10, 99) for each in ITEMS}
            metadata = {"prices": prices, "answer": prices[item]}
            made.append(Task(task_id=f"{split}-{number}", main_query=f"What does the {item} cost?", metadata=metadata))
        return made
