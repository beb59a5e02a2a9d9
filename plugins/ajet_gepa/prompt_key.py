"""The configuration key whose text is optimized: read, and replaced for one candidate.

Invariant: a candidate is an experiment with another value of the key. No file of the user changes, and the same value
in the YAML repeats the candidate.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from ajet.config import Experiment
from ajet.config.overrides import find_overridden_key
from ajet.schema.errors import UserError

EXPECTED = "a key with a text that the agent reads, such as my_agent.system_prompt or rollout.mcp_agent.system_prompt"


class PromptKey:
    """One key of the YAML, such as `my_agent.system_prompt`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = find_overridden_key(f"{name}=") or tuple(name.split("."))

    def read_text(self, experiment: Experiment) -> str:
        """Return the key's text. Raises UserError if the experiment has no such text."""
        value: Any = {"ajet": experiment.ajet.model_dump(), **experiment.sections}
        for name in self.path:
            value = value.get(name) if isinstance(value, dict) else None
        if not isinstance(value, str) or not value.strip():
            raise UserError(
                f"The key {self.name} has no text to start from.",
                where=f"--key {self.name}",
                expected=EXPECTED,
                do=f"write the present prompt to this key of {experiment.yaml_path.name}, and let the workflow read it "
                f"from tuner.config.{'.'.join(self.path)}",
            )
        return value

    def set_text(self, experiment: Experiment, text: str) -> Experiment:
        """Return a copy of the experiment with another text under the key."""
        if self.path[0] == "ajet":
            return experiment.replace_defaults({".".join(self.path): text})
        sections = deepcopy(experiment.sections)
        section = sections
        for name in self.path[:-1]:
            section = section[name]
        section[self.path[-1]] = text
        return replace(experiment, sections=sections)
