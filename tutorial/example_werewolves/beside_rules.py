"""What a run's games gave beside what the demonstrations' werewolves get at the same seats, `beside_rules.py RUN`: how
hard seats are differs by far more than a werewolf learns in a few steps.

    steps 1 to 12: reward 0.53, rules 0.58, difference -0.05
"""

import asyncio
import random
import sys
from pathlib import Path
from statistics import mean

from demonstrations import Beginner
from game import Game, introduction, seated
from players import Scripted

from ajet.record import EpisodeFiles

GAMES, ROUNDS, PARTIAL = 32, 3, 0.5
"""Of the rules at each seating; the other two are those of `werewolves.yaml`."""


def rules(number: int) -> float:
    """The mean reward of werewolves that are rules, at the seats of the task with this random number."""
    return mean(_played(number, random.Random(f"{number} {game}")) for game in range(GAMES))


def _played(number: int, luck: random.Random) -> float:
    draw = random.Random(number)
    roles = seated(draw)
    players = {
        player: Beginner(introduction(player, roles), random.Random(luck.random()))
        if role == "werewolf"
        else Scripted(random.Random(draw.random()))
        for player, role in roles.items()
    }
    game = Game(players, roles)
    if asyncio.run(game.play(ROUNDS)) == "werewolves":
        return 1.0
    against = [player for player, role in roles.items() if role != "werewolf"]
    return PARTIAL * sum(player not in game.alive for player in against) / len(against)


def compared(run: Path) -> list[tuple[float, float]]:
    """Of each training step of `run`: its mean reward, and the rules' at the same seats."""
    files, steps = EpisodeFiles(run / "episodes"), list[tuple[float, float]]()
    while games := list(files.read(len(steps) + 1, "train")):
        seats = {game.task.metadata["random_number"] for game in games}
        steps.append((mean(game.reward or 0.0 for game in games), mean(map(rules, seats))))
    return steps


if __name__ == "__main__":
    found = compared(Path(sys.argv[1]))
    for first in range(0, len(found), 12):
        reward, ruled = (mean(values) for values in zip(*found[first : first + 12], strict=True))
        last = min(first + 12, len(found))
        print(f"steps {first + 1} to {last}: reward {reward:.2f}, rules {ruled:.2f}, difference {reward - ruled:+.2f}")
