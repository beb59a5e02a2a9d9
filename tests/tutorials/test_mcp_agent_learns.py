"""The tutorial of tools and a corpus teaches: a pretrained model searches for what it cannot know."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ajet_command import ajet, metric_rows
from tests.docs.snippets import ROOT
from tests.gaia_packages import packages
from tests.ports import free_port

__all__ = ["packages"]
YAML = ROOT / "tutorial" / "example_mcp_agent" / "mcp_agent.yaml"


@pytest.mark.extra_slow
def test_it_learns_to_look_things_up(tmp_path: Path, packages: Path):
    port = f"towns_port={free_port()}"
    few = ["trainer_common.total_training_steps=6", "trainer_common.test_freq=6", "trainer_common.optim.lr=6.0e-5"]
    done = ajet("--conf", str(YAML), "--backbone", "local", "trainer_common.threads=1", *few, port, cwd=tmp_path,
                timeout=1500)  # fmt: skip
    assert done.returncode == 0, done.stdout
    rows = metric_rows(tmp_path / "launcher_record" / "mcp_agent")
    held_out = [row["validation/success_rate"] for row in rows if "validation/success_rate" in row]
    assert held_out[0] < 0.6 and held_out[-1] > 0.8, held_out
