"""VerifiersWorkflow: an episode of a taskset as a command.

Invariant: it is a CommandWorkflow, whose command is the bridge; everything else about it is the same.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ajet_command.settings import CommandSettings
from ajet_command.workflow import CommandWorkflow
from ajet_verifiers.settings import SECTION, VerifiersSettings


class VerifiersWorkflow(CommandWorkflow):
    """Plays the taskset of the YAML section `verifiers`; its tasks come from VerifiersTasks."""

    name: str = "verifiers"
    section: ClassVar[str] = SECTION

    @classmethod
    def settings(cls, config: Any) -> CommandSettings:
        """See CommandWorkflow."""
        return VerifiersSettings.read(config).as_command(config)
