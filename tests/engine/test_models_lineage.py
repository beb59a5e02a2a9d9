"""A model's fingerprint: of its weights, whatever their files are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.config.schema import AjetConfig
from ajet.engine.models import fingerprint_weights


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "pytorch_model-00001-of-00002.bin"])
def test_other_bytes_are_another_model_and_another_folder_is_not(name: str, tmp_path: Path) -> None:
    def fingerprint(folder: str, weights: bytes) -> str:
        place = tmp_path / folder
        place.mkdir()
        (place / "config.json").write_text("{}")
        (place / name).write_bytes(weights)
        return fingerprint_weights(AjetConfig.model_validate({"model": {"path": str(place)}}))

    one = fingerprint("one", b"one" * 100)
    assert fingerprint("again", b"one" * 100) == one != fingerprint("two", b"two" * 100)
