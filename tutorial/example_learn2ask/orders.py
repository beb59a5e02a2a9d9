"""The tasks: orders that leave one thing open, and the user who knows it. 12 of them are held out."""

import random

from ajet import Task

OPEN = {
    "colour": (("scarf", "vase", "umbrella", "sofa", "candle", "car"), ("red", "blue", "green")),
    "day": (("haircut", "table", "taxi", "room", "massage", "lesson"), ("Monday", "Tuesday", "Friday")),
}
"""What has to be asked for, by the things that need it, and what the user may want."""
NAMES = "At the end it names what the customer chose."
WAYS = ("I want a {}.", "Please get me a {}.", "Can I book a {}?", "A {}, please.")
SAME = {"colour": ("colour", "color"), "day": ("day", "date", "when")}
"""Words by which the user understands what is asked for."""


class Orders:
    """A task reader: any class with `tasks(split)`."""

    def __init__(self, config) -> None:  # type: ignore[no-untyped-def]
        draw = random.Random(5)
        kinds = []
        for missing, (things, wishes) in OPEN.items():
            kind = [(missing, thing, way, wishes[number % len(wishes)])
                    for thing in things for number, way in enumerate(WAYS)]  # fmt: skip
            draw.shuffle(kind)
            kinds.append(kind)
        found = [each for pair in zip(*kinds, strict=True) for each in pair]  # in turn, so that each step has both
        self._found = {"validation": found[:12], "train": found[12:]}

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(
                task_id=f"{thing}-{number}",
                main_query=way.format(thing),
                metadata={
                    "missing": missing,
                    "wish": wish,
                    "answer": f"It asks for the {missing}. {NAMES}",
                    "rubric": [
                        {"criterion": f"It asks for the {missing}.", "weight": 3},
                        {"criterion": NAMES, "weight": 1},
                    ],
                },
            )
            for number, (missing, thing, way, wish) in enumerate(self._found[split])
        ]


def says(question: str, missing: str, wish: str) -> str:
    """The simulated user: it answers what is asked for, and tells nothing else."""
    asked = question.lower()
    understood = "?" in asked and any(word in asked for word in SAME[missing])
    return f"{wish.capitalize()}." if understood else "I do not understand."
