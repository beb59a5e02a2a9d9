"""The environment protocol of docs/environment_protocol.md, spoken by a server in JavaScript."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ajet.environment.services.gym_env import GymEnv
from ajet.environment.services.wire import EnvService
from ajet.schema.errors import EnvironmentFailure
from ajet_environments.services.check import run_check

SERVER = Path(__file__).with_name("guess_server.mjs")
PAGE = Path(__file__).parents[3] / "docs/environment_protocol.md"

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with subprocess.Popen(["node", str(SERVER)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().split()[-1]}"
        process.kill()


def test_episode_with_a_javascript_server(url: str) -> None:
    service = EnvService(url)
    assert service.task_ids("train") == ["3", "7", "12"]
    env = GymEnv(service, "12")
    assert env.create() == [{"role": "user", "content": "Guess my number, from 0 to 9."}]
    assert env.step("5")[:3] == ("wrong", 0.0, False)
    assert env.evaluate() == 0.0
    assert env.step({"role": "assistant", "content": "it is 2"})[:3] == ("right", 1.0, True)
    assert env.evaluate() == 1.0
    assert env.get_info() == {"rules": "one digit"}
    assert env.release() is True
    with pytest.raises(EnvironmentFailure):
        env.step("2")


def test_unknown_task_is_a_failure(url: str) -> None:
    with pytest.raises(EnvironmentFailure, match="no task x"):
        GymEnv(EnvService(url), "x").create()


def test_check_plays_the_javascript_server(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(url, env_type="", split="train", actions=["2", "3"], steps=4) == 0
    printed = capsys.readouterr().out
    assert "missing" not in printed
    assert re.search(r"evaluate +1\n", printed)


def test_page_shows_each_request_and_a_true_exchange(url: str) -> None:
    """Each `curl` line of the page is sent as printed, and answers with the keys that the page shows."""
    text = PAGE.read_text()
    shown = re.findall(r'^curl -s \$URL/(\w+) -H "Content-Type: application/json" -d \'(.+)\'$', text, re.M)
    assert {name for name, _ in shown} == {"get_env_profile", "create", "step", "evaluate", "get_info", "release"}
    for name, body in shown:
        reply = httpx.post(f"{url}/{name}", content=body, headers={"Content-Type": "application/json"}).json()
        assert reply["success"] is True, name
