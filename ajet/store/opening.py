"""From what a person wrote to an open store: `sqlite:PATH`, a path, or an address such as `mongodb://…`.

The scheme of an address chooses the driver, which a plug-in registers with its store. Invariant: an address never
holds a name or a password; those are the environment's (`AJET_STORE_USER`, `AJET_STORE_PASSWORD`), so that an address
may stand in a YAML, a log, a process list and an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from ajet.config.plugin import load_code
from ajet.config.plugins import find_parts, find_shared_store
from ajet.record.secrets import Redactor
from ajet.schema.errors import ConfigError, Finding, UserError
from ajet.store.contract import StoreDownError, StoreUnreachableError
from ajet.store.outage import UNREACHABLE_TIMEOUT
from ajet.store.reading import StoreReader
from ajet.store.shared import LEASE_SECONDS, MAX_ATTEMPTS, SharedStore, StoreOptions, Usable

ADDRESS_FILE = "store.address"
"""In a run's folder: where its ledger is, if not there. It may hold what was played though the folder does not."""
SETTINGS = "resolved.yaml"
"""In a run's folder: its settings, without secrets."""
USER, PASSWORD = "AJET_STORE_USER", "AJET_STORE_PASSWORD"


@dataclass(frozen=True, slots=True)
class Address:
    """The place of a store: a file of SQLite, or a database of a server such as MongoDB."""

    path: Path | None = None
    """Of a file of SQLite."""
    uri: str = ""
    """Of a server."""
    database: str = ""
    """There."""

    @classmethod
    def of(cls, text: str, *, base: Path | None = None, run: str = "") -> Address:
        """`base`: the folder that a path is relative to. `run`: whose name the database has where none is named. Raises
        ConfigError."""
        kind, colon, rest = text.partition(":")
        if not colon or kind == "sqlite" or (base or Path()).joinpath(text).exists():
            path = Path(rest.removeprefix("//") if colon and kind == "sqlite" else text).expanduser()
            if not path.name:
                raise ConfigError("The store's address names no file.", where="store.uri", expected=list_forms())
            return cls(path=(base or Path()) / path)
        if find_shared_store(kind) is None:
            raise ConfigError(f"No store is known at {kind}: addresses.", where="store.uri", expected=list_forms())
        parts = urlsplit(text)
        if "@" in parts.netloc:
            raise ConfigError(
                "The store's address holds a user or a password.",
                where="store.uri",
                expected=f"an address without them; the environment has them, as {USER} and {PASSWORD}",
                do=f"Write {kind}://HOST:PORT/DATABASE and set {PASSWORD} in the environment or .env.",
            )
        if not parts.netloc:
            raise ConfigError("The store's address names no host.", where="store.uri", expected=list_forms())
        named = parts.path.strip("/") or database_name(run)
        if not named:
            raise ConfigError("The store's address names no database.", where="store.uri", expected=list_forms())
        return cls(uri=parts._replace(path="/").geturl(), database=named)

    @property
    def scheme(self) -> str:
        """The scheme of the address; a path has `sqlite`."""
        return "sqlite" if self.path is not None else urlsplit(self.uri).scheme

    @property
    def shown(self) -> str:
        """For people."""
        if self.path is not None:
            return f"sqlite:{self.path}"
        parts = urlsplit(self.uri)
        return f"{parts.scheme}://{parts.netloc}/{self.database}"


@dataclass(frozen=True, slots=True)
class StoreLeftovers:
    """The leftovers of killed puts."""

    count: int = 0
    """Episodes, or parts of one."""
    size: int = 0
    """Bytes."""
    why_not: str = ""
    """Why the store could not be looked at."""


class StoreDriver(Protocol):
    """Opens the shared stores of one kind, by address; made without arguments.

    Errors of a server that is away may be `StoreDownError` or `StoreUnreachableError`; all others are UserErrors.
    """

    form: str
    """How an address is written, for error screens."""
    default: str
    """The address where `store.uri` is null."""

    def open(self, address: Address, opener: StoreOptions) -> SharedStore:
        """Return the open store, made if there is none."""
        ...

    def check(self, address: Address, *, made: Path | None = None) -> None:
        """Raise what `open` would, making and changing nothing. `made`: a folder that a start makes."""
        ...

    def read(self, address: Address) -> StoreReader:
        """Return a reader that changes nothing."""
        ...

    def survey(self, address: Address) -> list[Finding]:
        """Return what `ajet doctor --store` prints; a server that does not answer is a finding."""
        ...

    def find_leftovers(self, address: Address, *, remove: bool = False) -> StoreLeftovers:
        """Return what killed processes left in the store; `remove`: remove it, too."""
        ...


def find_driver(address: Address) -> StoreDriver:
    """Return the driver of the store at an address. Raises ConfigError if no plug-in has its scheme."""
    part = find_shared_store(address.scheme)
    if part is None:
        raise ConfigError(f"No store is known at {address.scheme}: addresses.", expected=list_forms())
    driver: StoreDriver = load_code(part.code)()
    return driver


def list_forms(separator: str = ", or ") -> str:
    """Return how the addresses of stores are written, for an error screen."""
    return separator.join(load_code(part.code).form for part in find_parts("store").values() if part.schemes)


def missing_store_error(where: str) -> UserError:
    """The error for an address at which there is no store."""
    return UserError(
        "There is no store of ajet's.",
        where=where,
        expected=f"{list_forms(' or ')}, as store.uri or --from-store of its run has it",
    )


def write_store_address(folder: Path, address: str) -> None:
    """The run that is recorded in `folder` has its ledger there, from now on."""
    (folder / ADDRESS_FILE).write_text(address + "\n")


def recorded_settings(folder: Path) -> str:
    """The settings of the run recorded in `folder`, as its store is to keep them; "" where they are not there."""
    path = folder / SETTINGS
    return path.read_text() if path.exists() else ""


def database_name(run: str) -> str:
    """The name of a run's database: MongoDB allows no blanks, dots and slashes in one, and 63 bytes."""
    return re.sub(r"[^\w-]+", "_", run, flags=re.ASCII)[:60]


def credentials(environment: Mapping[str, str] | None = None) -> tuple[str, str] | None:
    """User and password of the server; None: it asks for none. Raises ConfigError where only one of them is set."""
    found = os.environ if environment is None else environment
    user, password = found.get(USER, ""), found.get(PASSWORD, "")
    if bool(user) != bool(password):
        raise ConfigError(
            f"{PASSWORD if user else USER} is not set, and {USER if user else PASSWORD} is.",
            where="the environment",
            expected="both, or neither",
        )
    return (user, password) if user else None


def open_shared(
    address: Address | str,
    *,
    lease_seconds: float = LEASE_SECONDS,
    max_attempts: int = MAX_ATTEMPTS,
    unreachable_timeout: float = UNREACHABLE_TIMEOUT,
    at: Mapping[str, Any] | None = None,
    rolls: bool = False,
    run: str = "",
    settings: str = "",
    redact: Redactor | None = None,
    usable: Usable | None = None,
) -> SharedStore:
    """The store at an address; `rolls`, `at`, `run`, `settings` and `usable` are the trainer's, as `StoreOptions` says.
    Raises UserError, also for a server that is not there: what nothing was begun with is the person's to mend, and no
    run that failed."""
    found = Address.of(address) if isinstance(address, str) else address
    opener = StoreOptions(lease_seconds, max_attempts, rolls, at, run, settings, redact, unreachable_timeout, usable)
    try:
        return find_driver(found).open(found, opener)
    except (StoreDownError, StoreUnreachableError) as down:
        raise UserError(down.what, where=down.where, expected=down.expected, do=down.do) from down


def require_store(address: Address) -> None:
    """Raises UserError where it cannot be opened: before what is costly, where it is opened later."""
    open_shared(address).disconnect()


def check_store(address: Address, *, made: Path | None = None) -> None:
    """Raise as `require_store` does, making and changing nothing. `made`: a folder that a start makes."""
    try:
        find_driver(address).check(address, made=made)
    except (StoreDownError, StoreUnreachableError) as down:
        raise UserError(down.what, where=down.where, expected=down.expected, do=down.do) from down


def survey(text: str, *, base: Path | None = None) -> list[Finding]:
    """Return the findings about the store at an address. Raises UserError for what is no address."""
    address = Address.of(text, base=base)
    return find_driver(address).survey(address)


def find_store_leftovers(folder: Path, *, remove: bool = False) -> StoreLeftovers:
    """Find the leftovers in the store of the run that is recorded in `folder`; `remove`: remove them, too."""
    named = folder / ADDRESS_FILE
    address = named.read_text().strip() if named.exists() else ""
    if find_shared_store(address.partition(":")[0]) is None:  # the user's own store, or none
        return StoreLeftovers()
    try:
        found = Address.of(address)
        return find_driver(found).find_leftovers(found, remove=remove)
    except UserError as error:
        return StoreLeftovers(why_not=error.what)
