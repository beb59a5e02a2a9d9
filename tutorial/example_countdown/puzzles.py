"""The tasks: a target, and the two numbers to make it of, in any order. Numbers are below 10, so that all puzzles can
be listed: those of every fourth set {number, number, target} are held out, and trained on in no order.
`python puzzles.py` prints the demonstrations."""

import json
import random
from collections.abc import Sequence
from itertools import permutations

from ajet import Task

DEMONSTRATIONS = 3000
RIGHT = 0.6
"""Of the demonstrations. The others have the right numbers in any order, and any sign between."""
SIGNS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b}
SYSTEM = {"role": "system", "content": "Answer in \\boxed{}."}
Puzzle = tuple[list[int], int, str]
"""Numbers, target, a solution."""


class Puzzles:
    """A task reader: any class with `tasks(split)`."""

    def __init__(self, config) -> None:  # type: ignore[no-untyped-def]
        self._found = puzzles()

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(
                task_id=f"{split}-{number}",
                main_query=question(nums, target),
                metadata={"nums": nums, "target": target},
            )
            for number, (nums, target, _) in enumerate(self._found[split])
        ]


def question(nums: Sequence[int], target: int) -> str:
    """What the agent asks its model."""
    return f"Numbers: {', '.join(map(str, nums))}. Target: {target}."


def puzzles() -> dict[str, list[Puzzle]]:
    """All of them but those that show the target as a number, by split."""
    sets: dict[frozenset[int], list[Puzzle]] = {}
    for a, b in permutations(range(1, 10), 2):
        for sign, made in SIGNS.items():
            if (target := made(a, b)) >= 1 and target not in (a, b):
                orders = ([a, b], [b, a]) if sign == "-" else ([a, b],)
                sets.setdefault(frozenset((a, b, target)), []).extend(
                    (nums, target, f"{a} {sign} {b}") for nums in orders
                )
    drawn = random.Random(0).sample(list(sets.values()), len(sets))
    quarter = len(drawn) // 4
    return {
        "validation": [puzzle for each in drawn[:quarter] for puzzle in each],
        "train": [puzzle for each in drawn[quarter:] for puzzle in each],
    }


def demonstrations() -> list[dict[str, list[dict[str, str]]]]:
    """Conversations about training puzzles: the form of an answer is always right, the answer now and then."""
    draw, known = random.Random(1), puzzles()["train"]
    rows = []
    for _ in range(DEMONSTRATIONS):
        nums, target, solution = draw.choice(known)
        if draw.random() >= RIGHT:
            a, b = draw.sample(nums, 2)
            solution = f"{a} {draw.choice(list(SIGNS))} {b}"
        asked = {"role": "user", "content": question(nums, target)}
        rows.append({"messages": [SYSTEM, asked, {"role": "assistant", "content": f"\\boxed{{{solution}}}"}]})
    return rows


if __name__ == "__main__":
    for row in demonstrations():
        print(json.dumps(row))
