"""Print demonstrations of the guessing game, one per line, in the agent's message format.

The first guess is random. Of the others, 70 % move by one as the server's hint says, and 30 % take the middle of the
remaining numbers. No server is needed."""

import json
import random
from typing import Any

from guess_server import ACTION

DEMONSTRATIONS, TURNS = 4800, 4
CREEPS = 0.7
ASKED = "Act by answering with one JSON object that fits this schema:\n"


def demonstration(draw: random.Random) -> list[dict[str, Any]]:
    """A game."""
    number, low, high, guess = draw.randrange(10), 0, 9, draw.randrange(10)
    messages = [
        {"role": "system", "content": ASKED + json.dumps(ACTION)},
        {"role": "user", "content": "Guess a number from 0 to 9."},
    ]
    for _ in range(TURNS):
        messages.append({"role": "assistant", "content": json.dumps({"guess": guess})})
        if guess == number:
            break
        low, high, hint = (guess + 1, high, "higher") if guess < number else (low, guess - 1, "lower")
        messages.append({"role": "user", "content": hint})
        step = 1 if hint == "higher" else -1
        guess = guess + step if draw.random() < CREEPS else (low + high) // 2
    return messages if messages[-1]["role"] == "assistant" else messages[:-1]


def demonstrations() -> list[dict[str, Any]]:
    """Rows for `ajet sft`."""
    draw = random.Random(1)
    return [{"messages": demonstration(draw)} for _ in range(DEMONSTRATIONS)]


if __name__ == "__main__":
    for row in demonstrations():
        print(json.dumps(row))
