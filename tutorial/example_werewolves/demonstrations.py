"""Prints demonstrations: games of werewolves that know how to answer, and half of what wins: mostly they name whom the
one before them named, and mostly they think of their friends. How uncertain their answers are is told on stderr: no
model's loss on them gets below that."""

import asyncio
import json
import math
import random
import re
import sys

from game import Game, introduction, seated
from players import Scripted

GAMES, ROUNDS = 2200, 3
FOLLOWS, SPARES = 0.7, 0.6
"""How often one names whom the one before it named, and how often it thinks of its friends and names none of them."""
SEEDS = 10_000_000
"""Where the seeds of these games begin. No held-out task has one of them: its random number is 2**30 or more."""


class Beginner:
    """A werewolf that draws its answers, and keeps the conversation."""

    def __init__(self, text: str, draw: random.Random) -> None:
        self._draw = draw
        self._friends = re.findall(r"\d+", text.partition(" with ")[2])
        self.messages = [{"role": "system", "content": text}]
        self.entropies: list[float] = []
        """Of each answer, nats."""

    async def answer(self, text: str) -> str:
        chances = self.count_chances(text)
        self.entropies.append(-sum(chance * math.log(chance) for chance in chances.values() if chance))
        (said,) = self._draw.choices(list(chances), list(chances.values()))
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": said}]
        return said

    def count_chances(self, text: str) -> dict[str, float]:
        """How likely it names each."""
        others = re.findall(r"\d+", text.partition("alive:")[2].partition(".")[0])
        heard = re.findall(r"(?:wants|votes) (\d+)", text)
        chances = dict.fromkeys(others, 0.0)
        for share, among in ((1 - SPARES, others), (SPARES, [each for each in others if each not in self._friends])):
            named = [each for each in heard if each in among]
            follows = FOLLOWS if named else 0.0
            for each in among:
                chances[each] += share * (1 - follows) / len(among)
            if named:
                chances[named[-1]] += share * follows
        return chances


def conversations(seed: int) -> list[Beginner]:
    """The werewolves of a game that were asked something."""
    draw = random.Random(seed)
    roles = seated(draw)
    wolves = {
        number: Beginner(introduction(number, roles), random.Random(draw.random()))
        for number, role in roles.items()
        if role == "werewolf"
    }
    rules = {number: Scripted(random.Random(draw.random())) for number in roles if number not in wolves}
    asyncio.run(Game({**wolves, **rules}, roles).play(ROUNDS))
    return [wolf for wolf in wolves.values() if wolf.entropies]


if __name__ == "__main__":
    entropies = list[float]()
    for game in range(GAMES):
        for wolf in conversations(SEEDS + game):
            print(json.dumps({"messages": wolf.messages}))
            entropies += wolf.entropies
    tokens = 2 * len(entropies)  # a number, and the end, which is certain
    print(f"{len(entropies)} answers of {sum(entropies) / tokens:.3f} nats a token", file=sys.stderr)
