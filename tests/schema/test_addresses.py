"""Which addresses are this machine's own, which one others are given, and who may listen for them."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest

from ajet.gateway.server import build_base_url
from ajet.schema.addresses import find_own_address, is_loopback
from ajet.schema.errors import UserError
from ajet_environments.hosting import lifetime
from ajet_environments.services import serving
from ajet_observe.command import ObserveOptions, observe

HERE = ["127.0.0.1", "127.0.0.2", "127.255.255.254", "::1", "::ffff:127.0.0.1", "localhost", "LocalHost"]
ELSEWHERE = [
    "0.0.0.0",
    "::",
    "",
    "10.0.0.1",
    "fe80::1",
    "example.org",
    "127.0.0.1.example.org",
    "localhost.example",
    None,
]


def test_one_idea_of_loopback():
    assert [host for host in HERE if not is_loopback(host)] == []
    assert [host for host in ELSEWHERE if is_loopback(host)] == []


@pytest.mark.parametrize("host", ["0.0.0.0", "", "10.1.2.3"])
def test_nobody_listens_for_other_machines_without_a_key(host, monkeypatch):
    """One message, of whichever server; asked before anything is opened."""
    for variable in ("AJET_ADMIN_KEY", "ENV_SERVICE_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    told = []
    for listens in (
        lambda: observe(None, ObserveOptions("http://127.0.0.1:8000/v1", host=host)),
        lambda: lifetime.start_environment("none.yaml", host=host, token=False),
        lambda: lifetime.run_in_foreground("none.yaml", host=host, token=False),
        lambda: serving.serve_world("none", host=host, port=0, instances=1, idle_s=1.0, tasks=1, data=None),
    ):
        with pytest.raises(UserError, match="^Other machines could reach the .* without a key") as error:
            listens()
        told.append((error.value.where, error.value.expected))
        assert error.value.do.endswith("or omit --host")
    assert len(set(told)) == 1


def no_way_out(monkeypatch, *addresses):
    """A machine without a default route, whose interfaces have these addresses."""

    class Stuck(socket.socket):
        def connect(self, address):
            raise OSError("Network is unreachable")

    every = {f"eth{at}": [SimpleNamespace(family=socket.AF_INET, address=each)] for at, each in enumerate(addresses)}
    monkeypatch.setattr(socket, "socket", Stuck)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: every)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {name: SimpleNamespace(isup=name != "eth1") for name in every})


def test_gateway_and_environments_give_the_same_address_also_without_a_default_route(monkeypatch):
    assert not is_loopback(find_own_address()) or len(psutil.net_if_addrs()) == 1
    no_way_out(monkeypatch, "127.0.0.1", "10.0.0.9", "172.17.0.1")  # the second is down
    assert find_own_address() == "172.17.0.1"
    assert build_base_url("auto", "0.0.0.0", 80) == "http://172.17.0.1:80/v1"
    assert lifetime.choose_address("0.0.0.0") == lifetime.choose_address("::") == "172.17.0.1"
    no_way_out(monkeypatch, "127.0.0.1")
    assert find_own_address() == lifetime.choose_address("0.0.0.0") == "127.0.0.1"


def test_an_environment_service_with_a_token_may_listen(monkeypatch):
    monkeypatch.setenv("ENV_SERVICE_TOKEN", "one")
    monkeypatch.setattr(serving, "open_world", lambda *_, **__: "world")
    monkeypatch.setattr(serving, "WorldServer", lambda world, **told: told["token"])

    async def listened(server, host, port):
        assert (server, host) == ("one", "0.0.0.0")

    monkeypatch.setattr(serving, "serve_until_signal", listened)
    assert serving.serve_world("any", host="0.0.0.0", port=0, instances=1, idle_s=1.0, tasks=1, data=None) == 0
