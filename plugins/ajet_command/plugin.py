"""The plug-in descriptor, readable without loading the package's code."""

from __future__ import annotations

from ajet.config.plugin import Plugin

PLUGIN = Plugin(
    name="ajet_command",
    about="agents that run as a command line, one process tree per episode",
    exports={
        "CommandWorkflow": "ajet_command.workflow:CommandWorkflow",
        "workflow.CommandWorkflow": "ajet_command.workflow:CommandWorkflow",
    },
    failure_hints={
        "CommandFailed": "run the command by hand; `command_agent.keep: failed` keeps the episode's folder",
        "CommandTimedOut": "raise `command_agent.timeout`, or find the call that blocks",
        "VerifierFailed": "run `verify.command` by hand; `command_agent.keep: failed` keeps the episode's folder",
        "CommandOverLimit": "raise the limit in `command_agent.limits`, or reduce the usage",
        "no_model_call of CommandWorkflow": (
            "give the program's client the base URL and key from OPENAI_BASE_URL and OPENAI_API_KEY, or from "
            "ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY"
        ),
    },
    renamed={"ajet.workflow.command:CommandWorkflow": "ajet_command.workflow:CommandWorkflow"},
)
