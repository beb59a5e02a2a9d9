"""Comparison of the nodes' plug-ins with the driver's.

Invariant: every node loads the driver's plug-ins in the same versions, or the run does not begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ajet.config.plugins import list_versions
from ajet.schema.commands import format_command
from ajet.schema.errors import UserError
from ajet_ray.cluster.ray_errors import read_last_line

PATIENCE_S = 300.0
"""Seconds for a node to start a process and load the plug-ins."""


def require_same_plugins() -> None:
    """Raise UserError for a node of the cluster with plug-ins different from the driver's."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    listing = ray.remote(num_cpus=0, max_retries=0)(list_versions)
    listings = []
    for node in ray.nodes():
        if node["Alive"]:
            on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            listings.append((node["NodeManagerHostname"], listing.options(scheduling_strategy=on_node).remote()))
    own = list_versions()
    for name, versions in listings:
        try:
            found = ray.get(versions, timeout=PATIENCE_S)
            difference = describe_difference(own, found)
        except ray.exceptions.RayError as problem:  # no ajet there, or another one
            difference = f"the node's plug-ins cannot be listed: {read_last_line(problem)}"
        if difference:
            raise UserError(
                f"The plug-ins of the node {name} differ from those of this machine: {difference}.",
                where=f"the node {name}",
                do=f"install the same packages on every node; `{format_command('plugins')}` lists them",
            )


def describe_difference(own: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Describe the differences between a node's plug-in versions and the driver's, or return ""."""
    return "; ".join(_list_differences(own, found))


def _list_differences(own: Mapping[str, str], found: Mapping[str, str]) -> Iterator[str]:
    if missing := sorted(set(own) - set(found)):
        yield f"{', '.join(missing)} cannot be loaded on the node"
    for name in sorted(set(own) & set(found)):
        if own[name] != found[name]:
            yield f"{name} has version {found[name] or 'unknown'} on the node, {own[name] or 'unknown'} on this machine"
    if further := sorted(set(found) - set(own)):
        yield f"{', '.join(further)} only on the node"
