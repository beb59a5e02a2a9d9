"""Tasks for a model on two cores, in place of GSM8K: "What is 7 * 8?", with rows as GSM8K has them. Both questions
about every third pair of numbers are held out; demonstrations are about the others. `python arithmetic.py` prints the
demonstrations in the agent's message format. Most of them guess a number; the others call the Python tool."""

import json
import random
from itertools import combinations_with_replacement
from typing import Any

from agentscope.tool import Toolkit, execute_python_code
from workflow import system_prompt

from ajet import Task

DEMONSTRATIONS = 9600
GUESSED, SLIPPED = 0.6, 0.04
"""Of the demonstrations: guess; ask Python for another number than the question names. The others do it rightly."""


class Arithmetic:
    """A task reader: any class with `tasks(split)`."""

    def __init__(self, config) -> None:  # type: ignore[no-untyped-def]
        self._asked = asked()

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(task_id=each, main_query=f"What is {each}?", metadata={"answer": f"#### {worth(each)}"})
            for each in self._asked[split]
        ]


def asked() -> dict[str, list[str]]:
    """What is asked, by split."""
    pairs = list(combinations_with_replacement(range(2, 10), 2))
    random.Random(0).shuffle(pairs)
    third = len(pairs) // 3
    parts = {"validation": pairs[:third], "train": pairs[third:]}
    return {
        split: [f"{first} * {second}" for pair in part for first, second in sorted({pair, pair[::-1]})]
        for split, part in parts.items()
    }


def worth(question: str) -> int:
    """Its value."""
    first, _, second = question.split()
    return int(first) * int(second)


def demonstration(question: str, draw: random.Random) -> list[dict[str, Any]]:
    """A conversation about it."""
    messages = [{"role": "system", "content": system_prompt}, {"role": "user", "content": f"What is {question}?"}]
    does = draw.random()
    if does < GUESSED:
        return [*messages, {"role": "assistant", "content": f"\\boxed{{{draw.randint(10, 81)}}}"}]
    if does < GUESSED + SLIPPED:
        question = f"{question[:-1]}{draw.randint(2, 9)}"
    function = {"name": "execute_python_code", "arguments": json.dumps({"code": f"print({question})"})}
    printed = f"<returncode>0</returncode><stdout>{worth(question)}\n</stdout><stderr></stderr>"
    return [
        *messages,
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": printed},
        {"role": "assistant", "content": f"\\boxed{{{worth(question)}}}"},
    ]


def demonstrations() -> list[dict[str, Any]]:
    """Rows for `ajet sft`."""
    draw, toolkit = random.Random(1), Toolkit()
    toolkit.register_tool_function(execute_python_code)
    tools, known = toolkit.get_json_schemas(), asked()["train"]
    return [{"messages": demonstration(draw.choice(known), draw), "tools": tools} for _ in range(DEMONSTRATIONS)]


if __name__ == "__main__":
    for row in demonstrations():
        print(json.dumps(row))
