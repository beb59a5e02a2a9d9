"""The tutorial of tools and a corpus teaches: a pretrained model searches for what it cannot know.

How many held-out towns its greedy answers get before training is decided by rounding, as the tutorial's README has it;
so the beginning is measured by what is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.gaia_packages import packages
from tests.support.ports import free_port
from tests.support.tutorial_runs import TUTORIALS, learned

__all__ = ["packages"]
YAML = TUTORIALS / "example_mcp_agent" / "mcp_agent.yaml"


@pytest.mark.extra_slow
@pytest.mark.timeout(2400)
def test_it_learns_to_look_things_up(tmp_path: Path, packages: Path) -> None:
    held_out, rewards = learned(YAML, tmp_path, "mcp_agent", f"towns_port={free_port()}")
    assert held_out[0] < held_out[-1] and held_out[-1] > 0.8, held_out
    assert rewards[0] < 0.3 and sum(rewards[-4:]) / 4 > rewards[0] + 0.4, rewards
