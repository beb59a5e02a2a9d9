"""Runs podman or docker by its command: images, containers, and the processes that own them.

Invariants: each container is labelled with the process that started it. The next process removes containers of ended
processes of the machine. No image is pulled: a missing image is reported. A container's variables are passed on a
descriptor. They appear in no argument list and not in the environment of the engine's command, because the dynamic
loader or the engine would act on them there.
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
"""In the order of trial."""
LABEL = "ajet.sandbox"
"""The label's value identifies the owner process and the machine's boot."""
ENGINE_VARIABLES = re.compile(r"(PATH|HOME|TMPDIR)$|(CONTAINERS|DOCKER|XDG)_")
"""Variables read by the engine's command itself."""
MAX_VALUE_BYTES = 30_000
"""Bytes of a variable's value in an env file: docker and podman read lines of at most 64 KiB."""
_MEMORY = hasattr(os, "memfd_create")
COMMAND_TIMEOUT_S = 30.0
"""Timeout of commands that start no container."""


@dataclass(frozen=True, slots=True)
class ContainerVariables:
    """Environment variables of a container, written to a descriptor for an engine's command."""

    words: tuple[str, ...]
    descriptor: int
    """Descriptor inherited by the command under the same number, and closed by the starter."""
    environment: Mapping[str, str]
    """Multi-line variables, impossible in env files: passed in the command's environment."""


def pass_variables(variables: Mapping[str, str]) -> ContainerVariables:
    """Write the variables to a new descriptor in the format of an env file, and return the engine's options for them.

    Values that an env file cannot hold are passed by name, and the engine takes them from its own environment.
    """
    single_line = {name: value for name, value in variables.items() if fits_env_file(value)}
    text = "".join(f"{name}={value}\n" for name, value in single_line.items())
    with open(os.memfd_create("variables"), "wb") if _MEMORY else tempfile.TemporaryFile() as file:
        file.write(os.fsencode(text))
        file.seek(0)
        descriptor = os.dup(file.fileno())
    multiline = {name: value for name, value in variables.items() if name not in single_line}
    options = ["--env-file", f"/dev/fd/{descriptor}"]
    for name in multiline:
        options += ["--env", name]
    return ContainerVariables(tuple(options), descriptor, multiline)


def fits_env_file(value: str) -> bool:
    """True if an engine's env file can hold the value."""
    return "\n" not in value and "\r" not in value and len(os.fsencode(value)) < MAX_VALUE_BYTES


def find_image_problem(engine: str, image: str, otherwise: str = "name another") -> str:
    """Return why a container engine cannot start the image, or "".

    Args:
        engine: "podman" or "docker".
        otherwise: advice in the message besides pulling the image.

    Raises:
        SandboxFailure: the engine's command cannot run.
    """
    program = shutil.which(engine)
    if program is None:
        return f"{engine} is not installed"
    result = run_engine(program, "image", "inspect", "--format", "{{.Id}}", image)
    if result.returncode == 0:
        return ""
    error = result.stderr.decode(errors="replace").strip()
    if "no such image" in error.lower() or "not known" in error:
        return f"the image {image} is not on this machine (`{engine} pull {image}`, or {otherwise})"
    return error.splitlines()[-1] if error else f"{engine} does not answer"


def find_engine(image: str) -> str:
    """Return the first container engine that has the image.

    It first removes containers of ended processes. Raises SandboxFailure if no engine has the image.
    """
    problems: list[str] = []
    for engine in ENGINES:
        problem = find_image_problem(engine, image)
        if not problem:
            program = shutil.which(engine) or engine
            remove_dead_containers(program)
            return program
        problems.append(f"{engine}: {problem}")
    raise SandboxFailure(f"no container of the image {image} starts: {'; '.join(problems)}", retryable=False)


@lru_cache(maxsize=2)
def remove_dead_containers(program: str) -> int:
    """Remove containers whose owner process has ended, once per process. Return their number."""
    dead_containers = [name for name, label in _list_labelled(program, "{{.Id}}") if _has_ended(label)]
    if dead_containers:
        run_engine(program, "rm", "--force", *dead_containers)
    return len(dead_containers)


def list_container_pids(program: str) -> list[int]:
    """Return the host's process id of the first process of each container that this process started."""
    owned_pids = [pid for pid, label in _list_labelled(program, "{{.State.Pid}}") if label == make_owner_label()]
    return [int(pid) for pid in owned_pids if pid.isdecimal() and pid != "0"]


def remove_container(program: str, name: str) -> None:
    """Remove a container, repeatedly: an engine that is ending a container refuses at first."""
    deadline = time.monotonic() + COMMAND_TIMEOUT_S
    while time.monotonic() < deadline:
        run_engine(program, "rm", "--force", name)
        if not run_engine(program, "ps", "--all", "--quiet", "--filter", f"name={name}").stdout.strip():
            return
        time.sleep(0.1)


def make_owner_label() -> str:
    """Return the container label that identifies this process and machine."""
    return json.dumps(asdict(ProcessIdentity.of(os.getpid())), separators=(",", ":"))


def run_engine(program: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command of the container engine and return its output. Raises SandboxFailure if it cannot run."""
    try:
        return subprocess.run(
            [program, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxFailure(f"{program} {words[0]}: {error}", retryable=False) from error


def _list_labelled(program: str, form: str) -> list[tuple[str, str]]:
    """Return (formatted field, owner label) of each container that ajet started.

    Args:
        form: Go template of the field, such as "{{.ID}}".
    """
    container_ids = run_engine(program, "ps", "--all", "--quiet", "--filter", f"label={LABEL}").stdout.decode().split()
    if not container_ids:
        return []
    result = run_engine(
        program, "inspect", "--format", form + ' {{index .Config.Labels "' + LABEL + '"}}', *container_ids
    )
    return [(field, label) for field, _, label in (line.partition(" ") for line in result.stdout.decode().splitlines())]


def _has_ended(label: str) -> bool:
    """Return True if the process that started a container has ended, by the container's owner label."""
    try:
        return not ProcessIdentity.recorded(json.loads(label)).alive()
    except (ValueError, KeyError, TypeError):
        return False  # the container was not created by ajet
