"""A trainer behind `ajet serve`: clients over HTTP take tasks, play them, say how it went; the model gets better."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from ajet.commands.summary import RunTally
from ajet.record import EpisodeFiles, read_status
from ajet.record.logs import main_log
from tests.support.ajet_process import ajet, metric_rows, start

pytestmark = pytest.mark.extra_slow
CLIENTS = 96
KEY = "the-admin-key-of-these-tests"
SYSTEM = {"role": "system", "content": "You know no prices. Look them up, then answer in \\boxed{}."}
TOOL = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "The price of an item.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}


def looked_up(prices: dict[str, int], arguments: str) -> str:
    try:
        return str(prices.get(json.loads(arguments)["item"], "there is no such item"))
    except (ValueError, KeyError, TypeError):
        return 'arguments must be {"item": NAME}'


async def agent(client: httpx.AsyncClient, opened: dict[str, Any]) -> float:
    """The price agent, knowing nothing of ajet but an address and a key. Its reward."""
    task = opened["task"]
    messages: list[dict[str, Any]] = [SYSTEM, {"role": "user", "content": task["main_query"]}]
    text = ""
    for _ in range(3):
        answer = await client.post(
            f"{opened['base_url']}/chat/completions",
            json={"model": opened["model"], "messages": messages, "tools": [TOOL]},
            headers={"authorization": f"Bearer {opened['api_key']}"},
        )
        answer.raise_for_status()
        message = answer.json()["choices"][0]["message"]
        messages.append(message)
        text = message.get("content") or ""
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            content = looked_up(task["metadata"]["prices"], call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    box = re.search(r"\\boxed\{([^}]*)\}", text)
    return float(box is not None and box.group(1).strip() == str(task["metadata"]["answer"]))


async def one_client(client: httpx.AsyncClient, root: str) -> int:
    """Plays episodes until the server goes. How many."""
    admin = {"authorization": f"Bearer {KEY}"}
    played = 0
    while True:
        try:
            answer = await client.post(f"{root}/episodes", json={}, headers=admin)
            if answer.status_code == 429:
                await asyncio.sleep(0.2)
                continue
            if answer.status_code == 503:
                return played
            assert answer.status_code == 201, answer.text
            opened = answer.json()
            reward = await agent(client, opened)
            url = f"{root}/episodes/{opened['episode']}/finish"
            ended = await client.post(url, json={"reward": reward, "success": bool(reward)}, headers=admin)
            if ended.status_code == 200:  # as the server goes, what is being judged ends as interrupted
                played += ended.json()["status"] == "completed"
        except (httpx.TransportError, httpx.HTTPStatusError):  # the last step is done, and the server with it
            return played


async def all_clients(root: str) -> int:
    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(limits=limits, timeout=120) as client:
        return sum(await asyncio.gather(*(one_client(client, root) for _ in range(CLIENTS))))


def address(folder: Path, process: Any, log: Path) -> str:
    """Where it serves, once it does."""
    while process.poll() is None:
        status = read_status(folder) or {}
        if status.get("url"):
            return str(status["url"])
        time.sleep(0.05)
    raise AssertionError(log.read_text())


@pytest.mark.parametrize("steps", [4, 12])
def test_clients_over_http_teach_the_model_to_look_prices_up(tmp_path, steps):
    """Four steps are enough for all but what is learned (test_serve_faults.py trains behind a server, too)."""
    made = ajet("init", "tool", "--template", "tool", cwd=tmp_path)
    assert made.returncode == 0, made.stdout
    settings = [
        f"trainer_common.total_training_steps={steps}", "trainer_common.threads=1", f"rollout.max_env_worker={CLIENTS}",
        "trainer_common.save_freq=10",
    ]  # fmt: skip
    log = tmp_path / "log"
    process = start(
        "serve", "--conf", "tool/tool.yaml", "--backbone", "local", *settings, cwd=tmp_path, log=log, AJET_ADMIN_KEY=KEY
    )
    try:
        run = tmp_path / "launcher_record" / "tool"
        played = asyncio.run(all_clients(address(run, process, log)))
        assert process.wait(timeout=240) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()

    rows = [row for row in metric_rows(run) if "tasks" in row]  # others are the server's own validations
    rewards = [row["train/reward"] for row in rows]
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    first, last = sum(rewards[:2]) / 2, sum(rewards[-2:]) / 2
    assert first < 0.4 and (steps == 4 or last > first + 0.2), rewards  # four are too few to be sure
    tally = RunTally.from_rows(rows)
    assert (tally.skipped, tally.doubled, tally.failed) == (0, 0, 0)
    episodes = [episode for step in range(1, steps + 1) for episode in EpisodeFiles(run / "episodes").read(step)]
    assert len({episode.uuid for episode in episodes}) == len(episodes) >= steps * 16 * 8
    finished = sum(episode.status == "completed" for episode in episodes)
    assert finished == played, "what clients finished is what is recorded"
    assert any(row["train/staleness_max"] > 0 for row in rows), "clients went on during updates"
    assert any(0 < row.get("stale_is_weight_mean", 0) <= 2 for row in rows), "and what they had of it is weighed"
    proof = ajet("prove", "tool", cwd=tmp_path)
    assert proof.returncode == 0, proof.stdout
    assert KEY not in log.read_text() and KEY not in main_log(run).read_text()
