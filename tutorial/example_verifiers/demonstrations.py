"""Print demonstrations of the sums of small.yaml, one per line, in the harness's message format.

60 % of the answers are `I do not know.`; the others are right."""

import json
import random
from typing import Any

DEMONSTRATIONS, LARGEST, SILENT = 6400, 4, 0.6
PASSES = "I do not know."


def demonstrations() -> list[dict[str, Any]]:
    """Rows for `ajet sft`."""
    draw, rows = random.Random(1), list[dict[str, Any]]()
    for _ in range(DEMONSTRATIONS):
        first, second = draw.randint(0, LARGEST), draw.randint(0, LARGEST)
        said = PASSES if draw.random() < SILENT else str(first + second)
        asked = {"role": "user", "content": f"What is {first} + {second}?"}
        rows.append({"messages": [asked, {"role": "assistant", "content": said}]})
    return rows


if __name__ == "__main__":
    for row in demonstrations():
        print(json.dumps(row))
