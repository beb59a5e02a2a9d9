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
    gaia: {}                 # tool servers by name: deployment/gaia.py

Invariant: what cannot be used is one ConfigError before anything is started; a server that is off is still one of the
environment's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ajet.environment.files import named_in, read_yaml, refused
from ajet.environment.gaia import read_variables
from ajet.environment.mcp.servers import Resources, Server, server_from
from ajet.schema.errors import ConfigError
from ajet_environments.deployment.gaia import Gaia, Tools, tools_of
from ajet_environments.deployment.state import ALIASES
from ajet_environments.front.servers import Per

SHIPPED = Path(__file__).with_name("shipped")
"""Files of environments that come with ajet."""
DEFAULT_SECONDS = 120.0
"""Of a call."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the environment's servers."""

    name: str
    server: Server | None = None
    """None where it is off, or one of `gaia`'s."""
    gaia: Tools | None = None
    per: Per = "episode"
    spare: int = 1
    limit: int = 64
    reset: str = ""
    seconds: float = DEFAULT_SECONDS
    off: str = ""
    aliases: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    """Variables without which it is off."""
    resources: Resources = Resources()
    """Of one process."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """As far as they are known before it runs."""


@dataclass(frozen=True, slots=True)
class Description:
    """A whole environment: its servers, and the variables they need."""

    name: str
    parts: tuple[Part, ...]
    tools: tuple[str, ...] = ()
    """The names of those that are shown; (): all."""
    capacity: int = 64
    idle: float = 600.0
    file: Path | None = None
    named: Mapping[str, bool] = field(default_factory=dict)
    """The variables that its file takes from the environment as `${NAME}`: whether it cannot do without."""

    @property
    def aliases(self) -> dict[str, str]:
        """Every other name of a server, and the server."""
        return {alias: part.name for part in self.parts for alias in part.aliases}


class _Terms(BaseModel):
    """The terms of a server beside how it is reached."""

    model_config = ConfigDict(extra="forbid")

    per: Per = "episode"
    spare: int = Field(default=1, ge=0)
    instances: int = Field(default=64, ge=1)
    reset: str = ""
    requires: list[str] = Field(default_factory=list)
    aliases: list[str] = Field(default_factory=list)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(default="", pattern=r"^[A-Za-z0-9._-]*$")
    mcpServers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    gaia: Gaia | None = None
    tools: list[str] = Field(default_factory=list)
    capacity: int = Field(default=64, ge=1)
    idle: float = Field(default=600.0, gt=0)
    env_file: str = ""

    @model_validator(mode="after")
    def _something(self) -> _File:
        if not self.mcpServers and self.gaia is None:
            raise ValueError("expected servers: `mcpServers`, or `gaia`")
        return self


def shipped_names() -> list[str]:
    """The names of the environments that come with ajet."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def file_of(named: str) -> Path:
    """The file that a name or a path on the command line means: the path, or an environment that comes with ajet."""
    shipped = SHIPPED / f"{ALIASES.get(named, named)}.yaml"
    return shipped if shipped.is_file() and not Path(named).is_file() else Path(named).absolute()


def described(file: Path) -> Description:
    """The description in a file, whose env file's variables are set here. Raises ConfigError, UserError."""
    read = _read(file)
    _set_variables(file, read.env_file)
    parts = [part for name, entry in read.mcpServers.items() if (part := _part(name, entry, file)) is not None]
    if read.gaia is not None:
        parts += [_of_gaia(each) for each in tools_of(read.gaia, file.absolute().parent, f"{file}: gaia.servers")]
    name = read.name or file.stem
    named = named_in(read.mcpServers)
    return Description(name, tuple(parts), tuple(read.tools), read.capacity, read.idle, file.absolute(), named)


def _of_gaia(tools: Tools) -> Part:
    server, off = tools.server, tools.off()
    return Part(
        server.name,
        gaia=tools,
        per="episode" if server.per_episode else "shared",
        spare=0,
        off=off,
        aliases=server.aliases,
        requires=server.variables,
        tools=tools.listed() if off or server.program else (),
    )


def _read(file: Path) -> _File:
    try:
        tree = read_yaml(file)
    except FileNotFoundError:
        raise ConfigError(
            f"There is no environment {file}.",
            expected=f"a YAML file that describes one, or one that comes with ajet: {', '.join(shipped_names())}",
            do="see docs/env_up.md",
        ) from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}", where=str(file)) from None
    try:
        return _File.model_validate(tree)
    except ValidationError as error:
        raise refused(error, file, _File.model_fields) from None


def _part(name: str, entry: Mapping[str, Any], file: Path) -> Part | None:
    own = {key: entry[key] for key in entry if key in _Terms.model_fields}
    try:
        terms = _Terms.model_validate(own)
    except ValidationError as error:
        raise refused(error, file, _Terms.model_fields, "mcpServers", name) from None
    missing = [variable for variable in terms.requires if not os.environ.get(variable)]
    if missing:
        off = f"it needs {' and '.join(missing)} in the environment"
        return Part(name, per=terms.per, off=off, aliases=tuple(terms.aliases), requires=tuple(terms.requires))
    server = server_from(name, {key: entry[key] for key in entry if key not in own}, file)
    if server is None:
        return None
    if server.confined and (terms.per != "episode" or terms.reset or terms.spare and "spare" in own):
        raise ConfigError(
            f"{name} is confined: it starts in its episode's own folder, and ends with it.",
            where=f"{file}: mcpServers.{name}",
            expected="neither per: shared, nor reset, nor spare",
        )
    given = {variable: os.environ[variable] for variable in terms.requires}
    return Part(
        name,
        replace(server, env={**given, **server.env}),
        per=terms.per if "per" in own or server.kind == "stdio" else "shared",
        spare=0 if server.confined else terms.spare,
        limit=terms.instances,
        reset=terms.reset,
        seconds=server.timeout or DEFAULT_SECONDS,
        aliases=tuple(terms.aliases),
        requires=tuple(terms.requires),
        resources=server.resources,
    )


def _set_variables(file: Path, named: str) -> None:
    if named:
        for name, value in read_variables(file.parent / named).items():
            if value:
                os.environ.setdefault(name, value)
