"""Proxy variables: loopback is reached without them, and those that cannot be used are named."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Iterator
from urllib.request import getproxies, proxy_bypass

import httpx
import openai
import pytest

from ajet.client import Client, Unreachable
from ajet.client.proxies import build_bypass
from ajet.schema.task import WorkflowOutput
from tests.support.ajet_process import ajet
from tests.support.rollouts import stage
from tests.support.served import KEY, RunningServer, start_serving

NAMES = [name for scheme in ("http", "https", "all", "no") for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY")]
DEAD = "http://someone:a-password@127.0.0.1:9"


@pytest.fixture(autouse=True)
def no_proxy_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    with start_serving(tasks=1) as made:
        yield made


@pytest.mark.parametrize(
    ("listed", "expected"),
    [({}, []), ({"no_proxy": "a.b, 10.0.0.0/8"}, ["a.b", "10.0.0.0/8"]), ({"NO_PROXY": "localhost"}, ["localhost"])],
)
@pytest.mark.parametrize("name", [name for name in NAMES if "no_" not in name.lower()])
def test_bypass_keeps_what_was_listed(monkeypatch, name, listed, expected):
    bypass = build_bypass({name: DEAD, **listed}, "10.1.2.3")
    assert bypass["NO_PROXY"] == bypass["no_proxy"]
    assert bypass["no_proxy"].split(",")[: len(expected)] == expected
    for variable, value in {name: DEAD, **bypass}.items():
        monkeypatch.setenv(variable, value)
    assert all(proxy_bypass(host) for host in ("127.0.0.1", "localhost", "10.1.2.3")) and not proxy_bypass("else.org")
    with httpx.Client() as client:
        for url in ("http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "http://10.1.2.3"):
            assert client._transport_for_url(httpx.URL(url)) is client._transport


@pytest.mark.parametrize(
    "environment", [{}, {"no_proxy": "a"}, {"HTTP_PROXY": ""}, {"HTTP_PROXY": DEAD, "no_proxy": "*"}]
)
def test_nothing_is_set_without_need(environment):
    assert build_bypass(environment) == {}


class MakesAClient:
    trainable_targets = None

    async def execute(self, task, tuner):
        at = tuner.as_oai_baseurl_apikey()
        async with openai.AsyncOpenAI(base_url=at.base_url, api_key=at.api_key, max_retries=0) as client:
            await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "hi"}])
        return WorkflowOutput(reward=1.0)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_agents_clients_reach_the_gateway(monkeypatch, name):
    monkeypatch.setenv(name, DEAD)
    with stage(MakesAClient) as played:
        assert played.episode().failure is None
    assert set(getproxies()) == {name.lower().removesuffix("_proxy")}


def without_socksio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)


@pytest.mark.parametrize("kind", ["socks5", "socks5h", "socks", "socks4"])
def test_agents_unusable_proxy_is_named(monkeypatch, kind):
    without_socksio(monkeypatch)
    monkeypatch.setenv("ALL_PROXY", f"{kind}://someone:a-password@127.0.0.1:9")
    with stage(MakesAClient) as played:
        failure = played.episode().failure
    assert failure is not None and "ALL_PROXY" in failure.message
    assert ("pip install socksio" if kind.startswith("socks5") else "write socks5://") in failure.message


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_client_reaches_a_server_on_loopback(monkeypatch, served, name):
    monkeypatch.setenv(name, DEAD)
    with Client(str(served.client.base_url), KEY, patience=0) as client:
        assert client.overview()


def test_client_names_the_proxy_at_once(monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("http_proxy", f"http://someone:a-password@127.0.0.1:{port}")
    with (
        caplog.at_level(logging.WARNING, "ajet.client"),
        Client("http://server.invalid:1", KEY, patience=0.3) as client,
        pytest.raises(Unreachable, match="NO_PROXY=server.invalid") as raised,
    ):
        client.overview()
    assert len(caplog.records) == 1 and "HTTP_PROXY" in caplog.text
    assert "a-password" not in caplog.text + str(raised.value)


def test_client_says_that_it_waits(caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with Client(url, KEY, patience=0.5) as client, pytest.raises(Unreachable):
        client.overview()
    assert len(caplog.records) == 1 and url in caplog.text and "PROXY" not in caplog.text


@pytest.mark.parametrize("kind", ["socks5", "socks"])
def test_client_names_an_unusable_proxy(monkeypatch, kind):
    without_socksio(monkeypatch)
    monkeypatch.setenv("all_proxy", f"{kind}://a-password@127.0.0.1:9")
    with pytest.raises(Unreachable, match="ALL_PROXY") as raised:
        Client("http://127.0.0.1:1", KEY)
    assert "a-password" not in str(raised.value)


AGENT = """
import httpx

http = httpx.Client()  # while the module is imported


def agent(task, tuner):
    at = tuner.as_oai_baseurl_apikey()
    asked = {"model": at.model, "messages": [{"role": "user", "content": task.main_query}], "max_tokens": 3}
    headers = {"Authorization": f"Bearer {at.api_key}"}
    reply = http.post(f"{at.base_url}/chat/completions", json=asked, headers=headers).raise_for_status().json()
    return reply["choices"][0]["message"]["content"] or "nothing"
"""
RUN = """
ajet:
  model: {path: "embedded:tiny-tools"}
  task_reader: {type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: q.jsonl}}}
  rollout: {user_workflow: agent.py->agent, num_repeat: 1, max_response_length_in_one_turn: 8}
  task_judge: {scorer: exact}
"""


@pytest.mark.slow
def test_command_runs_behind_a_dead_proxy(tmp_path):
    for name, text in {"agent.py": AGENT, "run.yaml": RUN, "q.jsonl": '{"question": "q", "answer": "a"}\n'}.items():
        (tmp_path / name).write_text(text)
    arguments = ("--conf", "run.yaml", "--backbone", "debug")
    ran = ajet(*arguments, cwd=tmp_path, HTTP_PROXY=DEAD, https_proxy=DEAD)
    assert "1 scored" in ran.stdout and "a-password" not in ran.stdout, ran.stdout
    endpoint = (
        "rollout.engine=endpoint",
        "rollout.endpoint.base_url=http://127.0.0.1:1/v1",
        "rollout.endpoint.model=m",
    )
    refused = ajet(*arguments, *endpoint, cwd=tmp_path, ALL_PROXY="socks4://a-password@127.0.0.1:9")
    assert refused.returncode == 2 and "ALL_PROXY" in refused.stdout and "a-password" not in refused.stdout
