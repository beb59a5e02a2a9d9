"""No collections of reference cycles while a run opens its parts.

Python looks through all objects whenever their number has grown by a quarter, and importing torch, transformers and a
model makes half a million of them that stay: a sixth of the processor time of a start. Invariant: outside the block
collections are as they were before; what became garbage within it is found by the first one after it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Within the block nothing is collected but by those who ask for it. May be nested."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
