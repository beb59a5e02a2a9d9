"""What this machine keeps up, and what a model may expect of it: products, bandwidth, attention, tokens a second.

No weights are loaded or fetched: a model's dimensions come from its config.json or from the table of published ones.
Tokens a second are a bound, or, on a processor, where the share that ajet reaches was measured, an expectation.

    python benchmarks/bench_machine.py [MODEL] [--world-size N] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from all_reduce import all_reduce_pace
from bounds import PUBLISHED, Pace, sampling_seconds, update_seconds
from ceiling import attention_pace, matmul_pace, sampling_alone, triad_pace, update_alone

from ajet.backbone.local.machine import choose_device, choose_dtype
from ajet.config import AjetConfig, Experiment
from ajet.engine.dimensions import Dimensions, read_dimensions
from ajet.engine.machine import measure_free_memory
from ajet.engine.model_source import locate_model
from ajet.engine.models import prepare_folder
from ajet.engine.thread_count import choose_threads
from ajet.record.console import format_bytes
from ajet.schema.errors import Finding, UserError
from ajet.train.footprint import Footprint, describe_memory, estimate_footprint

USUAL = "SmolLM2-135M"
"""Told of where no model is named: ajet's own `embedded:smollm2-135m`."""
LADDER = ("SmolLM2-135M", "Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B")
ROWS, TOKENS = 64, 64
"""Calls sampled at once, each with a prompt and a reply of so many tokens."""
REACHED = (0.17, 0.14)
"""Shares of the bound that the engine's rollout of 64 and an update were measured to reach: two threads of two quiet
cores of a Xeon with AMX, SmolLM2, bfloat16 (benchmarks/bench_limit.py; docs/performance.md)."""
ALONE = (0.37, 0.46)
"""Shares of the bound that torch's own products alone reach there, at the model's shapes (a note in
benchmarks/results/measured.jsonl)."""
SAMPLED, TRAINED = (reached / alone for reached, alone in zip(REACHED, ALONE, strict=True))
"""So what is reached of the pace of torch's products alone, 0.46 and 0.30; the rest is attention, norms, draws, the
optimizer. That pace is measured on the machine at hand, since how far products at a model's shapes fall behind the
best of them is the machine's, and less where it has no matrix unit."""
SETTINGS = {
    "data": {"max_prompt_length": 1024, "max_response_length": 1024, "train_batch_size": 8},
    "rollout": {"num_repeat": 8, "max_model_len": 2048, "max_response_length_in_one_turn": 512, "max_num_seqs": 16},
    "trainer_common": {"gradient_checkpointing": True, "use_kl_loss": False},
}
"""Of the memory that is told without a YAML: those of docs/sizes.md."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure for some seconds and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help=f"as in model.path: a folder, hub name or embedded:NAME ({USUAL})")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="an all-reduce among N processes, too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        with redirect_stdout(sys.stderr):  # what is logged meanwhile is no part of the JSON
            found = measure_machine(options.model, processes=options.world_size)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({each.topic: each.text for each in found}, indent=2))
    else:
        print("\n".join(f"{each.topic}: {each.text}" for each in found))
    return 0


def measure_machine(model: str | None, *, processes: int) -> list[Finding]:
    """Return what was measured; with `processes` > 1 also an all-reduce.

    Raises:
        UserError: The model is not there.
    """
    settings = usual_settings()
    device = choose_device(settings.trainer_common.device)
    threads = choose_threads(settings.trainer_common.threads, device)
    dtype = choose_dtype(settings.model.dtype, device)
    width, kind = dtype.itemsize, str(dtype).removeprefix("torch.")
    name, of = find_dimensions(model)
    product, size = matmul_pace(dtype, device)
    pace = Pace(product, triad_pace(device))
    attended = attention_pace(of, dtype, device, length=1024, budget=1.0)
    where = f"{device.type}, {threads} thread{'s' * (threads != 1)}" if device.type == "cpu" else str(device)
    found = [
        _load(),
        Finding("matrix products", "ok", f"{_giga(product)}FLOP/s in {kind} on {where} ({size} by {size})"),
        Finding("bandwidth", "ok", f"{_giga(pace.bandwidth)}B/s of memory (STREAM triad)"),
        Finding("attention", "ok", f"{_giga(attended)}FLOP/s over 1,024 tokens with the heads of {name}"),
    ]
    if processes > 1:
        sums = all_reduce_pace(processes)
        text = f"{_giga(sums.bandwidth)}B/s between {processes} processes by {sums.transport} (a DTensor of 64 MiB)"
        found.append(Finding("all-reduce", "ok", text))
    most, most_trained = _bounds(of, pace, width)
    sampled = trained = None
    if device.type == "cpu":
        alone = sampling_alone(of, dtype, device, rows=ROWS, prompt=TOKENS, new=TOKENS, budget=4.0)
        sampled = SAMPLED * ROWS * TOKENS / alone
        trained = TRAINED * 4096 / update_alone(of, dtype, device, tokens=4096, wanted=4096, budget=4.0)
    found.append(_expected(f"{name}: sampling", sampled, most, f"{ROWS} calls at once"))
    found.append(_expected(f"{name}: update", trained, most_trained, "every token and all weights trained"))
    found.append(_memory(name, of, settings, wide=width == 4, device=settings.trainer_common.device))
    if model is None:
        found += [_size(each, PUBLISHED[each], pace, settings, width) for each in LADDER if each != name]
    return found


def usual_settings() -> AjetConfig:
    """Return the settings that memory is estimated for."""
    return Experiment.from_dict({"ajet": {"backbone": "local", **SETTINGS}}, base=Path.cwd(), exp_dir=Path.cwd()).ajet


def find_dimensions(model: str | None) -> tuple[str, Dimensions]:
    """Return the name and dimensions of a model; of the usual one for None."""
    if model is None:
        return USUAL, PUBLISHED[USUAL]
    of = read_dimensions(prepare_folder(locate_model(model, weights=False), weights=False))
    if of is None:
        raise UserError(
            f"What {model} takes cannot be told from its config.json.",
            where="bench_machine.py",
            expected="a dense decoder (no mixture of experts) whose config.json has its dimensions",
            do="leave the model out: the machine is measured, and a row of sizes told of",
        )
    return model, of


def _load() -> Finding:
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    if load > cores / 2:
        do = "measure again on a quiet machine: what else runs takes its share of every number here"
        return Finding("load", "warning", f"{load:.1f} on {cores} cores", do)
    return Finding("load", "ok", f"{load:.1f} on {cores} cores")


def _bounds(of: Dimensions, pace: Pace, width: int) -> tuple[float, float]:
    """Tokens a second at most, sampled and trained."""
    sampled = sampling_seconds(of, pace, rows=ROWS, prompt=TOKENS, new=TOKENS, bytes_each=width)
    trained = update_seconds(of, pace, tokens=4096, wanted=4096, longest=512, bytes_each=width)
    return ROWS * TOKENS / sampled, 4096 / trained


def _expected(topic: str, pace: float | None, most: float, how: str) -> Finding:
    """`pace` None: on this kind of device nobody measured which share of the bound is reached."""
    if pace is None:
        return Finding(topic, "ok", f"at most {most:,.0f} tokens a second ({how}): a bound, no expectation")
    text = f"about {min(pace, most):,.0f} tokens a second to expect ({how}); the bound is {most:,.0f}"
    return Finding(topic, "ok", text)


def _footprint(of: Dimensions, settings: AjetConfig, *, wide: bool) -> Footprint:
    return estimate_footprint(of.size(), settings, wide=wide)


def _memory(name: str, of: Dimensions, settings: AjetConfig, *, wide: bool, device: str) -> Finding:
    told, free = _footprint(of, settings, wide=wide), measure_free_memory(device)
    text = f"{of.size().parameters / 1e6:,.0f} million weights take {describe_memory(told, free)}"
    if free is not None and told.peak > free:
        return Finding(f"{name}: memory", "warning", text, "docs/sizes.md says what helps")
    return Finding(f"{name}: memory", "ok", text)


def _size(name: str, of: Dimensions, pace: Pace, settings: AjetConfig, width: int) -> Finding:
    sampled, trained = _bounds(of, pace, width)
    memory = format_bytes(_footprint(of, settings, wide=width == 4).peak)
    return Finding(name, "note", f"at most {sampled:,.0f} tokens a second sampled, {trained:,.0f} trained; {memory}")


def _giga(value: float) -> str:
    return f"{value / 1e12:.1f} T" if value >= 1e12 else f"{value / 1e9:.{0 if value >= 1e10 else 1}f} G"


if __name__ == "__main__":
    sys.exit(main())
