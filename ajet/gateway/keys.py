"""Keys: 128 random bits for each (episode, agent, target), and the grant of each key.

Invariant: a key encodes no data, is never logged, and dies with its episode. Digests of dead keys are stored for a
while: a late client learns that its episode has ended rather than that its key was wrong.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from loguru import logger

from ajet.gateway.request import Refused, build_ended_error
from ajet.schema.endpoint import FOREIGN_KEY

S = TypeVar("S")
_REMEMBERED = 4096
MAX_NAME = 128
UNTIED = (
    "ajet cannot tell which episode it belongs to. The client took base URL and key from the environment "
    "variables, and then called outside of the asyncio tasks and `asyncio.to_thread` calls of an episode, or "
    "without httpx. Pass the base URL and key of `tuner.as_oai_baseurl_apikey()` to the client, or set "
    "rollout.isolation: process"
)
KEPT = (
    "its key belongs to another attempt. A client that is stored in a module, a class or a cache keeps the key "
    "of the attempt that created it. Create the client inside each attempt, from the attempt's tuner"
)


@dataclass(frozen=True, slots=True)
class Grant(Generic[S]):
    """The session, agent and target granted by a key."""

    session: S
    agent: str
    target: str
    debug_model: str | None


class Keys(Generic[S]):
    """The valid keys of one gateway with their grants. Thread-safe.

    `S` is the type of a session.
    """

    def __init__(self) -> None:
        self.grants: dict[str, Grant[S]] = {}
        """Key -> the grant of its session, agent and target."""
        self._revoked_digests: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()
        self.fallback_key = secrets.token_hex(16)
        """Key in the run's environment variables, for clients without an episode's key. It is refused; see
        `ajet.workflow.ambient`."""
        self._logged_clients: set[str] = set()

    def grant(self, grant: Grant[S]) -> str:
        """Create a random key for a session, agent and target, and return the key."""
        secret = secrets.token_hex(16)
        self.admit(secret, grant)
        return secret

    def admit(self, secret: str, grant: Grant[S]) -> None:
        """Register a key chosen by the caller. An earlier grant of the same key is replaced."""
        with self._lock:
            self.grants[secret] = grant

    def refuse_unknown(self, secret: str | None, *, client: str = "") -> Refused:
        """Return the refusal for an invalid key.

        The status is 401 for an unknown key, 403 for the run's own key and for another attempt's, 410 for the key of an
        ended episode.

        Args:
            client: The client's `user-agent`.
        """
        if secret == self.fallback_key:
            if client not in self._logged_clients:
                self._logged_clients.add(client)
                logger.warning("the gateway refused a model call of {}: {}", client or "a client", UNTIED)
            return Refused(f"The gateway refused this model call: {UNTIED}", status=403, code="no_episode")
        if secret == FOREIGN_KEY:
            return Refused(f"The gateway refused this model call: {KEPT}", status=403, code="another_episode")
        if secret and _digest_key(secret) in self._revoked_digests:
            return build_ended_error()
        return Refused("Incorrect API key provided.", status=401, code="invalid_api_key")

    def revoke(self, dead: Iterable[str]) -> None:
        """Revoke keys. Unknown keys are ignored."""
        with self._lock:
            for secret in dead:
                if self.grants.pop(secret, None) is not None:
                    self._revoked_digests[_digest_key(secret)] = None
            while len(self._revoked_digests) > _REMEMBERED:
                self._revoked_digests.popitem(last=False)


def _digest_key(secret: str) -> bytes:
    """Return a digest of a key. Keys of clients may contain lone surrogates, so these are encoded, too."""
    return hashlib.blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=12).digest()


def check_name(name: str, param: str) -> str:
    """Return a valid name of an agent or target. Raises Refused for an invalid name."""
    if not name or len(name) > MAX_NAME or not name.isprintable() or ":" in name:
        raise Refused(
            f"Invalid value for '{param}': expected names of 1 to {MAX_NAME} printable characters without a colon.",
            param=param,
            code="invalid_value",
        )
    return name
