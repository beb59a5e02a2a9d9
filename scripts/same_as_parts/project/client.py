"""`python client.py URL RUN`: the one client of the setting `serve`. It waits for each step before the next batch."""

import sys
import time
from pathlib import Path

import httpx

from ajet.client import Client

STEPS, BATCH = 2, 4


def count_steps(run: Path) -> int:
    """Return how many steps the run recorded."""
    file = run / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def play(client: Client) -> None:
    """Play one episode; the reward depends on the reply."""
    with client.episode() as episode:
        reply = httpx.post(
            f"{episode.base_url}/chat/completions",
            headers={"authorization": f"Bearer {episode.api_key}"},
            json={"model": episode.model, "messages": [{"role": "user", "content": episode.question}]},
            timeout=300,
        )
        reply.raise_for_status()
        text = reply.json()["choices"][0]["message"]["content"] or ""
        episode.finish(reward=len(set(text)) / 40)


with Client(sys.argv[1]) as client:
    for number in range(STEPS * BATCH):
        while count_steps(Path(sys.argv[2])) < number // BATCH:
            time.sleep(0.05)
        play(client)
