"""Finds what the schema of Kubernetes manifests does not see: names and ports that disagree across manifests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def find_faults(manifests: Sequence[Mapping[str, Any]], secrets: Iterable[str] = ()) -> list[str]:
    """Return one sentence per inconsistency between manifests, such as a selector without a pod.

    Args:
        manifests: parsed YAML documents.
        secrets: names of secrets that exist already in the cluster.
    """
    faults: list[str] = []
    labels = {
        _read_name(each): _read_template(each)["metadata"]["labels"] for each in _select_kind(manifests, "Deployment")
    }
    configs = {_read_name(each) for each in _select_kind(manifests, "ConfigMap")}
    secret_names = {_read_name(each) for each in _select_kind(manifests, "Secret")} | set(secrets)
    for each in _select_kind(manifests, "Deployment"):
        name, template = _read_name(each), _read_template(each)
        if not each["spec"]["selector"]["matchLabels"].items() <= labels[name].items():
            faults.append(f"Deployment {name}: its selector matches none of its pods")
        for container in template["spec"]["containers"]:
            faults += [
                f"Deployment {name}: {fault}"
                for fault in _find_container_faults(container, configs, secret_names, template)
            ]
    for each in _select_kind(manifests, "Service"):
        selector = each["spec"]["selector"].items()
        matching = [name for name, deployment_labels in labels.items() if selector <= deployment_labels.items()]
        if len(matching) != 1:
            faults.append(f"Service {_read_name(each)}: its selector matches {len(matching)} Deployments, not one")
            continue
        (deployment,) = [
            each_deployment
            for each_deployment in _select_kind(manifests, "Deployment")
            if _read_name(each_deployment) == matching[0]
        ]
        ports = _list_ports(_read_template(deployment)["spec"]["containers"])
        target_ports = [port.get("targetPort", port["port"]) for port in each["spec"]["ports"]]
        faults += [
            f"Service {_read_name(each)}: no container listens on {port}" for port in target_ports if port not in ports
        ]
    return faults


def _find_container_faults(
    container: Mapping[str, Any], configs: set[str], secrets: set[str], template: Mapping[str, Any]
) -> Iterable[str]:
    for source in container.get("envFrom", ()):
        if "secretRef" in source and source["secretRef"]["name"] not in secrets:
            yield f"the secret {source['secretRef']['name']} does not exist"
    for volume in template["spec"].get("volumes", ()):
        if "configMap" in volume and volume["configMap"]["name"] not in configs:
            yield f"the configuration {volume['configMap']['name']} does not exist"
    mounted = {volume["name"] for volume in template["spec"].get("volumes", ())}
    yield from (f"{each['name']} is mounted, but is not a volume" for each in container.get("volumeMounts", ())
                if each["name"] not in mounted)  # fmt: skip
    ports = _list_ports([container])
    for kind in ("readinessProbe", "livenessProbe", "startupProbe"):
        port = container.get(kind, {}).get("httpGet", {}).get("port")
        if port is not None and port not in ports:
            yield f"its {kind} uses port {port}, on which the container does not listen"
    limits = container.get("resources", {}).get("limits", {})
    yield from (f"it has no limit of {each}" for each in ("cpu", "memory") if each not in limits)


def _select_kind(manifests: Sequence[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [each for each in manifests if each.get("kind") == kind]


def _read_template(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    template: Mapping[str, Any] = manifest["spec"]["template"]
    return template


def _read_name(manifest: Mapping[str, Any]) -> str:
    return str(manifest["metadata"]["name"])


def _list_ports(containers: Iterable[Mapping[str, Any]]) -> set[int]:
    return {port["containerPort"] for container in containers for port in container.get("ports", ())}
