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


def pack_episode(episode: Episode) -> bytes:
    """The line, compressed with the arrays."""
    row, arrays = encode(episode)
    line = dumps(row).encode()
    return zlib.compress(len(line).to_bytes(_HEAD, "little") + line + arrays, 1)


def unpack_episode(data: bytes) -> Episode:
    """The episode again; of our own processes' only: nothing bounds what it takes."""
    raw = zlib.decompress(data)
    end = _HEAD + int.from_bytes(raw[:_HEAD], "little")
    return decode(json.loads(raw[_HEAD:end]), raw[end:])
