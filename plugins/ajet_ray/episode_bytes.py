"""An episode as a single bytes value, for other processes: the codec's line and its arrays.

Invariant: `unpack_episode(pack_episode(episode))` equals the episode as read by the record.
"""

from __future__ import annotations

import json
import zlib

from ajet.record.episode_codec import decode, encode
from ajet.record.plain_json import dumps
from ajet.schema.episode import Episode

_HEAD = 8
"""Bytes of the line's length."""


def pack_episode(episode: Episode) -> bytes:
    """Return the line and the arrays, compressed."""
    row, arrays = encode(episode)
    line = dumps(row).encode()
    return zlib.compress(len(line).to_bytes(_HEAD, "little") + line + arrays, 1)


def unpack_episode(data: bytes) -> Episode:
    """Return the episode. Only for bytes of ajet's own processes: the size is not bounded."""
    raw = zlib.decompress(data)
    end = _HEAD + int.from_bytes(raw[:_HEAD], "little")
    return decode(json.loads(raw[_HEAD:end]), raw[end:])
