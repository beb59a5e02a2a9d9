"""No collections of reference cycles while a run opens its parts.

Python looks through all objects whenever their number has grown by a quarter, and importing torch, transformers and a
model makes half a million of them that stay: a sixth of the processor time of a start. Invariant: outside the block
collections are as they were before; what became garbage within it is found by the first one after it. A process that is
forked within it (vLLM's core, on a CPU) never comes to its end, and collects from its beginning on.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_off = False
"""Whether a block has turned collections off."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Within the block nothing is collected but by those who ask for it. May be nested."""
    global _off
    before = gc.isenabled()
    gc.disable()
    _off = _off or before
    try:
        yield
    finally:
        if before:
            _off = False
            gc.enable()


def _forked() -> None:
    global _off
    if _off:
        _off = False
        gc.enable()


os.register_at_fork(after_in_child=_forked)
