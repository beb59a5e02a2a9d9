"""Render a RayJob for KubeRay: one head, equal workers, and the run as the job; all are removed at its end.

Invariant: head and workers have equal image, folder, variables and accelerators, so process placement does not matter;
secrets are references to one Kubernetes secret with optional keys; Ray requires a token, drawn by KubeRay for each
cluster.
"""

from __future__ import annotations

import shlex
from importlib import metadata
from typing import Any

from ajet.config.document import dump_yaml
from ajet_cluster.job import ClusterJob

_RESOURCES = {"cuda": "nvidia.com/gpu", "npu": "huawei.com/Ascend910"}
KEPT_S = 60
"""Seconds that pods stay after the run, for their logs."""
_HEAD = """\
# {name}: written by `ajet cluster render kuberay`, for KubeRay {operator} or newer.
# Start it with `kubectl apply -f FILE`.
"""
_OPEN = """\
# Ray 2.52 and newer know tokens; with this environment's every pod of the Kubernetes cluster can give Ray commands.
"""
_TOKENS_SINCE = (2, 52)
_SECRET = """\
# Variables come from the secret {name}, which may also be missing:
#   kubectl create secret generic {name} --from-env-file=.env
"""


def render_kuberay(job: ClusterJob, *, image: str, claim: str | None = None) -> str:
    """Return the manifest.

    Args:
        image: Image with ajet[verl]; the same Ray on all nodes.
        claim: NAME or NAME/SUBFOLDER of a persistent volume claim mounted as the job's folder; None: nodes have it.
    """
    ray_start_params = {} if job.kind == "npu" else {"num-gpus": str(job.accelerators)}
    if job.cpus is not None:
        ray_start_params["num-cpus"] = str(job.cpus)
    cluster: dict[str, Any] = {}
    version = _find_ray_version()
    if version:
        cluster["rayVersion"] = version
    if has_tokens := _supports_tokens(version):
        cluster["authOptions"] = {"mode": "token"}
    cluster["headGroupSpec"] = {
        "rayStartParams": {"dashboard-host": "0.0.0.0", **ray_start_params},
        "template": _build_pod("ray-head", job, image, claim),
    }
    if worker_count := job.nodes - 1:
        cluster["workerGroupSpecs"] = [
            {
                "groupName": "workers",
                "replicas": worker_count,
                "minReplicas": worker_count,
                "maxReplicas": worker_count,
                "rayStartParams": ray_start_params,
                "template": _build_pod("ray-worker", job, image, claim),
            }
        ]
    manifest = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": job.name},
        "spec": {
            "entrypoint": shlex.join(job.command),
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": KEPT_S,
            "rayClusterSpec": cluster,
        },
    }
    header = _HEAD + ("" if has_tokens else _OPEN) + (_SECRET if job.variables else "")
    return header.format(name=job.name, operator="1.5.1" if has_tokens else "1.0") + dump_yaml(manifest)


def _build_pod(name: str, job: ClusterJob, image: str, claim: str | None) -> dict[str, Any]:
    """Return the pod template of a head or worker node.

    Args:
        name: name of the container.
        claim: NAME or NAME/SUBFOLDER of the volume claim with the job's folder, or None if each node has the folder.
    """
    container: dict[str, Any] = {"name": name, "image": image, "workingDir": str(job.folder)}
    if job.variables:
        container["env"] = [_reference_secret(variable, job.name) for variable in job.variables]
    spec: dict[str, Any] = {"containers": [container]}
    resource = _RESOURCES.get(job.kind)
    if resource and job.accelerators:
        container["resources"] = {"limits": {resource: job.accelerators}}
        spec["tolerations"] = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    mount: dict[str, Any] = {"name": "project", "mountPath": str(job.folder)}
    if claim is None:
        project: dict[str, Any] = {"hostPath": {"path": str(job.folder), "type": "Directory"}}
    else:
        claim_name, _, subfolder = claim.partition("/")
        project = {"persistentVolumeClaim": {"claimName": claim_name}}
        if subfolder:
            mount["subPath"] = subfolder
    # Ray's object store needs more shared memory than a container has by default.
    container["volumeMounts"] = [mount, {"name": "shared-memory", "mountPath": "/dev/shm"}]
    memory = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
    spec["volumes"] = [{"name": "project", **project}, memory]
    return {"spec": spec}


def _reference_secret(variable: str, secret: str) -> dict[str, Any]:
    """Return the entry of a container's variable whose value comes from a Kubernetes secret, which may be missing."""
    reference = {"name": secret, "key": variable, "optional": True}
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}


def _supports_tokens(version: str) -> bool:
    """True if this version of Ray can require a token of its clients. An unknown version counts as one that cannot."""
    numbers = version.split(".")[:2]
    return (
        len(numbers) == 2 and all(number.isdigit() for number in numbers) and tuple(map(int, numbers)) >= _TOKENS_SINCE
    )


def _find_ray_version() -> str:
    """Return the installed version of Ray, expected in the image; "" without Ray."""
    try:
        return metadata.version("ray")
    except metadata.PackageNotFoundError:
        return ""
