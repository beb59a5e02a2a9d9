"""Rewards of parts as the tokens that they are of; tests/contract/test_process_rewards.py plays them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ajet.gateway import Capture
from ajet.rollout.process_rewards import locate_rewards
from ajet.schema.episode import Verdict
from ajet.schema.errors import JudgeFailure
from ajet.schema.process_reward import ProcessReward
from ajet.schema.tool_use import ToolUse
from tests.support.record_fixtures import call


def test_an_engine_without_tokens_leaves_parts_without_them_and_untrained_agents_get_none():
    verdict = Verdict(1.0, turns=(1.0,), process=(ProcessReward(reward=1.0, step=7),))
    assert locate_rewards(verdict, Capture(), None) == Verdict(1.0, process=verdict.process)
    use = ToolUse("look", {}, "", "", 1.0, 2.0, call_id="c1")
    asking = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look"}}]}
    others = replace(call(0, None, 0, 3, 2), trained=False, reply=0)
    capture = Capture(calls=[others, call(1, None, 0, 3, 2, reply=None)], messages=[asking], tool_uses=[use])
    with pytest.raises(JudgeFailure, match="an untrained agent"):
        locate_rewards(Verdict(1.0, process=(ProcessReward(reward=1.0, tool_use=0),)), capture, lambda ids: "")
