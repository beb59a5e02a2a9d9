"""Opens stores by address: `sqlite:PATH`, a path, or a URL such as `mongodb://…`.

The scheme of an address selects the driver registered by a plug-in. Invariant: an address never contains credentials;
they come from the environment (`AJET_STORE_USER`, `AJET_STORE_PASSWORD`). An address may therefore appear in a YAML, a
log, a process list and an error.
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
from ajet.store.reader import StoreReader
from ajet.store.shared import LEASE_SECONDS, MAX_ATTEMPTS, SharedStore, StoreOptions, Usable

ADDRESS_FILE = "store.address"
"""File in a run's folder with the store's address. The store may have episodes that are missing in the folder."""
SETTINGS = "resolved.yaml"
"""File in a run's folder with the settings, without secrets."""
USER, PASSWORD = "AJET_STORE_USER", "AJET_STORE_PASSWORD"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a store: a SQLite file, or a database of a server such as MongoDB."""

    path: Path | None = None
    """Path of a SQLite file; `None` for a server."""
    uri: str = ""
    """Address of a server; "" for a SQLite file."""
    database: str = ""  # database on the server

    @classmethod
    def of(cls, text: str, *, base: Path | None = None, run: str = "") -> Address:
        """Parse an address. Raises ConfigError.

        Args:
            text: The address, such as `sqlite:PATH`, a path, or a URL.
            base: folder of relative paths. None: the working directory.
            run: Name of the run, the default name of a server's database.
        """
        kind, colon, location = text.partition(":")
        # A text without a scheme is a path, and so is the name of an existing file that contains a colon.
        if not colon or kind == "sqlite" or (base or Path()).joinpath(text).exists():
            path = Path(location.removeprefix("//") if colon and kind == "sqlite" else text).expanduser()
            if not path.name:
                raise ConfigError(
                    "The store's address contains no file name.", where="store.uri", expected=list_forms()
                )
            return cls(path=(base or Path()) / path)
        if find_shared_store(kind) is None:
            raise ConfigError(
                f"No kind of store has addresses that begin with {kind}:.", where="store.uri", expected=list_forms()
            )
        url = urlsplit(text)
        if "@" in url.netloc:
            raise ConfigError(
                "The store's address contains a user or a password.",
                where="store.uri",
                expected=f"an address without user and password; set {USER} and {PASSWORD} in the environment instead",
                do=f"Write {kind}://HOST:PORT/DATABASE and set {PASSWORD} in the environment or .env.",
            )
        if not url.netloc:
            raise ConfigError("The store's address contains no host.", where="store.uri", expected=list_forms())
        database = url.path.strip("/") or database_name(run)
        if not database:
            raise ConfigError(
                "The store's address contains no database name.", where="store.uri", expected=list_forms()
            )
        return cls(uri=url._replace(path="/").geturl(), database=database)

    @property
    def scheme(self) -> str:
        """Scheme of the address, or `sqlite` for a path."""
        return "sqlite" if self.path is not None else urlsplit(self.uri).scheme

    @property
    def shown(self) -> str:
        """The address as text without credentials, for messages and for `store.address`."""
        if self.path is not None:
            return f"sqlite:{self.path}"
        url = urlsplit(self.uri)
        return f"{url.scheme}://{url.netloc}/{self.database}"


@dataclass(frozen=True, slots=True)
class StoreLeftovers:
    """Parts of episodes in a store, written by processes that were killed before the episode was complete."""

    count: int = 0
    """Number of episodes or parts of episodes."""
    size: int = 0  # bytes
    why_not: str = ""
    """Why the store could not be examined; "" if it was."""


class StoreDriver(Protocol):
    """Opens the shared stores of one scheme. It is constructed without arguments.

    An unreachable server may raise `StoreDownError` or `StoreUnreachableError`. Other errors are UserErrors.
    """

    form: str
    """The form of an address, for error screens."""
    default: str
    """The address used if `store.uri` is null."""

    def open(self, address: Address, opener: StoreOptions) -> SharedStore:
        """Open the store at the address. A missing store is created."""
        ...

    def check(self, address: Address, *, made: Path | None = None) -> None:
        """Raise the errors of `open` without creating or changing anything.

        Args:
            made: A folder that does not count as missing, because the start of the run will create it.
        """
        ...

    def read(self, address: Address) -> StoreReader:
        """Open the store read-only. Raises UserError for a missing store."""
        ...

    def survey(self, address: Address) -> list[Finding]:
        """Return the results of checking the store, for `ajet doctor --store`.

        An unreachable server is one of the results, not an error.
        """
        ...

    def find_leftovers(self, address: Address, *, remove: bool = False) -> StoreLeftovers:
        """Return the incomplete parts of episodes that killed processes left in the store.

        Args:
            remove: True to delete them.
        """
        ...


def find_driver(address: Address) -> StoreDriver:
    """Return the driver for an address. Raises ConfigError if no plug-in has a driver for the address's scheme."""
    plugin_part = find_shared_store(address.scheme)
    if plugin_part is None:
        raise ConfigError(f"No kind of store has addresses that begin with {address.scheme}:.", expected=list_forms())
    driver: StoreDriver = load_code(plugin_part.code)()
    return driver


def list_forms(separator: str = ", or ") -> str:
    """Return the forms that a store's address may have, as text for an error."""
    return separator.join(
        load_code(plugin_part.code).form for plugin_part in find_parts("store").values() if plugin_part.schemes
    )


def missing_store_error(where: str) -> UserError:
    """Return the error for an address without a store."""
    return UserError(
        "There is no ajet store at this address.",
        where=where,
        expected=f"{list_forms(' or ')}: the address that the run has in store.uri or --from-store",
    )


def write_store_address(folder: Path, address: str) -> None:
    """Write the store's address to the run's folder."""
    (folder / ADDRESS_FILE).write_text(address + "\n")


def recorded_settings(folder: Path) -> str:
    """Return the YAML of the run in `folder`, which the store saves for readers, or "" without a file."""
    path = folder / SETTINGS
    return path.read_text() if path.exists() else ""


def database_name(run: str) -> str:
    """Return the run's name as the name of a database: ASCII letters, digits, `_` and `-`, at most 60.

    MongoDB admits 63 bytes without blanks, dots and slashes.
    """
    return re.sub(r"[^\w-]+", "_", run, flags=re.ASCII)[:60]


def credentials(environment: Mapping[str, str] | None = None) -> tuple[str, str] | None:
    """Return user and password of the store's server from the environment, or None if neither is set.

    Raises ConfigError if only one is set.
    """
    variables = os.environ if environment is None else environment
    user, password = variables.get(USER, ""), variables.get(PASSWORD, "")
    if bool(user) != bool(password):
        raise ConfigError(
            f"The variable {PASSWORD if user else USER} is not set, but {USER if user else PASSWORD} is.",
            where="the environment",
            expected="both variables, or neither",
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
    """Open the store at an address. A missing store is created.

    Args:
        lease_seconds: Time after which a lease ends without renewal.
        max_attempts: Number of failed attempts after which a position is leased no more.
        unreachable_timeout: Seconds an operation waits for an unreachable store, after the store was opened.
        at: The store's state in the checkpoint. None: no checkpoint.
        rolls: True for the training process: the store is reset to `at`, and an earlier trainer is refused.
        run: Identity of the run, stored by its first trainer.
        settings: Resolved YAML of the run, stored for readers. "" keeps the stored one.
        redact: Removes secrets from stored text.
        usable: Returns True if stored episodes may be used at the checkpoint. None: all may.

    Raises:
        UserError: the store cannot be opened. An unreachable server at the start is a user error, not a failed run.
    """
    parsed = Address.of(address) if isinstance(address, str) else address
    opener = StoreOptions(lease_seconds, max_attempts, rolls, at, run, settings, redact, unreachable_timeout, usable)
    try:
        return find_driver(parsed).open(parsed, opener)
    except (StoreDownError, StoreUnreachableError) as down:
        raise UserError(down.what, where=down.where, expected=down.expected, do=down.do) from down


def require_store(address: Address) -> None:
    """Open and close the store, so that an unusable one is reported before expensive work. Raises UserError."""
    open_shared(address).disconnect()


def check_store(address: Address, *, made: Path | None = None) -> None:
    """Raise the errors of `require_store` without creating or changing anything.

    Args:
        made: A folder that does not count as missing, because the start of the run will create it.
    """
    try:
        find_driver(address).check(address, made=made)
    except (StoreDownError, StoreUnreachableError) as down:
        raise UserError(down.what, where=down.where, expected=down.expected, do=down.do) from down


def survey(text: str, *, base: Path | None = None) -> list[Finding]:
    """Return the results of checking the store at an address. Raises UserError for an invalid address."""
    address = Address.of(text, base=base)
    return find_driver(address).survey(address)


def find_store_leftovers(folder: Path, *, remove: bool = False) -> StoreLeftovers:
    """Find the incomplete parts of episodes that killed processes left in the store of the run in `folder`.

    A store that cannot be examined is reported in `why_not` of the result.

    Args:
        remove: True to delete them.
    """
    address_file = folder / ADDRESS_FILE
    address = address_file.read_text().strip() if address_file.exists() else ""
    if find_shared_store(address.partition(":")[0]) is None:  # a store class of the user, or no store
        return StoreLeftovers()
    try:
        parsed = Address.of(address)
        return find_driver(parsed).find_leftovers(parsed, remove=remove)
    except UserError as error:
        return StoreLeftovers(why_not=error.what)
