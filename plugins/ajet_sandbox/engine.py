"""A container engine, podman or docker, over its command: which images are here, which containers are whose.

Invariants: a container of ours bears the label of the process that it belongs to; what an engine still holds of a
process of this machine that has ended, the next one removes. Nothing is pulled: an image that is not here is said. A
container's variables stand in no argument list and are not those of the engine's command, which a loader or the engine
would read: the command reads them from a descriptor.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache

from ajet.record.process_identity import ProcessIdentity
from ajet.schema.errors import SandboxFailure

ENGINES = ("podman", "docker")
"""In the order in which they are tried."""
LABEL = "ajet.sandbox"
"""Its value: which process of which start of this machine the container belongs to."""
ENGINE_VARIABLES = re.compile(r"(PATH|HOME|TMPDIR)$|(CONTAINERS|DOCKER|XDG)_")
"""Variables that its command itself reads."""
MAX_VALUE_BYTES = 30_000
"""Bytes of a variable's value in such a file: docker and podman read lines of at most 64 KiB."""
_MEMORY = hasattr(os, "memfd_create")
COMMAND_TIMEOUT_S = 30.0
"""Of a command that starts nothing."""


@dataclass(frozen=True, slots=True)
class ContainerVariables:
    """A container's variables, as an engine's command is given them."""

    words: tuple[str, ...]
    descriptor: int
    """Which the command inherits by this number, and whoever starts it closes."""
    environment: Mapping[str, str]
    """Those of several lines, which the engines' files of variables cannot hold: of the command itself."""


def pass_variables(variables: Mapping[str, str]) -> ContainerVariables:
    """A new descriptor with them."""
    lines = {name: value for name, value in variables.items() if fits_env_file(value)}
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    with open(os.memfd_create("variables"), "wb") if _MEMORY else tempfile.TemporaryFile() as file:
        file.write(os.fsencode(text))
        file.seek(0)
        descriptor = os.dup(file.fileno())
    several = {name: value for name, value in variables.items() if name not in lines}
    words = ["--env-file", f"/dev/fd/{descriptor}"]
    for name in several:
        words += ["--env", name]
    return ContainerVariables(tuple(words), descriptor, several)


def fits_env_file(value: str) -> bool:
    """Whether an engine's file of variables can hold it."""
    return "\n" not in value and "\r" not in value and len(os.fsencode(value)) < MAX_VALUE_BYTES


def find_image_problem(engine: str, image: str, otherwise: str = "name another") -> str:
    """Why an engine cannot start this image; "" where nothing is known to be in the way. `otherwise`: what else to do
    than to pull it. Raises SandboxFailure."""
    program = shutil.which(engine)
    if program is None:
        return f"{engine} is not installed"
    done = run_engine(program, "image", "inspect", "--format", "{{.Id}}", image)
    if done.returncode == 0:
        return ""
    error = done.stderr.decode(errors="replace").strip()
    if "no such image" in error.lower() or "not known" in error:
        return f"the image {image} is not here (`{engine} pull {image}`, or {otherwise})"
    return error.splitlines()[-1] if error else f"{engine} does not answer"


def find_engine(image: str) -> str:
    """The program of the first engine that has the image, what is over removed from it. Raises SandboxFailure."""
    why: list[str] = []
    for engine in ENGINES:
        problem = find_image_problem(engine, image)
        if not problem:
            program = shutil.which(engine) or engine
            remove_dead_containers(program)
            return program
        why.append(f"{engine}: {problem}")
    raise SandboxFailure(f"no container of {image}: {'; '.join(why)}", retryable=False)


@lru_cache(maxsize=2)
def remove_dead_containers(program: str) -> int:
    """Remove the containers of processes of this machine that have ended; once a process. How many there were."""
    left = [name for name, told in _list_labelled(program, "{{.Id}}") if _has_ended(told)]
    if left:
        run_engine(program, "rm", "--force", *left)
    return len(left)


def list_container_pids(program: str) -> list[int]:
    """The first process of each container that belongs to this one, as this machine counts them."""
    owned_pids = [number for number, owned in _list_labelled(program, "{{.State.Pid}}") if owned == make_owner_label()]
    return [int(number) for number in owned_pids if number.isdecimal() and number != "0"]


def remove_container(program: str, name: str) -> None:
    """An engine that is ending a container refuses to remove it, and may then leave it: asked until it is gone."""
    until = time.monotonic() + COMMAND_TIMEOUT_S
    while time.monotonic() < until:
        run_engine(program, "rm", "--force", name)
        if not run_engine(program, "ps", "--all", "--quiet", "--filter", f"name={name}").stdout.strip():
            return
        time.sleep(0.1)


def make_owner_label() -> str:
    """This process, for a label."""
    return json.dumps(asdict(ProcessIdentity.of(os.getpid())), separators=(",", ":"))


def run_engine(program: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    """The engine's answer to a command. Raises SandboxFailure where it fails."""
    try:
        return subprocess.run(
            [program, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxFailure(f"{program} {words[0]}: {error}", retryable=False) from error


def _list_labelled(program: str, form: str) -> list[tuple[str, str]]:
    """For each container of ajet's: what the form says of it, and its label."""
    every = run_engine(program, "ps", "--all", "--quiet", "--filter", f"label={LABEL}").stdout.decode().split()
    if not every:
        return []
    result = run_engine(program, "inspect", "--format", form + ' {{index .Config.Labels "' + LABEL + '"}}', *every)
    return [(first, label) for first, _, label in (row.partition(" ") for row in result.stdout.decode().splitlines())]


def _has_ended(label: str) -> bool:
    try:
        return not ProcessIdentity.recorded(json.loads(label)).alive()
    except (ValueError, KeyError, TypeError):
        return False  # not one of ours
