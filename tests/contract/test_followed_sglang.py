"""An SGLang server as an engine that a trainer's weights are followed on: it has what was written, under its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.engine.sglang import RemoteSglang
from ajet.schema.errors import UserError
from tests.contract.test_followed_vllm import Trained, led_by_two, require_waiting_until_followed, versions
from tests.sglang_server import sglang_server

pytestmark = pytest.mark.slow


def test_it_is_given_the_trainers_weights_and_bears_their_name(tmp_path: Path) -> None:
    with sglang_server() as url:
        require_weights_and_names(url, tmp_path)


def require_weights_and_names(url: str, folder: Path) -> None:
    trained = Trained(folder)
    engine = trained.engine(url)
    assert isinstance(engine.engine, RemoteSglang), "it said what it is"
    assert engine.take(None, 0, trained.probe, int)
    assert (engine.version, versions(engine)) == (0, {0})
    assert engine.take(trained.first, 1, trained.probe, int)
    assert (engine.version, versions(engine)) == (1, {1})
    found = engine.engine.score(trained.probe.ids)
    assert trained.probe.gap(1, found) < 1e-3 < trained.probe.tolerance < trained.probe.gap(0, found)
    other = trained.engine(url)
    assert other.take(None, 0, trained.probe, int) and versions(other) == {0}, "model.path's, as at the start"
    require_waiting_until_followed(trained, engine)
    with pytest.raises(UserError, match="cannot be asked to load"):
        engine._weights.give(folder / "nowhere", "ajet-9")
    for each in (engine, other):
        each.engine.close()


@pytest.mark.extra_slow
def test_of_two_samplers_the_second_leads_after_the_first_was_killed(tmp_path: Path) -> None:
    with sglang_server() as url:
        led_by_two(url, tmp_path)
