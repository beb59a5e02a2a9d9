"""The screen of a training: a bar of episodes, a line for each step, and a sample answer every few steps.

Invariant: the screen shows only recorded episodes and metrics.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from rich.text import Text

from ajet.record.console import console, counted, format_seconds, keep_pairs, print_line, printable
from ajet.record.curve import NotebookCurve, notebook_cell
from ajet.record.files import read_rows
from ajet.record.held_out import format_scored_count, format_unscored, format_validation
from ajet.record.progress import Progress, ProgressBar
from ajet.record.status import TO_VALIDATE

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record import RunDirectory
    from ajet.schema.episode import Episode

SAMPLE_EVERY = 5
"""Training steps between two sample answers."""
SHOWN_FROM_S = 5.0
"""Shortest rollout in seconds for which the screen estimates the time of a step."""
DRAWN_EVERY_S = 2.0
"""Seconds between two drawings of the curve in a notebook."""


class TrainingProgress:
    """The screen of a training: a bar of episodes and a line per step. Thread-safe, as the rollout calls it too."""

    def __init__(self, experiment: Experiment, run: RunDirectory) -> None:
        trainer, rollout = experiment.ajet.trainer_common, experiment.ajet.rollout
        self._run = run
        self._episodes_a_step = experiment.ajet.data.train_batch_size * rollout.num_repeat
        self._bars = Progress()
        self._bars.__enter__()
        self._bar: ProgressBar | None = None
        self._lock = threading.Lock()
        self._sample: Episode | None = None
        self._curve_drawn_at = time.monotonic()
        self._estimate = StepEstimate(self._episodes_a_step, min(rollout.max_env_worker, rollout.max_num_seqs))
        self._step_began: float | None = time.monotonic()
        self._curve: NotebookCurve | None = None
        if (show := notebook_cell()) is not None:
            rows = list(read_rows(run.path / "metrics.jsonl"))
            self._curve = NotebookCurve(experiment.name, trainer.total_training_steps, rows, show)

    def on_episode(self, episode: Episode) -> None:
        """Advance the bar by an ended episode, and store it as sample if its reward is the highest yet. Thread-safe."""
        with self._lock:
            is_validation = episode.split == "validation"
            if not is_validation and (self._sample is None or (episode.reward or 0) > (self._sample.reward or 0)):
                self._sample = episode
            if self._bar is None:
                title = "validation" if is_validation else f"step {episode.step}"
                total = self._run.status.get(TO_VALIDATE) if is_validation else self._episodes_a_step
                self._bar = self._bars.bar(title, total, "episodes")
            self._bar.advance()
            if not is_validation and self._step_began is not None:
                line = self._estimate.add_episode(time.monotonic() - self._step_began)
                if line:
                    print_line(line)
            if self._curve is not None and time.monotonic() - self._curve_drawn_at >= DRAWN_EVERY_S:
                self._curve_drawn_at = time.monotonic()
                self._curve.draw(f"{self._bar.title}: {counted(self._bar.done, 'episode')}")

    def on_step(self, step: int, total: int, metrics: dict[str, float]) -> None:
        """Print the line of an ended step or validation, and every few steps a sample answer.

        Args:
            total: Number of the last step, or 0 without one.
        """
        with self._lock:
            if self._bar is not None:
                self._bar.close()
                self._bar = None
            if self._curve is not None:
                self._curve.add({"step": step, **metrics}, format_step(step, total, metrics))
        is_validation = "validation/rows" in metrics or "validation/tasks" in metrics
        # Only the first step's time is estimated; a validation before it does not count.
        self._step_began = time.monotonic() if is_validation and self._step_began is not None else None
        if is_validation:
            text = keep_pairs(f"held out: {_describe_validation(metrics)}")
            console.print(f"step {step:>4}/{total}  [bold]{text}[/]", soft_wrap=True)
            return
        print_line(keep_pairs(format_step(step, total, metrics)))
        if (step == 1 or step % SAMPLE_EVERY == 0) and "train/rows" not in metrics:
            self._show_sample()
        self._sample = None

    def close(self) -> None:
        """Remove the bars from the screen. Idempotent."""
        self._bars.close()

    def _show_sample(self) -> None:
        """Print the question and the last reply of the step's best episode on one line."""
        if self._sample is None or not self._sample.calls:
            return
        last_call = self._sample.calls[-1]
        reply = self._sample.messages[last_call.reply] if last_call.reply is not None else {}
        text = " ".join(str(reply.get("content") or reply.get("tool_calls") or "").split())
        line = Text.assemble(
            ("            ", ""),
            (f"{printable(self._sample.task.main_query[:80])} ", "dim"),
            ("→ ", "dim"),
            (printable(text[:160]), "italic"),
        )
        console.print(line, soft_wrap=True)


class StepEstimate:
    """Estimates how long a training step takes, from the first episodes of the first step."""

    def __init__(self, episodes: int, at_once: int) -> None:
        """Args:
        episodes: Number of episodes of a step.
        at_once: Maximum number of concurrent episodes.
        """
        self._episodes = episodes
        self._episodes_needed = min(max(2, min(at_once, episodes // 4)), episodes)
        self._ended_count = 0
        self._first_seconds = 0.0

    def add_episode(self, seconds: float) -> str | None:
        """Count an episode that ended `seconds` after the step's start.

        Returns:
            A line to print, once enough episodes have ended, or None. Short steps get no line.
        """
        self._ended_count += 1
        if self._ended_count == 1:
            self._first_seconds = seconds
        seconds_per_episode = (seconds - self._first_seconds) / max(
            self._ended_count - 1, 1
        )  # the first episode waits for the engine to warm up
        rollout_seconds = self._first_seconds + seconds_per_episode * (self._episodes - 1)
        if self._ended_count != self._episodes_needed or rollout_seconds < SHOWN_FROM_S:
            return None
        return (
            f"A step takes about {format_seconds(2 * rollout_seconds)}: {format_seconds(rollout_seconds)} for "
            f"{counted(self._episodes, 'episode')} ({self._ended_count} took {format_seconds(seconds)}), and about the "
            "same for the update."
        )


def _describe_validation(metrics: dict[str, float]) -> str:
    """Return a validation's results as text: loss for given replies, else reward and success of all tasks."""
    if "validation/rows" in metrics:
        return f"loss {metrics['validation/loss']:.4f} ({counted(int(metrics['validation/rows']), 'row')})"
    tasks, seconds = int(metrics["validation/tasks"]), metrics.get("seconds/validation", 0)
    return f"{format_validation(metrics)} ({tasks} tasks, {seconds:.1f} s)"


def format_step(step: int, total: int, metrics: dict[str, float]) -> str:
    """Return the line of a training step or a validation for the screen.

    Args:
        total: Number of the last step, or 0 without one.
        metrics: The metrics row.
    """
    parts = [f"step {step:>4}/{total}" if total else f"step {step:>4}"]
    if "validation/rows" in metrics or "validation/tasks" in metrics:
        return f"{parts[0]}  held out: {_describe_validation(metrics)}"
    if "train/rows" in metrics:
        row_count = counted(int(metrics["train/rows"]), "pair" if "dpo/accuracy" in metrics else "row")
        parts.append(f"loss {metrics['loss']:.4f} over {row_count}")
    elif "train/reward" in metrics:
        parts.append(f"reward {metrics['train/reward']:.3f} {format_scored_count(metrics, 'train')}".rstrip())
    else:
        parts.append("no episode was scored")
        if metrics.get("train/failed"):
            unscored = format_unscored(metrics, "train")
            parts.append(f"{int(metrics['train/failed'])} failed{f' ({unscored})' if unscored else ''}")
    if metrics.get("train/cut_replies"):
        parts.append(f"{int(metrics['train/cut_replies'])} replies cut short")
    if "loss" in metrics:
        parts.append(f"grad {metrics.get('grad_norm', 0):.2f}")
    else:
        parts.append("no training signal" + (" (equal rewards)" if "train/reward" in metrics else ""))
    if "train/rows" in metrics:
        return "  ".join([*parts, f"{metrics['seconds/step']:.1f} s"])
    seconds = f"{metrics['seconds/step']:.1f} s (rollout {metrics['seconds/rollout']:.1f}"
    parts.append(f"{seconds}, update {metrics['seconds/update']:.1f})")
    return "  ".join(parts)
