"""The tasks: how many bridges, mills, towers or wells an invented town has. Names are syllables and numbers are drawn,
so that no model can know them; `python towns.py` writes them to corpus.jsonl, where a search finds them. 32 towns are
held out: they are in the corpus, and no question of the training names them."""

import json
import random
from pathlib import Path
from typing import Any

from ajet import Task

HELD_OUT, TRAINED = 32, 256
THINGS = ("bridges", "mills", "towers", "wells")
WORKED = (("Oxbury", 31, "ponds"), ("Hamley", 74, "farms"))
"""The examples in every prompt; the corpus has no such towns."""


def facts() -> list[tuple[str, int, str]]:
    """Town, number, thing."""
    draw = random.Random(7)
    syllables = "B D F G K L M N P R S T V Z Br Dr Gr Kr Tr", "aeiou", "bor dal gan lin mar nok ros tun vik zen"
    first, vowels, last = syllables[0].split(), syllables[1], syllables[2].split()
    names = draw.sample([a + b + c for a in first for b in vowels for c in last], HELD_OUT + TRAINED)
    return [(name, draw.randint(10, 99), draw.choice(THINGS)) for name in names]


class Towns:
    """A task reader: any class with `tasks(split)`."""

    def __init__(self, config) -> None:  # type: ignore[no-untyped-def]
        self._facts = {"validation": facts()[:HELD_OUT], "train": facts()[HELD_OUT:]}

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(
                task_id=name,
                init_messages=[*example(*WORKED[0]), *example(*WORKED[1]), question(name, thing)],
                metadata={"answer": number, "answer_schema": "boxed"},
            )
            for name, number, thing in self._facts[split]
        ]


def question(name: str, thing: str) -> dict[str, Any]:
    """What the user asks."""
    return {"role": "user", "content": f"How many {thing} does {name} have?"}


def example(name: str, number: int, thing: str) -> list[dict[str, Any]]:
    """Question, call, result and answer, as the model will see its own turns."""
    function = {"name": "search", "arguments": json.dumps({"query": name})}
    return [
        question(name, thing),
        {"role": "assistant", "content": "", "tool_calls": [{"id": name, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": name, "content": f"{name}: {said(name, number, thing)}"},
        {"role": "assistant", "content": f"\\boxed{{{number}}}"},
    ]


def said(name: str, number: int, thing: str) -> str:
    """The fact, as the corpus has it."""
    return f"{name} has {number} {thing}."


if __name__ == "__main__":
    rows = [json.dumps({"title": name, "text": said(name, number, thing)}) for name, number, thing in facts()]
    Path(__file__).with_name("corpus.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
