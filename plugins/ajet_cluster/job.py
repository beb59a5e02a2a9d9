"""The properties of a run on any scheduler.

Invariant: paths are absolute and valid on every node, because `folder` is on a shared file system; variables are names,
never values.
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
from ajet.config.resolution import is_literal_secret, is_secret_path
from ajet.schema.errors import ConfigError
from ajet.schema.secrets import has_secret_shape
from ajet.schema.text_files import read_text

if TYPE_CHECKING:
    from ajet.config import Experiment

_LONGEST_NAME = 47
"""KubeRay's limit for RayJob names, from which service names are made."""


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """One run on a cluster."""

    name: str
    """Lower-case letters, digits and dashes; at most 47."""
    nodes: int
    accelerators: int
    """For each node."""
    cpus: int | None
    """For each node, from verl's settings (`ray_kwargs.ray_init.num_cpus`); None: Ray decides."""
    kind: Literal["cuda", "npu", "cpu"]
    """cpu: slots by name only, for tests."""
    folder: Path
    """Working directory of the run; contains the YAML."""
    command: tuple[str, ...]  # the run's command, `ajet` first
    variables: tuple[str, ...]
    """Sorted names of environment variables used by the run."""


def build_job(experiment: Experiment, *, folder: Path | None = None, exp_dir: Path | None = None) -> ClusterJob:
    """Return the job of an experiment. Raises ConfigError for a refused experiment, or for a secret in the text.

    Args:
        folder: Shared working directory; None is the YAML's folder.
        exp_dir: Record directory, if chosen.
    """
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
    shared_folder = (folder or experiment.yaml_path.parent).absolute()
    if not experiment.yaml_path.is_relative_to(shared_folder):
        raise ConfigError(
            f"{experiment.yaml_path} is not in or below {shared_folder}, the only folder that the nodes share.",
            where="--folder",
            expected="a shared folder that contains the YAML and all files that it names",
        )
    _refuse_secrets(experiment.overrides)
    demand, root = Demand.of(settings), experiment.root
    if exp_dir is None and experiment.ajet.experiment_dir == "auto":
        root = shared_folder / "launcher_record"
    command = ["ajet", "--conf", str(experiment.yaml_path), "--backbone", experiment.backbone.name]
    command.append("--with-ray-cluster")
    return ClusterJob(
        name=_make_job_name(experiment.name),
        nodes=demand.nodes,
        accelerators=demand.per_node,
        cpus=(settings["ray_kwargs"].get("ray_init") or {}).get("num_cpus"),
        kind=settings["trainer"]["device"],
        folder=shared_folder,
        command=(*command, "--exp-dir", str(root), *experiment.overrides),
        variables=_collect_variables(experiment, shared_folder),
    )


def _make_job_name(name: str) -> str:
    """Return a name that Kubernetes and Slurm accept: lower-case letters, digits and dashes, at most 47 characters."""
    clean_name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"ajet-{clean_name}"[:_LONGEST_NAME].rstrip("-")


def _refuse_secrets(overrides: Sequence[str]) -> None:
    """Raise ConfigError if an override contains a secret itself. A reference to an environment variable is allowed."""
    for override in overrides:
        key, _, value = override.partition("=")
        is_secret_key = is_secret_path(tuple(key.lstrip("+~").split("."))) and is_literal_secret(value)
        if "${" not in value and (is_secret_key or has_secret_shape(value)):
            raise ConfigError(
                f"{key} is a secret, which would be written into the job file.",
                where="command line",
                expected="secrets in the environment or in .env",
                do=f"{key}='${{oc.env:NAME}}'",
            )


def _list_variables(kind: Kind, name: str) -> tuple[str, ...]:
    """Return the environment variables that a registered part needs, or () for a part that is not registered."""
    part = find_part(kind, name)
    return part.variables if part is not None else ()


def _collect_variables(experiment: Experiment, folder: Path) -> tuple[str, ...]:
    """Return variables of .env files, variables used by the configuration, and keys of trackers and the model hub."""
    import dotenv

    from ajet.config.document import list_leaves

    names: set[str] = set()
    for env_folder in {folder, experiment.yaml_path.parent}:
        if (file := env_folder / ".env").is_file():
            names.update(dotenv.dotenv_values(stream=StringIO(read_text(file)), interpolate=False))
    for _, value in list_leaves(experiment.raw):
        if isinstance(value, str):
            names.update(re.findall(r"oc\.env:\s*(\w+)", value))
    trackers = experiment.ajet.trainer_common.logger
    for tracker in [trackers] if isinstance(trackers, str) else trackers:
        names.update(_list_variables("tracker", tracker))
    workflow = experiment.ajet.rollout.user_workflow
    if isinstance(workflow, str):
        names.update(_list_variables("workflow", workflow))
    path = experiment.settle_values()["model"]["path"]
    if not path.startswith("embedded:") and not Path(path).is_absolute():
        # The model comes from the hub, where it may need a token.
        names.add("HF_TOKEN")
    return tuple(sorted(names))
