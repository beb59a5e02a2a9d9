"""Prints and saves the report of `ajet prove`: a table by token class, recomputed steps, wrong tokens.

Invariant: the code only displays a `ProofReport`; the JSON contains every number of the table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ajet.record.console import console, counted, print_line
from ajet.record.files import write_atomically
from ajet.schema.errors import UserError
from ajet_proof.recorded.prove import OUTSIDE, PlayedFile, ProofReport, StepSpread
from ajet_proof.recorded.recompute import WRITTEN
from ajet_proof.recorded.store import OUTSIDE_A_STORE, StoreReport
from ajet_proof.tokens.proof import CLASSES

SHOWN = 20
"""Maximum wrong tokens on the screen; the JSON has all."""


def encode_report(report: ProofReport) -> str:
    """Return the report as one JSON object."""
    proof = report.proof
    content: dict[str, Any] = {
        "ok": report.ok,
        "run": str(report.target.run),
        "episodes": proof.episodes,
        "calls": proof.calls,
        "timelines": proof.timelines,
        "tool_uses": proof.tool_uses,
        "classes": {name: asdict(proof.counts[name]) for name in CLASSES},
        "mismatch_kl": proof.mismatch_kl,
        "tolerance": report.tolerance,
        "computed_in": report.computed_in,
        "forks": dict(proof.forks),
        "unchecked": dict(proof.unchecked),
        "unproven": dict(report.unproven),
        "wrong_steps": [asdict(step) for step in report.wrong_steps],
        "held_steps": report.held_steps,
        "unheld_steps": dict(report.unheld_steps),
        "held_losses": report.held_losses,
        "unheld_losses": dict(report.unheld_losses),
        "held_validations": report.held_validations,
        "unheld_validations": dict(report.unheld_validations),
        "held_draws": report.held_draws,
        "unheld_draws": dict(report.unheld_draws),
        "altered": report.altered,
        "outside": list(OUTSIDE),
        "spreads": [
            {"step": spread.step, "split": spread.split, "version": spread.version, "which": spread.which}
            | asdict(spread.spread)
            | {"problem": spread.spread.problem}
            for spread in report.spreads
        ],
        "weights": {str(version): name for version, name in report.weights.items()},
        "plays": [
            {
                "step": play.step,
                "split": play.split,
                "episodes": play.episodes,
                "sampled": sum(play.sampled.values()),
                "recomputed": play.recomputed,
            }
            for play in report.plays
        ],
        "wrong": [asdict(token) for token in proof.wrong],
    }
    return json.dumps(content, indent=1)


def save_report(report: ProofReport) -> Path:
    """Write the report as proof.json into the run's folder, for the viewer.

    Returns:
        The path of the file.

    Raises:
        UserError: the folder cannot be written.
    """
    content = {"time": time.time(), "episode": report.target.episode, **json.loads(encode_report(report))}
    path = report.target.run / "proof.json"
    try:
        write_atomically(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise UserError(
            f"The proof cannot be saved: {error.strerror}.", where=str(path), do="copy the run to a folder of your own"
        ) from error
    return path


def print_report(report: ProofReport) -> None:
    """Print the report: the table by token class and a summary in sentences."""
    proof = report.proof
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("tokens", "", "checked", "ids equal", "recomputed", "largest gap"):
        table.add_column(name, justify="left" if name == "tokens" else "right")
    for name in CLASSES:
        tally = proof.counts[name]
        equal = f"{tally.equal / tally.checked:.2%}" if tally.checked else "–"
        equal = "all" if tally.checked and tally.equal == tally.checked else equal
        gap = f"{tally.gap_max:.2g}" if tally.compared else "–"
        compared = f"{tally.compared:,}" if tally.compared else "–"
        table.add_row(name, f"{tally.tokens:,}", f"{tally.checked:,}", equal, compared, gap)
    console.print(table)
    forks = ", ".join(f"{count} {reason}" for reason, count in proof.forks.most_common()) or "none"
    counts = ((proof.episodes, "episode"), (proof.calls, "call"), (proof.timelines, "timeline"))
    print_line(f"{', '.join(counted(*count_and_noun) for count_and_noun in counts)}; forks: {forks}.")
    if proof.tool_uses:
        uses = counted(proof.tool_uses, "tool use")
        print_line(f"{uses} compared with digests and tool messages.")
    for reason, count in proof.unchecked.most_common():
        print_line(f"{counted(count, 'token')} not checked: {UNCHECKED.get(reason, reason)}.")
    for line in _describe_recomputation(report):
        print_line(line)
    wrong_spreads = [_format_spread(spread) for spread in report.spreads if spread.spread.problem is not None]
    findings: tuple[tuple[str, Sequence[object]], ...] = (
        ("left out", report.altered),
        ("wrong token", proof.wrong),
        ("wrong step", report.wrong_steps),
        ("wrong distribution", wrong_spreads),
    )
    for label, problems in findings:
        for problem in problems[:SHOWN]:
            console.print(Text.assemble((f"{label}  ", "bold red"), str(problem)), soft_wrap=True)
        if len(problems) > SHOWN:
            print_line(f"… and {len(problems) - SHOWN} more (--json lists all).")
    checks = (
        ("Credit", "step", report.held_steps, report.unheld_steps),
        ("Numbers", "validation", report.held_validations, report.unheld_validations),
        ("Loss", "step", report.held_losses, report.unheld_losses),
        ("Curriculum draws", "epoch", report.held_draws, report.unheld_draws),
    )
    for quantity, noun, checked, unheld in checks:
        if checked:
            print_line(f"{quantity} of {counted(checked, noun)} recomputed.")
        for reason, count in unheld.most_common():
            print_line(f"{quantity} of {counted(count, noun)} not recomputed: {reason}.")
    unproven = report.unproven
    for reason, count in unproven.most_common():
        noun = "log-probability" if count == 1 else "log-probabilities"
        print_line(f"{count:,} {noun} not proven: {UNPROVEN[reason]}.")
    print_line(f"Not covered by a proof: {'; '.join(OUTSIDE)}.")
    if not report.ok:
        wrong_count = len(proof.wrong) + len(report.wrong_steps) + len(wrong_spreads)
        console.print(f"[bold red]Not proven:[/] {wrong_count} wrong.")
    elif unproven:
        console.print("[bold green]No wrong token[/] in what could be checked; the rest is counted above, not proven.")
    else:
        console.print("[bold green]Proven:[/] no wrong token.")


UNPROVEN = {
    "written": "they are given replies, not sampled by this run",
    "ids only": "only ids were requested, or can be derived here",
    "version range": "the policy changed while their replies were sampled (a range of policy versions)",
    "no checkpoint": "no checkpoint has the weights that sampled them",
    "left out": "their episodes were left out (--at-most), or hold a wrong token",
}


def _format_spread(step_spread: StepSpread) -> str:
    """Format a wrong distribution: its step, policy version, kind of log-probabilities, token number and problem."""
    source = (
        f"step {step_spread.step}" if step_spread.split == "train" else f"{step_spread.split}, step {step_spread.step}"
    )
    return (
        f"{source}, version {step_spread.version}, log-probabilities {step_spread.which}, "
        f"{step_spread.spread.tokens:,} tokens: {step_spread.spread.problem}"
    )


UNCHECKED = {
    "redacted": "a secret in their messages is redacted",
    "raw ids": "their client sent ids instead of text",
    "no reply": "their reply was cut off or rejected and has no message",
}


def _describe_recomputation(report: ProofReport) -> list[str]:
    """Return lines about the recomputed log-probabilities: with which weights, which gaps, and for which steps."""
    if report.why_not:
        return [f"Ids only, no log-probabilities: {report.why_not}."]
    complete_plays = [
        play for play in report.plays if play.recomputed and play.recomputed == sum(play.sampled.values())
    ]
    partial_plays = [play for play in report.plays if 0 < play.recomputed < sum(play.sampled.values())]
    unchecked_plays = [play for play in report.plays if not play.recomputed and play.sampled]
    lines = []
    if report.weights:
        weight_list = ", ".join(f"version {version} ({name})" for version, name in report.weights.items())
        lines.append(
            f"Log-probabilities recomputed in {report.computed_in} with the weights of {weight_list}; "
            f"tolerance {report.tolerance:g} nats; mean gap {report.proof.mismatch_kl:.2g}."
        )
    if report.spreads:
        largest_gap = max(
            report.spreads, key=lambda spread: abs(spread.spread.mean) / spread.spread.mean_allowed
        ).spread
        lines.append(
            f"Gaps of {counted(len(report.spreads), 'distribution')}, compared with this machine's noise: the largest "
            f"mean is {largest_gap.mean:.2g} ± {largest_gap.error:.1g} nats, of {largest_gap.mean_allowed:.2g} allowed."
        )
    for label, plays in (
        ("Recomputed", complete_plays),
        ("Recomputed in part", partial_plays),
        ("Ids only", unchecked_plays),
    ):
        if plays:
            is_weightless = plays is unchecked_plays and not any(
                play.sampled[-1] or play.sampled[WRITTEN] for play in unchecked_plays
            )
            reason = ": no checkpoint has the weights that sampled them" if is_weightless else ""
            lines.append(f"{label}: {_format_steps(plays)}{reason}.")
    return lines


def _format_steps(plays: Sequence[PlayedFile]) -> str:
    """Format the steps of files as ranges, such as "step 1-3, 5; validation after step 0, 5"."""
    parts = []
    for split in dict.fromkeys(play.split for play in plays):
        steps = sorted(play.step for play in plays if play.split == split)
        ranges: list[list[int]] = []
        for step in steps:
            if ranges and step == ranges[-1][-1] + 1:
                ranges[-1].append(step)
            else:
                ranges.append([step])
        step_list = ", ".join(
            str(step_range[0]) if len(step_range) == 1 else f"{step_range[0]}-{step_range[-1]}" for step_range in ranges
        )
        label = "step" if split == "train" else f"{split} after step" if split == "validation" else f"{split} step"
        parts.append(f"{label} {step_list}")
    return "; ".join(parts)


def encode_store_report(found: StoreReport) -> str:
    """Return the report of `ajet prove --store` as one JSON object."""
    store_fields = {"run": found.run, "store": found.store, "positions": dict(found.positions), "gone": found.gone}
    return json.dumps(
        {**json.loads(encode_report(found.report)), **store_fields, "not_in_a_store": OUTSIDE_A_STORE}, indent=1
    )


def print_store_report(found: StoreReport) -> None:
    """Print the store's positions, then the report of its episodes."""
    states = ", ".join(f"{count:,} {state}" for state, count in sorted(found.positions.items()))
    summary = f"{found.store}, run {found.run}: {counted(found.positions.total(), 'position')} with episodes ({states})"
    missing_text = f"; {found.gone:,} more were started and have no episode here" if found.gone else ""
    print_line(f"{summary}{missing_text}.")
    print_line(f"Cannot be proven from a store: {OUTSIDE_A_STORE}.")
    print_report(found.report)
