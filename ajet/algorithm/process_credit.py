"""Credit of parts: what a reward of a step, an agent, a use of a tool or a text adds to the advantages of its tokens.

A part is compared with the parts of its group that have the same name, by the algorithm itself, as attempts are
compared with each other; its advantage, times `process_weight`, is added to each of its tokens, on top of what the
attempt gives them. So the sum of what is added over an attempt's tokens is, over its parts, advantage times tokens, and
no other token is touched
(tests/unit/test_process_credit.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ajet.schema.episode import Episode

if TYPE_CHECKING:
    from ajet.algorithm.contract import Algorithm
    from ajet.algorithm.row import Row

Places = Mapping[int, tuple[int, int]]
"""Where each call's reply lies, [start, stop) of an episode's row of trained tokens, by the call's number."""


def add_process_credit(
    rows: Sequence[Row],
    episodes: Sequence[Episode],
    groups_E: Sequence[int],
    places_E: Sequence[Places],
    by: Algorithm,
) -> int:
    """Adds to `rows` ([T] per episode, in the order of its trained tokens) and returns how many parts there were. Equal
    numbers in `groups_E` mark one group."""
    weight = by.settings.process_weight
    if not weight:
        return 0
    found = [(index, part) for index, episode in enumerate(episodes) for part in by.parts(episode)]
    classes: dict[tuple[int, tuple[str, str]], int] = {}
    marks = [classes.setdefault((groups_E[index], part.compared), len(classes)) for index, part in found]
    values = by.of_parts(np.array([part.reward for _, part in found], np.float64), marks) if found else ()
    for (index, part), value in zip(found, values, strict=True):
        for span in part.tokens:
            if span.call in places_E[index]:  # else none of the call's tokens is trained
                start, stop = places_E[index][span.call]
                rows[index][start + span.start : min(start + span.stop, stop)] += weight * value
    return len(found)
