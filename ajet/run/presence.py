"""Whether what an experiment names is there, found without running any code of the person's.

Invariant: it imports nothing of theirs, starts nothing and asks no network; what it did not look at, it says.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ajet.config.plugins import find_part
from ajet.config.readiness import value_at
from ajet.config.references import require_written
from ajet.config.schema.base import walk
from ajet.config.schema.choices import is_reference
from ajet.engine.embedded import require_embedded
from ajet.engine.hosted_models import refuse_hosted
from ajet.engine.model_source import is_local, locate
from ajet.record.find_run import known_run
from ajet.rollout.wiring import workflow_of
from ajet.run.launchable import require_rewards
from ajet.store import look_at_store, store_address
from ajet.task_reader import TaskSplit, open_reader
from ajet.task_reader.contract import find, find_file, require_place

if TYPE_CHECKING:
    from ajet.config import Experiment


_LOCAL = (".", "/", "~")
_FILES = ("jsonl_dataset_file", "agentrl", "gsm8k", "math", "gaia", "hotpotqa")
"""Readers of files on this machine."""


@dataclass(frozen=True, slots=True)
class Presence:
    """What was found, and what was not looked at."""

    unseen: list[str]
    """In words."""
    train: int | None
    """Training tasks; None: they are not on this machine."""
    validates: bool
    """True if there are held-out tasks."""


def require_present(experiment: Experiment) -> Presence:
    """Raise UserError for a reference, a file of tasks or a model on this machine that is not there."""
    settings = experiment.ajet
    for path, _, notes in walk(type(settings)):
        value = value_at(settings, path)
        if notes.get("kind") == "reference" and isinstance(value, str) and is_reference(value):
            require_written(value, base=experiment.base, what=f"ajet.{'.'.join(path)}")
    for where, value in settings.task_judge.named():
        if is_reference(value):
            require_written(value, base=experiment.base, what=f"ajet.{'.'.join(map(str, where))}")
    if settings.sft.objective is not None:
        _require_given(experiment)
    elif find_part("workflow", settings.rollout.user_workflow):
        workflow_of(experiment)  # ours, whose own check starts nothing
        require_rewards(experiment)
    unseen = ["what the code of the workflow and the judge does", *_require_store(experiment)]
    if settings.environment.use:
        unseen.append("the tools of environment.use")
    counts = _count_local_tasks(experiment)
    if counts is None:
        unseen.append("the tasks")
    model = settings.model.path
    if settings.rollout.engine == "endpoint":
        unseen.append("the endpoint")
    elif model is not None and is_local(model, experiment.base):
        locate(model, base=experiment.base, weights=False)
    elif model is not None and model.startswith("embedded:"):
        require_embedded(model.removeprefix("embedded:"))
    elif model is not None:
        refuse_hosted(model)
        unseen.append(f"whether the hub has {model}")
    found = counts or {}
    return Presence(unseen, found.get("train"), bool(found.get("validation")))


def _count_local_tasks(experiment: Experiment) -> dict[TaskSplit, int] | None:
    """Count the tasks of each split that lie in files on this machine. Returns None for any others. Raises
    UserError."""
    reader = experiment.ajet.task_reader
    data = reader.huggingface_dat_repo.dataset_path
    if reader.type == "huggingface_dat_repo":
        if data is None or not (data.startswith(_LOCAL) or find(data, experiment.base)):
            return None
        require_place(data, experiment.base, key="ajet.task_reader.huggingface_dat_repo.dataset_path", what="data set")
    elif reader.type not in _FILES:
        return None
    opened = open_reader(experiment)
    splits: tuple[TaskSplit, ...] = get_args(TaskSplit)
    return {split: len(opened.tasks(split)) for split in splits if opened.has(split)}


def _require_given(experiment: Experiment) -> None:
    """Raise UserError if a file of rows, or the run whose episodes are learned, is not there."""
    given = experiment.ajet.sft
    for key, files in (("train_files", given.train_files), ("val_files", given.val_files)):
        for file in [files] if isinstance(files, str) else files or ():
            find_file(file, experiment.base, key=f"ajet.sft.{key}", what="file of rows")
    if given.from_run is not None:
        expected = "a run with recorded episodes (ajet.sft.from_run: its name or folder)"
        known_run(given.from_run, experiment.root, holding="episodes", expected=expected)


def _require_store(experiment: Experiment) -> list[str]:
    """The parts of a store that were not looked at. Raises UserError for a file that a start would refuse."""
    if "trains" not in experiment.backbone.can:
        return []
    folder = experiment.root / experiment.name
    address = store_address(experiment, folder)
    if address is None:
        return []
    if address.path is None:
        return [f"the store at {address.shown}"]
    look_at_store(address, made=folder)
    return []


def not_looked_at(unseen: list[str], conf: Path) -> str:
    """The sentence about it."""
    *others, last = unseen
    listed = f"{', '.join(others)} and {last}" if others else last
    return f"{conf} is valid. Not looked at: {listed}, which --dry-run opens."
