"""Print demonstrations of shopping, one per line, in the agent's message format.

40 % buy something without reading the list, 40 % end after the first purchase, and 20 % buy the complete list. No list
of a held-out task occurs."""

import json
import random
from typing import Any

from shop_service import GOODS, HELD_OUT, Shop, shopping_list

DEMONSTRATIONS = 9600
BLIND, HALF = 0.4, 0.4


def demonstration(task_id: str, draw: random.Random) -> list[dict[str, Any]]:
    """A task that is played in the world itself."""
    world = Shop()
    messages = world.create(task_id)
    does = draw.random()
    if does < BLIND:
        calls = [f'shop.buy("{draw.choice(GOODS)}", {draw.randint(1, 3)})']
    else:
        listed = [f'shop.buy("{item}", {count})' for item, count in world.list.items()]
        calls = ["notes.read()", *(listed[:1] if does < BLIND + HALF else listed)]
    for call in (*calls, "done()"):
        messages.append({"role": "assistant", "content": call})
        told, _, over = world.step(call)
        if not over:
            messages.append({"role": "user", "content": told})
    return messages


def demonstrations() -> list[dict[str, Any]]:
    """Rows for `ajet sft`."""
    draw, rows = random.Random(1), list[dict[str, Any]]()
    while len(rows) < DEMONSTRATIONS:
        task_id = f"shown-{draw.getrandbits(40)}"
        if shopping_list(task_id) not in HELD_OUT.values():
            rows.append({"messages": demonstration(task_id, draw)})
    return rows


if __name__ == "__main__":
    for row in demonstrations():
        print(json.dumps(row))
