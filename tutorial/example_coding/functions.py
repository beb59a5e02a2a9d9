"""The tasks: a function to be written, and the tests that its program must pass. Those of every eighth set {word,
number, word, number} are held out, and trained on in no order. `python functions.py` prints the demonstrations."""

import json
import random
from dataclasses import dataclass
from itertools import product

from ajet import Task

DEMONSTRATIONS = 3000
SYSTEM = {"role": "system", "content": "Write f(x)."}
SIGNS = {"add": "+", "take": "-", "times": "*"}
NUMBERS = (-7, 0, 1, 2, 10)
"""What each function is tried with."""


@dataclass(frozen=True)
class Wanted:
    """A function of two steps, of which one is a product."""

    first: tuple[str, int]
    second: tuple[str, int]

    def question(self) -> str:
        """What the agent asks its model."""
        return f"{self.first[0]} {self.first[1]}, then {self.second[0]} {self.second[1]}"

    def worth(self, x: int) -> int:
        """What it makes of `x`."""
        for word, number in (self.first, self.second):
            x = x + number if word == "add" else x - number if word == "take" else x * number
        return x

    def tests(self) -> str:
        """Statements that raise where `f` is another function."""
        return "\n".join(f"assert f({x}) == {self.worth(x)}, 'f({x})'" for x in NUMBERS)

    def program(self, *, parentheses: bool) -> str:
        """As one writes it; without parentheses it is another function where the product comes second."""
        inner = f"x {SIGNS[self.first[0]]} {self.first[1]}"
        inner = f"({inner})" if parentheses else inner
        return f"def f(x): return {inner} {SIGNS[self.second[0]]} {self.second[1]}"


class Functions:
    """A task reader: any class with `tasks(split)`."""

    def __init__(self, config) -> None:  # type: ignore[no-untyped-def]
        self._found = functions()

    def tasks(self, split: str) -> list[Task]:
        return [task_of(wanted) for wanted in self._found[split]]


def task_of(wanted: Wanted) -> Task:
    """A question and its tests, which the scorer `code` reads out of the row."""
    return Task(task_id=wanted.question(), main_query=wanted.question(), metadata={"tests": wanted.tests()})


def functions() -> dict[str, list[Wanted]]:
    """All of them, by split."""
    sets: dict[tuple[str, ...], list[Wanted]] = {}
    for word, number, factor in product(("add", "take"), range(1, 10), range(2, 10)):
        one, other = (word, number), ("times", factor)
        same = (word, *sorted((str(number), str(factor))))
        sets.setdefault(same, []).extend((Wanted(one, other), Wanted(other, one)))
    drawn = random.Random(0).sample(list(sets.values()), len(sets))
    eighth = len(drawn) // 8
    return {
        "validation": [wanted for each in drawn[:eighth] for wanted in each],
        "train": [wanted for each in drawn[eighth:] for wanted in each],
    }


def demonstrations() -> list[dict[str, list[dict[str, str]]]]:
    """Return demonstrated programs, many of which lack parentheses or swap the two operations."""
    draw, known = random.Random(1), functions()["train"]
    rows = []
    for _ in range(DEMONSTRATIONS):
        wanted = written = draw.choice(known)
        if draw.random() < 0.2:
            written = Wanted(wanted.second, wanted.first)
        program = written.program(parentheses=draw.random() < 0.4)
        asked = {"role": "user", "content": wanted.question()}
        rows.append({"messages": [SYSTEM, asked, {"role": "assistant", "content": program}]})
    return rows


if __name__ == "__main__":
    for row in demonstrations():
        print(json.dumps(row))
