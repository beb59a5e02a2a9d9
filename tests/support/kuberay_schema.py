"""The fields of a RayJob (ray.io/v1) as KubeRay's own types declare them, as JSON Schema; pods are left open.

From rayjob_types.go and raycluster_types.go of KubeRay 1.4, and `authOptions` of 1.5.1. A name that is not here is
dropped by the API server without a word, or refused.
"""

from __future__ import annotations

from typing import Any

_TEXT, _FLAG, _NUMBER = {"type": "string"}, {"type": "boolean"}, {"type": "integer"}
_TEXTS = {"type": "object", "additionalProperties": _TEXT}
_ANY = {"type": "object"}


def _object(required: list[str], **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


_HEAD = _object(
    ["rayStartParams", "template"],
    serviceType=_TEXT, headService=_ANY, enableIngress=_FLAG, rayStartParams=_TEXTS, template=_ANY,
)  # fmt: skip
_WORKERS = _object(
    ["groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"],
    groupName=_TEXT, replicas=_NUMBER, minReplicas=_NUMBER, maxReplicas=_NUMBER, numOfHosts=_NUMBER,
    rayStartParams=_TEXTS, template=_ANY, scaleStrategy=_ANY,
)  # fmt: skip
_CLUSTER = _object(
    ["headGroupSpec"],
    headGroupSpec=_HEAD, workerGroupSpecs={"type": "array", "items": _WORKERS}, rayVersion=_TEXT,
    authOptions=_object([], mode={"enum": ["token", "disabled"]}, secretName=_TEXT),
    enableInTreeAutoscaling=_FLAG, autoscalerOptions=_ANY, headServiceAnnotations=_TEXTS, suspend=_FLAG,
)  # fmt: skip
_SPEC = _object(
    [],
    activeDeadlineSeconds=_NUMBER, backoffLimit=_NUMBER, rayClusterSpec=_CLUSTER, submitterPodTemplate=_ANY,
    metadata=_TEXTS, clusterSelector=_TEXTS, submitterConfig=_ANY, managedBy=_TEXT, deletionStrategy=_ANY,
    entrypoint=_TEXT, runtimeEnvYAML=_TEXT, jobId=_TEXT,
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode"]},
    entrypointResources=_TEXT, entrypointNumCpus={"type": "number"}, entrypointNumGpus={"type": "number"},
    ttlSecondsAfterFinished=_NUMBER, shutdownAfterJobFinishes=_FLAG, suspend=_FLAG,
)  # fmt: skip
RAY_JOB = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=_object(
        ["name"],
        name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 47},
        namespace=_TEXT, labels=_TEXTS, annotations=_TEXTS,
    ),
    spec=_SPEC,
)  # fmt: skip
