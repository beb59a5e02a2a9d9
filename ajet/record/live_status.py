"""The current state of a run, read from its files, for `ajet status RUN` and the viewer.

Invariant: nothing is locked, started or queried. Reads are bounded independently of the run's length (the status, the
end of metrics.jsonl, the lines of the last step). Unknown numbers are absent, never guessed.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ajet.config.record_file import list_record_folder, open_record_file
from ajet.record.checkpoints import Checkpoints, checkpoints_of
from ajet.record.episodes import NAME
from ajet.record.files import next_line, parse_object, read_last_lines
from ajet.record.status import find_run_state, read_status

TAIL = 1 << 18
"""Maximum bytes read from the end of metrics.jsonl: about twenty steps."""
STEPS = 10
"""Maximum number of training steps behind the rates."""
EPISODES = 4096
"""Lines of the last step that the histogram is over, at most."""


@dataclass(slots=True)
class LiveStatus:
    """The present state of a run. Ages and durations are in seconds, and None means unknown."""

    run: str
    state: str
    """running, finished, interrupted, failed, or stopped without a word."""
    phase: str
    step: int
    steps: int | None
    """Number of the last planned step."""
    phase_age: float | None
    updated_age: float | None
    processes: int
    depths: dict[str, int] = field(default_factory=dict)
    """Counts. `leased`: positions in flight; `closed`: groups waiting for the trainer; `open`: episodes of clients;
    `pending`: groups on disk not used by a checkpoint. With remote samplers also the number of samplers, `free`:
    positions to lease, `again`: used groups a step may reuse, `dead`: dead letters."""
    oldest: dict[str, float] = field(default_factory=dict)
    """With remote samplers, seconds. `lease`: age of the oldest position in flight; `waiting_group`: age of the oldest
    closed group not yet used."""
    samplers: list[dict[str, Any]] = field(default_factory=list)
    """Active samplers, at most `SHOWN_SAMPLERS`: `name`, number of `leases`, `age` of the last heartbeat in seconds,
    policy `version`, `episodes_per_second` since the start."""
    rates: dict[str, float] = field(default_factory=dict)
    """Over the last steps: `steps_per_hour`, `episodes_per_second`, `tokens_per_second`."""
    shares: dict[str, float] = field(default_factory=dict)
    """Of the time of the last steps: `rollout`, `update`."""
    waits: str = ""
    """Description of the waiting side."""
    staleness: dict[int, int] = field(default_factory=dict)
    """Trained episodes of the last step by staleness in steps of the oldest call."""
    reward: float | None = None
    checkpoint: int | None = None  # step of the latest checkpoint
    behind: int | None = None  # training steps since the checkpoint
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        return asdict(self)


def read_live_status(folder: Path, checkpoints: Checkpoints | None = None) -> LiveStatus:
    """Return the present status of the run in `folder`, read from its files. Raises UserError for a damaged file.

    Args:
        checkpoints: The run's checkpoints, to avoid a search on repeated calls.
    """
    status, now = read_status(folder) or {}, time.time()
    rows = _last_rows(folder / "metrics.jsonl")
    latest_checkpoint = (checkpoints or checkpoints_of(folder)).latest()
    live = LiveStatus(
        folder.name,
        find_run_state(status),
        str(status.get("phase", "")),
        int(status.get("step") or 0),
        status.get("steps"),
        _seconds_since(status.get("since"), now),
        _seconds_since(status.get("updated"), now),
        len(status.get("processes") or ()),
        problem=str(status.get("problem") or ""),
    )
    if live.state != "finished":  # a finished run's last values describe a step that is over
        live.depths = {name: int(count) for name, count in (status.get("depths") or {}).items()}
        # Ages were right when the run wrote them; a running run has aged since.
        status_age = (_seconds_since(status.get("looked"), now) or 0.0) if live.state == "running" else 0.0
        live.oldest = {name: age + status_age for name, age in (status.get("oldest") or {}).items()}
        live.samplers = [{**sampler, "age": sampler["age"] + status_age} for sampler in status.get("samplers") or ()]
    if (folder / "pending").is_dir():
        live.depths["pending"] = sum(name.endswith(".jsonl") for name in list_record_folder(folder / "pending"))
    if rows:
        _add_rates(live, rows)
        if "train/rows" not in rows[-1]:  # given replies are played by no engine
            live.waits = _describe_waiting_side(live, status.get("depths") or {})
        live.reward = rows[-1].get("train/reward")
        live.staleness = _count_staleness(folder / "episodes" / f"step-{rows[-1]['step']}.jsonl")
    if latest_checkpoint is not None:
        live.checkpoint = latest_checkpoint.step
        live.behind = max(0, (rows[-1]["step"] if rows else latest_checkpoint.step) - latest_checkpoint.step)
    return live


def format_prometheus(status: LiveStatus) -> str:
    """Return the status in the text format of Prometheus, for example for a node exporter's textfile collector."""
    values: dict[str, tuple[str, dict[str, float]]] = {
        "ajet_running": ("1 if the run is in progress, else 0", {"": float(status.state == "running")}),
        "ajet_step": ("present training step", {"": status.step}),
        "ajet_phase_age_seconds": ("time in the current phase", {f'phase="{status.phase}"': status.phase_age or 0.0}),
        "ajet_updated_age_seconds": ("time since the run last wrote its status", {"": status.updated_age or 0.0}),
        "ajet_depth": (
            "number of positions (tasks) and groups in each state",
            {f'of="{k}"': v for k, v in status.depths.items()},
        ),
        "ajet_oldest_seconds": (
            "time since the oldest lease began, and since the group that waits longest was complete",
            {f'of="{name}"': age for name, age in status.oldest.items()},
        ),
        **_sampler_metrics(status.samplers),
        "ajet_rate": ("rates over the last steps", {f'of="{name}"': v for name, v in status.rates.items()}),
        "ajet_share": ("share of a step's time", {f'of="{name}"': v for name, v in status.shares.items()}),
        "ajet_staleness_episodes": (
            "episodes of the last step, by their age in steps",
            {f'steps="{steps}"': count for steps, count in status.staleness.items()},
        ),
        "ajet_reward": ("mean reward of the last step", {} if status.reward is None else {"": status.reward}),
        "ajet_checkpoint_step": ("latest", {} if status.checkpoint is None else {"": status.checkpoint}),
    }
    lines = []
    run = _escape_label(status.run)
    for name, (help_text, value_by_label) in values.items():
        if value_by_label:
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge"]
        for label, value in value_by_label.items():
            lines.append(f'{name}{{run="{run}"{"," if label else ""}{label}}} {value:g}')
    return "\n".join(lines) + "\n"


def _sampler_metrics(samplers: list[dict[str, Any]]) -> dict[str, tuple[str, dict[str, float]]]:
    """Return the metrics of remote samplers for Prometheus: (help text, value by label) by metric name."""
    help_texts = {
        "leases": "number of positions (tasks) leased by a sampler",
        "age_seconds": "time since its last heartbeat",
        "version": "policy version that it samples with",
        "episodes_per_second": "since it began",
    }
    renamed_keys = {"age_seconds": "age"}
    return {
        f"ajet_sampler_{name}": (
            help_text,
            {
                f'sampler="{_escape_label(sampler["name"])}"': float(sampler[key])
                for sampler in samplers
                if (key := renamed_keys.get(name, name)) in sampler
            },
        )
        for name, help_text in help_texts.items()
    }


def _escape_label(text: str) -> str:
    """Return a text as the value of a Prometheus label, without quotes around it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def _last_rows(path: Path) -> list[dict[str, Any]]:
    """Return the metrics rows of the last `STEPS` training steps, or [] without a file."""
    try:
        metrics_file = open_record_file(path)
    except FileNotFoundError:
        return []
    with metrics_file as file:
        lines = read_last_lines(file, TAIL)
    newest_first = []
    for line in reversed(lines):
        # Only rows of training steps have this key.
        if b'"tasks": ' in line:
            newest_first.append(parse_object(line))
        if len(newest_first) == STEPS:
            break
    return newest_first[::-1]


def _add_rates(status: LiveStatus, rows: list[dict[str, Any]]) -> None:
    """Add to the status the rates and shares of time over the rows of the last training steps."""
    seconds = [row.get("seconds/step") for row in rows]
    total = sum(second for second in seconds if second)
    if not total:
        return
    status.rates["steps_per_hour"] = 3600 * len(rows) / total
    for name, key in (("episodes_per_second", "train/episodes"), ("tokens_per_second", "train/sampled_tokens")):
        if any(key in row for row in rows):
            status.rates[name] = sum(row.get(key) or 0 for row in rows) / total
    for name in ("rollout", "update"):
        if any(f"seconds/{name}" in row for row in rows):
            status.shares[name] = sum(row.get(f"seconds/{name}") or 0.0 for row in rows) / total


def _describe_waiting_side(status: LiveStatus, depths: dict[str, int]) -> str:
    """Return a text on which side waits for the other, trainer or samplers, and for what share of the time.

    Colocated sides wait in turns. Remote samplers continue while positions are free.
    """
    rollout_share, update_share = status.shares.get("rollout"), status.shares.get("update")
    if rollout_share is None or update_share is None:
        return ""
    if "samplers" in depths:
        idle_samplers = "; samplers wait for its next step, because no task is free" if not depths.get("free") else ""
        return f"the trainer waits for samplers {rollout_share:.0%} of the time{idle_samplers}"
    side, share = ("trainer", rollout_share) if rollout_share >= update_share else ("engine", update_share)
    awaited = "rollout" if side == "trainer" else "updates"
    return f"the {side} waits for {awaited} {share:.0%} of the time"


def _count_staleness(path: Path) -> dict[int, int]:
    """Return the number of trained episodes of a step by staleness, in policy versions.

    Staleness is counted from the version that the step's update started from, as for `train/staleness`.

    Args:
        path: The episode file of the step.
    """
    counts: Counter[int] = Counter()
    if NAME.fullmatch(path.name) is None:
        return {}
    try:
        episode_file = open_record_file(path)
    except FileNotFoundError:
        return {}
    with episode_file as file:
        for _ in range(EPISODES):
            if not (line := next_line(file)).endswith(b"\n"):
                break
            row = parse_object(line)
            trained_step, policy = (row.get("outcome") or {}).get("step"), row.get("policy")
            if trained_step is not None and policy:
                counts[max(0, trained_step - 1 - policy[0])] += 1
    return dict(sorted(counts.items()))


def _seconds_since(then: Any, now: float) -> float | None:
    """Return the seconds from a time to `now`, at least 0, or None for a missing time."""
    return max(0.0, now - then) if isinstance(then, (int, float)) else None
