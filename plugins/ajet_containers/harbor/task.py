"""A Harbor task folder: instruction, image, limits, users and verifier.

Invariant: a task that needs something ajet does not do is refused by the key's name, never played differently.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from ajet.schema.errors import TaskError

FILE = "task.toml"
SCHEMA = (1, 4)
_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)


class PhaseTable(BaseModel):
    """The table `[agent]`, and the common part of `[verifier]`."""

    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None
    network_mode: str | None = None


class VerifierTable(PhaseTable):
    """The table `[verifier]`."""

    timeout_sec: float | None = Field(default=600.0, gt=0)
    env: dict[str, str] = Field(default_factory=dict)
    environment_mode: str | None = None
    environment: dict[str, Any] | None = None
    collect: list[Any] = Field(default_factory=list)


class HealthcheckTable(BaseModel):
    """The table `[environment.healthcheck]`, with the meaning of Docker's HEALTHCHECK."""

    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


class EnvironmentTable(BaseModel):
    """The table `[environment]`."""

    docker_image: str | None = None
    build_timeout_sec: float = 600.0
    network_mode: str = "public"
    os: str = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    workdir: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    healthcheck: HealthcheckTable | None = None
    mcp_servers: list[Any] = Field(default_factory=list)
    skills_dir: str | None = None
    memory: str | None = None
    storage: str | None = None


class TaskTable(BaseModel):
    """A task.toml. Further keys are ignored, as Harbor does."""

    schema_version: str = "1.4"
    agent: PhaseTable = Field(default_factory=PhaseTable)
    verifier: VerifierTable = Field(default_factory=VerifierTable)
    environment: EnvironmentTable = Field(default_factory=EnvironmentTable)
    steps: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class HarborTask:
    """A task folder that ajet can play."""

    folder: Path
    instruction: str
    table: TaskTable

    @classmethod
    def read(cls, folder: Path) -> HarborTask:
        """Read a task folder. Raises TaskError."""
        table = _parse_table(folder / FILE)
        _refuse_unsupported(folder, table)
        try:
            instruction = (folder / "instruction.md").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TaskError(f"The instruction of a task cannot be read: {error}.", where=str(folder)) from None
        if not (folder / "tests" / "test.sh").is_file():
            raise TaskError("A task has no verifier.", where=str(folder), expected="the file tests/test.sh")
        for env in (table.environment.env, table.verifier.env):
            resolve_variables(env, folder)
        return cls(folder, instruction, table)

    @property
    def build_folder(self) -> Path | None:
        """The folder with the Dockerfile, or None for a task with an image."""
        return None if self.table.environment.docker_image else self.folder / "environment"


def is_task_folder(folder: Path) -> bool:
    """True if the folder has a task.toml."""
    return (folder / FILE).is_file()


def resolve_variables(variables: dict[str, str], folder: Path) -> dict[str, str]:
    """Replace values of the form `${NAME}` or `${NAME:-default}` by variables of this process. Raises TaskError."""
    resolved = {}
    for name, value in variables.items():
        match = _TEMPLATE.fullmatch(value)
        if match is None:
            resolved[name] = value
        elif match[1] in os.environ:
            resolved[name] = os.environ[match[1]]
        elif match[2] is not None:
            resolved[name] = match[2]
        else:
            raise TaskError(
                f"A task needs the environment variable {match[1]}.",
                where=f"{folder / FILE}, {name}",
                do=f"set {match[1]}, or give the task a default: ${{{match[1]}:-…}}",
            )
    return resolved


def _parse_table(file: Path) -> TaskTable:
    """Read and validate a task.toml. Raises TaskError that names the file and the first wrong key."""
    try:
        return TaskTable.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TaskError(f"A task file cannot be read: {error}.", where=str(file)) from None
    except ValidationError as error:
        first_error = error.errors()[0]
        raise TaskError(f"{'.'.join(map(str, first_error['loc']))}: {first_error['msg']}.", where=str(file)) from None


def _refuse_unsupported(folder: Path, table: TaskTable) -> None:
    """Raise TaskError for the first thing of the task that ajet does not do."""
    environment, verifier = table.environment, table.verifier
    modes = (environment.network_mode, table.agent.network_mode, verifier.network_mode)
    version = tuple(int(part) for part in re.findall(r"\d+", table.schema_version)[:2])
    has_image = environment.docker_image or (folder / "environment" / "Dockerfile").is_file()
    unsupported = {
        f"schema_version {table.schema_version}": version > SCHEMA,
        "steps": table.steps or (folder / "steps").is_dir(),
        "an environment/docker-compose.yaml": any((folder / "environment").glob("docker-compose.y*ml")),
        "environment.gpus": environment.gpus or environment.gpu_types,
        "environment.tpu": environment.tpu,
        f"environment.os = {environment.os!r}": environment.os.lower() != "linux",
        "network_mode = 'allowlist'": "allowlist" in modes,
        "environment.mcp_servers": environment.mcp_servers,
        "environment.skills_dir": environment.skills_dir,
        "the old keys environment.memory and environment.storage": environment.memory or environment.storage,
        "verifier.environment_mode = 'separate'": verifier.environment_mode == "separate" or verifier.environment,
        "verifier.collect": verifier.collect,
        "a trajectory.json": (folder / "trajectory.json").exists(),
        "a .harborignore": any(folder.rglob(".harborignore")),
        "an environment without docker_image and Dockerfile": not has_image,
    }
    for feature, is_present in unsupported.items():
        if is_present:
            raise TaskError(
                f"A task has {feature}, which ajet does not support.",
                where=str(folder / FILE),
                expected="a single container with an image or a Dockerfile, and a verifier in it (docs/harbor.md)",
                do="leave the task out, or run it with Harbor",
            )
