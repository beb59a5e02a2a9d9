"""Counter-based random numbers: a token's number depends only on its key, never on earlier calls.

SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) used as a hash: its
output function over a Weyl sequence that starts at the hash of (seed, task, repeat, call).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ajet.engine.contract import DrawKey

_WEYL = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def hash_draw_key(key: DrawKey) -> int:
    """Hash the key of a call to the 64-bit start of its random sequence. Equal keys give equal sequences."""
    state = 0
    for part in key:
        state = _mix_bits((state ^ (part & _MASK)) + _WEYL & _MASK)
    return state


def draw_uniforms(streams_B: npt.NDArray[np.uint64], positions_B: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return [B] uniform numbers in [0, 1) with 53 bits each.

    Args:
        streams_B: start of each row's sequence (`hash_draw_key`).
        positions_B: position of the token in each row's reply.
    """
    z = streams_B + (positions_B + np.uint64(1)) * np.uint64(_WEYL)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix_bits(z: int) -> int:
    """Return SplitMix64's output function of a 64-bit integer."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)
