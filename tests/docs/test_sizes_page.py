"""docs/sizes.md: what models of several sizes take, by the formula of `ajet plan`.

`python -m tests.docs.test_sizes_page` writes the table anew.
"""

from __future__ import annotations

import re
import tempfile
from functools import cache
from pathlib import Path

from ajet.config import AjetConfig, load_experiment
from ajet.engine.weight_shapes import ModelSize
from ajet.run.footprint import Footprint, footprint, gib

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sizes.md"
BEGIN, END = "<!-- the table, written by tests/docs/test_sizes_page.py -->\n", "<!-- its end -->\n"
MODELS = {
    # hidden, layers, heads, heads of keys, width of a head, feed-forward, vocabulary, embedding used as head, norms
    "SmolLM2-135M": (576, 30, 9, 3, 64, 1536, 49152, True, False),
    "Qwen3-0.6B": (1024, 28, 16, 8, 128, 3072, 151936, True, True),
    "Qwen3-1.7B": (2048, 28, 16, 8, 128, 6144, 151936, True, True),
    "Qwen3-4B": (2560, 36, 32, 8, 128, 9728, 151936, True, True),
    "Qwen3-8B": (4096, 36, 32, 8, 128, 12288, 151936, False, True),
    "Qwen3-14B": (5120, 40, 40, 8, 128, 17408, 151936, False, True),
    "Qwen3-32B": (5120, 64, 64, 8, 128, 25600, 151936, False, True),
}
"""Dimensions as their config.json has them; the last: whether queries and keys are normed."""


def size_of(name: str) -> ModelSize:
    """As `ajet.engine.weight_shapes` reads it from the files."""
    hidden, layers, heads, kept_heads, width, inner, vocabulary, tied, normed = MODELS[name]
    asked, kept = heads * width, kept_heads * width
    shapes = [(asked, hidden), (kept, hidden), (kept, hidden), (hidden, asked), *[(hidden, inner)] * 3]
    layer = sum(rows * columns for rows, columns in shapes) + 2 * hidden + 2 * width * normed
    embeddings = vocabulary * hidden * (1 if tied else 2)
    adapted = layers * sum(rows + columns for rows, columns in shapes)
    return ModelSize(layers * layer + hidden + embeddings, adapted, layers, hidden, inner, kept, vocabulary)


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
    return footprint(size_of(name), chosen, wide=False)


def row(name: str) -> str:
    full, adapters = planned(name, 0), planned(name, 32)
    cells = [
        name,
        f"{size_of(name).parameters / 1e9:.2f}",
        gib(adapters.peak),
        gib(full.peak),
        gib(adapters.checkpoint),
        gib(full.checkpoint),
        f"{full.flops / 1e12:,.0f}",
    ]
    return f"| {' | '.join(cells)} |\n"


def table() -> str:
    head = ["model", "10⁹ weights", "LoRA, rank 32", "all weights", "checkpoint, LoRA", "checkpoint, all", "TFLOP"]
    return f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n" + "".join(row(name) for name in MODELS)


def test_the_page_says_what_the_program_says() -> None:
    written = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    assert written == table(), "python -m tests.docs.test_sizes_page"


def test_the_sizes_are_those_of_the_models() -> None:
    counted = {name: size_of(name).parameters for name in MODELS}
    assert counted["SmolLM2-135M"] == 134_515_008 and counted["Qwen3-0.6B"] == 596_049_920


if __name__ == "__main__":
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.split(END)[1])
