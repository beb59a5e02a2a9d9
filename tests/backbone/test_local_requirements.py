"""What the local backbone refuses before it trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.backbone.local.backbone import LocalBackbone
from ajet.commands.launch_checks import require_launchable
from ajet.config import Experiment
from ajet.schema.errors import ConfigError

TAKEN = 1024
"""Tokens that embedded:tiny-tools takes."""


def tiny(folder: Path, **rollout: int) -> Experiment:
    ajet = {"model": {"path": "embedded:tiny-tools"}, "backbone": "local", "rollout": rollout}
    return Experiment.from_dict({"ajet": ajet}, base=folder, exp_dir=folder)


@pytest.mark.parametrize("open_run", [require_launchable, LocalBackbone])
def test_a_context_beyond_the_models_is_refused(tmp_path: Path, open_run: type) -> None:
    with pytest.raises(ConfigError) as caught:
        open_run(tiny(tmp_path, max_model_len=TAKEN + 1))
    assert caught.value.where == "ajet.rollout.max_model_len"
    assert f"is {TAKEN + 1}, and the model takes {TAKEN} tokens" in caught.value.what


def test_the_default_context_fits_every_model(tmp_path: Path) -> None:
    require_launchable(tiny(tmp_path))
    require_launchable(tiny(tmp_path, max_model_len=TAKEN))
