"""`ajet env up NAME --docker`: an environment in one container, and the process that watches the container.

The process gets one argument: JSON with file, host, port, image and network. Invariants: the state file is written once
the environment inside answers. The container ends with this process. If the process is killed, the next start removes
the container. The token and API keys appear in no argument list and in no file of ajet's. The container engine (podman
or docker) stores them with its container, readable by `inspect`.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ajet.record.process_identity import ProcessIdentity
from ajet.schema.errors import SandboxFailure, UserError
from ajet.train.interrupts import end_on_hangup
from ajet_environments.deployment import EnvironmentDescription, RunningEnvironment, read_description
from ajet_environments.deployment.description import find_shipped_name
from ajet_environments.hosting.kubernetes import compute_sizes
from ajet_environments.hosting.lifetime import DOWN_S, READY_S
from ajet_environments.hosting.program import open_listener
from ajet_mcp.servers import TOKEN
from ajet_sandbox.engine import LABEL, find_engine, make_owner_label, pass_variables, remove_container, run_engine

FOLDER = "/environment"
"""The description's folder inside the container, read-only."""
PORT = 8000
"""Port inside the container if it has its own network."""
HOST = "host"
"""The name of the machine's own network."""


def main() -> int:
    return run_container(**json.loads(sys.argv[1]))


def run_container(*, file: str, host: str, port: int | None, image: str, network: str) -> int:
    """Start the container and block until a signal ends it. Return the exit code.

    Args:
        file: path of the environment's YAML file.
        port: port on the host; None for the default port, or else a free one.
        network: network of the container, by the engine's name.
    """
    end_on_hangup()
    signal.signal(signal.SIGTERM, _raise_exit)
    try:
        inherited_variables = dict(os.environ)  # the environment's own file adds its variables below
        description = read_description(Path(file))
        program = find_engine(image)
        with open_listener(host, port) as listening:
            free_port = int(listening.getsockname()[1])
    except (UserError, SandboxFailure) as problem:
        print(f"{type(problem).__name__}: {problem}", file=sys.stderr)
        return 2
    name, token = f"ajet-env-{secrets.token_hex(8)}", os.environ.get(TOKEN) or secrets.token_urlsafe(24)
    variables = pass_variables({name: os.environ[name] for name in _select_variables(description)} | {TOKEN: token})
    command = [*build_engine_command(description, program, name, host, free_port, network), *variables.words]
    command += [image, *_build_inner_command(description)]
    command += (
        ["--host", host, "--port", str(free_port)] if network == HOST else ["--host", "0.0.0.0", "--port", str(PORT)]
    )
    state = RunningEnvironment(description.name, host, free_port, token, ProcessIdentity.of(os.getpid()), file)
    engine = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        env={**inherited_variables, **variables.environment},
        pass_fds=(variables.descriptor,),
    )
    os.close(variables.descriptor)
    try:
        if not _wait_until_ready(state, engine):
            print(f"the environment {description.name} in the image {image} was not ready in time", file=sys.stderr)
            return 2
        state.write()
        return engine.wait()
    except SystemExit:
        return 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        state.forget()
        with suppress(SandboxFailure):  # the next start removes a remaining container
            run_engine(program, "stop", "--time", str(int(DOWN_S * 2 / 3)), name)
        with suppress(SandboxFailure):
            remove_container(program, name)
        engine.wait()


def build_engine_command(
    description: EnvironmentDescription, program: str, name: str, host: str, port: int, network: str
) -> Sequence[str]:
    """Return the command line of podman or docker that runs the environment, up to but without the image name.

    Args:
        program: the engine's executable.
        name: name of the container.
        host: address on the host to publish.
        port: port on the host; unused if `network` is the host's.
        network: network of the container, by the engine's name; "" for its default.
    """
    assert description.file is not None
    command = [
        program, "run", "--rm", "--pull", "never", "--name", name, "--label", f"{LABEL}={make_owner_label()}",
        "--log-driver", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
        "--env", "AJET_STATE=/tmp/ajet",
    ]  # fmt: skip
    if network != HOST:
        url_host = f"[{host}]" if ":" in host else host
        command += ["--publish", f"{url_host}:{port}:{PORT}"]
    if network:
        command += ["--network", network]
    if not find_shipped_name(description.file):
        command += ["--volume", f"{description.file.parent}:{FOLDER}:ro", "--workdir", FOLDER]
    if any(part.resources.is_set for part in description.parts):
        limits = compute_sizes(description)[1]
        memory = limits["memory"].removesuffix("Mi") + "m"
        command += ["--cpus", limits["cpu"], "--memory", memory, "--memory-swap", memory]
    return command


def _build_inner_command(description: EnvironmentDescription) -> list[str]:
    """Return the command run inside the container, without host and port."""
    assert description.file is not None
    description_name = find_shipped_name(description.file) or f"{FOLDER}/{description.file.name}"
    return ["ajet", "env", "up", description_name, "--foreground"]


def _select_variables(description: EnvironmentDescription) -> list[str]:
    """Return the names of environment variables that the description uses and that are set here."""
    used_names = [*description.named, *(name for part in description.parts for name in part.requires)]
    return [name for name in dict.fromkeys(used_names) if name in os.environ and name != TOKEN]


def _wait_until_ready(state: RunningEnvironment, engine: subprocess.Popen[bytes]) -> bool:
    """Return True once the environment answers; False if the container ended or the time is over."""
    import httpx

    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and engine.poll() is None:
        try:
            if httpx.get(f"{state.near}/health", timeout=2.0).status_code == 200:
                return True
        except httpx.HTTPError:
            time.sleep(0.1)
    return False


def _raise_exit(*_: object) -> None:
    """Turn SIGTERM into SystemExit, so that `finally` blocks end the container."""
    raise SystemExit


if __name__ == "__main__":
    sys.exit(main())
