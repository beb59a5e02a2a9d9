"""Digests of stored episodes, and errors for changed episodes.

Invariant: the process that puts an episode writes the digest, and every process that reads the episode compares the
digest. Covered are the position, the end of the episode, line and arrays. A digest detects accidents; a process with
write access to the database can write a matching digest.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from ajet.schema.errors import AjetError, UserError

ALTERED = "changed in the store"
"""First words of the reason of a dead position with a changed episode."""
_UNREADABLE = (
    *(KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError),
    *(AssertionError, UserError, zlib.error),
)


class AlteredEpisodeError(AjetError):
    """A stored episode differs from the put episode."""

    def __init__(self, what: str = "it is not what was put: its digest does not match") -> None:
        super().__init__(what)


def digest_episode(order: int, uuid: str, alone: bool, ended_by: str, line: bytes, arrays: bytes) -> str:
    """Return the digest of an episode at the position `order`. `line` is the episode without its arrays, as stored."""
    head = json.dumps([order, uuid, alone, ended_by, len(line)]).encode()  # the length separates line and arrays
    digest = hashlib.sha256(b"\n".join((head, line, arrays))).hexdigest()
    return f":{digest}"  # the colon matches the stores of earlier commits, which scripts/same_as compares with


@contextmanager
def explain_alteration(order: int | None, uuid: str, store: str, sampler: object = "") -> Iterator[None]:
    """Add episode, position, sampler and store to the error of an altered or unreadable episode.

    Raises:
        AlteredEpisodeError: the episode was altered or cannot be read.
    """
    store = f"put by {sampler}, {store}" if sampler else store
    try:
        yield
    except AlteredEpisodeError as error:
        raise AlteredEpisodeError(f"{ALTERED}: episode {uuid} of position {order}: {error} ({store})") from error
    except _UNREADABLE as error:
        why = f"it cannot be read: {type(error).__name__}: {str(error)[:100]}"
        raise AlteredEpisodeError(f"{ALTERED}: episode {uuid} of position {order}: {why} ({store})") from error
