"""GiGPO: complete attempts are compared with each other, and so are steps taken in the same state.

Group-in-Group Policy Optimization, arXiv 2505.10978, section 4: A(a_t) = A_E + w * A_S(a_t), with A_E = (R - mean(R)) /
F over the attempts at a task; R_t = sum of gamma^(k - t) * r_k over k >= t, the discounted return of a step; A_S = (R_t
- mean) / F over all steps of the group's attempts taken in the same state. F is the standard deviation, or 1
(`norm_adv_by_std: false`); w is `process_weight` (1 in the paper), gamma is `step_discount` (0.95 in the paper). A step
is a policy call with a reply delivered to the agent. If only the attempt has a reward, the last step gets the reward.

The state of a step is the observation: the messages shown to the agent since its last reply. As in the paper, the state
does not include the path leading to it.
"""

from __future__ import annotations

import hashlib
import json

from ajet.algorithm.grpo import Grpo
from ajet.schema.call import Call
from ajet.schema.episode import Episode
from ajet.schema.process_reward import ProcessReward, ReplySpan

UNSTABLE_KEYS = ("tool_call_id", "id")
"""Message keys with random values, excluded from the state hash."""


class Gigpo(Grpo):
    """GRPO plus a comparison of steps that different attempts took in the same state."""

    formula = (
        "that of `grpo`, plus `process_weight` × (R_t − mean) / (std + 1e-6) over all steps of the group in the "
        "same state; R_t is the return of step t, discounted by `step_discount`"
    )
    paper = "GiGPO, arXiv 2505.10978, section 4"
    needs = frozenset({"group"})

    def parts(self, episode: Episode) -> list[ProcessReward]:
        """Return one process reward per step: its discounted return, compared with steps in the same state.

        Other process rewards are passed on unchanged.
        """
        assert episode.verdict is not None and episode.reward is not None
        step_rewards: dict[int, float] = {}
        for part in episode.verdict.process:
            if part.compared[0] == "step" and part.tokens:
                step_rewards[part.tokens[0].call] = step_rewards.get(part.tokens[0].call, 0.0) + part.reward
        trained_calls = [call.index for call in episode.calls if call.is_step]
        if trained_calls and not step_rewards:
            step_rewards[trained_calls[-1]] = episode.reward
        steps, discounted_return = [], 0.0
        for call in reversed(episode.calls):
            if call.index not in step_rewards and call.index not in trained_calls:
                continue
            discounted_return = step_rewards.get(call.index, 0.0) + self.settings.step_discount * discounted_return
            if call.index not in trained_calls:  # refused by `train_turn`
                continue
            reply_span = ReplySpan(call.index, 0, int(call.response_ids.size))
            steps.append(
                ProcessReward(
                    reward=discounted_return, step=call.index, name=hash_state(episode, call), tokens=(reply_span,)
                )
            )
        other_parts = [part for part in episode.verdict.process if part.compared[0] != "step"]
        return [*reversed(steps), *other_parts]


def hash_state(episode: Episode, call: Call) -> str:
    """Return a digest of the messages since the agent's last reply, or of the new tokens of a raw prompt."""
    stable_messages = []
    for index in reversed(call.messages):
        message = episode.messages[index]
        if message.get("role") == "assistant":
            break
        stable_messages.append({key: value for key, value in message.items() if key not in UNSTABLE_KEYS})
    # A raw prompt has no messages: its new tokens are the observation.
    content = (
        json.dumps(stable_messages, sort_keys=True, default=str).encode()
        if call.messages
        else call.suffix_ids.tobytes()
    )
    return hashlib.blake2b(content, digest_size=16).hexdigest()
