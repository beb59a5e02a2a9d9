"""Dimensions of a model and the bounds that arithmetic gives for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ajet.engine.dimensions import Dimensions, list_linear_layers, read_dimensions, read_model_size
from ajet.engine.embedded import find_cached_folder
from benchmarks.bounds import Pace, pass_seconds, sampling_seconds, scoring_seconds, update_seconds

SMALL = Dimensions(4, 2, 2, 1, 2, 8, 10, True, False)
TINY = find_cached_folder("tiny-tools")


def test_dimensions_and_weights_are_those_of_the_files(tmp_path: Path) -> None:
    assert TINY is not None
    found = read_dimensions(TINY)
    assert found is not None and found.size() == read_model_size(TINY)
    assert read_dimensions(tmp_path) is None
    told = json.loads((TINY / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**told, "num_experts": 8}))
    assert read_dimensions(tmp_path) is None, "of a mixture of experts a pass reads less than all"
    del told["tie_word_embeddings"]
    for where in ({**told, "model_type": "gemma2"}, {"text_config": told, "tie_word_embeddings": True}):
        (tmp_path / "config.json").write_text(json.dumps(where))
        head = read_dimensions(tmp_path)
        assert head is not None and head.tied, "Gemma's files leave out what is usual; others say it above text_config"


def test_linear_layers_are_those_without_embeddings(tmp_path: Path) -> None:
    assert TINY is not None
    llama = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    assert list_linear_layers(TINY) == llama and list_linear_layers(tmp_path) == ()


def test_a_pass_takes_as_long_as_its_operations_or_its_bytes() -> None:
    layer = 4 * 4 + 2 * 4 + 2 * 4 + 4 * 4 + 3 * 4 * 8
    assert SMALL.matrix_weights == 2 * layer and SMALL.head == 40
    slow_products, slow_memory = Pace(1.0, 1e30), Pace(1e30, 1.0)
    operations = 2 * (2 * layer * 3 + 40 * 3) + 4 * 2 * 4 * 30
    took = pass_seconds(SMALL, slow_products, tokens=3, wanted=3, keys=30, bytes_each=2)
    assert took == pytest.approx(operations)
    moved = 2 * (2 * layer + 40 + 2 * 2 * 2 * 30)
    assert pass_seconds(SMALL, slow_memory, tokens=3, wanted=3, keys=30, bytes_each=2) == pytest.approx(moved)


def test_sampling_reads_the_weights_once_a_token_and_not_once_a_row() -> None:
    pace = Pace(1e30, 1.0)
    one, many = (sampling_seconds(SMALL, pace, rows=rows, prompt=1, new=50, bytes_each=2) for rows in (1, 16))
    keys = sum(2 * 2 * 2 * 2 * (1 + at) for at in range(1, 50)) + 2 * 2 * 2 * 2 / 2
    assert many - one == pytest.approx(15 * keys)


def test_an_update_is_three_passes_and_the_optimizer() -> None:
    products = scoring_seconds(SMALL, Pace(1.0, 1e30), tokens=100, wanted=60, longest=10)
    assert update_seconds(
        SMALL, Pace(1.0, 1e30), tokens=100, wanted=60, longest=10, bytes_each=2
    ) == pytest.approx(3 * products)  # fmt: skip
    moved = update_seconds(SMALL, Pace(1e30, 1.0), tokens=100, wanted=60, longest=10, bytes_each=2)
    assert moved == pytest.approx(26 * SMALL.size().parameters)
