"""A real SGLang server on the CPU: the suite of every engine and that of a trainer's weights, as its stand-in passes
them; and a trainer and a sampler with it between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet.engine.contract import TokenEngine
from ajet_vllm.sglang_server import SglangWeights
from ajet_vllm.tests.real_sglang import real_sglang
from ajet_vllm.tests.test_server_follower_sglang import require_weights_and_names
from ajet_vllm.tests.test_server_follower_vllm import trained_from
from tests.contract.test_token_engines import (  # noqa: F401 - pytest runs them with the fixtures below
    check_close_fails_who_waits_and_who_comes_after,
    sglang_engine,
    test_a_stop_id_ends_the_reply_and_is_part_of_it,
    test_an_sglang_server_breaks_off_what_is_under_way_as_its_weights_get_a_name,
    test_an_sglang_server_says_both_logprobs,
    test_calls_from_many_loops_at_once,
    test_closing_an_iterator_frees_its_slot,
    test_it_is_a_token_engine,
    test_only_the_last_chunk_has_a_finish_and_all_align,
    test_versions_go_up_only,
    test_what_an_sglang_server_refuses_is_not_asked_again,
)
from tests.support.vllm_fixtures import tiny_folder

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]


@pytest.fixture(scope="module")
def sglang_url() -> Iterator[str]:
    with real_sglang() as url:
        yield url


@pytest.fixture(params=["sglang"])
def engine(sglang_url: str) -> Iterator[TokenEngine]:
    made = sglang_engine(sglang_url)
    yield made
    made.close()


def test_close_fails_who_waits_and_who_comes_after(engine: TokenEngine) -> None:
    check_close_fails_who_waits_and_who_comes_after(engine)


def test_it_is_given_the_trainers_weights_and_plays_for_it(sglang_url: str, tmp_path: Path) -> None:
    require_weights_and_names(sglang_url, tmp_path / "checkpoints")
    (tmp_path / "run").mkdir()
    trained_from(sglang_url, tmp_path / "run")
    SglangWeights(sglang_url, {}).give(tiny_folder(), "default")  # others want those that it was started with
