"""Print demonstrated games, one per line, as `ajet sft` reads them.

A step follows a shortest path around the holes, or has a random direction with probability `RANDOM`. The lakes are new:
their seeds lie above those of `random_dummy`."""

import json
import random
from collections import deque
from typing import Any

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import generate_random_map
from workflow import ACTIONS, MOVES, RULES, describe

DEMONSTRATIONS, RANDOM, SIZE, MAX_STEPS = 4800, 0.45, 4, 10
FIRST_SEED = 2**31


def find_step(lake: list[str], position: int) -> str:
    """Return the first step of a shortest path to the goal that avoids the holes."""
    size, start = len(lake), divmod(position, len(lake))
    queue, seen = deque([(start, "")]), {start}
    while queue:
        (row, column), first = queue.popleft()
        if lake[row][column] == "G":
            return first
        for name, (down, right) in MOVES.items():
            field = row + down, column + right
            inside = 0 <= field[0] < size and 0 <= field[1] < size
            if inside and field not in seen and lake[field[0]][field[1]] != "H":
                seen.add(field)
                queue.append((field, first or name))
    raise ValueError("the lake has no path to the goal")


def play(seed: int, draw: random.Random) -> tuple[list[dict[str, Any]], float]:
    """Return the messages of a demonstrated game and its reward."""
    lake = generate_random_map(size=SIZE, seed=seed)
    game = gymnasium.make("FrozenLake-v1", desc=lake, is_slippery=False).unwrapped
    position, _ = game.reset(seed=seed)
    messages = [{"role": "system", "content": RULES}]
    for _ in range(MAX_STEPS):
        step = draw.choice([*MOVES]) if draw.random() < RANDOM else find_step(lake, position)
        messages.append({"role": "user", "content": describe(lake, position)})
        messages.append({"role": "assistant", "content": f"\\boxed{{{step}}}"})
        position, reward, ended, _, _ = game.step(ACTIONS[step])
        if ended:
            break
    return messages, float(reward)


def demonstrations() -> list[dict[str, Any]]:
    """Return rows for `ajet sft`."""
    draw = random.Random(0)
    return [{"messages": play(FIRST_SEED + number, draw)[0]} for number in range(DEMONSTRATIONS)]


if __name__ == "__main__":
    for row in demonstrations():
        print(json.dumps(row))
