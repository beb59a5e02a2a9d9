"""`ajet.tune`: an agent, a reward and tasks, as Python has them, tuned in one call.

Invariant: it is an AgentJetJob and nothing beside it. Tasks that are given as objects are written down before the run,
so that it is recorded, resumed and proven as one from a file; a function of the running program or notebook is named as
such (`__main__->agent`), and refused where another process would have to find it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from ajet.run.job import AgentJetJob
from ajet.run.own_reference import live_reference
from ajet.run.script_errors import brief_if_uncaught
from ajet.run.tuned import Tuned
from ajet.schema.errors import TaskError, UserError
from ajet.schema.task import Task

Tasks = str | Path | Iterable["Task | Mapping[str, Any] | str"]
"""The path of a JSON Lines file, a data set of the hub, a reference to a task reader, or the tasks themselves: a Task,
a row as such a file has it, or a question."""


@brief_if_uncaught
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
    resume: str | Path | None = None,
) -> Tuned:
    """Tune the model inside `agent` by its rewards, in this process, and say what came of it.

    `agent`: a function `(task, tuner)`, a Workflow class, or a reference to one. `reward`: a function
    `(task, output)`, a judge class, or a reference; None where the agent answers with the reward itself, or a reference
    of `tasks` brings a judge. `validation`: as `tasks`, or for a data set of the hub the name of a split. `steps`:
    training steps in all; None: `trainer_common.total_epochs`. `name`: the run's; called again with the same one, the
    run goes on, or begins anew where `fresh`; with other code or settings it is refused, unless `resume` names the
    run's folder (or that of a checkpoint). `settings`: any other key of `ajet`, dotted, which wins:
    `{"rollout.num_repeat": 8}`. Raises UserError for what the person can mend; KeyboardInterrupt at Ctrl-C and at
    SIGTERM (`Preempted`, a subclass), after a checkpoint is saved.
    """
    job = AgentJetJob(backbone=backbone, model=model, name=name).set_workflow(live_reference(agent))
    if reward is not None:
        job.set_judge(live_reference(reward))
    given = {} if steps is None else {"trainer_common.total_training_steps": steps}
    given |= {key.removeprefix("ajet."): value for key, value in (settings or {}).items()}
    job.set(**{key.replace(".", "__"): value for key, value in given.items()})
    root = job.experiment().root
    training = _place(tasks, root / f"{name}.tasks.jsonl")
    held_out = None if validation is None else _place(validation, root / f"{name}.validation.jsonl")
    job.set(task_reader=_reader(training, held_out, given=validation))
    return Tuned.of(job.tune(fresh=fresh, resume=None if resume is None else str(resume)))


def _place(tasks: Tasks, file: Path) -> str:
    """Where the tasks are; those that are given as objects are in `file` from now on. Raises TaskError."""
    if isinstance(tasks, (str, Path)):
        return str(tasks)
    from ajet.record import write_errors
    from ajet.record.files import write_atomically

    lines = [_line(task, index) for index, task in enumerate(tasks)]
    if not lines:
        raise TaskError("There is no task: the list is empty.", where=file.name.split(".")[-2], expected="one at least")
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
    from ajet.task_reader.jsonl import TABLES

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
    one_file = training.endswith(TABLES)  # any split of it is all of its rows
    splits = {} if held_out is None and not one_file else {"validation_split": held_out}
    return {"type": "huggingface_dat_repo", "huggingface_dat_repo": {"dataset_path": training, **splits}}
