"""What an environment is: one YAML file, read into values.

    name: shop
    mcpServers:              # as every MCP client writes them; and for each, if it needs to be said:
      prices:
        command: python      # or a url, or an image
        args: [prices.py]
        per: episode         # or shared: it keeps nothing of an episode
        spare: 1             # started ahead
        instances: 64        # at most, at once
        reset: clear         # a tool that makes it as new; without one it is started again for each episode
        confined: true       # in a sandbox, and started in an episode's own folder: mcp/confined.py
        resources: {cores: 1, memory: 512}  # MiB, of one process; what keeps it to them: docs/env_up.md
        requires: [API_KEY]  # given to it; off, with this reason, where the variable is not set
        aliases: [price-server]
    tools: [price]           # those that are shown; all, if left out
    capacity: 64             # episodes at once
    idle: 600                # seconds without a call after which an episode is ended
    env_file: .env           # beside this file; variables that are set win
    gaia: {}                 # tool servers that a plug-in knows by name: a section of its own

Invariant: what cannot be used is one ConfigError before anything is started; a server that is off is still one of the
environment's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ajet.config.plugin import load_code
from ajet.config.plugins import find_all_parts, find_part, find_parts, list_first_names
from ajet.environment.files import find_variables, invalid_section_error, read_variables, read_yaml
from ajet.schema.errors import ConfigError
from ajet_mcp.servers import Resources, Server, server_from

DEFAULT_SECONDS = 120.0
"""Timeout of a call, in seconds."""

Per = Literal["episode", "shared"]
"""What an instance of a server is started for."""


@dataclass(frozen=True, slots=True)
class EnvironmentPart:
    """One tool server of the environment: how it is started, shared, limited and reset."""

    name: str
    server: Server | None = None
    """None if the server is off, or belongs to a family."""
    family: str = ""
    """The section of the file for the server, if a plug-in reads the section."""
    start: Callable[[Path, int | None], Server] | None = None
    """For a family's server: builds the server for an episode's working folder and user."""
    per: Per = "episode"
    spare: int = 1
    limit: int = 64
    reset: str = ""
    seconds: float = DEFAULT_SECONDS
    off: str = ""
    aliases: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    """Variables needed to switch the server on."""
    resources: Resources = Resources()
    """Resources of one process."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """The tools known before the server runs."""


@dataclass(frozen=True, slots=True)
class EnvironmentFamily:
    """A group of tool servers that a plug-in provides, configured by one section of an environment's file.

    Example: the section `gaia` selects servers of the package `ajet_gaia`.
    """

    section: type[BaseModel]
    list_parts: Callable[[Any, Path, str], list[EnvironmentPart]]
    """Returns the servers of a section, given the file's folder and the section's place. Raises UserError."""
    prepare: Callable[[Sequence[str], Callable[[str], None]], list[str]]
    """Installs the packages of the named servers, reporting progress; returns a sentence for each failure."""
    env_template: Path | None = None
    """An env file with every variable read by the servers, to be copied."""


@dataclass(frozen=True, slots=True)
class EnvironmentDescription:
    """A parsed environment file: tool servers, visible tools, and limits on episodes."""

    name: str
    parts: tuple[EnvironmentPart, ...]
    tools: tuple[str, ...] = ()
    """Names of the shown tools; () shows all."""
    capacity: int = 64
    idle: float = 600.0
    file: Path | None = None
    named: Mapping[str, bool] = field(default_factory=dict)
    """Variables used in the file as `${NAME}`, each with True if there is no default."""

    @property
    def aliases(self) -> dict[str, str]:
        """Map each alias to its server's name."""
        return {alias: part.name for part in self.parts for alias in part.aliases}


class _Terms(BaseModel):
    """Keys of a server's entry that this package adds to the `mcpServers` format."""

    model_config = ConfigDict(extra="forbid")

    per: Per = "episode"
    spare: int = Field(default=1, ge=0)
    instances: int = Field(default=64, ge=1)
    reset: str = ""
    requires: list[str] = Field(default_factory=list)
    aliases: list[str] = Field(default_factory=list)


class _File(BaseModel):
    """Keys of an environment file that belong to no plug-in's section."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(default="", pattern=r"^[A-Za-z0-9._-]*$")
    mcpServers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    tools: list[str] = Field(default_factory=list)
    capacity: int = Field(default=64, ge=1)
    idle: float = Field(default=600.0, gt=0)
    env_file: str = ""


def find_environment_file(named: str) -> Path:
    """Return the path of the environment file named on the command line.

    Args:
        named: path of a YAML file, or the name of an environment that a plug-in includes. An unknown name is returned
            as a path.
    """
    shipped_part = None if Path(named).is_file() else find_part("environment_file", named)
    file: Path = load_code(shipped_part.code) if shipped_part is not None else Path(named).absolute()
    return file


def find_shipped_name(file: Path) -> str:
    """Return the name under which a plug-in includes this file, or "" for a user's file."""
    return next((name for name, part in find_parts("environment_file").items() if load_code(part.code) == file), "")


def read_description(file: Path) -> EnvironmentDescription:
    """Parse an environment file, and set the variables of its `env_file` in `os.environ`.

    Raises:
        ConfigError, UserError: the file cannot be used.
    """
    parsed, sections = _read_sections(file)
    templates = [family.env_template for _, family, _ in sections if family.env_template is not None]
    _set_variables(file, parsed.env_file, next(iter(templates), None))
    parts = [part for name, entry in parsed.mcpServers.items() if (part := _build_part(name, entry, file)) is not None]
    for name, family, section in sections:
        family_parts = family.list_parts(section, file.absolute().parent, f"{file}: {name}")
        parts += [replace(part, family=name) for part in family_parts]
    name = parsed.name or file.stem
    variables = find_variables(parsed.mcpServers)
    return EnvironmentDescription(
        name, tuple(parts), tuple(parsed.tools), parsed.capacity, parsed.idle, file.absolute(), variables
    )


def prepare_families(parts: Iterable[EnvironmentPart], say: Callable[[str], None]) -> list[str]:
    """Install missing Python packages of the servers that plug-ins provide.

    Args:
        parts: all servers of the environment.
        say: called with each progress message.

    Returns:
        One sentence per failed installation; empty if all succeeded.
    """
    names: dict[str, list[str]] = {}
    for part in parts:
        if part.family and not part.off:
            names.setdefault(part.family, []).append(part.name)
    return [missing for name in names for missing in _load_family(name).prepare(names[name], say)]


def _load_family(name: str) -> EnvironmentFamily:
    """Import and return the family of tool servers that a plug-in provides under this section name."""
    family: EnvironmentFamily = load_code(find_all_parts("environment_family")[name].code)
    return family


def _read_sections(file: Path) -> tuple[_File, list[tuple[str, EnvironmentFamily, BaseModel]]]:
    """Return the parsed common keys of the file, and (name, family, values) for each plug-in section."""
    try:
        tree = read_yaml(file)
    except FileNotFoundError:
        shipped = ", ".join(list_first_names("environment_file"))
        raise ConfigError(
            f"There is no environment named {file}, and no such file.",
            expected=f"a YAML file that describes an environment, or one that comes with ajet: {shipped}",
            do="see docs/env_up.md",
        ) from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}", where=str(file)) from None
    families = find_all_parts("environment_family")
    family_sections = (
        {name: tree[name] for name in families if tree.get(name) is not None} if isinstance(tree, dict) else {}
    )
    other_keys = {name: tree[name] for name in tree if name not in families} if isinstance(tree, dict) else tree
    try:
        parsed = _File.model_validate(other_keys)
    except ValidationError as error:
        raise invalid_section_error(error, file, (*_File.model_fields, *families)) from None
    if not parsed.mcpServers and not family_sections:
        accepted = ", or ".join(f"`{name}`" for name in ("mcpServers", *families))
        raise ConfigError(f"The file describes no servers; expected {accepted}.", where=str(file))
    return parsed, [
        (name, (family := _load_family(name)), _parse_section(family, name, family_sections[name], file))
        for name in family_sections
    ]


def _parse_section(family: EnvironmentFamily, name: str, values: Any, file: Path) -> BaseModel:
    """Validate a plug-in's section of an environment file. Raises ConfigError that names the file and the key."""
    try:
        return family.section.model_validate(values)
    except ValidationError as error:
        raise invalid_section_error(error, file, family.section.model_fields, name) from None


def _build_part(name: str, entry: Mapping[str, Any], file: Path) -> EnvironmentPart | None:
    """Build the server of one `mcpServers` entry, or None if the entry is disabled.

    A server with unset variables of `requires` is built as off, with the reason in `off`.
    """
    term_values = {key: entry[key] for key in entry if key in _Terms.model_fields}
    try:
        terms = _Terms.model_validate(term_values)
    except ValidationError as error:
        raise invalid_section_error(error, file, _Terms.model_fields, "mcpServers", name) from None
    missing = [variable for variable in terms.requires if not os.environ.get(variable)]
    if missing:
        off = f"it needs the environment variables {' and '.join(missing)}"
        return EnvironmentPart(
            name, per=terms.per, off=off, aliases=tuple(terms.aliases), requires=tuple(terms.requires)
        )
    server = server_from(name, {key: entry[key] for key in entry if key not in term_values}, file)
    if server is None:
        return None
    if server.confined and (terms.per != "episode" or terms.reset or terms.spare and "spare" in term_values):
        raise ConfigError(
            f"The server {name} is confined: it starts in the folder of its episode and ends with the episode, "
            "so it cannot be shared.",
            where=f"{file}: mcpServers.{name}",
            expected="no per: shared, reset or spare",
        )
    required_variables = {variable: os.environ[variable] for variable in terms.requires}
    return EnvironmentPart(
        name,
        replace(server, env={**required_variables, **server.env}),
        per=terms.per if "per" in term_values or server.kind == "stdio" else "shared",
        spare=0 if server.confined else terms.spare,
        limit=terms.instances,
        reset=terms.reset,
        seconds=server.timeout or DEFAULT_SECONDS,
        aliases=tuple(terms.aliases),
        requires=tuple(terms.requires),
        resources=server.resources,
    )


def _set_variables(file: Path, named: str, template: Path | None) -> None:
    """Set the variables of an environment file's `env_file`, without replacing variables that are set.

    Args:
        file: the environment file; `named` is relative to its folder.
        named: value of `env_file`; "" sets nothing.
        template: an env file to copy, shown to the user if `named` is missing; None without one.
    """
    if named:
        for name, value in read_variables(file.parent / named, template=template).items():
            if value:
                os.environ.setdefault(name, value)
