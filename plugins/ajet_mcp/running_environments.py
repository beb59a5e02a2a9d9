"""Which environments run on this machine: a file each, by name.

Invariant: a state is written by the environment's own process when it is ready, readable by its user alone (it holds
the token), and believed only while that very process lives.
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
    """An environment that runs on this machine."""

    name: str
    host: str
    port: int
    token: str
    process: ProcessIdentity
    file: str = ""

    @property
    def address(self) -> str:
        """The address at which this machine reaches it, or another if it listens there."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def near(self) -> str:
        """The address at which this machine reaches it, whichever of its addresses it listens on."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host)
        return self.address if host is None else f"http://{host}:{self.port}"

    @property
    def url(self) -> str:
        """The environment's MCP address."""
        return f"{self.address}/mcp"

    def answers(self, url: str) -> bool:
        """Whether an address is its own. One that listens for all has every address of this machine."""
        try:
            parts = urlsplit(url)
            same_port = parts.port == self.port
        except ValueError:
            return False
        if not same_port or parts.hostname is None:
            return False
        if self.host not in ("0.0.0.0", "::"):
            return parts.hostname == self.host or {parts.hostname, self.host} <= LOOPBACK
        own = {each.address for addresses in psutil.net_if_addrs().values() for each in addresses}
        return parts.hostname in own or is_loopback(parts.hostname)

    def write(self) -> None:
        """Write the state, from the process that it tells of."""
        folder = state_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        before = os.umask(0o077)
        try:
            write_atomically(state_file(self.name), json.dumps(asdict(self)))
        finally:
            os.umask(before)

    def forget(self) -> None:
        """Remove the state of an environment that has ended, unless another of its name is known by now."""
        known = running(self.name)
        if known is None or known.process == self.process:
            state_file(self.name).unlink(missing_ok=True)


def state_folder() -> Path:
    """AJET_STATE, else `ajet/environments` in XDG_STATE_HOME or ~/.local/state."""
    override = os.environ.get("AJET_STATE")
    root = (
        Path(override) if override else Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "ajet"
    )
    return root / "environments"


def state_file(name: str) -> Path:
    """The state file of an environment; beside it, its log ends in `.log`."""
    return state_folder() / f"{name}.json"


def running(name: str) -> RunningEnvironment | None:
    """The environment of that name, if it runs."""
    if "/" in name:
        return None
    try:
        state = json.loads(state_file(name).read_text())
        found = RunningEnvironment(**{**state, "process": ProcessIdentity(**state["process"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if found.process.alive() else None


def all_running() -> list[RunningEnvironment]:
    """All environments that run, in the order of their names."""
    found = (running(path.stem) for path in sorted(state_folder().glob("*.json")))
    return [each for each in found if each is not None]


def token_for(url: str) -> str:
    """The token of the environment of this machine that has this address; "" for none."""
    return next((each.token for each in all_running() if each.answers(url)), "")
