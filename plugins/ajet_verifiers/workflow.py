"""VerifiersWorkflow: an episode of a taskset as a command.

Invariant: the workflow differs from CommandWorkflow only in its command, the bridge.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ajet_command.settings import CommandSettings
from ajet_command.workflow import CommandWorkflow
from ajet_verifiers.settings import SECTION, VerifiersSettings


class VerifiersWorkflow(CommandWorkflow):
    """Runs the taskset of the YAML section `verifiers`; VerifiersTasks provides the tasks."""

    name: str = "verifiers"
    section: ClassVar[str] = SECTION

    @classmethod
    def settings(cls, config: Any) -> CommandSettings:
        """Return the command settings of the section."""
        return VerifiersSettings.read(config).as_command(config)
