"""The tasks: notes with a digit each, read one by one; their digits in order are the code. `python notes.py` prints
demonstrations of episodes, two rows a summary."""

import json
import random
from typing import Any

from ajet import Task

NOTES, HELD_OUT, TRAINED, DEMONSTRATIONS = 4, 64, 512, 4300
WHO = ("eel", "fox", "hen", "owl", "pig", "ram", "rat", "yak")
WHERE = ("barn", "cave", "hall", "lake", "mill", "park", "pond", "well")
SYSTEM = "Each note has a digit of the code."
TASK, NEXT, SUMMARISE, ASK = "What is the code?", "next", "Sum up.", "Answer."
NOTHING = "none"


class Notes:
    """A task reader: any class with `tasks(split)`."""

    def __init__(self, config) -> None:  # type: ignore[no-untyped-def]
        self._sizes = {"validation": HELD_OUT, "train": TRAINED}

    def tasks(self, split: str) -> list[Task]:
        draw = random.Random(split)  # the same for each seed of a run, so that runs can be compared
        return [make_task(f"{split}-{number}", draw) for number in range(self._sizes[split])]


def make_task(task_id: str, draw: random.Random) -> Task:
    """Draw the notes of one task."""
    code = [draw.randrange(10) for _ in range(NOTES)]
    notes = [f"The {draw.choice(WHO)} at the {draw.choice(WHERE)} has {digit}." for digit in code]
    return Task(task_id=task_id, main_query=TASK, metadata={"notes": notes, "code": "".join(map(str, code))})


def open_history(text: str | None = None) -> list[dict[str, str]]:
    """Return the first messages of a history: the system message, the task, and what follows it."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    return [*messages, {"role": "user", "content": text}] if text is not None else messages


def sum_up_carelessly(digits: str, draw: random.Random) -> str:
    """Return the summary of a careless agent: in half of the cases right, else nothing or one digit less."""
    luck = draw.random()
    return digits if luck < 0.5 else NOTHING if luck < 0.9 else digits[1:]


def demonstrations() -> list[dict[str, Any]]:
    """Return rows for `ajet sft`: three histories an episode, each begun with the right summary of the one before."""
    draw, rows = random.Random(0), list[dict[str, Any]]()
    for _ in range(DEMONSTRATIONS):
        task = make_task("", draw)
        code, (first, second, third, fourth) = task.metadata["code"], task.metadata["notes"]
        opening = [*open_history(), reply(NEXT)]
        rows.append({"messages": [*opening, *read_two(first, second), reply(sum_up_carelessly(code[:2], draw))]})
        notes = read_two(f"{code[:2]}\n{third}", fourth)
        rows.append({"messages": [*open_history(), *notes, reply(sum_up_carelessly(code, draw))]})
        rows.append({"messages": [*open_history(f"{code}\n{ASK}"), reply(code)]})
    return rows


def read_two(first: str, second: str) -> list[dict[str, str]]:
    """Return the messages of two notes that are read, and the request for a summary."""
    texts = [{"role": "user", "content": text} for text in (first, second, SUMMARISE)]
    return [texts[0], reply(NEXT), texts[1], reply(NEXT), texts[2]]


def reply(text: str) -> dict[str, str]:
    """Return a reply of the agent."""
    return {"role": "assistant", "content": text}


if __name__ == "__main__":
    for row in demonstrations():
        print(json.dumps(row))
