"""The tutorial of rubrics teaches a pretrained model, with the stand-in that its README names as such."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ajet_command import ajet, metric_rows
from tests.docs.snippets import ROOT
from tests.ports import free_port


def rewards(name: str, tmp_path: Path) -> list[float]:
    """Of the attempts of each step."""
    yaml = ROOT / "tutorial" / f"example_{name}" / f"{name}.yaml"
    port = f"stand_in_port={free_port()}"
    few = ["trainer_common.val_before_train=false", "trainer_common.test_freq=-1", "trainer_common.threads=1"]
    done = ajet("--conf", str(yaml), "--backbone", "local", *few, port, cwd=tmp_path, timeout=1500)
    assert done.returncode == 0, done.stdout
    rows = metric_rows(tmp_path / "launcher_record" / name)
    return [row["train/reward"] for row in rows if "train/reward" in row]


@pytest.mark.extra_slow
@pytest.mark.timeout(2400)
def test_a_reward_out_of_labelled_examples_is_learned(tmp_path: Path):
    found = rewards("rubrics_judge", tmp_path)
    assert sum(found[-2:]) / 2 > found[0] + 0.1, found
