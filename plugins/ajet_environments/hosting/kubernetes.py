"""`ajet env render kubernetes`: writes an environment as Kubernetes manifests.

Invariants: names agree across manifests (selectors and labels, secrets, configuration, ports, probes). The token is a
reference to a secret, never in a file. An episode runs in the pod that created it: with several pods behind one
Service, each pod returns its own address with an episode. A terminating pod waits for its open episodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ajet.config.document import dump_yaml
from ajet.environment.files import read_yaml
from ajet.schema.errors import UserError
from ajet_environments.deployment import EnvironmentDescription, EnvironmentPart
from ajet_mcp.servers import TOKEN

PORT = 8000
FOLDER = "/environment"
DRAIN_S = 600
"""Seconds for open episodes when their pod terminates."""
WORKER_SIZE = (2.0, 4096.0)
"""Cores and MiB for a server without `resources`: AWorld's recommendation for a worker."""
OWN_SIZE = (0.5, 512.0)
"""Cores and MiB of the environment itself, if its servers have `resources`."""
_HEAD = """\
# {name}: written by `ajet env render kubernetes`. Start it with:
#   kubectl create secret generic {name} --from-literal={token}=$(openssl rand -hex 24){variables}
#   kubectl apply -f FILE
# Then, where it is used: export MCP_SERVER_URL=http://{address}:{port}/mcp
{several}"""
_SEVERAL = """\
# ajet's own clients make their episodes there, spread over the pods, and each stays with its pod. Clients that know
# nothing of episodes use http://{address}-sessions:{port}/mcp, which keeps each client's address with one pod.
"""


def render_kubernetes(description: EnvironmentDescription, *, image: str, count: int = 1) -> str:
    """Return the manifests of an environment as YAML text.

    Args:
        image: container image with ajet and the programs of the tool servers.
        count: number of pods.

    Raises:
        UserError: the environment cannot be written as manifests.
    """
    assert description.file is not None
    image_servers = [part.name for part in description.parts if part.server is not None and part.server.image]
    if image_servers:
        raise UserError(
            f"The server {image_servers[0]} is an image, and a pod cannot start a second container for it.",
            where=f"{description.file}: mcpServers.{image_servers[0]}",
            expected="a command that the image of --image contains, or the url of a separate Deployment",
        )
    name = re.sub(r"[^a-z0-9-]+", "-", description.name.lower()).strip("-") or "environment"
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"app": name}},
        "data": _read_files(description.file),
    }
    manifests = [config, _build_deployment(name, description, image, count), _build_service(name, name)]
    if count > 1:
        sticky = {"sessionAffinity": "ClientIP"}
        manifests.append(_build_service(f"{name}-sessions", name, **sticky))
    variables = "".join(f" \\\n#     --from-literal={variable}=…" for variable in _list_variables(description))
    several = _SEVERAL.format(address=name, port=PORT) if count > 1 else ""
    head = _HEAD.format(name=name, token=TOKEN, variables=variables, address=name, port=PORT, several=several)
    return head + "---\n".join(dump_yaml(manifest) for manifest in manifests)


def compute_sizes(description: EnvironmentDescription) -> tuple[dict[str, str], dict[str, str]]:
    """Return the resource requests and limits of one pod, each as {"cpu": "…", "memory": "…Mi"}.

    Requests cover one process of each server. Limits cover the largest number of processes. Servers without `resources`
    together count as one worker of AWorld (WORKER_SIZE).
    """
    parts = [part for part in description.parts if not part.off]

    def sum_resource(is_limit: bool, resource_index: int, amount_of: Callable[[EnvironmentPart], float]) -> float:
        """Return the sum of one resource over all servers.

        Args:
            is_limit: True for the largest number of processes, False for one per server.
            resource_index: index of the resource in WORKER_SIZE: 0 cores, 1 MiB.
            amount_of: returns a server's amount for one process; 0 if not set.
        """
        sized_parts = [part for part in parts if amount_of(part)]
        default_amount = WORKER_SIZE[resource_index] if len(sized_parts) < len(parts) or not parts else 0.0
        own_amount = OWN_SIZE[resource_index] if sized_parts else 0.0
        return (
            own_amount
            + default_amount
            + sum(amount_of(part) * (_count_processes(part, description) if is_limit else 1) for part in sized_parts)
        )

    def build_quantities(is_limit: bool) -> dict[str, str]:
        """Return cores and memory in the form of a Kubernetes manifest."""
        cores, memory = (
            sum_resource(is_limit, 0, lambda part: part.resources.cores),
            sum_resource(is_limit, 1, lambda part: part.resources.memory),
        )
        return {"cpu": f"{cores:g}", "memory": f"{memory:.0f}Mi"}

    return build_quantities(False), build_quantities(True)


def _count_processes(part: EnvironmentPart, description: EnvironmentDescription) -> int:
    """Return the largest number of processes that a server runs at the same time in one pod."""
    return 1 if part.per == "shared" else min(part.limit, description.capacity + part.spare)


def _build_deployment(name: str, description: EnvironmentDescription, image: str, count: int) -> dict[str, Any]:
    """Return the manifest of a Deployment with `count` pods that serve the environment."""
    assert description.file is not None
    probe = {"httpGet": {"path": "/health", "port": PORT}}
    requests, limits = compute_sizes(description)
    container = {
        "name": "environment",
        "image": image,
        "command": ["ajet", "env", "up", f"{FOLDER}/{description.file.name}", "--foreground"],
        "args": ["--host", "0.0.0.0", "--port", str(PORT), "--drain", str(DRAIN_S)]
        + (["--one-of-several"] if count > 1 else []),
        "ports": [{"containerPort": PORT}],
        "envFrom": [{"secretRef": {"name": name}}],
        "volumeMounts": [{"name": "description", "mountPath": FOLDER}],
        "startupProbe": {**probe, "failureThreshold": 60, "periodSeconds": 5},
        "readinessProbe": probe,
        "livenessProbe": {**probe, "timeoutSeconds": 10},
        "resources": {"requests": requests, "limits": limits},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "containers": [container],
                    "volumes": [{"name": "description", "configMap": {"name": name}}],
                    "terminationGracePeriodSeconds": DRAIN_S + 60,
                },
            },
        },
    }


def _build_service(name: str, app: str, **more: str) -> dict[str, Any]:
    """Return the manifest of a Service in front of the pods labelled `app`. `more` adds fields of its spec."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"app": app}},
        "spec": {"selector": {"app": app}, "ports": [{"port": PORT, "targetPort": PORT}], **more},
    }


def _read_files(file: Path) -> dict[str, str]:
    """Map file names to texts: the environment's file and the programs of its servers.

    The `env_file` is left out, because its variables come from the secret.
    """
    text = file.read_text(encoding="utf-8")
    tree = read_yaml(file)
    if tree.get("env_file"):
        text = dump_yaml({key: value for key, value in tree.items() if key != "env_file"})
    # Scripts next to the file are included if the file mentions their complete name.
    programs = [
        path for path in sorted(file.parent.iterdir()) if path.is_file() and path.suffix in (".py", ".js", ".mjs")
    ]
    mentioned = [program for program in programs if re.search(rf"(?<![\w.-]){re.escape(program.name)}(?![\w-])", text)]
    return {file.name: text, **{path.name: path.read_text(encoding="utf-8") for path in mentioned}}


def _list_variables(description: EnvironmentDescription) -> list[str]:
    """List the variables for the secret: those that switch a server on, and those without a default in the file."""
    variables = [name for name, needed in description.named.items() if needed]
    variables += [name for part in description.parts for name in part.requires]
    return [name for name in dict.fromkeys(variables) if name != TOKEN]
