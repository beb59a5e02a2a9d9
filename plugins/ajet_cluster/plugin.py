"""The plug-in descriptor, readable without loading the package's code."""

from __future__ import annotations

from ajet.config.plugin import REMOTE_PANEL, Command, Plugin

PLUGIN = Plugin(
    name="ajet_cluster",
    about="`ajet cluster`: job files for Slurm and Kubernetes",
    commands={
        "cluster": Command("ajet_cluster.command:app", "Render job files for a cluster (verl).", panel=REMOTE_PANEL)
    },
)
