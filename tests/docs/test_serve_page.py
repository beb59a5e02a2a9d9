"""The scripts of docs/serve.md, run as they are printed against a server of the command line."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ajet.record import EpisodeFiles, read_status
from ajet.schema.episode import Episode
from tests.docs.snippets import ROOT, blocks
from tests.support.ajet_process import start

pytestmark = pytest.mark.slow
PAGE = ROOT / "docs" / "serve.md"
KEY = "the-admin-key-of-these-tests"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Its address and its run directory."""
    folder = tmp_path_factory.mktemp("served")
    settings = ["model.path=embedded:tiny-tools", "rollout.max_response_length_in_one_turn=8"]
    process = start("serve", *settings, cwd=folder, log=folder / "log", AJET_ADMIN_KEY=KEY)
    try:
        while process.poll() is None:
            found = list((folder / "launcher_record").rglob("status.json"))
            status = (read_status(found[0].parent) if found else None) or {}
            if status.get("url"):
                break
            time.sleep(0.05)
        assert process.poll() is None, (folder / "log").read_text()
        yield str(status["url"]), found[0].parent
    finally:
        process.kill()
        process.wait()


def written(title: str, folder: Path) -> Path:
    (block,) = (block for block in blocks(PAGE) if block.title == title)
    (folder / title).write_text(block.text)
    return folder / title


def recorded(run: Path, count: int) -> list[Episode]:
    """The last `count` episodes, once the last one that ended is on the disk."""
    deadline = time.monotonic() + 240
    while True:
        found = EpisodeFiles(run / "episodes").read(0, "debug")
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline
        time.sleep(0.05)


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "AJET_URL": url, "AJET_ADMIN_KEY": KEY, "EPISODES": "3"}


def run(words: list[str], url: str) -> str:
    done = subprocess.run(words, env=environment(url), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_by_hand(server, tmp_path):
    url, folder = server
    before = ended(url)
    said = run(["sh", str(written("by_hand.sh", tmp_path))], url)
    assert '"status":"completed"' in said and '"reward":1.0' in said and "chat.completion" in said
    last = recorded(folder, before + 1)[-1]
    assert last.task.main_query == "What is 1 + 2?" and last.task.metadata["answer"] == "3" and last.reward == 1.0


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on this machine")
def test_the_client_in_another_language(server, tmp_path):
    url, folder = server
    before = ended(url)
    run(["node", str(written("agent.mjs", tmp_path))], url)
    played = recorded(folder, before + 3)[-3:]
    assert all(re.fullmatch(r"What is \d+ \+ \d+\?", episode.task.main_query) for episode in played)
    assert all(episode.scored and episode.timelines and "final_answer" in episode.metadata for episode in played)


def test_the_client_in_python(server, tmp_path):
    url, _ = server
    (block,) = (block for block in blocks(PAGE) if block.language == "python")
    path = tmp_path / "client.py"
    path.write_text(block.text)
    spec = importlib.util.spec_from_file_location("client_of_the_serve_page", path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module.Client(url, KEY) as client:
        task = {"question": "What does the eel cost?", "answer": "12"}
        assert client.play(module.agent, tasks=iter([task, task]), at_once=2) == {"completed": 2}


def ended(url: str) -> int:
    told = httpx.get(f"{url}/episodes", headers={"authorization": f"Bearer {KEY}"}).json()
    return int(sum(told["ended"].values()))


def test_the_table_of_requests_is_what_is_served(server):
    url, _ = server
    told = re.findall(r"^\| `(POST|GET|DELETE) (/\S+)` \|", PAGE.read_text(), re.M)
    from ajet.rollout.served import make_routes

    served = {(method, route.path) for route in make_routes(None, "x") for method in route.methods - {"HEAD"}}  # type: ignore[arg-type,operator]
    assert {(method, path.replace("{id}", "{name}")) for method, path in told} == served
    admin = {"authorization": f"Bearer {KEY}"}
    opened = httpx.post(f"{url}/episodes", json={"task": "hello"}, headers=admin).json()
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith("| `POST /episodes` |"))
    assert set(re.findall(r"`(\w+)`", row.split("201:")[1])) <= set(opened)
    ending = httpx.post(f"{url}/episodes/{opened['episode']}/finish", json={"error": "x"}, headers=admin).json()
    assert {"status", "reward", "success", "reason", "calls", "sampled_tokens"} <= set(ending), json.dumps(ending)
