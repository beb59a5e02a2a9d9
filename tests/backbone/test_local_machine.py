"""What a start has made is left out of collections, and nothing that came later is."""

from __future__ import annotations

import gc
import weakref

import pytest

from ajet.backbone.local.machine import freeze_startup_objects, release_memory

pytestmark = pytest.mark.slow


class Ring:
    """In a reference cycle, as the keys and values of a row that ended are."""

    def __init__(self) -> None:
        self.itself = self


def test_what_comes_after_a_start_is_collected_and_what_was_there_is_left_alone(none_frozen):
    old = Ring()
    assert freeze_startup_objects() and gc.get_freeze_count()
    assert not freeze_startup_objects(), "who did it first has it to undo"
    rings = weakref.ref(old), weakref.ref(new := Ring())
    del old, new
    release_memory()
    assert rings[0]() is not None and rings[1]() is None
    gc.unfreeze()
    release_memory()
    assert rings[0]() is None
