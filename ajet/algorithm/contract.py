"""Algorithm: how groups become credit, which loss a token has, and what both need. One class a file.

Invariant: an algorithm keeps nothing between two calls: the same groups get the same credit, so that a resumed run, and
each of verl's processes, which find it again by its reference, get what one uninterrupted process would. What is the
same for all of them (penalties, token weights, which samples are trained) is done by `credit`, the terms that join the
policy loss by `token_loss`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ajet.config.functions import locate_function
from ajet.schema.episode import Episode, Group
from ajet.schema.errors import UserError
from ajet.schema.process_reward import ProcessReward

if TYPE_CHECKING:
    from torch import Tensor

    from ajet.config import AjetConfig
    from ajet.config.schema.algorithm import AlgorithmConfig as Settings
    from ajet.config.schema.algorithm import OverlongConfig


Row = npt.NDArray[np.float64]
"""Numbers of a batch in one dimension. A name's last letter says what they are of."""
Need = Literal["group", "reference", "teacher", "critic"]
"""group: at least two scored attempts at one task, to compare them. reference: `use_kl_in_reward`, which asks the
reference model for its logprobs. teacher: the log-probabilities that `algorithm.teacher` gives the attempts' tokens.
critic: the values that a head of the policy gives each of them (`algorithm.critic`)."""


class Algorithm:
    """Subclass it, write `of_group`, `advantages` or, with a critic, `of_values`, and name the class in
    `trainer_common.algorithm.adv_estimator`."""

    needs: ClassVar[frozenset[Need]] = frozenset({"group"})
    """See `Need`. Without "group" one scored attempt is enough to learn from a task."""
    formula: ClassVar[str] = ""
    """The advantage of episode i (or of its token t), r being rewards: a cell of docs/reference/algorithms.md."""
    paper: ClassVar[str] = ""
    """The source of the formula."""
    name: str = ""
    """As the YAML has it: a name or a reference. Written by whoever opens it."""
    base: str = ""
    """The folder that the reference is relative to; likewise."""
    made_by: Callable[[str, str, Settings], Algorithm]
    """What makes it anew of name, base and settings; likewise."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle the algorithm as its name, so that a class in a user's file reaches processes that have not loaded the
        file."""
        return self.made_by, (self.name, self.base, self.settings)

    def require_fit(self, config: AjetConfig) -> None:
        """Raises UserError where other settings of the experiment do not go with it: asked before a run begins."""

    def of_group(self, returns_G: Row) -> Row:
        """[k] one advantage per attempt from the k returns of one group: rewards less their summed KL penalties."""
        raise NotImplementedError

    def advantages(self, rewards_E: Row, penalties_E_T: Sequence[Row], groups_E: Sequence[int]) -> list[Row]:
        """[T] advantages per scored episode of a batch; here every token of an episode gets what `of_group` says.

        `rewards_E`: those of one group that are no further apart than `equal_rewards` are the same number.
        `penalties_E_T`: per episode the [T] KL penalties (coefficient included) of its trained tokens in the order
        they were sampled; zeros without KL in the reward. `groups_E`: equal numbers mark one group.
        """
        returns = rewards_E - np.array([penalties.sum() for penalties in penalties_E_T])
        rows: list[Row] = [np.zeros(0)] * len(penalties_E_T)
        for members in index_groups(groups_E):
            values = np.asarray(self.of_group(returns[members]), np.float64)
            if values.shape != (len(members),):
                raise UserError(
                    f"{self.name}: of_group gave advantages of shape {values.shape} for {len(members)} returns.",
                    where=locate_function(self.of_group),
                    expected="one advantage for each of the returns that it was given",
                    do=f"return an array of {len(members)} numbers",
                )
            for index, value in zip(members, values, strict=True):
                rows[index] = np.full(penalties_E_T[index].size, value)
        return rows

    def of_episodes(
        self, episodes_E: Sequence[Episode], rewards_E: Row, penalties_E_T: Sequence[Row], groups_E: Sequence[int]
    ) -> list[Row]:
        """Advantages by more of an attempt than its reward. `rewards_E`: see `advantages`."""
        return self.advantages(rewards_E, penalties_E_T, groups_E)

    def of_values(self, rewards_E_T: Sequence[Row], values_E_T: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        """[T] advantages and [T] returns per scored episode of a batch, in place of the above, for who needs a critic.

        `rewards_E_T`: what each trained token was given, in the order in which they were sampled (`critic_credit`).
        `values_E_T`: what the critic expected before each. The returns are what it is to expect there."""
        raise NotImplementedError

    def parts(self, episode: Episode) -> Sequence[ProcessReward]:
        """The parts of a scored episode that have a reward of their own: those of its verdict."""
        return episode.verdict.process if episode.verdict is not None else ()

    def of_parts(self, rewards_P: Row, classes_P: Sequence[int]) -> Row:
        """[P] one advantage per part: parts of one class are compared with each other as attempts of one group are.
        Those of a class that are no further apart than `equal_rewards` are the same."""
        rewards = rewards_P.copy()
        for members in index_groups(classes_P):
            rewards[members] = equalize_rewards(rewards[members], self.settings.equal_rewards)
        rows = self.advantages(rewards, [np.zeros(1)] * rewards.size, classes_P)
        return np.concatenate([np.asarray(row, np.float64) for row in rows])

    def policy_loss(self, logprobs_T: Tensor, old_T: Tensor, advantages_T: Tensor) -> tuple[Tensor, Tensor]:
        """[T] losses, differentiable in `logprobs_T`, and [T] booleans: where a bound cut the gradient off. `old_T`:
        the policy's logprobs before the update. Here: the clipped ratio. Tensors are on the trainer's device."""
        from ajet.algorithm.loss_terms import policy_loss

        low, high, dual = self.settings.clip_low, self.settings.clip_high, self.settings.clip_dual
        return policy_loss(logprobs_T, old_T, advantages_T, clip_low=low, clip_high=high, clip_dual=dual)

    def learns_from(self, group: Group) -> bool:
        """Whether there is something to learn from a group: the one definition, for oversampling (which groups are
        kept), dynamic sampling (which belong to the batch) and the count of those with nothing.

        There is where its rewards, credited by themselves and without KL penalties, give any attempt an advantage, or
        those of parts give any part one. An attempt that is the only one with a score is compared with nobody then; it
        is something to learn from for algorithms that do not need a group.
        """
        if "critic" in self.needs:
            return bool(group.scored)  # the critic learns from any attempt
        if self._has_part_advantage(group):
            return True
        rewards = shape_rewards(group.scored, self.settings.overlong)
        if rewards.size < 2:
            return rewards.size == 1 and "group" not in self.needs
        rows = self.of_episodes(
            group.scored,
            equalize_rewards(rewards, self.settings.equal_rewards),
            [np.zeros(1)] * rewards.size,
            [0] * rewards.size,
        )
        return any(np.any(row) for row in rows)

    def _has_part_advantage(self, group: Group) -> bool:
        parts = (
            [part for episode in group.scored for part in self.parts(episode)] if self.settings.process_weight else []
        )
        if not parts:
            return False
        classes = {part.compared: number for number, part in enumerate(parts)}
        rewards = np.array([part.reward for part in parts], np.float64)
        return bool(np.any(self.of_parts(rewards, [classes[part.compared] for part in parts])))


def equalize_rewards(rewards_G: Row, equal: float) -> Row:
    """[k] the rewards of one group; all the first one where they are no further apart than `equal`."""
    return np.full_like(rewards_G, rewards_G[0]) if np.ptp(rewards_G) <= equal else rewards_G


def index_groups(groups_E: Sequence[int]) -> list[list[int]]:
    """The indices of each group's episodes, groups in order of their first."""
    members: dict[int, list[int]] = {}
    for index, group in enumerate(groups_E):
        members.setdefault(group, []).append(index)
    return list(members.values())


def shape_rewards(episodes: Sequence[Episode], overlong: OverlongConfig) -> Row:
    """Return the rewards of scored episodes, [E], reduced by their length (overlong shaping).

    DAPO, arXiv 2503.14476, section 3.4, with L = `overlong.length`, c = `overlong.buffer` and p = `overlong.penalty`,
    of an attempt of n sampled tokens: 0 for n <= L - c, p ((L - c) - n) / c up to L, -p beyond. Tokens of tools do not
    count.
    """
    rewards = np.array([episode.reward for episode in episodes], np.float64)
    if overlong.length is None:
        return rewards
    return rewards + np.array([compute_length_reward(count_sampled_tokens(episode), overlong) for episode in episodes])


def count_sampled_tokens(episode: Episode) -> int:
    """Return the number of sampled tokens in the replies that the agent received, `train_turn`'s refused turns too."""
    return sum(
        len(call.response_ids) for call in episode.calls if call.is_delivered and (call.trained or call.turned_down)
    )


def compute_length_reward(tokens: int, overlong: OverlongConfig) -> float:
    """The reward, 0 or less, for an attempt's length in sampled tokens."""
    if overlong.length is None:
        return 0.0
    over = tokens - (overlong.length - overlong.buffer)
    if over <= 0:
        return 0.0
    return -overlong.penalty * (min(over / overlong.buffer, 1.0) if overlong.buffer else 1.0)
