"""The tasks: what an item costs in a market. Every fourth market is held out: it is in the library, and no question of
the training by rewards names it. The demonstrations are of other libraries, drawn anew for each (the markets' names are
the same, their pages and prices are not), so that only what was found can be repeated. `python questions.py` prints
the demonstrations."""

import json
import random
from typing import Any

from library import LIBRARY, MARKETS, Library, library, listed, open_page, search

from ajet import Task

DEMONSTRATIONS = 12480
SYSTEM = "You know no prices. Look them up, then answer in \\boxed{}."
GUESSED, RIGHT = 0.7, 0.17
"""Of the demonstrations: guess without a look; open the page that was asked for. The others open any of the three."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": does.__doc__,
            "parameters": {"type": "object", "properties": {given: {"type": "string"}}, "required": [given]},
        },
    }
    for name, does, given in (("search", search, "name"), ("open", open_page, "name"))
]
"""As the server offers them."""


class Questions:
    """A task reader: any class with `tasks(split)`."""

    def __init__(self, config) -> None:  # type: ignore[no-untyped-def]
        self._asked = asked()

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(
                task_id=f"{item} {market}",
                main_query=question(item, market),
                metadata={"answer": LIBRARY[market][item][1], "answer_schema": "boxed"},
            )
            for item, market in self._asked[split]
        ]


def asked() -> dict[str, list[tuple[str, str]]]:
    """Item and market of each question, by split."""
    quarter = len(LIBRARY) // 4
    parts = {"validation": list(LIBRARY)[:quarter], "train": list(LIBRARY)[quarter:]}
    return {split: [(item, market) for market in part for item in LIBRARY[market]] for split, part in parts.items()}


def question(item: str, market: str) -> str:
    """What the user asks."""
    return f"What does the {item} cost in {market}?"


def demonstration(known: Library, draw: random.Random) -> list[dict[str, Any]]:
    """A conversation as the agent has it, in a library of one market."""
    (market,) = known
    item = draw.choice(list(known[market]))
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question(item, market)}]
    does = draw.random()
    if does < GUESSED:
        return [*messages, {"role": "assistant", "content": f"\\boxed{{{draw.randint(10, 99)}}}"}]
    page, price = known[market][item if does < GUESSED + RIGHT else draw.choice(list(known[market]))]
    for tool, name, result in (("search", market, listed(known[market])), ("open", page, str(price))):
        call = {"id": tool, "type": "function", "function": {"name": tool, "arguments": json.dumps({"name": name})}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": tool, "content": result})
    return [*messages, {"role": "assistant", "content": f"\\boxed{{{price}}}"}]


def demonstrations() -> list[dict[str, Any]]:
    """Rows for `ajet sft`."""
    draw = random.Random(1)
    return [
        {"messages": demonstration(library(draw, draw.choice(MARKETS)), draw), "tools": TOOLS}
        for _ in range(DEMONSTRATIONS)
    ]


if __name__ == "__main__":
    for row in demonstrations():
        print(json.dumps(row))
