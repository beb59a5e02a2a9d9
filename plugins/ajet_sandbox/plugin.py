"""Describe the sandbox package for the plug-in registry, without loading its code."""

from __future__ import annotations

from ajet.config.plugin import ConfigKeys, Plugin, PluginPart

_MECHANISMS = ("auto", "bubblewrap", "landlock", "podman", "docker", "none")
PLUGIN = Plugin(
    name="ajet_sandbox",
    about="sandboxes for model-written code, the isolation `sandbox`, and the scorer `code`",
    sandboxes=dict.fromkeys(_MECHANISMS, "ajet_sandbox.choose:ExperimentSandboxMaker"),
    isolations={"sandbox": PluginPart("ajet_sandbox.isolation:SandboxIsolation", interactive=False)},
    scorers={"code": "ajet_sandbox.scorers.code:CodeScorer"},
    doctor_checks={"sandbox": "ajet_sandbox.checkup:check_sandboxes"},
    config_keys=(ConfigKeys("environment", "ajet_sandbox.checkup:SandboxKeys"),),
)
