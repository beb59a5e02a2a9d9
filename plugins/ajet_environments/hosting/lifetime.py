"""`ajet env up|list|logs|down`: starts and stops environments as separate processes on this machine.

Invariants: `up` returns when the environment answers, or raises with the reason. The environment then runs until `down`
ends its recorded process and all child processes. It listens on loopback by default.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ajet.config.programs import build_command
from ajet.record.console import console, print_line
from ajet.record.lock import alone
from ajet.schema.addresses import find_own_address, require_key_or_loopback
from ajet.schema.bounded_json import load_json
from ajet.schema.commands import format_command
from ajet.schema.errors import SandboxFailure, UserError
from ajet_environments.deployment.description import (
    EnvironmentDescription,
    find_environment_file,
    prepare_families,
    read_description,
)
from ajet_mcp.images import require_images
from ajet_mcp.running_environments import RunningEnvironment, all_running, running, state_file, state_folder
from ajet_mcp.servers import TOKEN
from ajet_sandbox.engine import find_engine

READY_S = 300.0
"""Seconds for all servers to start."""
DOWN_S = 30.0


def start_environment(
    named: str,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: bool = True,
    image: str | None = None,
    network: str = "",
) -> RunningEnvironment:
    """Start an environment in the background and wait until it answers.

    Args:
        named: name of an environment, or path of its YAML file.
        port: None for the default port, or else a free one.
        token: False to accept clients without a token.
        image: runs everything in one container of this image.
        network: network of the container.

    Raises:
        UserError: the environment cannot be started.
    """
    require_key_or_loopback(host, keyed=token, name="environment", do="omit --no-token")
    file = find_environment_file(named)
    description = read_description(file)
    name = description.name
    _refuse_second(name)
    settings: dict[str, Any] = {"file": str(file), "host": host, "port": port}
    if image is None:
        _prepare_servers(description)
        module, settings["token"] = "program", token
    else:
        _require_container(image, description, token)
        module, settings["image"], settings["network"] = "contained", image, network
    state_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    log = state_file(name).with_suffix(".log")
    with alone(state_file(name).with_suffix(".lock"), f"starts {name}", say=console.print):
        _refuse_second(name)  # two starts may run at the same time
        log.write_bytes(b"")  # each start has its own token, so the old log is cleared
        with log.open("ab") as output:  # in append mode a truncated log has no hole
            environment = {key: value for key, value in os.environ.items() if key != TOKEN}
            process = subprocess.Popen(
                build_command(f"ajet_environments.hosting.{module}", json.dumps(settings)),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd=file.parent,
                env=environment,
            )  # fmt: skip
        try:
            return _wait_until_ready(name, process, log)
        except BaseException:  # also an interrupt: the started process would be unknown
            _end_process(process)
            raise


def _refuse_second(name: str) -> None:
    """Raise UserError if an environment of this name already runs."""
    if (already := running(name)) is not None:
        raise UserError(
            f"The environment {name} is running already, at {already.url}.",
            do=f"`{format_command('env', 'down', name)}` stops it",
        )


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """Terminate the environment's process, and kill it with its child processes after DOWN_S seconds."""
    from ajet.environment.family import end_family

    process.terminate()
    try:
        process.wait(DOWN_S)
    except subprocess.TimeoutExpired:
        end_family(process.pid, grace=1.0)
        process.wait()


def run_in_foreground(
    named: str,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: bool = True,
    drain: float = 0.0,
    one_of_several: bool = False,
) -> int:
    """Run the environment in this process until a signal, as containers need, and return the exit code.

    Args:
        named: name of an environment, or path of its YAML file.
        host: address to listen on.
        port: None for the default port, or else a free one.
        token: False to accept clients without a token.
        drain: seconds for open episodes to end after SIGTERM.
        one_of_several: True if several processes serve one address. Each episode then gets the address of its process.

    Raises:
        UserError: the environment cannot be started.
    """
    from ajet_environments.hosting.program import run_environment

    require_key_or_loopback(host, keyed=token, name="environment", do="omit --no-token")
    file = find_environment_file(named)
    _prepare_servers(read_description(file))
    address = choose_address(host) if one_of_several else ""
    return run_environment(file=str(file), host=host, port=port, token=token, drain=drain, address=address)


def _require_container(image: str, description: EnvironmentDescription, token: bool) -> None:
    """Raise UserError if this environment cannot run in one container."""
    image_servers = [part.name for part in description.parts if part.server is not None and part.server.image]
    if image_servers:
        raise UserError(
            f"The server {image_servers[0]} is an image, and a container cannot start a second container for it.",
            where="--docker",
            do="remove the server",
        )
    if not token:
        raise UserError("An environment in a container requires a token.", where="--no-token --docker")
    try:
        find_engine(image)
    except SandboxFailure as problem:
        raise UserError(
            f"The environment cannot run in a container: {problem}",
            where="--image",
            expected=(
                "an image that podman or docker has on this machine and that contains ajet; ajet downloads no images"
            ),
        ) from None


def _prepare_servers(description: EnvironmentDescription) -> None:
    """Install missing packages and images. Print each failure, and each limit that this machine cannot enforce."""
    servers = [part.server for part in description.parts if part.server is not None]
    require_images(servers)
    for server in servers:
        if server.not_held:
            limits = " and ".join(server.not_held)
            print_line(
                f"the server {server.name}: nothing on this machine limits a command's {limits}; for an image the "
                "limit works."
            )
    for missing in prepare_families(description.parts, console.print):
        print_line(missing)


def print_address(environment: RunningEnvironment) -> None:
    """Print the settings that connect a training run to the environment."""
    address = choose_address(environment.host)
    url = f"http://{address}:{environment.port}/mcp"
    print(json.dumps({"ip": address, "port": environment.port, "token": environment.token}))
    print(f"export MCP_SERVER_URL={url}")
    if environment.token:
        print(f"export MCP_SERVER_TOKEN={environment.token}")
    print("Start mcp server success.", flush=True)


def stop_environment(name: str) -> None:
    """End a running environment once its running calls have finished. Raises UserError."""
    from ajet.environment.family import end_family

    environment = running(name)
    process = environment.process.process() if environment is not None else None
    if environment is None or process is None:
        raise UserError(
            f"No environment named {name} runs on this machine.",
            expected=" or ".join(other.name for other in all_running()) or "a running environment; none runs",
            do=f"`{format_command('env', 'list')}` lists the running environments",
        )
    process.terminate()
    deadline = time.monotonic() + DOWN_S
    while environment.process.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    if environment.process.alive():
        end_family(process.pid, grace=1.0)
        environment.forget()
        console.print(f"The environment {name} did not react and was killed.", markup=False)
    else:
        console.print(f"The environment {name} was stopped.", markup=False)


def build_table() -> Group:
    """Return a table of the environments that run on this machine, followed by a line per reason why servers are off.

    Each environment is requested for its health; one that does not answer gets a row that says so.
    """
    import httpx

    table = Table("name", "address", "servers", "episodes", box=None)
    off: list[str] = []
    for environment in all_running():
        try:
            health = load_json(httpx.get(f"{environment.near}/health", timeout=2.0).content)
        except (httpx.HTTPError, ValueError) as problem:
            table.add_row(environment.name, environment.url, f"it does not answer: {type(problem).__name__}", "")
            continue
        servers_by_reason: dict[str, list[str]] = {}
        for name, state in health["servers"].items():
            servers_by_reason.setdefault(state.get("off", ""), []).append(name)
        table.add_row(
            environment.name,
            environment.url,
            ", ".join(servers_by_reason.pop("", [])) or "none",
            str(health["episodes"]),
        )
        off += [
            f"{environment.name}, not started: {', '.join(names)}: {reason}"
            for reason, names in servers_by_reason.items()
        ]
    return Group(table, *(Text(line) for line in off))


def read_log_lines(name: str) -> Iterator[str]:
    """Yield the log lines of an environment since its last start. Raises UserError."""
    log = state_file(name).with_suffix(".log")
    if not log.is_file():
        raise UserError(f"There is no log of an environment named {name}.", where=str(log))
    with log.open(errors="replace") as lines:
        yield from lines


def _wait_until_ready(name: str, process: subprocess.Popen[bytes], log: Path) -> RunningEnvironment:
    """Wait until the started process has written its state file, and return the environment.

    Raises:
        UserError: the process ended first (with its last log lines), or READY_S seconds have passed.
    """
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        environment = running(name)
        if environment is not None and environment.process.pid == process.pid:
            return environment
        if process.poll() is not None:
            raise UserError(f"The environment {name} did not start.\n{_read_last_lines(log)}", where=str(log))
        time.sleep(0.02)
    raise UserError(f"The environment {name} was not ready within {READY_S:.0f} s.", where=str(log))


def _read_last_lines(log: Path) -> str:
    """Return the last 12 lines of a log file, enough for an error message."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-12:])


def choose_address(host: str) -> str:
    """Return this machine's address for other machines if `host` listens on all interfaces, else `host`."""
    return find_own_address() if host in ("0.0.0.0", "::") else host
