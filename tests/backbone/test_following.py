"""The backbone of a sampler has what it declares."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ajet.backbone import following
from ajet.backbone.following import FollowingBackbone
from ajet.config import Experiment


def test_every_declared_attribute_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`watch` was inherited from the debug backbone, and never set."""
    follower = SimpleNamespace(engine=object(), tokenizer=object(), version=3, load_weights=object())
    monkeypatch.setattr(following, "open_follower", lambda config, base: follower)
    opened = FollowingBackbone(Experiment.from_dict({"ajet": {}}, base=tmp_path, exp_dir=tmp_path))
    declared = {name for kind in FollowingBackbone.__mro__ for name in vars(kind).get("__annotations__", ())}
    assert declared == {"engine", "tokenizer", "trains"} and all(hasattr(opened, name) for name in declared)
    assert opened.engine is follower.engine and opened.version == 3
