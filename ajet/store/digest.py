"""Digests of stored episodes, and errors for changed episodes.

A position is a task's place in the training order. Invariant: the process that puts an episode writes the digest, and
every process that reads the episode compares the digest. The digest covers the position, the facts in `Kept`, and the
episode as stored: a line of JSON and its arrays. A digest detects accidents; a process with write access to the
database can write a matching digest.
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
# Errors of decoding an episode that another program changed.
_UNREADABLE = (
    *(KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError),
    *(AssertionError, UserError, zlib.error),
)


class AlteredEpisodeError(AjetError):
    """A stored episode differs from the episode that was put."""

    def __init__(self, what: str = "its digest does not match the one recorded when it was stored") -> None:
        super().__init__(what)


def digest_episode(order: int, uuid: str, alone: bool, ended_by: str, line: bytes, arrays: bytes) -> str:
    """Return the digest of a stored episode.

    Args:
        order: Position of the episode.
        uuid: The episode's uuid.
        alone: True if the episode belongs to no group.
        ended_by: Name of the sampler that played the episode.
        line: The episode without its arrays, as stored JSON.
        arrays: The episode's arrays, as stored.
    """
    head = json.dumps([order, uuid, alone, ended_by, len(line)]).encode()  # the length separates line and arrays
    digest = hashlib.sha256(b"\n".join((head, line, arrays))).hexdigest()
    return f":{digest}"  # the colon matches the stores of earlier commits, which scripts/same_as compares with


@contextmanager
def explain_alteration(order: int | None, uuid: str, store: str, sampler: object = "") -> Iterator[None]:
    """Within the block, name episode, position, sampler and store in the error of an altered or unreadable episode.

    Args:
        order: Position of the episode. None: unknown.
        store: Name of the store for the error.
        sampler: Name of the sampler that played the episode. "": unknown.

    Raises:
        AlteredEpisodeError: the episode was altered or cannot be read.
    """
    store = f"stored by {sampler}, {store}" if sampler else store
    try:
        yield
    except AlteredEpisodeError as error:
        raise AlteredEpisodeError(f"{ALTERED}: episode {uuid} of position {order}: {error} ({store})") from error
    except _UNREADABLE as error:
        cause = f"it cannot be read: {type(error).__name__}: {str(error)[:100]}"
        raise AlteredEpisodeError(f"{ALTERED}: episode {uuid} of position {order}: {cause} ({store})") from error
