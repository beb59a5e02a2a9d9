"""The network at home: ports, a gateway that answers over loopback, proxies that would catch its requests, Ray."""

from __future__ import annotations

import os
import socket
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ajet.client.proxies import explain_proxies
from ajet.schema.errors import Finding, UserError

if TYPE_CHECKING:
    from ajet.config.schema import AjetConfig

_RAY_ADDRESS_FILE = Path("/tmp/ray/ray_current_cluster")
_RAY_SECONDS = 0.5


def network(config: AjetConfig | None) -> list[Finding]:
    """`config` says which host and port the gateway would take; None: loopback and any."""
    return [_port(config), _gateway(), *_proxies(), _ray()]


def _port(config: AjetConfig | None) -> Finding:
    host = (config.gateway.host if config else None) or "127.0.0.1"
    port = config.gateway.port if config else 0
    try:
        with socket.create_server((host, port)) as listening:
            given = listening.getsockname()[1]
    except OSError as error:
        where = f"{host}:{port}" if port else host
        do = "choose another gateway.port, or 0 to let the kernel choose" if port else "mend gateway.host"
        return Finding("ports", "problem", f"{where} cannot be bound: {error}", do)
    return Finding("ports", "ok", f"{host}:{port} is free" if port else f"the kernel gives one on {host} (now {given})")


def _gateway() -> Finding:
    import httpx

    from ajet.engine.contract import Sampling
    from ajet.engine.scripted import ScriptedChat
    from ajet.gateway import Gateway

    try:
        gateway = Gateway(ScriptedChat(["pong"]), None, max_model_len=1000, max_response_tokens=10).start()
    except (UserError, OSError) as error:
        return Finding("gateway", "problem", f"It does not start: {error}")
    try:
        session = gateway.open("doctor", key=(0, 0, 0), sampling=Sampling(10), trainable=None)
        endpoint = session("doctor", "doctor", None)
        started = time.perf_counter()
        reply = httpx.post(
            f"{endpoint.base_url}/chat/completions",
            headers={"authorization": f"Bearer {endpoint.api_key}"},
            json={"model": "doctor", "messages": [{"role": "user", "content": "ping"}]},
            timeout=5,
            trust_env=False,
        )
        seconds = time.perf_counter() - started
        session.close()
    except httpx.HTTPError as error:
        do = "look for a firewall on the loopback interface"
        return Finding("gateway", "problem", f"It cannot be reached over loopback: {error}", do)
    finally:
        gateway.close()
    if reply.status_code != 200 or reply.json()["choices"][0]["message"]["content"] != "pong":
        return Finding("gateway", "problem", f"It answers {reply.status_code}: {reply.text[:200]}")
    return Finding("gateway", "ok", f"answers over loopback in {seconds * 1000:.0f} ms")


def _proxies() -> list[Finding]:
    """A proxy in the environment that no client can use, or that programs which ajet does not start would use for the
    gateway's own address."""
    if unusable := explain_proxies():
        return [Finding("proxy", "warning", unusable)]
    if not {"http", "all"} & set(getproxies()) or proxy_bypass("127.0.0.1"):
        return []
    text = "A proxy is set for all hosts: clients outside this process would ask it for the gateway's loopback address."
    return [Finding("proxy", "warning", text, "export NO_PROXY=127.0.0.1,localhost")]


def _ray() -> Finding:
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return Finding("ray", "note", "not installed; only the verl and trinity backbones need it")
    address = os.environ.get("RAY_ADDRESS", "")
    if not address:
        try:
            address = _RAY_ADDRESS_FILE.read_text().strip()
        except OSError:
            return Finding("ray", "ok", f"{version}; no cluster runs here, --with-ray starts one")
    try:
        parts = urlsplit(address if "//" in address else f"//{address}")
        where = (parts.hostname or address, parts.port or 6379)
        with socket.create_connection(where, timeout=_RAY_SECONDS):
            return Finding("ray", "ok", f"{version}; a cluster answers at {address}")
    except (OSError, ValueError) as error:
        if "RAY_ADDRESS" in os.environ:
            return Finding("ray", "warning", f"{version}; RAY_ADDRESS is {address}, where nothing answers: {error}")
        return Finding("ray", "ok", f"{version}; the last cluster is gone, --with-ray starts one")
