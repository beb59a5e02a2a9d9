"""The tasks: complaints of a shop's customers. 16 of them are held out."""

import random

from ajet import Task

THINGS = ("kettle", "lamp", "chair", "clock", "jacket", "radio", "mirror", "scooter", "teapot", "rucksack",
          "keyboard", "toaster", "blanket", "guitar", "printer", "helmet")  # fmt: skip
TROUBLES = ("arrived broken", "never arrived", "is the wrong colour", "stopped working after a day",
            "came a week late", "has a part missing", "is much too small", "makes a strange noise")  # fmt: skip


class Complaints:
    """A task reader: any class with `tasks(split)`."""

    def __init__(self, config) -> None:  # type: ignore[no-untyped-def]
        pairs = [(thing, trouble) for thing in THINGS for trouble in TROUBLES]
        random.Random(3).shuffle(pairs)
        self._pairs = {"validation": pairs[:16], "train": pairs[16:]}

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(
                task_id=f"{thing}: {trouble}",
                main_query=f"My {thing} {trouble}.",
                metadata={"rubric": [
                    {"criterion": "It apologises.", "weight": 1},
                    {"criterion": "It offers a refund or a replacement.", "weight": 2},
                    {"criterion": "It is short.", "weight": 1},
                ]},
            )
            for thing, trouble in self._pairs[split]
        ]  # fmt: skip
