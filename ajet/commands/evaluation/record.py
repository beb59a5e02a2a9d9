"""The record (run folder) of one model's evaluation, which a later command can continue.

Invariant: a record is continued only by the same evaluation: equal model, code of workflow and judge, settings with an
effect on replies, tasks and sampling. The numbers of tasks and attempts may differ. Recorded attempts are not run
again, except those that ajet itself failed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.commands.evaluation.models import EvaluatedModel
from ajet.config.code_digests import digest_code
from ajet.record import RunDirectory
from ajet.record.attempts import AttemptRecord, decode_attempt, read_attempts
from ajet.record.evaluations import FILE
from ajet.record.files import keep_rows, read_json, write_atomically
from ajet.schema.errors import UserError
from ajet.schema.task import Task

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.task_reader import OpenedReader

SPLIT = "validation"
NO_EFFECT = (
    "ajet.backbone", "ajet.model.path", "ajet.trainer_common.", "ajet.task_reader.", "ajet.data.train_batch_size",
    "ajet.rollout.num_repeat", "ajet.rollout.temperature", "ajet.rollout.top_p", "ajet.rollout.top_k",
    "ajet.rollout.enable_oversample", "ajet.rollout.submit_oversample_multiplier", "ajet.rollout.endpoint.",
    "ajet.rollout.engine", "ajet.rollout.vllm.base_url",
)  # fmt: skip
"""Training keys without effect on an evaluation's replies, and keys covered by model and tasks."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One model on a list of held-out tasks, with a number of attempts at each."""

    model: EvaluatedModel
    experiment: Experiment
    """The experiment with the evaluated model."""
    tasks: Sequence[tuple[int, Task]]
    count: int
    """Number of requested tasks, from the start of `tasks`."""
    repeats: int
    reader: OpenedReader

    def make_identity(self) -> dict[str, Any]:
        """Return JSON values that are equal for two evaluations whose attempts may share a record.

        They cover the model, the tasks, and the settings, code and sampling with an effect on replies.
        """
        sampling_settings, settings = self.experiment.ajet.rollout.val_kwargs, self.experiment.list_training_settings()
        code = digest_code(self.experiment)
        effective_settings = {key: value for key, value in settings.items() if not key.startswith(NO_EFFECT)}
        sampling = (
            [sampling_settings.temperature, sampling_settings.top_p, sampling_settings.top_k]
            if sampling_settings.do_sample
            else "greedy"
        )
        tasks = [(order, task.model_dump()) for order, task in self.tasks]
        return {
            "model": self.model.make_identity(self.experiment.base),
            "tasks": _digest_value(tasks),
            "settings": _digest_value(effective_settings),
            "code": _digest_value({key: code[key] for key in code if not key.startswith(NO_EFFECT)}),
            "sampling": sampling,
        }


def find_episode_file(folder: Path, step: int) -> Path:
    """Return the file with the episodes in an evaluation's record.

    Args:
        folder: The record's folder.
        step: Training step of the evaluated model.
    """
    return folder / "episodes" / f"step-{step}.{SPLIT}.jsonl"


def find_earlier(evaluation: Evaluation) -> Path | None:
    """Return the folder of the newest record of the same evaluation, or None."""
    eval_folder = evaluation.experiment.root / evaluation.experiment.name / "eval"
    identity = json.loads(json.dumps(evaluation.make_identity()))
    for folder in sorted(eval_folder.iterdir(), reverse=True) if eval_folder.is_dir() else ():
        try:
            if read_json(folder / FILE)["identity"] == identity:
                return folder
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a process was killed before it wrote the file
    return None


def open_record(evaluation: Evaluation, earlier: Path | None) -> RunDirectory:
    """Open a new record for the evaluation, or the earlier one to continue it.

    Attempts that ajet itself failed are removed from an earlier record, so that they run again.

    Args:
        earlier: Folder of the earlier record. None: a new record.

    Raises:
        UserError: The folder cannot be used.
    """
    experiment = evaluation.experiment
    run = RunDirectory.open(experiment, root=experiment.root, kind="eval", again=earlier)
    try:
        if earlier is None:
            content = {"model": evaluation.model.label, "identity": evaluation.make_identity()}
            write_atomically(run.path / FILE, json.dumps(content, indent=1) + "\n")
        else:
            keep_rows(find_episode_file(run.path, evaluation.model.step), lambda row: not decode_attempt(row).left_out)
    except BaseException:
        run.close("failed")
        raise
    return run


def write_orders(folder: Path, orders: Sequence[int]) -> None:
    """Record the positions of the tasks that were run, so that a complete record is recognized without the model.

    Tasks may be left out because their prompts are too long for the model.
    """
    content = read_json(folder / FILE)
    write_atomically(folder / FILE, json.dumps({**content, "orders": list(orders)}, indent=1) + "\n")


def count_missing(evaluation: Evaluation, folder: Path) -> int | None:
    """Return how many attempts of the evaluation the record in `folder` lacks.

    None if only the model's tokenizer can decide which tasks are short enough to be run.

    Raises:
        UserError: The record cannot be read.
    """
    try:
        task_positions = read_json(folder / FILE).get("orders")
    except (OSError, ValueError) as error:
        raise UserError(
            f"The file with the settings of the recorded evaluation cannot be read: {error}.", where=str(folder)
        ) from error
    if task_positions is None:
        return None
    expected = {
        (order, repeat) for order in task_positions if order < evaluation.count for repeat in range(evaluation.repeats)
    }
    return len(expected - list_finished(read_recorded(evaluation, folder)))


def read_recorded(evaluation: Evaluation, folder: Path, *, for_judges: bool = False) -> list[AttemptRecord]:
    """Return the recorded attempts that belong to the requested tasks and repeats.

    Args:
        folder: The record's folder.
        for_judges: True to read what a judge needs, too.
    """
    attempts = read_attempts(find_episode_file(folder, evaluation.model.step), judge_inputs=for_judges)
    return [attempt for attempt in attempts if attempt.order < evaluation.count and attempt.repeat < evaluation.repeats]


def list_finished(attempts: Sequence[AttemptRecord]) -> set[tuple[int, int]]:
    """Return (position of the task, number of the attempt) of the attempts that need not run again.

    Those that ajet itself failed do.
    """
    return {(attempt.order, attempt.repeat) for attempt in attempts if not attempt.left_out}


def _digest_value(value: Any) -> str:
    """Return a digest of a value by its JSON form, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
