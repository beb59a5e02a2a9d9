"""What any scheduler has to know of an experiment.

Invariant: paths are absolute and mean the same on every node, because `folder` lies on a file system that all of them
see; variables are names, never values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ajet.config.plugin import Kind
from ajet.config.plugins import find_part
from ajet.config.resolution import is_literal, is_secret
from ajet.schema.errors import ConfigError
from ajet.schema.secrets import has_secret_shape
from ajet.schema.text_files import read_text

if TYPE_CHECKING:
    from ajet.config import Experiment

_LONGEST_NAME = 47
"""KubeRay's limit for the name of a RayJob, from which it makes the names of services."""


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """One run on a cluster."""

    name: str
    """Lower-case letters, digits and dashes; at most 47."""
    nodes: int
    accelerators: int
    """On each node."""
    cpus: int | None
    """On each node, where verl's settings say so (`ray_kwargs.ray_init.num_cpus`); None: as many as Ray finds."""
    kind: Literal["cuda", "npu", "cpu"]
    """cpu: slots by name only, for tests."""
    folder: Path
    """Where the run is started; holds the YAML."""
    command: tuple[str, ...]
    """The run's words, `ajet` first."""
    variables: tuple[str, ...]
    """Names of environment variables that the run may need, sorted."""


def cluster_job(experiment: Experiment, *, folder: Path | None = None, exp_dir: Path | None = None) -> ClusterJob:
    """folder: what all nodes see and the run is started in; None is the YAML's. exp_dir: where the run is recorded, if
    the person chose it. Raises ConfigError for what the run would refuse, or for a secret that would be written."""
    from ajet_ray.cluster.resources import Demand
    from ajet_verl.settings import build_settings

    if "spreads" not in experiment.backbone.can:
        raise ConfigError(
            f"The backbone {experiment.backbone.name} runs in one process, not on a cluster.",
            where="ajet.backbone",
            expected="--backbone verl",
        )
    experiment.require_ready()
    settings = build_settings(experiment, own_cluster=False)
    seen = (folder or experiment.yaml_path.parent).absolute()
    if not experiment.yaml_path.is_relative_to(seen):
        raise ConfigError(
            f"{experiment.yaml_path} is not below {seen}, and only that folder is at hand on the nodes.",
            where="--folder",
            expected="a folder that holds the YAML and all that it names",
        )
    _refuse_secrets(experiment.overrides)
    demand, root = Demand.of(settings), experiment.root
    if exp_dir is None and experiment.ajet.experiment_dir == "auto":
        root = seen / "launcher_record"
    command = ["ajet", "--conf", str(experiment.yaml_path), "--backbone", experiment.backbone.name]
    command.append("--with-ray-cluster")
    return ClusterJob(
        name=_name(experiment.name),
        nodes=demand.nodes,
        accelerators=demand.per_node,
        cpus=(settings["ray_kwargs"].get("ray_init") or {}).get("num_cpus"),
        kind=settings["trainer"]["device"],
        folder=seen,
        command=(*command, "--exp-dir", str(root), *experiment.overrides),
        variables=_variables(experiment, seen),
    )


def _name(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"ajet-{plain}"[:_LONGEST_NAME].rstrip("-")


def _refuse_secrets(overrides: Sequence[str]) -> None:
    for each in overrides:
        key, _, value = each.partition("=")
        named = is_secret(tuple(key.lstrip("+~").split("."))) and is_literal(value)
        if "${" not in value and (named or has_secret_shape(value)):
            raise ConfigError(
                f"{key} is a secret, and the command would be written into the file.",
                where="command line",
                expected="secrets in the environment or in .env",
                do=f"{key}='${{oc.env:NAME}}'",
            )


def _list_variables(kind: Kind, name: str) -> tuple[str, ...]:
    part = find_part(kind, name)
    return part.variables if part is not None else ()


def _variables(experiment: Experiment, folder: Path) -> tuple[str, ...]:
    """The variables of .env files, those that the config asks for by name, and the keys of trackers and of the hub."""
    import dotenv

    from ajet.config.document import leaves

    names: set[str] = set()
    for place in {folder, experiment.yaml_path.parent}:
        if (file := place / ".env").is_file():
            names.update(dotenv.dotenv_values(stream=StringIO(read_text(file)), interpolate=False))
    for _, value in leaves(experiment.raw):
        if isinstance(value, str):
            names.update(re.findall(r"oc\.env:\s*(\w+)", value))
    logger = experiment.ajet.trainer_common.logger
    for each in [logger] if isinstance(logger, str) else logger:
        names.update(_list_variables("tracker", each))
    agent = experiment.ajet.rollout.user_workflow
    if isinstance(agent, str):
        names.update(_list_variables("workflow", agent))
    path = experiment.settled()["model"]["path"]
    if not path.startswith("embedded:") and not Path(path).is_absolute():
        names.add("HF_TOKEN")
    return tuple(sorted(names))
