"""Define `Algorithm`: how groups become credit and how a token's loss is computed. Each file holds one algorithm.

Invariant: an algorithm has no state between calls. Equal groups get equal credit. A resumed run, and every verl process
that opens the algorithm by its reference, therefore get the credit of an uninterrupted process. `credit_assignment`
does the work common to all algorithms (penalties, token weights, selection of samples). `token_loss` adds the other
terms to the policy loss.
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
"""A one-dimensional array of a batch. The last letter of a variable's name gives its axis."""
Need = Literal["group", "reference", "teacher", "distribution", "privileged", "critic", "observations"]
"""Inputs that an algorithm can require.

- group: at least two scored attempts at a task, for comparison.
- reference: `use_kl_in_reward`, so that the reference model's logprobs are computed.
- teacher: the logprobs of the attempts' tokens under `algorithm.teacher`.
- distribution: the logits of `algorithm.teacher.path` at the trained tokens, during the update (`ajet.algorithm.gkd`).
- privileged: the policy's own logprobs with the task's answer in the context (`ajet.algorithm.self_distillation`).
- observations: a loss on tokens that the environment wrote (`ajet.algorithm.echo`).
- critic: token values from a value head of the policy (`algorithm.critic`).
"""


class Algorithm:
    """Base class of advantage estimators. Subclasses write `of_group`, `advantages` or, with a critic, `of_values`.

    Name the class in `trainer_common.algorithm.adv_estimator`.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"group"})
    """Required inputs (`Need`). Without "group", one scored attempt at a task is enough for training."""
    across_tasks: ClassVar[bool] = False
    """True: attempts, and their parts of equal name, are compared over the complete batch instead of within a group."""
    formula: ClassVar[str] = ""
    """The advantage of episode i (or of its token t), with rewards r. Shown in docs/reference/algorithms.md."""
    paper: ClassVar[str] = ""
    """The paper with the formula."""
    name: str = ""
    """The name or reference from the YAML. `make_algorithm` sets the value."""
    base: str = ""
    """The folder to resolve the reference against. `make_algorithm` sets the value."""
    made_by: Callable[[str, str, Settings], Algorithm]
    """The factory, called with name, base and settings. `make_algorithm` sets the value."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle the algorithm by name, because other processes may not have loaded the user's file."""
        return self.made_by, (self.name, self.base, self.settings)

    def require_fit(self, config: AjetConfig) -> None:
        """Raise UserError if other settings of the experiment conflict with the algorithm. Called before a run."""

    def of_group(self, returns_G: Row) -> Row:
        """Compute [k] advantages from the returns of one group (all k attempts at a task).

        Args:
            returns_G: shape [k], each attempt's reward less its summed KL penalties.
        """
        raise NotImplementedError

    def advantages(self, rewards_E: Row, penalties_E_T: Sequence[Row], groups_E: Sequence[int]) -> list[Row]:
        """Compute [T] advantages per scored episode of a batch, one for each trained token.

        By default every token of an episode gets the value of `of_group`.

        Args:
            rewards_E: Rewards. Within a group, rewards closer than `equal_rewards` are already set to the same number.
            penalties_E_T: Per episode the [T] KL penalties (coefficient included) of the trained tokens in sampled
                order.
                Zeros without KL in the reward.
            groups_E: Group ids. Episodes with equal ids belong to the same group.
        """
        returns = rewards_E - np.array([penalties.sum() for penalties in penalties_E_T])
        advantages_E_T: list[Row] = [np.zeros(0)] * len(penalties_E_T)
        for members in index_groups(groups_E):
            values = np.asarray(self.of_group(returns[members]), np.float64)
            if values.shape != (len(members),):
                raise UserError(
                    f"of_group of {self.name} returned advantages of shape {values.shape} for {len(members)} returns.",
                    where=locate_function(self.of_group),
                    expected="one advantage per return",
                    do=f"return an array of {len(members)} numbers",
                )
            for index, value in zip(members, values, strict=True):
                advantages_E_T[index] = np.full(penalties_E_T[index].size, value)
        return advantages_E_T

    def of_episodes(
        self, episodes_E: Sequence[Episode], rewards_E: Row, penalties_E_T: Sequence[Row], groups_E: Sequence[int]
    ) -> list[Row]:
        """Compute [T] advantages from complete episodes, for algorithms that read more than the reward.

        Args:
            episodes_E: The scored episodes of a batch.
            rewards_E: Their rewards. Within a group, rewards closer than `equal_rewards` are the same number.
            penalties_E_T: The KL penalties of their trained tokens.
            groups_E: Their group ids.
        """
        return self.advantages(rewards_E, penalties_E_T, groups_E)

    def of_values(self, rewards_E_T: Sequence[Row], values_E_T: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        """Compute [T] advantages and [T] returns per scored episode. Algorithms with a critic define `of_values` alone.

        Args:
            rewards_E_T: Reward of each trained token in sampled order (`compute_token_rewards`).
            values_E_T: The critic's value before each trained token.

        Returns:
            The advantages, and the returns as the critic's training targets.
        """
        raise NotImplementedError

    def parts(self, episode: Episode) -> Sequence[ProcessReward]:
        """Return the process rewards of a scored episode: rewards of a step, an agent, a tool use or a text.

        By default these are the process rewards of the verdict.
        """
        return episode.verdict.process if episode.verdict is not None else ()

    def of_parts(self, rewards_P: Row, classes_P: Sequence[int]) -> Row:
        """Compute [P] advantages of the process rewards of a batch.

        Rewards of one class are compared with each other, as the attempts of a group are. Within a class, rewards
        closer than `equal_rewards` count as equal.

        Args:
            rewards_P: the process rewards.
            classes_P: class ids; equal ids mark comparable rewards.
        """
        rewards = rewards_P.copy()
        for members in index_groups(classes_P):
            rewards[members] = equalize_rewards(rewards[members], self.settings.equal_rewards)
        advantages_P_1 = self.advantages(rewards, [np.zeros(1)] * rewards.size, classes_P)
        return np.concatenate([np.asarray(advantage, np.float64) for advantage in advantages_P_1])

    def policy_loss(self, logprobs_T: Tensor, old_T: Tensor, advantages_T: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the [T] policy losses of trained tokens, and [T] booleans for tokens with a cut off gradient.

        The losses are differentiable in `logprobs_T`. The default is PPO's clipped ratio. Tensors are on the trainer's
        device.

        Args:
            logprobs_T: The policy's present logprobs.
            old_T: The policy's logprobs before the update.
            advantages_T: Advantages of the tokens.
        """
        from ajet.algorithm.loss_terms import policy_loss

        low, high, dual = self.settings.clip_low, self.settings.clip_high, self.settings.clip_dual
        return policy_loss(logprobs_T, old_T, advantages_T, clip_low=low, clip_high=high, clip_dual=dual)

    def learns_from(self, group: Group) -> bool:
        """Return True if a group carries a training signal.

        Oversampling (to select groups), dynamic sampling (to form the batch) and the count of groups without a signal
        all share this definition. A group has a signal if its rewards, without KL penalties and compared within the
        group alone, give a nonzero advantage to an attempt, or if its process rewards give one to a part of an attempt.
        A group with one scored attempt has a signal only for algorithms without the need "group", since there is
        nothing to compare.
        """
        if "critic" in self.needs:
            return bool(group.scored)  # a critic is trained on every attempt
        if self._has_part_advantage(group):
            return True
        rewards = shape_rewards(group.scored, self.settings.overlong)
        if rewards.size < 2:
            return rewards.size == 1 and "group" not in self.needs
        advantages_E_T = self.of_episodes(
            group.scored,
            equalize_rewards(rewards, self.settings.equal_rewards),
            [np.zeros(1)] * rewards.size,
            [0] * rewards.size,
        )
        return any(np.any(advantages_T) for advantages_T in advantages_E_T)

    def _has_part_advantage(self, group: Group) -> bool:
        """Return True if the process rewards give a nonzero advantage to some part of the group's attempts."""
        parts = (
            [part for episode in group.scored for part in self.parts(episode)] if self.settings.process_weight else []
        )
        if not parts:
            return False
        class_ids = {part.compared: index for index, part in enumerate(parts)}
        rewards = np.array([part.reward for part in parts], np.float64)
        return bool(np.any(self.of_parts(rewards, [class_ids[part.compared] for part in parts])))


def equalize_rewards(rewards_G: Row, equal: float) -> Row:
    """Return the [k] rewards of a group, all set to the first if they differ by at most `equal`."""
    return np.full_like(rewards_G, rewards_G[0]) if np.ptp(rewards_G) <= equal else rewards_G


def index_groups(groups_E: Sequence[int]) -> list[list[int]]:
    """Return the indices of each group's episodes. Groups are ordered by their first episode."""
    members: dict[int, list[int]] = {}
    for index, group in enumerate(groups_E):
        members.setdefault(group, []).append(index)
    return list(members.values())


def shape_rewards(episodes: Sequence[Episode], overlong: OverlongConfig) -> Row:
    """Return [E] rewards of scored episodes, reduced by a penalty on long attempts (overlong shaping).

    DAPO, arXiv 2503.14476, section 3.4, with L = `overlong.length`, c = `overlong.buffer` and p = `overlong.penalty`,
    for an attempt of n sampled tokens: 0 for n <= L - c, p ((L - c) - n) / c up to L, -p beyond. Tokens from tools do
    not count.
    """
    rewards = np.array([episode.reward for episode in episodes], np.float64)
    if overlong.length is None:
        return rewards
    return rewards + np.array([compute_length_reward(count_sampled_tokens(episode), overlong) for episode in episodes])


def count_sampled_tokens(episode: Episode) -> int:
    """Return the number of sampled tokens in replies that the agent received.

    Turns that `train_turn` excludes from training count too.
    """
    return sum(
        len(call.response_ids) for call in episode.calls if call.is_delivered and (call.trained or call.turned_down)
    )


def compute_length_reward(tokens: int, overlong: OverlongConfig) -> float:
    """Return the length reward (0 or less) of an attempt with `tokens` sampled tokens."""
    if overlong.length is None:
        return 0.0
    excess = tokens - (overlong.length - overlong.buffer)
    if excess <= 0:
        return 0.0
    return -overlong.penalty * (min(excess / overlong.buffer, 1.0) if overlong.buffer else 1.0)
