"""Servers that are images: real containers of podman, behind a real front."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from io import StringIO
from pathlib import Path

import httpx
import psutil
import pytest
from rich.console import Console

from ajet.schema.errors import ConfigError
from ajet_environments.deployment import read_description
from ajet_environments.hosting.lifetime import start_environment, stop_environment
from ajet_environments.hosting.trial import plan_episodes
from ajet_mcp.running_environments import RunningEnvironment
from ajet_mcp.servers import servers_of
from ajet_sandbox.engine import LABEL
from tests.support.container_fixtures import IMAGE, NOTES
from tests.support.sandbox_fixtures import require

SECRET = "open sesame"


def test_a_server_that_is_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its container has an episode's notes, its resources, and what it is given; `down` removes it."""
    file = boxed(tmp_path, monkeypatch, spare=1)
    found = start_environment(str(file), port=0)
    try:
        one, other = episode(found), episode(found)
        assert one("note", text="a") == "a" and other("notes") == ""
        told = containers(
            "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}} {{.HostConfig.NetworkMode}} {{json .Config.Env}}"
        )
        assert len(told) >= 2, "one for each episode"
        for each in told:
            assert each.startswith(f"{64 << 20} {500_000_000} none ") and f"A_KEY={SECRET}" in each
            variables = json.loads(each.split(" ", 3)[3])
            for given in ("LD_PRELOAD=/no/such.so", "LINES=one\ntwo", "QUOTED='it' = \"x\" #1 "):
                assert given in variables, "as it stands in the file"
        every = list(psutil.process_iter(["cmdline", "environ"]))
        said = [" ".join(each.info["cmdline"] or ()) for each in every]
        assert not any(SECRET in each for each in said)
        engines = [each for each, words in zip(every, said, strict=True) if "--env-file" in words]
        assert engines and not any("LD_PRELOAD" in (each.info["environ"] or ()) for each in engines)
    finally:
        stop_environment("boxed")
    assert containers() == []


@pytest.mark.extra_slow
def test_what_a_killed_environment_leaves_the_next_start_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = boxed(tmp_path, monkeypatch, spare=1)
    first = start_environment(str(file), port=0)
    episode(first)("note", text="a")
    left = containers()
    for number in containers("{{.State.Pid}}"):  # so that none ends by itself when its pipes close
        os.kill(int(number), signal.SIGSTOP)
    os.kill(first.process.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(first.process.pid)], timeout=60)
    assert left and set(left) <= set(containers())
    found = start_environment(str(file), port=0)
    try:
        assert episode(found)("notes") == "" and not set(left) & set(containers())
    finally:
        stop_environment("boxed")
    assert containers() == []


@pytest.mark.extra_slow
def test_the_plan_counts_what_runs_in_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(width=160, record=True, file=StringIO())
    console.print(plan_episodes(str(boxed(tmp_path, monkeypatch)), 10))
    shown = console.export_text()
    assert "5 cores" in shown and f"{640 / 1024:.2f} GiB" in shown, "of ten at once, as the file says"
    (row,) = [line for line in shown.splitlines() if line.startswith(" notes")]
    assert float(row.split(" MiB")[0].split()[-1]) > 5, "a Python of its own"


def test_what_cannot_be_is_said_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "tools.yaml"
    for entry, said in (
        ("image: no-such/image", "podman is not installed"),
        ("image: i, command: c", "exactly one of url, command, image"),
        ("command: c, network: host", "network requires an image"),
        (r'image: i, env: {DOCKER_HOST: "x\ny"}', "DOCKER_HOST is read by the container engine itself"),
        ("'url': 'http://127.0.0.1/mcp', resources: {cores: 1}", "resources require a command"),
    ):
        file.write_text(f"name: t\nmcpServers:\n  s: {{{entry}}}\n")
        with pytest.raises(ConfigError, match=said):
            start_environment(str(file))
    file.write_text("mcpServers:\n  s: {command: sh, resources: {cores: 1, memory: 5}}\n")
    with pytest.raises(ConfigError, match="The limits cores and memory of the server"):
        servers_of(str(file), tmp_path)
    (part,) = read_description(file).parts
    assert part.resources.memory == 5, "planned with, where nothing holds it"


def boxed(folder: Path, monkeypatch: pytest.MonkeyPatch, spare: int = 0) -> Path:
    require("podman")
    monkeypatch.setenv("AJET_STATE", str(folder / "state"))
    monkeypatch.setenv("A_KEY", SECRET)
    file = folder / "boxed.yaml"
    entry = {"image": IMAGE, "args": ["python3", "-I", f"/{NOTES.name}"], "requires": ["A_KEY"], "spare": spare}
    entry["resources"] = {"cores": 0.5, "memory": 64}
    entry["env"] = {"LD_PRELOAD": "/no/such.so", "LINES": "one\ntwo", "QUOTED": "'it' = \"x\" #1 "}
    file.write_text(json.dumps({"name": "boxed", "mcpServers": {"notes": entry}}))
    return file


def episode(found: RunningEnvironment):
    """Calls the tools of a new one."""
    headers = {"Authorization": f"Bearer {found.token}"}
    path = httpx.post(f"{found.address}/episodes", headers=headers, json={}, timeout=30).json()["path"]

    def call(name: str, **arguments: str) -> str:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        told = httpx.post(found.address + path, headers=headers, json=asked, timeout=30).json()
        return str(told["result"]["content"][0]["text"])

    return call


def containers(form: str = "{{.Id}}") -> list[str]:
    """What podman says of each of ours."""
    words = ["podman", "ps", "--all", "--quiet", "--filter", f"label={LABEL}"]
    every = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    if not every:
        return []
    return subprocess.run(
        ["podman", "inspect", "--format", form, *every], capture_output=True, text=True
    ).stdout.splitlines()
