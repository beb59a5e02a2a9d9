"""The plug-in descriptor, readable without loading the package's code."""

from __future__ import annotations

from ajet.config.plugin import Command, Plugin

PLUGIN = Plugin(
    name="ajet_cluster",
    about="`ajet cluster`: what starts a run on Slurm or Kubernetes",
    commands={"cluster": Command("ajet_cluster.command:app", "Runs on a cluster (verl).")},
)
