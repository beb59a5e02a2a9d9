"""`ajet.tune`: an agent, a reward and tasks, as Python has them, tuned in one call.

Invariant: it is an AgentJetJob and nothing beside it. Tasks that are given as objects are written down before the run,
so that it is recorded, resumed and proven as one from a file; a function of the running program or notebook is named as
such (`__main__->agent`), and refused where another process would have to find it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from ajet.run.job import AgentJetJob
from ajet.schema.errors import TaskError, UserError
from ajet.schema.task import Task

Tasks = str | Path | Iterable["Task | Mapping[str, Any] | str"]
"""The path of a JSON Lines file, a data set of the hub, a reference to a task reader, or the tasks themselves: a Task,
a row as such a file has it, or a question."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a run of `tune` has left."""

    path: Path
    """The run directory."""
    checkpoint: Path | None
    """The best model that was measured, else the last: a folder that `model=` and transformers load. None before one
    was saved."""
    rewards: list[float]
    """The mean reward of each training step that had one, in order; those before a resume included."""


def tune(
    *,
    agent: Callable[[Any, Any], Any] | type[Any] | str,
    tasks: Tasks,
    reward: Callable[[Any, Any], Any] | type[Any] | str | None = None,
    model: str = "embedded:smollm2-135m",
    validation: Tasks | None = None,
    backbone: str = "local",
    steps: int | None = None,
    name: str = "tune",
    settings: Mapping[str, Any] | None = None,
    fresh: bool = False,
) -> Tuned:
    """Tune the model inside `agent` by its rewards, in this process, and say what came of it.

    `agent`: a function `(task, tuner)`, a Workflow class, or a reference to one. `reward`: a function
    `(task, output)`, a judge class, or a reference; None where the agent answers with the reward itself, or a reference
    of `tasks` brings a judge. `validation`: as `tasks`, or for a data set of the hub the name of a split. `steps`:
    training steps in all; None: `trainer_common.total_epochs`. `name`: the run's; called again with the same one, the
    run goes on, or begins anew where `fresh`. `settings`: any other key of `ajet`, dotted, which wins:
    `{"rollout.num_repeat": 8}`. Raises UserError for what the person can mend.
    """
    job = AgentJetJob(backbone=backbone, model=model, n_gpu=None, name=name).set_workflow(_live(agent))
    if reward is not None:
        job.set_judge(_live(reward))
    given = {} if steps is None else {"trainer_common.total_training_steps": steps}
    given |= {key.removeprefix("ajet."): value for key, value in (settings or {}).items()}
    job.set(**{key.replace(".", "__"): value for key, value in given.items()})
    root = job.experiment().root
    training = _place(tasks, root / f"{name}.tasks.jsonl")
    held_out = None if validation is None else _place(validation, root / f"{name}.validation.jsonl")
    job.set(task_reader=_reader(training, held_out, given=validation))
    return _tuned(job.tune(fresh=fresh))


def _live(kind: Any) -> Any:
    """What the running program defines, as a reference to it there: to load its file again would run it again. Raises
    UserError for what has no name there, or one that means something else by now."""
    if getattr(kind, "__module__", None) != "__main__":
        return kind
    name = getattr(kind, "__qualname__", repr(kind))
    if getattr(sys.modules["__main__"], name, None) is not kind:
        raise UserError(
            f"{name} can't be named by a reference.",
            expected="a class or function at the top level of the program or notebook, under its own name",
            do="define it there with `def` or `class`",
        )
    return f"__main__->{name}"


def _place(tasks: Tasks, file: Path) -> str:
    """Where the tasks are; those that are given as objects are in `file` from now on. Raises TaskError."""
    if isinstance(tasks, (str, Path)):
        return str(tasks)
    from ajet.record import write_errors
    from ajet.record.files import write_atomically

    lines = [_line(task, index) for index, task in enumerate(tasks)]
    with write_errors.explained("the tasks", file.parent, kept="nothing was begun"):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, "".join(lines))
    return str(file)


def _line(task: Any, index: int) -> str:
    if isinstance(task, Task):
        row: Any = task.model_dump()
    elif isinstance(task, str):
        row = {"main_query": task}
    else:
        row = task
    try:
        return json.dumps(dict(row)) + "\n"
    except (TypeError, ValueError) as problem:
        raise TaskError(
            f"A task cannot be written down: {problem}.",
            where=f"tasks[{index}]",
            expected="an ajet.Task, a question, or a dict with a question, of texts, numbers, lists and dicts",
        ) from None


def _reader(training: str, held_out: str | None, given: Tasks | None) -> dict[str, Any]:
    from ajet.config.schema.choices import is_reference

    if training.endswith((".jsonl", ".json")):
        files = {"training": {"file_path": training}, "validation": {"file_path": held_out}}
        return {"type": "jsonl_dataset_file", "jsonl_dataset_file": files}
    if is_reference(training) and given is None:
        return {"type": training}
    if is_reference(training) or not isinstance(given, (str, NoneType)):
        raise UserError(
            f"Tasks for validation beside those of {training} cannot be had.",
            where="validation",
            expected="the name of a split of a data set; a task reader brings its own",
            do="leave it out, or give both as lists or as JSON Lines files",
        )
    splits = {} if held_out is None else {"validation_split": held_out}
    return {"type": "huggingface_dat_repo", "huggingface_dat_repo": {"dataset_path": training, **splits}}


def _tuned(folder: Path) -> Tuned:
    from ajet.record.checkpoints import checkpoints_of
    from ajet.record.files import read_rows
    from ajet.run.export import model_folder

    checkpoints = checkpoints_of(folder)
    found = checkpoints.best() or checkpoints.latest()
    rows = [row["train/reward"] for row in read_rows(folder / "metrics.jsonl") if "train/reward" in row]
    return Tuned(folder, model_folder(folder, found) if found else None, [r for r in rows if r is not None])
