"""A whole environment in containers, by podman: `ajet env up --docker`; and the manifests that `ajet env render
kubernetes` writes, as two pods behind one address."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from ajet.schema.errors import UserError
from ajet_environments.deployment import read_description
from ajet_environments.hosting.kubernetes import PORT, render_kubernetes
from ajet_environments.hosting.lifetime import start_environment, stop_environment
from ajet_environments.tests.test_deployment_images import containers, episode
from ajet_mcp import CallFailedError, Limits
from ajet_mcp.servers import Server
from ajet_sandbox.engine import remove_dead_containers
from tests.support.container_fixtures import AJET_IMAGE, NETWORK, NOTES, remove_network
from tests.support.mcp_fixtures import attempt
from tests.support.sandbox_fixtures import require

pytestmark = pytest.mark.extra_slow
TOKEN = "the token of the secret"
SERVICE = "127.0.9.7"
"""Of this machine alone; nobody else listens there."""
READY_S = 120.0
LIMITS = Limits(call=60)


@dataclass
class Pods:
    """Those that run: their addresses."""

    addresses: list[str]
    manifests: Path

    def get(self, number: int, path: str = "/health") -> dict:
        found = httpx.get(f"http://{self.addresses[number]}:{PORT}{path}", headers=BEARER, timeout=60)
        return dict(found.json())


BEARER = {"Authorization": f"Bearer {TOKEN}"}


def podman(*words: str, text: str = "") -> str:
    done = subprocess.run(["podman", *words], input=text, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-1000:])
    return done.stdout.strip()


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    require("an image of ajet")
    (tmp_path / NOTES.name).write_text(NOTES.read_text())
    file = tmp_path / "shop.yaml"
    command = f"{{command: python3, args: [-I, /environment/{NOTES.name}]"
    file.write_text(
        f"name: shop\nmcpServers:\n  notes: {command}, spare: 0, resources: {{cores: 0.2, memory: 64}}}}\ncapacity: 4\n"
    )
    manifests = tmp_path / "manifests.yaml"
    manifests.write_text(render_kubernetes(read_description(file), image=AJET_IMAGE, count=2))
    secret = json.dumps({"MCP_SERVER_TOKEN": base64.b64encode(TOKEN.encode()).decode()})
    podman("secret", "create", "shop", "-", text=secret)
    try:
        try:
            podman("play", "kube", "--network", NETWORK, str(manifests))
        except RuntimeError as problem:
            pytest.skip(f"podman runs no pods here: {problem}")
        form = f'{{{{(index .NetworkSettings.Networks "{NETWORK}").IPAddress}}}}'
        infra = [podman("pod", "inspect", f"shop-pod-{n}", "--format", "{{.InfraContainerID}}") for n in (0, 1)]
        found = Pods([podman("inspect", each, "--format", form) for each in infra], manifests)
        until = time.monotonic() + READY_S
        for number in (0, 1):
            while time.monotonic() < until:
                with suppress(httpx.HTTPError):
                    if found.get(number)["status"] == "success":
                        break
                time.sleep(0.2)
            else:
                raise AssertionError(podman("logs", f"shop-pod-{number}-environment"))
        yield found
    finally:
        subprocess.run(["podman", "pod", "rm", "--force", "--time", "0", "--all"], capture_output=True)
        podman("secret", "rm", "shop")
        remove_network()


@asynccontextmanager
async def service(pods: Pods) -> AsyncIterator[Server]:
    """What a Service does: each connection goes to the next pod that listens."""
    turn = itertools.count()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in pods.addresses:
            with suppress(OSError):
                there = await asyncio.open_connection(pods.addresses[next(turn) % len(pods.addresses)], PORT)
                break
        else:
            writer.close()
            return

        async def pumped(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while chunk := await source.read(65_536):
                    sink.write(chunk)
                    await sink.drain()
            sink.close()

        await asyncio.gather(pumped(reader, there[1]), pumped(there[0], writer))

    listening = await asyncio.start_server(relay, SERVICE, PORT)
    async with listening:
        yield Server("shop", "http", url=f"http://{SERVICE}:{PORT}/mcp", headers=BEARER)


def test_of_two_pods_one_is_killed_and_the_other_drained(pods: Pods) -> None:
    """Each episode stays with its pod. A killed pod's are lost, as environments are; the other's go on, and have time
    when that pod is to end, which takes no new one then and ends after them (its policy starts it again)."""

    async def play() -> None:
        async with (
            service(pods) as server,
            attempt(server, limits=LIMITS) as one,
            attempt(server, limits=LIMITS) as two,
        ):
            assert [pods.get(number)["episodes"] for number in (0, 1)] == [1, 1]
            for each, text in ((one, "a"), (two, "b")):
                await each.toolset.use("note", {"text": text})
                assert (await each.toolset.use("notes", {})).text == text
            await asyncio.to_thread(podman, "pod", "rm", "--force", "--time", "0", "shop-pod-0")
            said = {}
            for name, each in (("one", one), ("two", two)):
                try:
                    said[name] = (await each.toolset.use("notes", {})).text
                except CallFailedError as problem:
                    assert problem.boundary == "environment"
                    said[name] = "lost"
            assert sorted(said.values()) in (["a", "lost"], ["b", "lost"])
            await asyncio.to_thread(podman, "kill", "--signal", "TERM", "shop-pod-1-environment")
            left = one if said["two"] == "lost" else two
            until = time.monotonic() + 60
            while (await asyncio.to_thread(pods.get, 1))["status"] != "draining":
                assert time.monotonic() < until
                await asyncio.sleep(0.05)
            refused = httpx.post(f"http://{pods.addresses[1]}:{PORT}/episodes", headers=BEARER, json={}, timeout=60)
            assert refused.status_code == 503
            assert (await left.toolset.use("note", {"text": "c"})).text.endswith("c")
        form = "{{.State.Status}} {{.RestartCount}} {{.State.ExitCode}}"
        until = time.monotonic() + 60
        while podman("inspect", "shop-pod-1-environment", "--format", form).startswith("running 0"):
            assert time.monotonic() < until
            await asyncio.sleep(0.2)

    asyncio.run(play())
    told = podman("inspect", "shop-pod-1-environment", "--format", "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}}")
    assert told == f"{(512 + 4 * 64) << 20} {int((0.5 + 4 * 0.2) * 1e9)}", "four episodes at once, and its own"
    assert TOKEN not in pods.manifests.read_text()


def test_a_whole_environment_in_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are in no argument list; what a killed one leaves the next start removes; `down` leaves none."""
    file = shop(tmp_path, monkeypatch)
    boxed = {"image": AJET_IMAGE, "network": "host"}  # this machine may have no iptables, which another one needs
    with pytest.raises(UserError, match="is not here"):
        start_environment(str(file), port=0, image="localhost/no-such-image")
    first = start_environment(str(file), port=0, **boxed)
    (left,) = containers()
    said = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    assert not any(secret in each for each in said for secret in (first.token, "open sesame"))
    assert episode(first)("note", text="a") == "a"
    assert "A_KEY=open sesame" in containers("{{.Config.Env}}")[0]
    os.kill(first.process.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(first.process.pid)], timeout=60)
    assert containers() == [left]
    remove_dead_containers.cache_clear()  # this process has looked before
    found = start_environment(str(file), port=0, **boxed)
    try:
        assert left not in containers() and episode(found)("notes") == ""
    finally:
        stop_environment("shop")
    assert containers() == []


def test_the_port_that_is_published_is_the_one_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network of the engine's own, which takes iptables; on the address asked for, and on no other."""
    file = shop(tmp_path, monkeypatch)
    tried = ["podman", "run", "--rm", "--log-driver", "none", "--publish", "127.0.0.1::8000", AJET_IMAGE, "sleep", "0"]
    if (done := subprocess.run(tried, capture_output=True, text=True)).returncode:
        pytest.skip(f"podman publishes no port here: {done.stderr.strip()[-300:]}")
    found = start_environment(str(file), host="127.0.0.1", port=0, image=AJET_IMAGE)
    try:
        assert episode(found)("note", text="a") == "a"
        (told,) = containers("{{json .NetworkSettings.Ports}}")
        assert json.loads(told) == {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(found.port)}]}
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://{SERVICE}:{found.port}/health", timeout=30)
    finally:
        stop_environment("shop")
    assert containers() == []


def shop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment's file; its server needs a key that is set here."""
    require("an image of ajet")
    monkeypatch.setenv("AJET_STATE", str(folder / "state"))
    monkeypatch.setenv("A_KEY", "open sesame")
    (folder / NOTES.name).write_text(NOTES.read_text())
    file = folder / "shop.yaml"
    file.write_text(
        f"name: shop\nmcpServers:\n  notes: {{command: python3, args: [-I, {NOTES.name}], requires: [A_KEY]}}\n"
    )
    return file
