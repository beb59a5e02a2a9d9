"""`ajet doctor --bench`: bounds by arithmetic, what is told of a model, and the whole of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ajet.cli import launcher
from ajet.engine.dimensions import (
    PUBLISHED,
    Dimensions,
    Pace,
    dimensions,
    pass_seconds,
    sampling_seconds,
    scoring_seconds,
    update_seconds,
)
from ajet.engine.embedded import kept_folder
from ajet.engine.weight_shapes import model_size
from tests.ajet_command import environment

SMALL = Dimensions(4, 2, 2, 1, 2, 8, 10, True, False)
TINY = kept_folder("tiny-tools")


def test_dimensions_and_weights_are_those_of_the_files(tmp_path: Path) -> None:
    assert TINY is not None
    found = dimensions(TINY)
    assert found is not None and found.size() == model_size(TINY)
    assert dimensions(tmp_path) is None
    told = json.loads((TINY / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**told, "num_experts": 8}))
    assert dimensions(tmp_path) is None, "of a mixture of experts a pass reads less than all"
    del told["tie_word_embeddings"]
    for where in ({**told, "model_type": "gemma2"}, {"text_config": told, "tie_word_embeddings": True}):
        (tmp_path / "config.json").write_text(json.dumps(where))
        head = dimensions(tmp_path)
        assert head is not None and head.tied, "Gemma's files leave out what is usual; others say it above text_config"


def test_a_pass_takes_as_long_as_its_operations_or_its_bytes() -> None:
    layer = 4 * 4 + 2 * 4 + 2 * 4 + 4 * 4 + 3 * 4 * 8
    assert SMALL.multiplied == 2 * layer and SMALL.head == 40
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


def test_what_is_expected_is_what_was_measured() -> None:
    """The shares stand in the pages where the code says they stand: who measures anew changes both."""
    from ajet.run.checkup.bench import ALONE, REACHED, SAMPLED, TRAINED

    docs = Path(__file__).resolve().parents[2] / "docs"
    row = next(line for line in (docs / "measured.md").read_text().splitlines() if line.startswith("| rollout of 64; "))
    assert f"| {REACHED[0]}; {REACHED[1]}; " in row and "two threads" in row
    page = (docs / "doctor.md").read_text()
    assert f"reach {ALONE[0]} and {ALONE[1]} of it" in page and f"has {SAMPLED:.2f} and {TRAINED:.2f} of the" in page


def test_what_is_expected_is_a_share_of_what_torchs_products_take(monkeypatch: pytest.MonkeyPatch) -> None:
    from ajet.engine import ceiling
    from ajet.run.checkup import bench

    monkeypatch.setattr(ceiling, "matmul_pace", lambda dtype, device: (1e15, 512))
    monkeypatch.setattr(ceiling, "triad_pace", lambda device: 1e12)
    monkeypatch.setattr(ceiling, "attention_pace", lambda of, dtype, device, **asked: 1e12)
    monkeypatch.setattr(ceiling, "sampling_alone", lambda of, dtype, device, **asked: 2.0)
    monkeypatch.setattr(ceiling, "update_alone", lambda of, dtype, device, **asked: 4.0)
    told = {each.topic: each.text for each in bench.bench(None, None, processes=1)}
    sampled, trained = (told[f"{bench.USUAL}: {what}"] for what in ("sampling", "update"))
    assert f"about {64 * 64 / 2 * 0.17 / 0.37:,.0f} tokens a second to expect" in sampled
    assert f"about {4096 / 4 * 0.14 / 0.46:,.0f} tokens a second to expect" in trained


def test_more_memory_than_there_is_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ajet.engine import machine
    from ajet.run.checkup.bench import _memory, _usual

    monkeypatch.setattr(machine, "free_memory", lambda device: 1 << 30)
    monkeypatch.chdir(tmp_path)
    found = _memory("it", PUBLISHED["Qwen3-0.6B"], _usual(), wide=False, device="cpu")
    assert (found.state, found.topic) == ("warning", "it: memory") and "10.7 GiB" in found.text, "as docs/sizes.md says"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--world-size", "2"], "--world-size is a setting of --bench"),
        (["--bench", "--store", "sqlite:x"], "--bench and --store look at different things"),
    ],
)
def test_what_does_not_go_together(arguments: list[str], said: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        launcher.main(["doctor", *arguments])
    assert caught.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.extra_slow
def test_the_whole_of_it_with_two_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ajet", "doctor", "embedded:tiny-tools", "--bench", "--world-size", "2", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    found = {each["topic"]: each["text"] for each in json.loads(done.stdout)["sections"]["bench"]}
    name = "embedded:tiny-tools"
    assert list(found) == [
        "load", "matrix products", "bandwidth", "attention", "all-reduce",
        f"{name}: sampling", f"{name}: update", f"{name}: memory",
    ]  # fmt: skip
    assert "2 processes by" in found["all-reduce"] and "tokens a second to expect" in found[f"{name}: update"]
    assert list(tmp_path.iterdir()) == []
