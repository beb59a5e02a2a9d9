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
from typing import TYPE_CHECKING, Any

from ajet.commands.job import AgentJetJob
from ajet.commands.own_reference import live_reference
from ajet.commands.script_errors import brief_if_uncaught
from ajet.commands.task_objects import require_no_question, rows_of_objects, rows_of_table
from ajet.commands.tuned import Tuned
from ajet.schema.errors import UserError
from ajet.schema.task import Task
from ajet.task_reader.csv_format import require_no_spreadsheet
from ajet.task_reader.jsonl import TABLES

if TYPE_CHECKING:
    from ajet.config import Experiment

Tasks = str | Path | Iterable["Task | Mapping[str, Any] | str"]
"""The path of a file (JSON Lines, CSV, TSV, Parquet), a data set of the hub, a reference to a task reader, or the tasks
themselves: a Task, a row as such a file has it, or a question; also a DataFrame and a datasets.Dataset."""
_LINES = (".jsonl", ".json")


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
    of `tasks` brings a judge. `validation`: as `tasks`, or for a data set of the hub the name of a split; it is played
    before, in between (five times if `steps` is given) and after. `steps`:
    training steps in all; None: `trainer_common.total_epochs`. `name`: the run's; called again with the same one, the
    run goes on, or begins anew where `fresh`; with other code or settings it is refused, unless `resume` names the
    run's folder (or that of a checkpoint). `settings`: any other key of `ajet`, dotted, which wins:
    `{"rollout.num_repeat": 8}`; without one, batch, lengths and learning rate fit the model and this machine
    (`ajet.commands.tune_defaults`). Raises UserError for what the person can mend; KeyboardInterrupt at Ctrl-C and at
    SIGTERM (`Preempted`, a subclass), after a checkpoint is saved.
    """
    job = AgentJetJob(backbone=backbone, model=model, name=name).set_workflow(live_reference(agent))
    if reward is not None:
        job.set_judge(live_reference(reward))
    given = {} if steps is None else {"trainer_common.total_training_steps": steps}
    given |= {key.removeprefix("ajet."): value for key, value in (settings or {}).items()}
    experiment = _set(job, given).experiment()
    root = experiment.root
    as_rows = validation is not None and not _is_split(validation)
    training = _place(tasks, root / f"{name}.tasks.jsonl", "tasks", as_rows)
    held_out = None if validation is None else _place(validation, root / f"{name}.validation.jsonl", "validation", True)
    told = _reader(training, held_out, given=validation)
    job.set(**{f"task_reader__{key}": value for key, value in told.items()})
    if experiment.backbone.opens is not None:  # engine and optimizer are this process's
        count = None if training == str(tasks) else len(Path(training).read_text(encoding="utf-8").splitlines())
        given = {**_defaults(experiment, given, count, steps, held_out is not None), **given}
    _set(job, given)  # what is set wins
    return Tuned.of(job.tune(fresh=fresh, resume=None if resume is None else str(resume)))


def _set(job: AgentJetJob, given: Mapping[str, Any]) -> AgentJetJob:
    return job.set(**{key.replace(".", "__"): value for key, value in given.items()})


def _defaults(
    experiment: Experiment, given: Mapping[str, Any], tasks: int | None, steps: int | None, has_validation: bool
) -> dict[str, Any]:
    """Return the settings that fit the model and this machine, without those in `given`."""
    from ajet.commands.tune_defaults import choose_defaults
    from ajet.engine.dimensions import read_size
    from ajet.engine.machine import device_kind

    size, context = read_size(experiment.ajet.model.path, experiment.base)
    device = experiment.ajet.trainer_common.device
    return choose_defaults(
        given, size=size, context=context, is_cpu=device_kind(device) == "cpu",
        tasks=tasks, steps=steps, has_validation=has_validation,
    )  # fmt: skip


def _is_split(validation: Tasks) -> bool:
    """Return True for the name of a split: a text that is no file."""
    return isinstance(validation, str) and not validation.lower().endswith((*TABLES, *_LINES))


def _place(tasks: Tasks, file: Path, name: str, as_rows: bool) -> str:
    """Return where the tasks are; those that are given as objects are in `file` from now on. `as_rows`: those of a
    table, too. Raises TaskError."""
    if isinstance(tasks, str):
        require_no_question(tasks, name)
    if isinstance(tasks, str | Path) and Path(tasks).is_file():
        require_no_spreadsheet(Path(tasks))
    if isinstance(tasks, str | Path) and not (as_rows and str(tasks).lower().endswith(TABLES)):
        return str(tasks)

    from ajet.record import write_errors
    from ajet.record.files import write_atomically

    rows = rows_of_table(tasks, name) if isinstance(tasks, str | Path) else rows_of_objects(tasks, name)
    with write_errors.explained("the tasks", file.parent, kept="nothing was begun"):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, "".join(f"{json.dumps(row)}\n" for row in rows))
    return str(file)


def _reader(training: str, held_out: str | None, given: Tasks | None) -> dict[str, Any]:
    from ajet.config.schema.choices import is_reference

    if training.lower().endswith(_LINES):
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
    one_file = training.lower().endswith(TABLES)  # any split of it is all of its rows
    splits = {} if held_out is None and not one_file else {"validation_split": held_out}
    return {"type": "huggingface_dat_repo", "huggingface_dat_repo": {"dataset_path": training, **splits}}
