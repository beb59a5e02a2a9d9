"""An episode as one value of bytes, for who hands it to another process: the codec's line and its arrays.

Invariant: `unpacked(packed(episode))` is the episode, as the record would read it.
"""

from __future__ import annotations

import json
import zlib

from ajet.record.episode_codec import decode, encode
from ajet.record.plain_json import dumps
from ajet.schema.episode import Episode

_HEAD = 8
"""Bytes that say how long the line is."""


def packed(episode: Episode) -> bytes:
    """The line, compressed with the arrays."""
    row, arrays = encode(episode)
    line = dumps(row).encode()
    return zlib.compress(len(line).to_bytes(_HEAD, "little") + line + arrays, 1)


def unpacked(data: bytes) -> Episode:
    """The episode again; of our own processes' only: nothing bounds what it takes."""
    whole = zlib.decompress(data)
    end = _HEAD + int.from_bytes(whole[:_HEAD], "little")
    return decode(json.loads(whole[_HEAD:end]), whole[end:])
