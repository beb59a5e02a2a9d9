"""State files of environments started by `ajet env up` on this machine, one file per name.

Invariants: the environment's own process writes the file when it is ready. Only its user can read the file, since it
holds the token. A state counts only while the process that wrote it lives.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from ajet.record.files import write_atomically
from ajet.record.process_identity import ProcessIdentity
from ajet.schema.addresses import LOOPBACK, is_loopback


@dataclass(frozen=True, slots=True)
class RunningEnvironment:
    """Address, token and process of an environment that runs on this machine."""

    name: str
    host: str
    port: int
    token: str
    process: ProcessIdentity
    file: str = ""

    @property
    def address(self) -> str:
        """The address with the host on which the environment listens."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def near(self) -> str:
        """The HTTP address for clients on this machine. Wildcard hosts such as 0.0.0.0 become loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host)
        return self.address if host is None else f"http://{host}:{self.port}"

    @property
    def url(self) -> str:
        """The MCP address of the environment."""
        return f"{self.address}/mcp"

    def answers(self, url: str) -> bool:
        """Return True if the URL leads to this environment.

        Host and port must be equal. An environment that listens on a wildcard host owns every address of this machine.
        """
        try:
            target = urlsplit(url)
            has_same_port = target.port == self.port
        except ValueError:
            return False
        if not has_same_port or target.hostname is None:
            return False
        if self.host not in ("0.0.0.0", "::"):
            return target.hostname == self.host or {target.hostname, self.host} <= LOOPBACK
        own_addresses = {
            interface_address.address for addresses in psutil.net_if_addrs().values() for interface_address in addresses
        }
        return target.hostname in own_addresses or is_loopback(target.hostname)

    def write(self) -> None:
        """Write the state file. Called by the process of the environment."""
        folder = state_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        old_umask = os.umask(0o077)
        try:
            write_atomically(state_file(self.name), json.dumps(asdict(self)))
        finally:
            os.umask(old_umask)

    def forget(self) -> None:
        """Remove the state file, unless a newer environment of the same name has written it."""
        recorded = running(self.name)
        if recorded is None or recorded.process == self.process:
            state_file(self.name).unlink(missing_ok=True)


def state_folder() -> Path:
    """Return the folder of the state files.

    It is AJET_STATE, else `ajet/environments` below XDG_STATE_HOME or ~/.local/state.
    """
    override = os.environ.get("AJET_STATE")
    root = (
        Path(override) if override else Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "ajet"
    )
    return root / "environments"


def state_file(name: str) -> Path:
    """Return the path of an environment's state file. Its log has the same name with the suffix `.log`."""
    return state_folder() / f"{name}.json"


def running(name: str) -> RunningEnvironment | None:
    """Return the running environment of this name, or None."""
    if "/" in name:
        return None
    try:
        state = json.loads(state_file(name).read_text())
        environment = RunningEnvironment(**{**state, "process": ProcessIdentity(**state["process"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return environment if environment.process.alive() else None


def all_running() -> list[RunningEnvironment]:
    """Return all running environments, sorted by name."""
    environments = (running(path.stem) for path in sorted(state_folder().glob("*.json")))
    return [environment for environment in environments if environment is not None]


def token_for(url: str) -> str:
    """Return the token of the local environment with this address, or ""."""
    return next((environment.token for environment in all_running() if environment.answers(url)), "")
