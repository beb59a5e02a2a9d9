"""The environments of the tests: names are unique, and all together fit on the disk."""

from __future__ import annotations

from scripts.environments import ENVIRONMENTS, MOST_MEGABYTES


def test_all_environments_fit_on_the_disk():
    assert len({each.name for each in ENVIRONMENTS}) == len(ENVIRONMENTS)
    assert sum(each.megabytes for each in ENVIRONMENTS) <= MOST_MEGABYTES
    assert {each.name for each in ENVIRONMENTS if not each.megabytes} == {"trinity-gpu"}, "each has its size"
