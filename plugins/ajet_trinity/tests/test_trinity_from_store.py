"""Trinity's trainer without its explorer: it trains on what a sampler elsewhere put into SQLite, is killed with -9
between two steps, and goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.trained_apart import Apart, trained_apart
from tests.support.trinity_here import skip_without_trinity

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    skip_without_trinity()
    folder = tmp_path_factory.mktemp("project")
    with trained_apart(folder, "store.db", "--backbone", "trinity", settings="trinity: {mode: train}\n") as made:
        yield made


def test_what_the_sampler_played_is_trained_once_or_counted(apart: Apart) -> None:
    assert "trainer" in apart.names and not any("vLLM" in name or "xplorer" in name for name in apart.names)
    apart.require_each_once()


def test_it_sampled_with_what_trinity_saved(apart: Apart) -> None:
    versions = {
        version
        for episode in apart.recorded()
        for line in episode.timelines
        for version in line.versions[line.mask].tolist()
    }
    assert versions > {0}, "the last step is trained on nothing older than the first step's weights"
    saved = apart.life.run / "checkpoints"
    assert all(list((saved / f"step-{step}").glob("*.safetensors")) for step in versions - {0})
