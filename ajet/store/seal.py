"""Seal: the digest of an episode as it was put, to which it is held by whoever takes it.

Invariant: it is over the position, what the end was about, the line and the arrays, and is made by whoever puts them.
With `AJET_AUDIT_KEY` it is an HMAC, and nobody without the key can make one that fits. Without, it finds accidents:
who can write the database can write a digest, too. What an earlier version put has none and is held to nothing; what
cannot be held to its seal here is said once.
"""

from __future__ import annotations

import hmac
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from loguru import logger

from ajet.record.chain import KEY, chain_key, key_name, link_digest
from ajet.schema.errors import AjetError, UserError

ALTERED = "changed in the store"
"""Begins the reason why a position is given out no more of which that is so."""
_UNREADABLE = (
    *(KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError),
    *(AssertionError, UserError),
)


class Altered(AjetError):
    """A position's episodes are not what was put."""


class OtherKey(Altered):
    """A record cannot be checked: it is sealed with a key that is not the one here."""


def of_another_key(order: int, other: OtherKey) -> UserError:
    """The error for who revives a position with a wrong key, so that what was put is not removed for it."""
    return UserError(
        f"Position {order} stays with the dead letters: {other.args[0]}.",
        where=KEY,
        expected="the key that its episodes were put with",
        do=f"Set {KEY} to it and revive the position again.",
    )


@dataclass(frozen=True, slots=True)
class Sealed:
    """The values that a seal is over."""

    order: int | None
    uuid: str
    alone: bool
    ended_by: str
    line: bytes
    """The episode, without its arrays, as its store spells it."""
    arrays: bytes

    def body(self) -> bytes:
        """The bytes that a seal is over; no two values are spelled alike."""
        head = [self.order, self.uuid, self.alone, self.ended_by, len(self.line)]
        return b"\n".join((json.dumps(head).encode(), self.line, self.arrays))


class Seals:
    """Makes and checks the seals of one process."""

    def __init__(self, *, looks: bool = False) -> None:
        """Seals with the key that the environment holds. `looks`: of a process that takes nothing; a seal that was made
        with another key is none to be held to there."""
        self._key, self._looks = chain_key(), looks
        self._name = key_name(self._key) if self._key else ""
        self._told: set[str] = set()

    def of(self, sealed: Sealed) -> str:
        """The seal: the name of the key, or nothing, and the digest."""
        return f"{self._name}:{link_digest(sealed.body(), self._key)}"

    def require(self, seal: str, sealed: Sealed) -> None:
        """Raises Altered where it was made of something else."""
        if not seal:
            self.lacking()
            return
        name, _, digest = seal.partition(":")
        if name and name != self._name:
            if self._key and not self._looks:
                raise OtherKey(f"it is sealed with the key {name}, and {KEY} is {self._name} here")
            self._say_once(f"episodes in the store are sealed with the key {name}, which {KEY} does not hold here")
            return
        if self._key and not name:
            self._say_once(f"episodes in the store are sealed without {KEY}: an accident would be seen, a forger not")
        if not hmac.compare_digest(digest, link_digest(sealed.body(), self._key if name else None)):
            raise Altered("it is not what was put: its seal does not fit")

    def lacking(self) -> None:
        """Say, once, that an episode has no seal."""
        if self._key:
            self._say_once("episodes in the store have no seal: an earlier ajet put them, or somebody took it away")

    def _say_once(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            logger.warning("{}", what)


def spelled(row: Any) -> bytes:
    """An episode's row as a seal is over it, where a store keeps its keys in no order."""
    return json.dumps(row, sort_keys=True).encode()


@contextmanager
def held_whole(order: int | None, uuid: str, store: str, sampler: object = "") -> Iterator[None]:
    """What is read within the block and was changed, or can't be read at all, is said so, by episode, position,
    sampler and store. Raises Altered."""
    store = f"put by {sampler}, {store}" if sampler else store
    try:
        yield
    except Altered as error:
        raise type(error)(f"{ALTERED}: episode {uuid} of position {order}: {error} ({store})") from error
    except (*_UNREADABLE, zlib.error) as error:
        why = f"it cannot be read: {type(error).__name__}: {str(error)[:100]}"
        raise Altered(f"{ALTERED}: episode {uuid} of position {order}: {why} ({store})") from error
