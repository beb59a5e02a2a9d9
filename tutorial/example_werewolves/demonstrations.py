"""Prints demonstrations: games of werewolves that know how to answer, and nothing of what wins: mostly they name
anybody, a friend too, and now and then whom the one before them named."""

import asyncio
import json
import random
import re

from game import Game, introduction, seated
from players import Scripted

GAMES, ROUNDS = 200, 3
FOLLOWS = 0.5
"""How often one names whom the one before it named."""
SEEDS = 10_000_000
"""Where the seeds of these games begin. No held-out task has one of them: its random number is 2**30 or more."""


class Beginner:
    """A werewolf that answers at random, and keeps the conversation."""

    def __init__(self, number: int, text: str, draw: random.Random) -> None:
        self._number, self._draw = str(number), draw
        self.messages = [{"role": "system", "content": text}]

    async def answer(self, text: str) -> str:
        alive = re.findall(r"\d+", text[text.index("Alive:") :].split(".")[0])
        others = [each for each in alive if each != self._number]
        named = [each for each in re.findall(r"(?:wants|votes) (\d+)", text) if each in others]
        said = named[-1] if named and self._draw.random() < FOLLOWS else self._draw.choice(others)
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": said}]
        return said


def conversations(seed: int) -> list[list[dict[str, str]]]:
    """What the three werewolves of a game heard and said."""
    draw = random.Random(seed)
    roles = seated(draw)
    wolves = {
        number: Beginner(number, introduction(number, roles), random.Random(draw.random()))
        for number, role in roles.items()
        if role == "werewolf"
    }
    rules = {number: Scripted(number, random.Random(draw.random())) for number in roles if number not in wolves}
    asyncio.run(Game({**wolves, **rules}, roles).play(ROUNDS))
    return [wolf.messages for wolf in wolves.values() if len(wolf.messages) > 1]


if __name__ == "__main__":
    for game in range(GAMES):
        for messages in conversations(SEEDS + game):
            print(json.dumps({"messages": messages}))
