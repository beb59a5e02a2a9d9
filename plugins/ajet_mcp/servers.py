"""Parses `environment.use` into a list of tool servers.

Accepted values: an address (MCP or AgentDock), the name of an environment running on this machine, a command, or a file
of servers and images (`mcpServers`, as in AWorld and Claude). Invariants: an unusable value raises one ConfigError
before any start. Secrets are written as `${NAME}` in a file and read from the environment. The repr of a `Server` shows
no secrets or headers.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ajet.config.other_models import read_api_key
from ajet.config.plugins import find_first_name
from ajet.config.unread_sections import list_servers_files
from ajet.environment.files import expand_variables, find_named_file, invalid_section_error, read_yaml
from ajet.schema.addresses import ToolKind, find_tool_kind, require_address
from ajet.schema.errors import ConfigError
from ajet_sandbox.engine import ENGINE_VARIABLES, fits_env_file
from ajet_sandbox.program import Walls

KEY = "ajet.environment.use"
Kind = ToolKind | Literal["stdio"]
TOKEN = "MCP_SERVER_TOKEN"
"""Environment variable with the bearer token for a plain address.

The token of an environment started by the same user is found without the variable.
"""
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SERVERS = "a server", "http://HOST:PORT/mcp"
_FORMS = (
    "an http(s) address that ends in /mcp, /sse or /mcpapi, the name of an environment on this machine (`ajet "
    "env list`), a command, or a .json or .yaml file with `mcpServers`"
)


class Resources(BaseModel):
    """CPU cores and memory (MiB) that one process of a server may use. 0 means no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cores: float = Field(default=0.0, ge=0.0)
    memory: int = Field(default=0, ge=0)
    """Memory limit of the process in MiB."""

    @property
    def is_set(self) -> bool:
        """True if a limit is set."""
        return bool(self.cores or self.memory)


@dataclass(frozen=True, slots=True)
class Server:
    """One validated tool server: an address, a command, or a container image, with its settings."""

    name: str
    kind: Kind
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: Path | None = None
    timeout: float | None = None
    """Seconds until a call times out; None for `Limits.call`."""
    shared: bool = False
    """True for one process shared by all attempts of this ajet process; otherwise each attempt starts a process."""
    confined: bool = False
    """True if the command runs in a sandbox (`confined.py`)."""
    shows: tuple[Path, ...] = ()
    """Folders readable by a confined server."""
    image: str = ""
    """Container image (`images.py`); `command` is then the list of its arguments."""
    network: str = "none"
    """Network of the container, by the engine's name."""
    resources: Resources = Resources()
    walls: Walls | None = None
    """Sandbox of the command, or None."""

    @property
    def not_held(self) -> tuple[str, ...]:
        """Names of the configured resource limits that ajet cannot enforce for this kind of server."""
        if self.image:
            return ()
        not_enforced = (("cores", self.resources.cores), ("memory", 0 if self.confined else self.resources.memory))
        return tuple(name for name, value in not_enforced if value)

    @property
    def key(self) -> tuple[Any, ...]:
        """Hashable identity of the server, equal for two entries that describe the same one."""
        settings = (*sorted(self.headers.items()), *sorted(self.env.items()))
        return (self.kind, self.url, self.image, self.command, str(self.cwd), settings)


def servers_of(use: str, base: Path | str) -> tuple[Server, ...]:
    """Return the tool servers that `environment.use` describes.

    Args:
        use: value of the key.
        base: folder for relative files, and working folder of a command.

    Raises:
        ConfigError: the value describes no usable servers.
    """
    use, base = use.strip(), Path(base)
    if use.startswith(("http://", "https://")):
        return (_build_remote(use),)
    # With white space and without such a file, `use` is a command with a file as last argument.
    if Path(use).suffix in (".json", ".yaml", ".yml") and (
        not re.search(r"\s", use) or any((folder / use).is_file() for folder in (base, Path.cwd()))
    ):
        return _read_servers(use, base)
    words = _split_command(use, base)
    if len(words) == 1 and (server := _find_running(words[0])) is not None:
        return (server,)
    if len(words) == 1 and not _is_program(words[0], base):
        raise ConfigError(
            f"environment.use: {use} is not an environment, a program or a file.",
            where=KEY,
            expected=_FORMS,
            do="see docs/mcp.md",
        )
    return (Server(_name_of_command(words), "stdio", command=words, cwd=base),)


class _Entry(BaseModel):
    """An entry of `mcpServers` as written in the file."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    type: Literal["stdio", "http", "streamable-http", "streamable_http", "streamableHttp", "sse"] | None = None
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    command: str | None = None
    image: str | None = None
    network: str = "none"
    resources: Resources = Resources()
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    timeout: float | None = Field(default=None, gt=0)
    sse_read_timeout: float | None = Field(default=None, gt=0)
    client_session_timeout_seconds: float | None = Field(default=None, gt=0)
    shared: bool = False
    confined: bool = False
    shows: list[str] = Field(default_factory=list)
    disabled: bool = False
    description: str = ""

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        """Check that names and values of the headers are allowed in HTTP. Raises ValueError."""
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid header name")
            if not (value.isascii() and value.isprintable()):
                raise ValueError(
                    f"the value of {name} has a character that is not allowed in a header; expected ASCII on one line"
                )
        return headers

    @model_validator(mode="after")
    def _one_way(self) -> _Entry:
        """Check that a server is given in one way (URL, command or image), with options that this way supports."""
        if [self.url, self.command, self.image].count(None) != 2:
            raise ValueError("expected exactly one of url, command, image")
        if self.shared and self.url is not None:
            raise ValueError("shared requires a command or an image; a server with a url is always shared")
        if self.image is None and "network" in self.model_fields_set:
            raise ValueError("network requires an image")
        if self.image is not None and self.cwd is not None:
            raise ValueError("cwd requires a command; an image sets its own working folder")
        if self.url is not None and self.resources.is_set:
            raise ValueError("resources require a command or an image; a remote server sets its own limits")
        # Values that an env file cannot hold are passed in the environment of the engine's command, which must not
        # change the engine's own settings.
        not_in_env_file = (
            [name for name, value in self.env.items() if not fits_env_file(value)] if self.image is not None else []
        )
        if engine_names := [name for name in not_in_env_file if ENGINE_VARIABLES.match(name)]:
            raise ValueError(f"{engine_names[0]} is read by the container engine itself: set it in the image")
        if self.confined and self.command is None:
            raise ValueError("confined requires a command; an image or a remote server has its own confinement")
        if self.confined and self.shared:
            raise ValueError("expected either confined or shared; each attempt has its own sandbox folder")
        if self.shows and not self.confined:
            raise ValueError("shows requires confined: true; an unconfined server can read all your files")
        return self

    @property
    def kind(self) -> Kind:
        if self.url is None:
            return "stdio"
        return "sse" if self.type == "sse" else find_tool_kind(self.url) or "http"


def _read_servers(use: str, base: Path) -> tuple[Server, ...]:
    """Parse a file with `mcpServers` and return its enabled servers.

    Args:
        use: the file's path; relative to `base`, or to the current folder.

    Raises:
        ConfigError: the file, an entry or a resource limit cannot be used.
    """
    file = find_named_file(use, base, KEY)
    tree = read_yaml(file, "neither JSON nor YAML")
    entries = tree.get("mcpServers") if isinstance(tree, dict) else None
    if not isinstance(entries, dict) or not entries:
        servers_files = list_servers_files(file)
        raise ConfigError(
            f"{file.name} describes no servers.",
            where=str(file),
            expected='{"mcpServers": {"NAME": {"command": …, "args": […]}}} or {"url": …, "headers": {…}} in it',
            do=f"the file is verl's tool configuration: set {KEY}: {servers_files[0]}, the file named in it"
            if servers_files
            else "",
        )
    parsed = [server_from(str(name), entry, file) for name, entry in entries.items()]
    servers = tuple(server_or_none for server_or_none in parsed if server_or_none is not None)
    if refused := next((server for server in servers if server.not_held), None):
        raise ConfigError(
            f"The limits {' and '.join(refused.not_held)} of the server {refused.name} cannot be enforced for a "
            "command.",
            where=f"{file}: mcpServers.{refused.name}.resources",
            expected="an image, for limits of cores and memory, or a confined command, for a limit of memory",
        )
    if not servers:
        raise ConfigError(f"All servers of {file.name} are disabled.", where=str(file))
    return servers


def server_from(name: str, entry: Any, file: Path) -> Server | None:
    """Parse one `mcpServers` entry. Return None if the entry is disabled.

    Args:
        entry: the entry's parsed value.
        file: path of the file, for relative paths and error messages.

    Raises:
        ConfigError: the entry cannot be used.
    """
    location = f"{file}: mcpServers.{name}"
    try:
        parsed = _Entry.model_validate(expand_variables(entry, location))
    except ValidationError as error:
        raise invalid_section_error(error, file, _Entry.model_fields, "mcpServers", name) from None
    if parsed.disabled:
        return None
    folder = file.absolute().parent
    words = (parsed.command, *parsed.args) if parsed.command is not None else parsed.args
    return Server(
        name,
        parsed.kind,
        url=require_address(parsed.url, location, *_SERVERS) if parsed.url is not None else "",
        headers=parsed.headers,
        command=tuple(_fill_place(word, folder) for word in words),
        env=parsed.env,
        cwd=(folder / Path(parsed.cwd).expanduser()) if parsed.cwd else folder,
        timeout=parsed.client_session_timeout_seconds or parsed.timeout,
        shared=parsed.shared,
        confined=parsed.confined,
        shows=tuple((folder / Path(path).expanduser()).absolute() for path in parsed.shows),
        image=parsed.image or "",
        network=parsed.network,
        resources=parsed.resources,
    )


def _build_remote(url: str) -> Server:
    """Return the server at an address, with the token of MCP_SERVER_TOKEN or of a local environment."""
    from ajet_mcp.running_environments import token_for

    require_address(url, KEY, *_SERVERS)
    token = read_api_key(TOKEN) or token_for(url)
    return Server(urlsplit(url).netloc, find_tool_kind(url) or "http", url=url, headers=_build_authorization(token))


def _find_running(name: str) -> Server | None:
    """Return a running environment of `ajet env up` as a server, or None if none has the name."""
    from ajet_mcp.running_environments import running

    environment = running(find_first_name("environment_file", name))
    return (
        None
        if environment is None
        else Server(name, "http", url=f"{environment.near}/mcp", headers=_build_authorization(environment.token))
    )


def _build_authorization(token: str) -> dict[str, str]:
    """Return the Authorization header of a token; {} without one."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def _split_command(use: str, base: Path) -> tuple[str, ...]:
    """Split a command line into words as a shell does, with placeholders filled in. Raises ConfigError."""
    try:
        words = shlex.split(use)
    except ValueError as error:
        raise ConfigError(f"environment.use is not a valid command: {error}.", where=KEY, expected=_FORMS) from None
    if not words:
        raise ConfigError("environment.use is empty.", where=KEY, expected=_FORMS)
    return tuple(_fill_place(word, base) for word in words)


def _fill_place(argument: str, folder: Path) -> str:
    """Replace {python} by ajet's Python, and {base} by the folder."""
    return argument.replace("{python}", sys.executable).replace("{base}", str(folder))


def _is_program(program: str, base: Path) -> bool:
    """Return True if the name is a program on the PATH or in the folder."""
    from shutil import which

    return which(program) is not None or which(str(base / program)) is not None


def _name_of_command(words: tuple[str, ...]) -> str:
    """Return a short server name for a command: `server` for `python server.py --port 1`."""
    program = next((word for word in words[1:] if word.endswith((".py", ".js", ".mjs", ".ts"))), words[0])
    return Path(program).stem
