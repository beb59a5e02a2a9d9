"""The summary of a finished run: curve, validations, counts of tasks and episodes, and advice.

Invariant: skipped and doubled tasks are counted in `metrics.jsonl`, the record of training, not in variables of the
loop.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ajet.config.references import is_of_running_program
from ajet.record.attempts import read_attempts
from ajet.record.console import console, counted, print_line
from ajet.record.curve import draw_curve
from ajet.record.held_out import FEWEST_TASKS, format_validation, rows_of_last_judge
from ajet.record.learned import LEARNED_NOTHING, advise_given_answers, idle_steps, is_never_right, why_nothing
from ajet.record.reward_hacking import GAMED
from ajet.record.scores import Scores, compare, failure_reward
from ajet.schema.commands import format_command, format_run_name
from ajet.schema.errors import UserError
from ajet.train.reward_hacking_watch import describe_alarm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ajet.record import RunDirectory
    from ajet.record.episodes import EpisodeFiles


GIVEN_UP_SHOWN = 5
"""Maximum number of positions named in the summary."""


@dataclass(frozen=True, slots=True)
class RunTally:
    """Counts of tasks and episodes over a run's rows of metrics.

    A task is a position in the training order, over all epochs. Positions in `waiting` of the newest step are in
    progress and not skipped. Positions in `given_up` that did not run later count as given up.
    """

    trained: int
    skipped: int
    doubled: int
    failed: int
    forked: int
    held_out_failed: int = 0
    """Number of failed attempts of all validations."""
    unit: str = "task"
    """The kind of a position: a task, or a row of given replies."""
    given_up: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """Positions given up by samplers, with the reason of each failure."""

    @classmethod
    def from_rows(cls, rows: Iterable[dict[str, Any]]) -> RunTally:
        """Return the counts over the rows of `metrics.jsonl`."""
        trained = Counter[int]()
        discarded: set[int] = set()
        waiting: set[int] = set()
        given_up: dict[int, tuple[str, ...]] = {}
        failed = forked = held_out_failed = 0
        unit = "task"
        for row in rows:
            unit = "row" if "train/rows" in row else unit
            trained.update(row.get("tasks", ()))
            discarded.update(row.get("discarded", ()))
            if "tasks" in row:
                waiting = set(row.get("waiting", ()))  # only the newest step's waiting tasks count
                given_up |= {int(order): tuple(reasons) for order, reasons in row.get("given_up", {}).items()}
            failed += int(row.get("train/failed", 0)) - int(row.get("train/retrained_failed", 0))
            forked += int(row.get("train/forks", 0)) - int(row.get("train/retrained_forks", 0))
            held_out_failed += int(row.get("validation/failed", 0))
        expected = max({*trained, *discarded}, default=-1) + 1
        # A position that was used after it was given up was leased once more.
        given_up = {
            order: reasons for order, reasons in given_up.items() if order not in {*trained, *discarded, *waiting}
        }
        return cls(
            trained=len(trained),
            skipped=len({*range(expected)} - {*trained, *discarded, *waiting, *given_up}),
            doubled=sum(count - 1 for count in trained.values()),
            failed=failed,
            forked=forked,
            held_out_failed=held_out_failed,
            given_up=tuple(sorted(given_up.items())),
            unit=unit,
        )

    def describe_counts(self) -> str:
        """Return the counts as one line for the screen."""
        given_up_text = f", {len(self.given_up)} given up" if self.given_up else ""
        line = (
            f"{counted(self.trained, self.unit)} trained, {self.skipped} skipped, {self.doubled} "
            f"doubled{given_up_text}; {counted(self.failed, 'episode')} failed, {counted(self.forked, 'call')} "
            "tokenized anew"
        )
        held_out_text = f"; {counted(self.held_out_failed, 'held-out episode')} failed" if self.held_out_failed else ""
        return line + held_out_text


def describe_flips(episodes: EpisodeFiles, before: int, after: int) -> str | None:
    """Return how many held-out tasks changed between solved and unsolved from one step to another, in words.

    Returns:
        None if a validation recorded no episode, or no episode was scored.
    """
    try:
        first_attempts, last_attempts = (read_attempts(episodes.path(step, "validation")) for step in (before, after))
    except UserError as error:  # the training itself is complete
        return f"The held-out tasks that changed between solved and unsolved are unknown: {error.what}"
    if all(attempt.reward is None for attempt in (*first_attempts, *last_attempts)):
        return None
    lowest_reward = failure_reward([*first_attempts, *last_attempts])
    compared = compare(Scores(first_attempts, lowest_reward), Scores(last_attempts, lowest_reward))
    if compared is None:
        return None
    quality = "solved" if compared.quantity == "success" else "better"
    if compared.tasks < FEWEST_TASKS:
        changed = f"{len(compared.gained)} newly {quality}, {len(compared.lost)} no longer"
        return f"{changed}: {counted(compared.tasks, 'held-out task')} are too few for a conclusion"
    return (
        f"{counted(len(compared.gained), 'held-out task')} newly {quality}, {len(compared.lost)} no longer; "
        f"{compared.describe_difference()}"
    )


def _show_finished(run: RunDirectory, step: int) -> None:
    """Print that the run had already made all its steps, and what the user can do.

    Args:
        step: The last step.
    """
    checkpoint = run.checkpoints.latest()
    for line in (
        f'The run "{run.name}" is finished (step {step} is its last): no step was trained.',
        "To train further: raise trainer_common.total_training_steps (or total_epochs).",
        "To start again from the beginning: --fresh (in Python fresh=True); the old run is not deleted.",
        *([f"Checkpoint: {checkpoint.path}"] if checkpoint else []),
    ):
        print_line(line)


def print_summary(run: RunDirectory, *, ends_idle: bool = True) -> None:
    """Draw the curve, and print accuracy before and after, counts, advice, and the next commands.

    A run that learned nothing gets the reason instead of the next commands.

    Args:
        ends_idle: True if the run ends after `stop_after_idle_steps`.

    Raises:
        UserError: The run ended idle and had learned nothing at all.
    """
    rows = run.metrics.rows()
    if run.resumed is not None and all(int(row.get("step", 0)) <= run.resumed.step for row in rows):
        _show_finished(run, run.resumed.step)
        return
    draw_curve(rows, run.path / "metrics.png")
    validations = [row for row in rows_of_last_judge(rows) if "validation/tasks" in row]
    if earlier := [row for row in rows if "validation/tasks" in row][: -len(validations) or None]:
        console.print(
            f"The judge changed after the validation of step {earlier[-1]['step']}: held-out numbers before and "
            "after cannot be compared.",
            soft_wrap=True,
        )
    if len(validations) > 1:
        first, last = validations[0], validations[-1]
        console.print(
            f"Held out ({counted(int(last['validation/tasks']), 'task')}): {format_validation(first, 2)} after step "
            f"{first['step']} → [bold]{format_validation(last, 2)}[/] after step {last['step']}",
            soft_wrap=True,
        )
        if flipped := describe_flips(run.episodes, int(first["step"]), int(last["step"])):
            console.print(flipped, soft_wrap=True)
    run_tally = RunTally.from_rows(rows)
    console.print(run_tally.describe_counts())
    if cut_count := sum(int(row.get("train/cut_replies", 0)) for row in rows):
        calls = sum(int(row.get("train/calls", 0)) for row in rows)
        location = format_command("episodes", format_run_name(run.path, run.name))
        print_line(f"{cut_count} of {calls} replies cut short by a token limit: see {location}")
    for order, reasons in run_tally.given_up[:GIVEN_UP_SHOWN]:
        reason_counts = ", ".join(f"{count} × {reason}" for reason, count in Counter(reasons).items())
        print_line(f"Given up: the task at position {order} of the training order ({reason_counts})")
    if (more := len(run_tally.given_up) - GIVEN_UP_SHOWN) > 0:
        console.print(f"and {counted(more, 'further task')} given up: see `given_up` in metrics.jsonl")
    checkpoint = run.checkpoints.best() or run.checkpoints.latest()
    location = f"Record: {run.path}" + (f"\nCheckpoint: {checkpoint.path}" if checkpoint else "")
    print_line(location)
    run_name = format_run_name(run.path, run.name)
    if alarm := run.status.get(GAMED):
        console.print("[bold yellow]Does the agent game the rewards of this run?[/]")
        print_line("\n".join(describe_alarm(alarm, run_name)))
    reason, idle_count = why_nothing(rows), idle_steps(rows)
    is_stopped_early = ends_idle and 0 < run.experiment.ajet.trainer_common.stop_after_idle_steps <= idle_count
    advice = f"Before the next run: {advise_given_answers(run.experiment.ajet)}." if is_never_right(rows) else ""
    if reason is not None:
        run.status.set(**{LEARNED_NOTHING: reason})
        console.print(f"[bold yellow]This run learned nothing[/]: {reason}.", soft_wrap=True)
        console.print(
            "See the episodes:    ", format_command("episodes", run_name), sep="", markup=False, soft_wrap=True
        )
        if advice:
            print_line(advice)
        if is_stopped_early:
            raise UserError(
                f"The run was stopped, because it had no training signal in {idle_count} steps.",
                where="ajet.trainer_common.stop_after_idle_steps",
                expected="attempts at a task with different rewards, at least sometimes",
                do="run it with --backbone debug, which reports the tasks that training can learn from; with 0 "
                "the run never stops for this reason",
            )
        return
    if is_stopped_early:
        no_signal = why_nothing([row for row in rows if "tasks" in row][-idle_count:])
        console.print(
            f"The run stopped early: its last {idle_count} steps had no training signal ({no_signal}).", soft_wrap=True
        )
        if advice:
            print_line(advice)
    console.print(Text.assemble("Try the trained model: ", (format_command("chat", run_name), "bold")), soft_wrap=True)
    console.print(
        Text.assemble("Serve the model:       ", (format_command("deploy", run_name), "bold")), soft_wrap=True
    )
    if validations and checkpoint and not is_of_running_program(run.experiment.ajet.rollout.user_workflow):
        model_name = "best" if run.checkpoints.best() else "latest"
        eval_command = format_command("eval", run_name, "--model", "base", "--model", model_name)
        console.print(Text.assemble("Evaluate the model:    ", (eval_command, "bold")), soft_wrap=True)
