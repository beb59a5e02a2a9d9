"""The YAML section `verifiers`.

Invariant: it is read in one place, for the tasks and for the episodes, so that both speak of the same taskset.
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
"""Variables of ajet's own Python, which another one cannot use."""


class VerifiersSettings(BaseModel):
    """Which taskset is played, by what, and where."""

    model_config = ConfigDict(extra="forbid")

    taskset: str
    """Its id: an installed package, one of theirs, or a module in the YAML's folder."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Settings of the taskset."""
    env: dict[str, Any] = Field(default_factory=dict)
    """Their `[env]` block besides: which environment, the agents' harness, timeouts. By default one agent with the
    harness `null`, a loop of chat and tools, in a process on this machine."""
    requirements: str = "requirements.txt"
    """A file that lists `verifiers` and the taskset's packages."""
    train: int = Field(default=512, ge=1)
    """So many tasks are trained on (fewer where the taskset has fewer) …"""
    validation: int = Field(default=16, ge=0)
    """… behind so many, the first ones, that are held out."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds of an episode; null leaves it to rollout.episode_timeout."""
    variables: dict[str, str | None] = Field(default_factory=dict)
    """More environment variables, such as keys that the taskset needs."""
    limits: CommandLimits = Field(default_factory=CommandLimits)

    @classmethod
    def read(cls, config: Any) -> VerifiersSettings:
        """The settings of the composed config. Raises ConfigError."""
        return read_section(cls, config, SECTION, "what is played", "{taskset: NAME}", "docs/environments.md")

    def encode_block(self) -> str:
        """Their `[env]` block as JSON. What looks like a placeholder of the command stays as it is."""
        agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
        block = {} if self.env else {"agent": agent}
        written = json.dumps({**block, **self.env, "taskset": {**self.config, "id": self.taskset}})
        return PLACE.sub(lambda found: "\\u007b" + found[0][1:], written)

    def build_command(self, verb: str, base: Path) -> list[str]:
        """The bridge, by the Python that has their package."""
        return ["{venv}", "-I", str(BRIDGE), verb, self.encode_block(), "--path", str(base)]

    def as_command(self, config: Any) -> CommandSettings:
        """The command that plays one episode."""
        return CommandSettings(
            command=[*self.build_command("play", get_base_folder(config)), "--index", "{metadata.index}"],
            requirements=self.requirements,
            env={**CLEARED, "TMPDIR": "{folder}", **self.variables},
            timeout=self.timeout,
            limits=self.limits,
            score="printed",
        )
