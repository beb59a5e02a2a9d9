"""Overlong shaping: an attempt that comes near the longest length loses some of its reward, before it is cut off.

DAPO, arXiv 2503.14476, section 3.4, with L = `overlong.length`, c = `overlong.buffer` and p = `overlong.penalty`, of an
attempt of n sampled tokens: 0 for n <= L - c, p ((L - c) - n) / c up to L, -p beyond. Tokens of tools do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ajet.schema.episode import Episode

if TYPE_CHECKING:
    from ajet.algorithm.row import Row
    from ajet.config.schema.algorithm import Overlong


def shaped_rewards(episodes: Sequence[Episode], overlong: Overlong) -> Row:
    """[E] the rewards of scored episodes, less what their length takes away."""
    rewards = np.array([episode.reward for episode in episodes], np.float64)
    if overlong.length is None:
        return rewards
    return rewards + np.array([length_reward(length_of(episode), overlong) for episode in episodes])


def length_of(episode: Episode) -> int:
    """Return the number of sampled tokens in the replies that the agent received, `train_turn`'s refused turns too."""
    return sum(
        len(call.response_ids) for call in episode.calls if call.is_delivered and (call.trained or call.turned_down)
    )


def length_reward(tokens: int, overlong: Overlong) -> float:
    """The reward, 0 or less, for an attempt's length in sampled tokens."""
    if overlong.length is None:
        return 0.0
    over = tokens - (overlong.length - overlong.buffer)
    if over <= 0:
        return 0.0
    return -overlong.penalty * (min(over / overlong.buffer, 1.0) if overlong.buffer else 1.0)
