"""An SGLang server as an engine that a trainer's weights are followed on: it has what was written, under its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.schema.errors import UserError
from ajet_vllm.sglang_server import RemoteSglang
from ajet_vllm.tests.test_server_follower_vllm import Trained, led_by_two, require_weights_by_version
from tests.support.sglang_server import sglang_server

pytestmark = pytest.mark.slow


def test_it_is_given_the_trainers_weights_and_bears_their_name(tmp_path: Path) -> None:
    with sglang_server() as url:
        require_weights_and_names(url, tmp_path)


def require_weights_and_names(url: str, folder: Path) -> None:
    engine, other = require_weights_by_version(Trained(folder), url)
    assert isinstance(engine.engine, RemoteSglang), "it said what it is"
    with pytest.raises(UserError, match=r"failed to load "):
        engine._weights.give(folder / "nowhere", "ajet-9")
    for each in (engine, other):
        each.engine.close()


@pytest.mark.extra_slow
def test_of_two_samplers_the_second_leads_after_the_first_was_killed(tmp_path: Path) -> None:
    with sglang_server() as url:
        led_by_two(url, tmp_path)
