"""Which attempts of a group are trained: about as many with reward 0 as with another.

AgentRL's `balance_sample` (AgentCPM-Explore, AgentRL/src/rollout, 2026): with n the smaller of the two numbers, at most
n + 1 attempts of reward 0 and n + 2 of the others. Which, is drawn from the attempts' identity (task, place in the
training order, repeat), so that it is the same in a resumed run and on every backbone. All stay in the baseline.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ajet.schema.episode import Episode, Group

ZERO, OTHER = 1, 2
"""How many more of each are trained than there are of the fewer."""


def left_out(group: Group) -> set[str]:
    """The uuids of the scored attempts that are not trained."""
    zero = [episode for episode in group.scored if episode.reward == 0]
    other = [episode for episode in group.scored if episode.reward != 0]
    fewer = min(len(zero), len(other))
    return {
        episode.uuid
        for kind, more in ((zero, ZERO), (other, OTHER))
        for episode in _shuffled(group, kind)[fewer + more :]
    }


def _shuffled(group: Group, episodes: Sequence[Episode]) -> list[Episode]:
    def drawn(episode: Episode) -> bytes:
        return hashlib.blake2b(f"{group.task.task_id}/{group.order}/{episode.repeat}".encode()).digest()

    return sorted(episodes, key=drawn)
