"""The record of one model's evaluation, and which earlier one it goes on from.

Invariant: a record is taken up only by the same evaluation: model, code of workflow and judge, settings that bear on a
reply, tasks, sampling. How many tasks and attempts were asked for is no part of it: what is recorded of them is not
played again. What ajet itself failed at is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.commands.evaluation.models import Model
from ajet.config.code_digests import digest_code
from ajet.record import RunDirectory
from ajet.record.attempts import Attempt, read_attempts
from ajet.record.bounded_json import read_json
from ajet.record.evaluations import FILE
from ajet.record.files import keep_rows, write_atomically
from ajet.schema.errors import UserError
from ajet.schema.task import Task

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.task_reader import OpenedReader

SPLIT = "validation"
BEARS_NOT = (
    "ajet.backbone", "ajet.model.path", "ajet.trainer_common.", "ajet.task_reader.", "ajet.data.train_batch_size",
    "ajet.rollout.num_repeat", "ajet.rollout.temperature", "ajet.rollout.top_p", "ajet.rollout.top_k",
    "ajet.rollout.enable_oversample", "ajet.rollout.submit_oversample_multiplier", "ajet.rollout.endpoint.",
    "ajet.rollout.engine", "ajet.rollout.vllm.base_url",
)  # fmt: skip
"""Settings of training that change no reply of an evaluation, and what the model and the tasks say themselves."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The tasks, attempts and model of one evaluation."""

    model: Model
    experiment: Experiment
    """With this model."""
    tasks: Sequence[tuple[int, Task]]
    """All that there are, by order; fewer may be asked for."""
    count: int
    """Of them, the first so many are asked for."""
    repeats: int
    reader: OpenedReader
    """Where the tasks are from."""

    def identity(self) -> dict[str, Any]:
        """The identity of the evaluation, as JSON values."""
        val, settings = self.experiment.ajet.rollout.val_kwargs, self.experiment.training_relevant()
        code = digest_code(self.experiment)
        bearing = {key: value for key, value in settings.items() if not key.startswith(BEARS_NOT)}
        drawn = [val.temperature, val.top_p, val.top_k] if val.do_sample else "greedy"
        told = [(order, task.model_dump()) for order, task in self.tasks]
        return {
            "model": self.model.identity(self.experiment.base),
            "tasks": _digest(told),
            "settings": _digest(bearing),
            "code": _digest({key: code[key] for key in code if not key.startswith(BEARS_NOT)}),
            "sampling": drawn,
        }


def file_of(folder: Path, step: int) -> Path:
    """The episodes of an evaluation's record."""
    return folder / "episodes" / f"step-{step}.{SPLIT}.jsonl"


def earlier(evaluation: Evaluation) -> Path | None:
    """The newest record of the same evaluation."""
    place = evaluation.experiment.root / evaluation.experiment.name / "eval"
    wanted = json.loads(json.dumps(evaluation.identity()))
    for folder in sorted(place.iterdir(), reverse=True) if place.is_dir() else ():
        try:
            if read_json(folder / FILE)["identity"] == wanted:
                return folder
        except (OSError, ValueError, KeyError, TypeError):
            continue  # killed before it began
    return None


def begin(evaluation: Evaluation, again: Path | None) -> RunDirectory:
    """Open the evaluation's record. Raises UserError."""
    experiment = evaluation.experiment
    run = RunDirectory.open(experiment, root=experiment.root, kind="eval", again=again)
    try:
        if again is None:
            content = {"model": evaluation.model.label, "identity": evaluation.identity()}
            write_atomically(run.path / FILE, json.dumps(content, indent=1) + "\n")
        else:
            keep_rows(file_of(run.path, evaluation.model.step), lambda row: _counts(row))
    except BaseException:
        run.close("failed")
        raise
    return run


def say_left(folder: Path, orders: Sequence[int]) -> None:
    """Write down which tasks are played, the others being too long for the model: so that who looks at a record that
    is whole loads no model to see it."""
    content = read_json(folder / FILE)
    write_atomically(folder / FILE, json.dumps({**content, "orders": list(orders)}, indent=1) + "\n")


def missing(evaluation: Evaluation, folder: Path) -> int | None:
    """How many attempts are to be played; None where it is not known before the model's tokenizer has been asked."""
    try:
        orders = read_json(folder / FILE).get("orders")
    except (OSError, ValueError) as error:
        raise UserError(f"What tells which evaluation this is cannot be read: {error}.", where=str(folder)) from error
    if orders is None:
        return None
    wanted = {(order, repeat) for order in orders if order < evaluation.count for repeat in range(evaluation.repeats)}
    return len(wanted - over(recorded(evaluation, folder)))


def recorded(evaluation: Evaluation, folder: Path, *, told: bool = False) -> list[Attempt]:
    """The recorded attempts of what was asked for. `told`: see `read_attempts`."""
    found = read_attempts(file_of(folder, evaluation.model.step), told=told)
    return [each for each in found if each.order < evaluation.count and each.repeat < evaluation.repeats]


def over(attempts: Sequence[Attempt]) -> set[tuple[int, int]]:
    """The attempts that are not played again, by order and number."""
    return {(each.order, each.repeat) for each in attempts if not each.left_out}


def _counts(row: dict[str, Any]) -> bool:
    from ajet.record.attempts import attempt_of

    return not attempt_of(row).left_out


def _digest(value: Any) -> str:
    told = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()
