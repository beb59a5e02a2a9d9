"""Describe the Ray package for the plug-in registry, without loading its code."""

from __future__ import annotations

from ajet.config.plugin import LaunchFlag, Plugin

PLUGIN = Plugin(
    name="ajet_ray",
    about="shared parts of the backbones `verl` and `trinity`: cluster, queues, rows, record",
    packages=("ray",),
    extra="verl",
    launch_flags={
        "ray": LaunchFlag("Start a Ray head when none runs (verl, trinity).", needs="spreads"),
        "ray-cluster": LaunchFlag("Join the cluster at RAY_ADDRESS (verl, trinity).", needs="spreads", remote=True),
    },
)
