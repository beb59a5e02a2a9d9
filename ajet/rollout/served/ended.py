"""Ended: what clients may still ask of episodes that have ended.

Invariant: a repeated request gets the answer that the first one got, for as long as the newest `REMEMBERED` go back;
what was ranked meanwhile has its reward in it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

REMEMBERED = 10_000
"""Ended episodes that can still be asked for."""


class Ended:
    """The ended episodes, by their names. On the desk's loop."""

    def __init__(self) -> None:
        self._told: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.counts = Counter(completed=0, failed=0, aborted=0)
        """By status, those that are no longer remembered too."""

    def __contains__(self, name: str) -> bool:
        return name in self._told

    def __getitem__(self, name: str) -> dict[str, Any]:
        return self._told[name]

    def remember(self, told: dict[str, Any], by: str) -> None:
        """`told`: what its client sees of its end; `by`: who ended it."""
        self._told[told["episode"]] = {**told, "ended_by": by}
        while len(self._told) > REMEMBERED:
            self._told.popitem(last=False)

    def changed(self, told: dict[str, Any]) -> None:
        """Note the reward of an episode that has it only now."""
        self.counts["completed"] -= 1
        self.counts[told["status"]] += 1
        if told["episode"] in self._told:
            self._told[told["episode"]] = {**told, "ended_by": self._told[told["episode"]]["ended_by"]}
