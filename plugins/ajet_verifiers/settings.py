"""The YAML section `verifiers`.

Invariant: tasks and episodes read the section through this module, so both use the same taskset.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ajet_command.settings import PLACE, CommandLimits, CommandSettings, get_base_folder, read_section

SECTION = "verifiers"
BRIDGE = Path(__file__).with_name("bridge.py")
CLEARED: dict[str, str | None] = dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"))
"""Variables of ajet's Python, unset for another Python."""


class VerifiersSettings(BaseModel):
    """The taskset, its agents and environment."""

    model_config = ConfigDict(extra="forbid")

    taskset: str
    """Id of an installed taskset, of one included in `verifiers`, or of a module in the YAML's folder."""
    config: dict[str, Any] = Field(default_factory=dict)  # settings of the taskset
    env: dict[str, Any] = Field(default_factory=dict)
    """Further `[env]` settings of `verifiers`: environment, harness, timeouts. Default: one agent with the harness
    `null`, a loop of chat and tools, in a local process."""
    requirements: str = "requirements.txt"
    """A requirements file with `verifiers` and the taskset's packages."""
    train: int = Field(default=512, ge=1)
    """Number of training tasks, fewer if the taskset is smaller."""
    validation: int = Field(default=16, ge=0)
    """Number of held-out tasks: the first ones."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds of an episode; null uses rollout.episode_timeout."""
    variables: dict[str, str | None] = Field(default_factory=dict)
    """Additional environment variables, such as keys for the taskset."""
    limits: CommandLimits = Field(default_factory=CommandLimits)

    @classmethod
    def read(cls, config: Any) -> VerifiersSettings:
        """Return the section `verifiers` of a configuration. Raises ConfigError without it, or for a wrong key."""
        return read_section(cls, config, SECTION, "the taskset", "{taskset: NAME}", "docs/environments.md")

    def encode_block(self) -> str:
        """Return the `[env]` block as JSON, with the command's placeholders escaped."""
        agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
        block = {} if self.env else {"agent": agent}
        text = json.dumps({**block, **self.env, "taskset": {**self.config, "id": self.taskset}})
        # "{" is written as an escape, so that a text of the user is no placeholder of the command.
        return PLACE.sub(lambda match: "\\u007b" + match[0][1:], text)

    def build_command(self, verb: str, base: Path) -> list[str]:
        """Return the command that runs bridge.py in the taskset's environment. `verb` is tasks or play, `base` the
        YAML's folder."""
        return ["{venv}", "-I", str(BRIDGE), verb, self.encode_block(), "--path", str(base)]

    def as_command(self, config: Any) -> CommandSettings:
        """Return the settings of the command that runs one episode. `{metadata.index}` is the task's index in the
        taskset."""
        return CommandSettings(
            command=[*self.build_command("play", get_base_folder(config)), "--index", "{metadata.index}"],
            requirements=self.requirements,
            env={**CLEARED, "TMPDIR": "{folder}", **self.variables},
            timeout=self.timeout,
            limits=self.limits,
            score="printed",
        )
