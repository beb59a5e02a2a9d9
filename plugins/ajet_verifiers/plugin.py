"""The plug-in descriptor, readable without loading the package's code."""

from __future__ import annotations

from ajet.config.plugin import Plugin

PLUGIN = Plugin(
    name="ajet_verifiers",
    about="tasksets of the package `verifiers`, as tasks and command agents",
    renamed={
        "ajet.workflow.verifiers:VerifiersTasks": "ajet_verifiers.tasks:VerifiersTasks",
        "ajet.workflow.verifiers:VerifiersWorkflow": "ajet_verifiers.workflow:VerifiersWorkflow",
    },
)
