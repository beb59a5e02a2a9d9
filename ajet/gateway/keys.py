"""Keys: 128 random bits for each (episode, agent, target), looked up on the server side, and what each stands for.

Invariant: a key encodes nothing, is never logged, and dies with its episode; dead ones are remembered for a while (as
digests) so that a late client learns that its episode has ended rather than that its key was wrong. Thread-safe.
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

from ajet.gateway.turn import Refused
from ajet.schema.endpoint import ANOTHERS

S = TypeVar("S")
_REMEMBERED = 4096
UNTIED = (
    "nothing says whose episode it is. Its client took its address from the environment and calls outside the tasks "
    "and `asyncio.to_thread` of an episode, or without httpx: give it the address and key of "
    "`tuner.as_oai_baseurl_apikey()`, or set rollout.isolation: process"
)

KEPT = (
    "it bears the key of another attempt. A client that is kept (in a module, in a class, in a cache) has the key of "
    "the attempt that it was made in: make it in each attempt, of that attempt's tuner"
)


@dataclass(frozen=True, slots=True)
class Grant(Generic[S]):
    """The agent and the session that a key stands for."""

    session: S
    agent: str
    target: str
    debug_model: str | None


class Keys(Generic[S]):
    """The living keys of one gateway, whose sessions are `S`."""

    def __init__(self) -> None:
        self._grants: dict[str, Grant[S]] = {}
        self._dead: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()
        self.untied = secrets.token_hex(16)
        """The run's own key, of clients that were given none: it opens nothing. See `ajet.workflow.ambient`."""
        self._named: set[str] = set()

    def grant(self, grant: Grant[S]) -> str:
        """A new key for it."""
        secret = secrets.token_hex(16)
        with self._lock:
            self._grants[secret] = grant
        return secret

    def admit(self, secret: str, grant: Grant[S]) -> None:
        """Have a key that somebody chose stand for it, and for nothing else from now on."""
        with self._lock:
            self._grants[secret] = grant

    def find(self, secret: str) -> Grant[S] | None:
        """The grant of a key; None for an unknown or dead one."""
        return self._grants.get(secret)

    def look_up(self, secret: str | None, *, client: str = "") -> Grant[S]:
        """What a key stands for. Raises Refused: 401 for an unknown key, 403 for the run's own, which is that of no
        episode, and for another attempt's, 410 for that of an episode that has ended. `client`: what it calls
        itself."""
        grant = self._grants.get(secret or "")
        if grant is not None:
            return grant
        if secret == self.untied:
            if client not in self._named:
                self._named.add(client)
                logger.warning("a model call of {} is refused: {}", client or "a client", UNTIED)
            raise Refused(f"This call is refused: {UNTIED}", status=403, code="no_episode")
        if secret == ANOTHERS:
            raise Refused(f"This call is refused: {KEPT}", status=403, code="another_episode")
        if secret and _digest(secret) in self._dead:
            raise Refused("this episode has ended", status=410, code="episode_finished")
        raise Refused("Incorrect API key provided.", status=401, code="invalid_api_key")

    def revoke(self, dead: Iterable[str]) -> None:
        """End these keys; unknown ones are let be."""
        with self._lock:
            for secret in dead:
                if self._grants.pop(secret, None) is not None:
                    self._dead[_digest(secret)] = None
            while len(self._dead) > _REMEMBERED:
                self._dead.popitem(last=False)


def _digest(secret: str) -> bytes:
    return hashlib.blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=12).digest()
