"""Compaction: one agent, one model and the same tasks, trained in four ways with three seeds each.

    python benchmarks/bench_compaction.py --out compaction.jsonl     plays what is not in the file
    python benchmarks/bench_compaction.py --table compaction.jsonl   prints the table of recorded runs

The ways are `none` (the oldest notes are dropped), `untrained` (the history becomes the model's summary, which is not
trained), `trained` (the summary is trained, too) and `reencoded` (as `trained`, but the trainer gets the tokens of the
replies' text, as from a relay of messages). Each run is tutorial/example_compaction by the `ajet` command with one
thread.

Settled before the recorded runs: seeds 0, 1 and 2; 20 steps of 8 tasks with 8 attempts; the YAML's settings for all
ways, chosen by one run of `trained` (seed 0, in part with another number of held-out attempts); success is that of 64
held-out tasks at temperature 1, before and after; each run is recorded, whatever came out.

Invariant: a row depends on the run's folder and its processor time alone.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from seed_runs import (
    add_row,
    find_export,
    format_markdown,
    learn_demonstrations,
    make_parser,
    plot_range,
    read_rows,
    report,
    run_ajet,
)

from ajet.record import EpisodeFiles
from ajet.schema.call import Call, full_ids

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "tutorial" / "example_compaction"
RELAY = ROOT / "benchmarks" / "relay"
PATHS = (RELAY, ROOT)
RUN = "compaction_sft"
WAYS: dict[str, list[str]] = {
    "none": ["rollout.user_workflow=agent.py->ReaderWithoutSummaries"],
    "untrained": ["rollout.user_workflow=agent.py->ReaderOfUntrainedSummaries"],
    "trained": [],
    "reencoded": ["--backbone", "relay"],
}
SEEDS = (0, 1, 2)
LAST = 4
"""Number of steps over which success is averaged at the beginning and at the end of a run."""


@dataclass(frozen=True, slots=True)
class CompactionRun:
    """The numbers of one run."""

    way: str
    seed: int
    held_out: dict[int, float]
    """Step -> success of 64 held-out tasks, each played twice at temperature 1."""
    success: list[float]
    """Success of the training attempts of each step."""
    summaries_right: list[float]
    """Share of right summaries of each step."""
    sampled_tokens: int
    trained_tokens: int
    changed_tokens: int
    """Sampled tokens that the trainer got as other tokens."""
    text_changed_tokens: int
    """Recorded tokens that a re-encoding of each reply's text would change."""
    mismatch_kl: float
    """Mean of |engine's minus trainer's log-probability| over the steps, in nats per token."""
    logprob_gap_max: float
    computed_tokens: int
    """Tokens that the trainer computed."""
    separate_tokens: int
    """Tokens of the same calls with each call as a sequence of its own."""
    processor_s: float


def prepare_model(folder: Path) -> Path:
    """Return the model that learned from the demonstrations, made in `folder` unless it is there."""
    learn_demonstrations(TUTORIAL / "sft.yaml", folder, PATHS, program=["notes.py"], model="reader", run=RUN)
    return find_export(folder, RUN)


def play_run(way: str, seed: int, model: Path, folder: Path) -> CompactionRun:
    """Play one run and return its numbers."""
    name = f"compaction_{way}_{seed}"
    settings = [f"model.path={model}", f"experiment_name={name}", f"seed={seed}", "trainer_common.threads=1"]
    command = ["--conf", str(TUTORIAL / "compaction.yaml"), "--fresh", *WAYS[way], *settings]
    seconds = run_ajet(*command, cwd=folder, paths=PATHS)
    return read_run(folder / "launcher_record" / name, model, way, seed, seconds.processor)


def read_run(folder: Path, model: Path, way: str, seed: int, processor_s: float) -> CompactionRun:
    """Return the numbers of a recorded run."""
    from transformers import AutoTokenizer

    rows = read_rows(folder / "metrics.jsonl")
    steps = [row for row in rows if "train/reward" in row]
    files, tokenizer = EpisodeFiles(folder / "episodes"), AutoTokenizer.from_pretrained(model)
    changed = separate = 0
    for step in files.steps():
        for episode, outcome in files.recorded(step):
            trained = [call for call in episode.calls if call.is_step]
            changed += sum(count_changed(call, tokenizer) for call in trained)
            if outcome.advantage:
                separate += sum(full_ids(episode.calls, call.index).size for call in trained)
    return CompactionRun(
        way,
        seed,
        held_out={row["step"]: row["validation/reward"] for row in rows if "validation/reward" in row},
        success=[round(row["train/reward"], 4) for row in steps],
        summaries_right=[round(row["train/workflow/summaries_right"], 4) for row in steps],
        sampled_tokens=int(total(steps, "train/sampled_tokens")),
        trained_tokens=int(total(steps, "train/trained_tokens")),
        changed_tokens=int(total(steps, "relay_changed_tokens")),
        text_changed_tokens=changed,
        mismatch_kl=fmean(abs(row["mismatch_kl"]) for row in steps if "mismatch_kl" in row),
        logprob_gap_max=max(row.get("logprob_gap_max", 0.0) for row in steps),
        computed_tokens=int(total(steps, "computed_tokens")),
        separate_tokens=separate,
        processor_s=round(processor_s, 1),
    )


def count_changed(call: Call, tokenizer: Any) -> int:
    """Return how many tokens of a reply its text does not encode to."""
    sys.path.insert(0, str(RELAY))
    from ajet_relay.reencoding import count_shared_ends, reencode_ids

    ids = call.response_ids.tolist()
    return len(ids) - sum(count_shared_ends(ids, reencode_ids(ids, tokenizer)))


def total(rows: Iterable[Mapping[str, float]], name: str) -> float:
    """Return the sum of a metric over the steps that have it."""
    return sum(row.get(name, 0) for row in rows)


HEAD = (
    "Way",
    "Success before",
    "Success after, by seed",
    "Right summaries",
    "Tokens changed",
    "Changed if sent as text",
    "Mismatch, nats per token",
    "Largest gap, nats",
    "Tokens computed",
    "One row per call",
    "Processor s",
)


def format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of recorded runs: a line per way, with means over its seeds."""
    by_way = {way: [row for row in rows if row["way"] == way] for way in WAYS}
    return format_markdown(HEAD, [list_cells(way, runs) for way, runs in by_way.items() if runs])


def list_cells(way: str, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the cells of one way's line."""
    curves = [list(run["held_out"].values()) for run in runs]
    sampled = sum(run["sampled_tokens"] for run in runs)
    return [
        way,
        f"{fmean(curve[0] for curve in curves):.2f}",
        ", ".join(f"{curve[-1]:.2f}" for curve in curves),
        f"{fmean(fmean(run['summaries_right'][-LAST:]) for run in runs):.2f}",
        *(f"{sum(run[key] for run in runs) / sampled:.2%}" for key in ("changed_tokens", "text_changed_tokens")),
        f"{fmean(run['mismatch_kl'] for run in runs):.2g}",
        f"{max(run['logprob_gap_max'] for run in runs):.2g}",
        *(f"{fmean(run[key] for run in runs) / 1000:.0f}k" for key in ("computed_tokens", "separate_tokens")),
        f"{fmean(run['processor_s'] for run in runs):.0f}",
    ]


def draw_curves(rows: Sequence[Mapping[str, Any]], picture: Path) -> None:
    """Draw the success of training attempts over the steps: per way the mean of its seeds, and their range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for way in WAYS:
        curves = [row["success"] for row in rows if row["way"] == way]
        plot_range(axes, curves, way)
    axes.set(xlabel="step", ylabel="success of 64 attempts", ylim=(0, 1))
    axes.legend(loc="upper left")
    figure.savefig(picture, dpi=90)


def main() -> None:
    """Play the missing runs, or print the table."""
    parser = make_parser(__doc__, SEEDS)
    parser.add_argument("--ways", choices=WAYS, nargs="*", default=[*WAYS])
    arguments = parser.parse_args()
    if arguments.out:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (arguments.folder or Path(temporary)).resolve()
            model = prepare_model(folder)
            known = {(row["way"], row["seed"]) for row in read_rows(arguments.out)}
            for seed in arguments.seeds:
                for way in arguments.ways:
                    if (way, seed) not in known:
                        add_row(arguments.out, play_run(way, seed, model, folder))
    report(arguments, format_table, draw_curves)


if __name__ == "__main__":
    main()
