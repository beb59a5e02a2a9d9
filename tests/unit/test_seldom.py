"""What would be said again and again is said once in a while, each by its name."""

from __future__ import annotations

import pytest

from ajet.record import seldom
from ajet.record.seldom import Seldom


def test_the_first_of_a_while_is_due_for_each_name(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(seldom.time, "monotonic", lambda: now[0])
    said = Seldom(60.0)
    assert [said.due(), said.due(), said.due("other")] == [True, False, True]
    now[0] = 59.9
    assert not said.due()
    now[0] = 60.0
    assert said.due() and not said.due()
