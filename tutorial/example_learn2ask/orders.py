"""The tasks: orders that leave one thing open, and the user who knows it. Six things of each kind are held out: no
order of the training names one."""

import random

from ajet import Task

OPEN = {
    "colour": (
        ("scarf", "vase", "kite", "sofa", "candle", "car", "hat", "mug", "coat", "ribbon"),
        ("lamp", "bag", "chair", "carpet", "parasol", "bicycle"),
        ("red", "blue", "green"),
    ),
    "day": (
        ("haircut", "table", "taxi", "room", "massage", "lesson", "flight", "cruise", "party", "repair"),
        ("visit", "class", "ride", "meeting", "treatment", "guide"),
        ("Monday", "Tuesday", "Friday"),
    ),
}
"""What has to be asked for, by the things that need it, those that are held out, and what the user may want."""
NAMES = "At the end it names what the customer chose."
WAYS = ("I want a {}.", "Please get me a {}.", "Can I book a {}?", "A {}, please.")
SAME = {"colour": ("colour", "color"), "day": ("day", "date", "when")}
"""Words by which the user understands what is asked for."""


class Orders:
    """A task reader: any class with `tasks(split)`."""

    def __init__(self, config) -> None:  # type: ignore[no-untyped-def]
        draw = random.Random(5)
        self._found = {split: orders(split, draw) for split in ("train", "validation")}

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


def orders(split: str, draw: random.Random) -> list[tuple[str, str, str, str]]:
    """What is missing, the thing, the way and the wish; both kinds in turn, so that each step has both."""
    kinds = []
    for missing, (trained, held_out, wishes) in OPEN.items():
        things = trained if split == "train" else held_out
        kind = [(missing, thing, way, wishes[number % len(wishes)])
                for thing in things for number, way in enumerate(WAYS)]  # fmt: skip
        draw.shuffle(kind)
        kinds.append(kind)
    return [each for pair in zip(*kinds, strict=True) for each in pair]


def says(question: str, missing: str, wish: str) -> str:
    """The simulated user: it answers what is asked for, and tells nothing else."""
    asked = question.lower()
    understood = "?" in asked and any(word in asked for word in SAME[missing])
    return f"{wish.capitalize()}." if understood else "I do not understand."
