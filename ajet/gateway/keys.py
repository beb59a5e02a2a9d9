"""Keys: 128 random bits for each (episode, agent, target), and the caller behind each request.

Invariants: a key encodes nothing, is never logged, and dies with its episode; dead keys are remembered for a while (as
digests), so that a late client learns that its episode has ended rather than that its key was wrong. Of the names of a
caller the most specific holds: a suffix of the model's name (`ajet@agent`, `ajet@agent:target`), then the headers
`x-ajet-agent` and `x-ajet-target`, then what the key was made for. An agent that is named without a target is its own
target.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from loguru import logger

from ajet.gateway.dialects.contract import Caller
from ajet.gateway.request import Refused
from ajet.schema.endpoint import ANOTHERS

S = TypeVar("S")
PATH_KEY = "ajet.key"
"""In a scope: the key that its URL path held (`/s/KEY/v1/…`)."""
_REMEMBERED = 4096
_MAX_NAME = 128
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
    """The session, agent and target that a key stands for."""

    session: S
    agent: str
    target: str
    debug_model: str | None


class Keys(Generic[S]):
    """The living keys of one gateway, whose sessions are `S`. Thread-safe."""

    def __init__(self) -> None:
        self.grants: dict[str, Grant[S]] = {}
        """Key -> what it stands for."""
        self._dead: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()
        self.untied = secrets.token_hex(16)
        """The run's own key, of clients that were given none; it opens nothing. See `ajet.workflow.ambient`."""
        self._logged_clients: set[str] = set()

    def grant(self, grant: Grant[S]) -> str:
        """Return a new key."""
        secret = secrets.token_hex(16)
        self.admit(secret, grant)
        return secret

    def admit(self, secret: str, grant: Grant[S]) -> None:
        """Make a key that the caller chose stand for `grant`, and for nothing else."""
        with self._lock:
            self.grants[secret] = grant

    def refuse_unknown(self, secret: str | None, *, client: str = "") -> Refused:
        """Return why a key opens nothing: 401 for an unknown key, 403 for the run's own and for another attempt's, 410
        for that of an episode that has ended.

        Args:
            client: The client's name for itself.
        """
        if secret == self.untied:
            if client not in self._logged_clients:
                self._logged_clients.add(client)
                logger.warning("a model call of {} is refused: {}", client or "a client", UNTIED)
            return Refused(f"This call is refused: {UNTIED}", status=403, code="no_episode")
        if secret == ANOTHERS:
            return Refused(f"This call is refused: {KEPT}", status=403, code="another_episode")
        if secret and _digest_key(secret) in self._dead:
            return Refused("this episode has ended", status=410, code="episode_finished")
        return Refused("Incorrect API key provided.", status=401, code="invalid_api_key")

    def revoke(self, dead: Iterable[str]) -> None:
        """End these keys; unknown ones are ignored."""
        with self._lock:
            for secret in dead:
                if self.grants.pop(secret, None) is not None:
                    self._dead[_digest_key(secret)] = None
            while len(self._dead) > _REMEMBERED:
                self._dead.popitem(last=False)


def _digest_key(secret: str) -> bytes:
    return hashlib.blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=12).digest()


def find_grant(keys: Keys[S], scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> tuple[str, Grant[S]]:
    """Return the key of a request and what it stands for: the first that is one, of the path, `Authorization: Bearer`,
    `x-api-key` and `api-key`. Raises Refused."""
    offered = [scope[PATH_KEY]] if PATH_KEY in scope else []
    kind, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if kind.lower() == "bearer":
        offered.append(secret.strip())
    offered += [headers[name].decode("latin-1") for name in (b"x-api-key", b"api-key") if name in headers]
    for key in offered:
        grant = keys.grants.get(key)
        if grant is not None:
            return key, grant
    client = headers.get(b"user-agent", b"").decode("latin-1")[:_MAX_NAME]
    raise keys.refuse_unknown(offered[0] if offered else None, client=client)


def read_caller(grant: Grant[Any], headers: Mapping[bytes, bytes], body: Mapping[str, Any]) -> Caller:
    """Return the caller of a request by the model's name, the headers or the key. Raises Refused."""
    agent: str | None = None
    target: str | None = None
    model = body.get("model")
    if isinstance(model, str) and "@" in model:
        name, _, suffix = model.rpartition("@")
        if name in (grant.session.model_name, "ajet"):
            agent_name, colon, target_name = suffix.partition(":")
            agent = _check_name(agent_name, "model")
            target = _check_name(target_name, "model") if colon else None
    if agent is None and b"x-ajet-agent" in headers:
        agent = _check_name(headers[b"x-ajet-agent"].decode("latin-1").strip(), "x-ajet-agent")
    if target is None and b"x-ajet-target" in headers:
        target = _check_name(headers[b"x-ajet-target"].decode("latin-1").strip(), "x-ajet-target")
    if target is None:
        target = grant.target if agent is None or agent == grant.agent else ""
    return Caller(grant.agent if agent is None else agent, target, grant.debug_model, grant.session.kept)


def _check_name(name: str, param: str) -> str:
    if not name or len(name) > _MAX_NAME or not name.isprintable() or ":" in name:
        raise Refused(
            f"Invalid value for '{param}': expected names of 1 to {_MAX_NAME} printable characters without a colon.",
            param=param,
            code="invalid_value",
        )
    return name
