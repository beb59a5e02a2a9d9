"""AgentRL's `agent_config.yml`, read as it is: the models that stand beside the one that is trained, by section.

Invariant: what cannot be used is one ConfigError before anything is asked, and shows no key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ajet.config.locations import default_config
from ajet.environment.chat_model import Model
from ajet.environment.files import expanded, file_for, read_yaml, refused
from ajet.schema.errors import ConfigError

KEY = "ajet.environment.agent_config"
EXAMPLE = default_config() / "agent_config_example.yml"
S = TypeVar("S", bound=BaseModel)


def plain_section(named: str, base: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """The file that the key names, and its section `name` with what `${NAME}` stands for, as it is written there.
    Raises ConfigError, also where there is none."""
    file = file_for(named, base, KEY)
    tree = read_yaml(file)
    section = tree.get(name) if isinstance(tree, dict) else None
    if not isinstance(section, dict):
        raise ConfigError(f"{file.name} has no section {name}.", where=str(file), expected=f"one as in {EXAMPLE}")
    found: dict[str, Any] = expanded(section, f"{file}: {name}")
    return file, found


def section_of(named: str, base: Path, name: str, form: type[S]) -> S:
    """The section `name` of the file that the key names, as `form`. Raises ConfigError, also where there is none."""
    file, section = plain_section(named, base, name)
    try:
        return form.model_validate(section)
    except ValidationError as error:
        part = Model if "models" in error.errors()[0]["loc"] else form
        raise refused(error, file, part.model_fields, name) from None
