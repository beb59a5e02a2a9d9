"""Presets of coding agents: one YAML file per harness in the folder `presets`.

Invariant: a preset is data. It holds a pinned package and keys of the section `command_agent`; each key that the user
sets has precedence over the preset's.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from ajet.schema.errors import ConfigError

FOLDER = Path(__file__).with_name("presets")
DEFAULT_AGENT = "default"
"""`command_agent.agent` if the YAML does not set it."""


class Preset(BaseModel):
    """One harness: its package, and the section that runs it."""

    model_config = ConfigDict(extra="forbid")

    title: str
    license: str
    npm: list[str] = Field(default_factory=list)
    """Packages of npm, `name@version`."""
    links: dict[str, str] = Field(default_factory=dict)
    """Further programs of these packages: name -> pattern of the path below `node_modules`."""
    requirements: list[str] = Field(default_factory=list)
    """Packages of PyPI, `name==version`."""
    python: list[str] = Field(default_factory=list)
    """Python versions that these packages run on, the best first; empty for any."""
    agent: dict[str, Any]
    """Keys of `command_agent`."""


def list_harnesses() -> list[str]:
    """Return the names of all presets."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def read_preset(name: str) -> Preset:
    """Return a preset. Raises ConfigError for an unknown name."""
    names = list_harnesses()
    if name not in names:
        similar = get_close_matches(name.lower(), names, 1)
        raise ConfigError(
            f"There is no harness {name}.",
            where="command_agent.harness",
            expected=f"one of {', '.join(names)}",
            do=f"did you mean {similar[0]}?" if similar else "set command_agent.command to run another program",
        )
    return Preset.model_validate(yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))


def fill_section(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section `command_agent` with the keys of its harness.

    Variables and files are merged by name. Only the command's own agent is trained, so that calls for titles and
    summaries, made in the name of another agent, are not.

    Raises:
        ConfigError: the harness is unknown.
    """
    preset = read_preset(str(section["harness"])).agent
    merged = {"trains": [section.get("agent", DEFAULT_AGENT)], **preset, **section}
    for name in ("env", "files"):
        if name in preset and isinstance(section.get(name), Mapping):
            merged[name] = {**preset[name], **section[name]}
    return merged
