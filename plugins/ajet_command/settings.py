"""The YAML section of a command-line agent.

Invariant: a wrong setting is reported once, before a run, with its key; no setting can put the episode's key into
arguments.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

from loguru import logger
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from ajet.schema.errors import ConfigError
from ajet_environments.venvs import prepare_python
from ajet_harness.install import install_harness, list_mounted_folders
from ajet_harness.presets import fill_section

Settings = TypeVar("Settings", bound=BaseModel)
PLACE = re.compile(
    r"\{(python|venv|harness|base|folder|home|model|base_url|api_key|context_tokens|reply_tokens|task|task_id|episode"
    r"|metadata\.[\w.-]+)\}"
)
HOME = "~/"
"""Prefix of `files` that are written into the episode's home directory."""
MEGABYTE = 1 << 20


class CommandLimits(BaseModel):
    """Resource limits of one episode's process tree. null means no limit."""

    model_config = ConfigDict(extra="forbid")

    memory_mb: float | None = Field(default=4096, gt=0)
    cpu_seconds: float | None = Field(default=None, gt=0)
    processes: int | None = Field(default=256, ge=1)
    output_mb: float = Field(default=4, gt=0)
    """For standard output and standard error each."""
    file_mb: float | None = Field(default=1024, gt=0)  # the limit applies to each written file

    def numbers(self) -> dict[str, float]:
        """Return the limits in bytes, seconds and processes, for the keeper."""
        limits = {
            "memory": self.memory_mb and self.memory_mb * MEGABYTE,
            "cpu": self.cpu_seconds,
            "processes": self.processes,
            "file": self.file_mb and self.file_mb * MEGABYTE,
        }
        return {name: value for name, value in limits.items() if value is not None}


def read_section(kind: type[Settings], config: Any, section: str, purpose: str, example: str, page: str) -> Settings:
    """Return a section of the composed configuration, next to `ajet:`, as a model.

    Args:
        kind: The model's class.
        config: The composed configuration.
        section: The section's name.
        purpose: What the section configures, for errors.
        example: A minimal section, for errors.
        page: Documentation page, for errors.

    Raises:
        ConfigError: the section is missing, or has an unknown key or a wrong value.
    """
    section_values = config.get(section)
    if not isinstance(section_values, Mapping):
        similar_names = get_close_matches(section, list(config), 1)
        raise ConfigError(
            f"The YAML has no section {section}, which configures {purpose}.",
            where=section,
            expected=f"{section}: {example} next to `ajet:`",
            do=f"did you mean the section {similar_names[0]}? Rename it to {section}"
            if similar_names
            else f"see {page}",
        )
    try:
        return kind.model_validate(
            section_values.to_dict() if hasattr(section_values, "to_dict") else dict(section_values)
        )
    except ValidationError as error:
        errors = error.errors()
        unknown_keys = [entry for entry in errors if entry["type"] == "extra_forbidden" and len(entry["loc"]) == 1]
        first_error = (unknown_keys or errors)[0]
        key_path = ".".join(map(str, (section, *first_error["loc"])))
        similar_names = get_close_matches(str(first_error["loc"][0]), kind.model_fields, 1) if unknown_keys else []
        raise ConfigError(
            f"There is no key {key_path}."
            if unknown_keys
            else f"{key_path}: {first_error['msg'].removeprefix('Value error, ')}.",
            where=key_path,
            expected=f"one of {', '.join(kind.model_fields)}" if unknown_keys else "",
            do=f"did you mean {section}.{similar_names[0]}?" if similar_names else f"see {page}",
        ) from None


def _split_command(value: Any) -> Any:
    """Split a command given as a string into words. Raises ValueError for an empty command, and for a key among its
    words."""
    words = shlex.split(value) if isinstance(value, str) else value
    if isinstance(words, list):
        if not words:
            raise ValueError("an empty command")
        if any(isinstance(word, str) and "{api_key}" in word for word in words):
            raise ValueError("a key must not be an argument, because every user of the machine can read arguments")
    return words


Command = Annotated[list[str], BeforeValidator(_split_command)]
"""The program and its arguments; a string is split into words without a shell."""


class VerifySettings(BaseModel):
    """A command that scores the agent's folder after the agent has ended."""

    model_config = ConfigDict(extra="forbid")

    command: Command
    files: dict[str, str] | str = Field(default_factory=dict)
    """A folder to copy over the agent's, or files to write there: path -> content."""
    timeout: float = Field(default=300, gt=0)  # seconds
    reward: Literal["exit", "file"] = "exit"
    """exit: 1 for exit code 0, else 0; file: the number in the file AJET_REWARD_FILE."""

    @field_validator("files")
    @classmethod
    def _check_paths(cls, value: dict[str, str] | str) -> dict[str, str] | str:
        """Raise ValueError if a file's path leads out of the episode's folder."""
        for name in () if isinstance(value, str) else value:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"the file {name} is outside the episode's folder")
        return value


class CommandSettings(BaseModel):
    """The command of an agent, and the place of its answer."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    command: Command
    harness: str | None = None
    """A coding agent with a preset (`ajet_harness`), which sets the other keys."""
    env: dict[str, str | None] = Field(default_factory=dict)
    """Additional variables; null removes a variable."""
    files: dict[str, str] = Field(default_factory=dict)
    """Files to write into the folder, or below `~/` into the home directory: path -> content."""
    template: str | None = None
    """A folder copied into each episode's folder; may contain placeholders."""
    folders: str | None = None
    """Parent of the episodes' folders; null is the system's temporary folder."""
    keep: Literal["never", "failed", "always"] = "never"  # selects the episodes whose folders are not deleted
    home: bool = False
    """Give each episode a home directory."""
    stdin: Literal["none", "task"] = "none"
    answer: str = "stdout"  # stdout, last_line, file:PATH, or file:PATH#KEY.KEY for a value of a JSON file
    metadata: list[str] = Field(default_factory=list)
    """Names of task metadata visible to the agent."""
    agent: str = "default"
    """The agent's name in the record."""
    trains: list[str] | None = None
    """Names of the trained agents; null trains all. Calls of the others are recorded."""
    timeout: float | None = Field(default=None, gt=0)  # seconds; null uses rollout.episode_timeout
    on_timeout: Literal["fail", "judge"] = "fail"
    exit_codes: list[int] | Literal["any"] = [0]
    """Exit codes of a successful episode."""
    limits: CommandLimits = Field(default_factory=CommandLimits)
    score: Literal["judge", "printed"] = "judge"
    """printed: the last line of output has the reward, or an error."""
    verify: VerifySettings | None = None
    """A command that sets the reward after the agent has ended."""
    requirements: str | None = None
    """A requirements file; its Python environment is created before the run and available as `{venv}`."""

    @model_validator(mode="before")
    @classmethod
    def _apply_harness(cls, value: Any) -> Any:
        """Merge the preset of the section's harness, if any, below the user's keys."""
        return fill_section(value) if isinstance(value, Mapping) and value.get("harness") else value

    @field_validator("env", mode="before")
    @classmethod
    def _stringify_values(cls, value: Any) -> Any:
        """Convert booleans among the variables to the texts true and false, as YAML writes them."""
        if not isinstance(value, Mapping):
            return value
        return {str(name): str(text).lower() if isinstance(text, bool) else text for name, text in value.items()}

    @field_validator("answer")
    @classmethod
    def _check_answer(cls, value: str) -> str:
        """Raise ValueError for an unknown place of the answer."""
        if value not in ("stdout", "last_line") and not (value.startswith("file:") and value != "file:"):
            raise ValueError("expected stdout, last_line or file:PATH")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> CommandSettings:
        """Raise ValueError for two sources of the reward, or for files in a home directory that does not exist."""
        if self.verify is not None and self.score == "printed":
            raise ValueError("verify and score: printed both set the reward")
        paths = (*self.files, self.answer.removeprefix("file:"))
        if not self.home and any(path.startswith(HOME) for path in paths):
            raise ValueError("files below ~/ need home: true")
        return self

    @classmethod
    def read(cls, config: Any, section: str) -> CommandSettings:
        """Return the settings of `section`. Raises ConfigError."""
        settings = read_section(
            cls, config, section, "the agent's command", "{command: [...]}", "docs/command_agents.md"
        )
        for name, folder in settings.list_folders().items():
            if not PLACE.search(folder):
                find_folder(folder, get_base_folder(config), name)
        return settings

    def list_folders(self) -> dict[str, str]:
        """Return the folders that are copied into an episode's folder, by key."""
        verify_files = self.verify.files if self.verify else None
        folders = {"template": self.template, "verify.files": verify_files if isinstance(verify_files, str) else None}
        return {name: folder for name, folder in folders.items() if folder is not None}

    def venv(self, base: Path) -> Path | None:
        """Return the Python of the environment made from `requirements`, created if missing, or None without
        requirements.

        Args:
            base: folder of the YAML, in which a relative path is looked up first.

        Raises:
            UserError: the environment cannot be created.
        """
        if self.requirements is None:
            return None
        requirements_path = Path(self.requirements).expanduser()
        candidate = base / requirements_path
        return prepare_python(candidate if candidate.exists() else requirements_path, say=logger.info)

    def harness_folder(self) -> Path | None:
        """Return the folder of the harness's programs, installed if missing; None without harness. Raises UserError."""
        return install_harness(self.harness) if self.harness else None

    def list_harness_folders(self) -> list[Path]:
        """Return the folders that a container must mount for the harness, installed if missing. Raises UserError."""
        if self.harness is None:
            return []
        install_harness(self.harness)
        return list_mounted_folders(self.harness)


def find_folder(name: str, base: Path, key: str) -> Path:
    """Return a folder next to the YAML or in the working directory. Raises ConfigError, with `key`, without one."""
    relative_path = Path(name).expanduser()
    folder = next(
        (candidate for candidate in (base / relative_path, Path.cwd() / relative_path) if candidate.is_dir()), None
    )
    if folder is None:
        raise ConfigError(
            f"The {key} {name} is not a folder.", where=key, expected=f"a folder in {base} or {Path.cwd()}"
        )
    return folder


def get_base_folder(config: Any) -> Path:
    """Return the folder of the configuration's YAML."""
    return Path(config["ajet"]["base_dir"] or Path.cwd())


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders in `text`; other braces stay."""
    return PLACE.sub(lambda match: values.get(match[1], match[0]), text)


def list_common_values(base: Path) -> dict[str, str]:
    """Return the placeholders that are equal for all episodes."""
    return {"python": sys.executable, "base": str(base)}
