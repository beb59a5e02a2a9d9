"""Eighty mistakes of a first day, each answered with what is wrong, where, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mistakes import agents, data, rewards, runs, settings
from tests.mistakes.conftest import PROPERTY
from tests.mistakes.mistake import Mistake, make_mistake

MISTAKES = (*data.MISTAKES, *agents.MISTAKES, *rewards.MISTAKES, *settings.MISTAKES, *runs.MISTAKES)
SEEN: Counter[int] = Counter()


def name_case(mistake: Mistake) -> str:
    """Return the case's number with a letter, unique in the list."""
    SEEN[mistake.number] += 1
    return f"{mistake.number}{chr(96 + SEEN[mistake.number])}"


@pytest.mark.extra_slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=name_case)
def test_mistake_is_answered(mistake: Mistake, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    asked = {"number": mistake.number, "mistake": mistake.mistake, "wanted": mistake.wanted}
    answer = make_mistake(mistake, folder)
    record_property(PROPERTY, asked | {"screen": answer.screen, "code": answer.code})
    assert not answer.missing(mistake), f"wanted: {mistake.wanted}\n{answer.screen[-4000:]}"
