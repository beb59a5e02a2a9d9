"""docs/sizes.md: what models of several sizes take, by the formula of `ajet plan`.

`python -m tests.docs.test_sizes_page` writes the table anew.
"""

from __future__ import annotations

import re
import tempfile
from functools import cache
from pathlib import Path

from ajet.commands.gpu_estimate import GPUS
from ajet.config import AjetConfig, load_experiment
from ajet.record.console import format_bytes
from ajet.train.footprint import Footprint, estimate_footprint
from benchmarks.bounds import PUBLISHED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sizes.md"
BEGIN, END = "<!-- the table, written by tests/docs/test_sizes_page.py -->\n", "<!-- its end -->\n"


@cache
def settings() -> AjetConfig:
    """Those that the page shows."""
    yaml = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    assert yaml is not None
    with tempfile.TemporaryDirectory() as folder:
        conf = Path(folder, "x.yaml")
        conf.write_text(yaml[1])
        return load_experiment(conf, backbone="local").ajet


def planned(name: str, rank: int) -> Footprint:
    chosen = settings().model_copy(deep=True)
    chosen.trainer_common.lora.rank = rank
    return estimate_footprint(PUBLISHED[name].size(), chosen, wide=False)


def row(name: str) -> str:
    full, adapters = planned(name, 0), planned(name, 32)
    cells = [
        name,
        f"{PUBLISHED[name].size().parameters / 1e9:.2f}",
        format_bytes(adapters.peak),
        format_bytes(full.peak),
        format_bytes(adapters.checkpoint),
        format_bytes(full.checkpoint),
        f"{full.flops / 1e12:,.0f}",
    ]
    return f"| {' | '.join(cells)} |\n"


def table() -> str:
    head = ["model", "10⁹ weights", "LoRA, rank 32", "all weights", "checkpoint, LoRA", "checkpoint, all", "TFLOP"]
    return f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n" + "".join(row(name) for name in PUBLISHED)


def test_the_page_says_what_the_program_says() -> None:
    written = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    assert written == table(), "python -m tests.docs.test_sizes_page"


def test_the_page_has_the_numbers_of_each_gpu() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:5]] for line in PAGE.read_text().splitlines()]
    for name, gpu in GPUS.items():
        numbers = [gpu.memory / 1e9, gpu.flops / 1e12, gpu.bandwidth / 1e12]
        assert [name, *(f"{number:g}" for number in numbers)] in rows


def test_the_sizes_are_those_of_the_models() -> None:
    counted = {name: PUBLISHED[name].size().parameters for name in PUBLISHED}
    assert counted["SmolLM2-135M"] == 134_515_008 and counted["Qwen3-0.6B"] == 596_049_920


if __name__ == "__main__":
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.split(END)[1])
