"""`ajet.tune`: tune an agent with a reward and tasks as Python objects, in one call.

Invariants: the call builds and runs an AgentJetJob. Tasks as objects are written to a file before the run: the run is
recorded, resumed and proven like a run of a file. A function of the running program or notebook is named as such
(`__main__->agent`), and refused if another process must load the function. An object whose elements are names of
columns, lines or letters is refused with advice on what to write. A table provides its rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from ajet.commands.job import AgentJetJob, Tuned
from ajet.commands.job_arguments import make_live_reference
from ajet.commands.script_errors import shorten_uncaught_errors
from ajet.schema.errors import TaskError, UserError
from ajet.schema.task import Task
from ajet.task_reader.csv_format import require_no_spreadsheet
from ajet.task_reader.jsonl import TABLES
from ajet.task_reader.plain_values import BadRowError, to_plain
from ajet.task_reader.rows import row_of

if TYPE_CHECKING:
    from ajet.config import Experiment

Tasks = str | Path | Iterable["Task | Mapping[str, Any] | str"]
"""Accepted forms of tasks.

The path of a file (JSON Lines, CSV, TSV, Parquet), a data set of the hub, a reference to a task reader, or task
objects: a Task, a row as in such a file, a question, a DataFrame, or a datasets.Dataset.
"""
_LINES = (".jsonl", ".json")


@shorten_uncaught_errors
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
    """Tune the model inside `agent` by rewards, in this process, and return the result.

    Args:
        agent: A function `(task, tuner)`, a Workflow class, or a reference to either.
        tasks: The training tasks: a file, a data set, a reader, or objects.
        reward: A function `(task, output)`, a judge class, or a reference. None if the agent returns the reward, or if
            a reference of `tasks` brings a judge.
        validation: As `tasks`, or the name of a split for a data set of the hub. Played before, in between (five times
            if `steps` is given) and after the training.
        steps: Number of training steps. None: `trainer_common.total_epochs`.
        name: The run's name. A second call with the same name resumes the run, or starts anew with `fresh`. With other
            code or settings the call is refused, unless `resume` names the run's folder (or a checkpoint's).
        settings: Any other key of `ajet`, dotted, with priority: `{"rollout.num_repeat": 8}`. Without a setting, batch,
            lengths and learning rate fit the model and this machine (`ajet.commands.tune_defaults`).

    Raises:
        UserError: The user can correct the cause.
        KeyboardInterrupt: At Ctrl-C and at SIGTERM (`Preempted`, a subclass), after a checkpoint is saved.
    """
    job = AgentJetJob(backbone=backbone, model=model, name=name).set_workflow(make_live_reference(agent))
    if isinstance(reward, list | tuple):
        raise UserError(
            f"The argument `reward` is a list of {len(reward)} entries.",
            expected="one function (task, output), one judge class, or one reference",
            do="write one function that returns the weighted sum, or pass the functions as "
            'settings={"task_judge.scorers": [{"name": "rewards.py->first", "weight": 1.0}, …]}',
        )
    if reward is not None:
        job.set_judge(make_live_reference(reward))
    own_settings = {} if steps is None else {"trainer_common.total_training_steps": steps}
    own_settings |= {key.removeprefix("ajet."): value for key, value in (settings or {}).items()}
    experiment = _set_settings(job, own_settings).experiment()
    run_root = experiment.root
    names_split = isinstance(validation, str) and not validation.lower().endswith((*TABLES, *_LINES))
    writes_rows = validation is not None and not names_split
    training = _store_tasks(tasks, run_root / f"{name}.tasks.jsonl", "tasks", writes_rows)
    held_out = (
        None
        if validation is None
        else _store_tasks(validation, run_root / f"{name}.validation.jsonl", "validation", True)
    )
    reader_settings = _make_reader_settings(training, held_out, given=validation)
    job.set(**{f"task_reader__{key}": value for key, value in reader_settings.items()})
    if experiment.backbone.opens is not None:  # engine and optimizer belong to this process
        task_count = None if training == str(tasks) else len(Path(training).read_text(encoding="utf-8").splitlines())
        own_settings = {
            **_choose_fitting_defaults(experiment, own_settings, task_count, steps, held_out is not None),
            **own_settings,
        }
    _set_settings(job, own_settings)  # explicit settings have priority
    return Tuned.of(job.tune(fresh=fresh, resume=None if resume is None else str(resume)))


def _set_settings(job: AgentJetJob, caller_settings: Mapping[str, Any]) -> AgentJetJob:
    """Set keys of the job by their dotted names, and return the job."""
    return job.set(**{key.replace(".", "__"): value for key, value in caller_settings.items()})


def _choose_fitting_defaults(
    experiment: Experiment,
    caller_settings: Mapping[str, Any],
    tasks: int | None,
    steps: int | None,
    has_validation: bool,
) -> dict[str, Any]:
    """Return settings below `ajet` that fit the model and this machine, except those that the caller has set.

    Args:
        caller_settings: Settings of the caller, by dotted key.
        tasks: Number of training tasks. None if unknown.
        steps: Number of training steps. None for a number of epochs.
        has_validation: True if there are held-out tasks.
    """
    from ajet.commands.tune_defaults import choose_defaults
    from ajet.engine.dimensions import read_size_and_context
    from ajet.engine.machine import resolve_device_kind

    size, context = read_size_and_context(experiment.ajet.model.path, experiment.base)
    device = experiment.ajet.trainer_common.device
    return choose_defaults(
        caller_settings, size=size, context=context, is_cpu=resolve_device_kind(device) == "cpu",
        tasks=tasks, steps=steps, has_validation=has_validation,
    )  # fmt: skip


def _store_tasks(tasks: Tasks, file: Path, name: str, as_rows: bool) -> str:
    """Return the file, data set or reader that provides the tasks. Tasks as Python objects are written to `file` first.

    Args:
        name: The argument of `tune`, for error messages.
        as_rows: True to write the rows of a table file (CSV, Parquet, …) to `file`, too.

    Raises:
        TaskError: The object contains no tasks.
    """
    if isinstance(tasks, str):
        _refuse_question(tasks, name)
    if isinstance(tasks, str | Path) and Path(tasks).is_file():
        require_no_spreadsheet(Path(tasks))
    if isinstance(tasks, str | Path) and not (as_rows and str(tasks).lower().endswith(TABLES)):
        return str(tasks)

    from ajet.record import files
    from ajet.record.files import write_atomically

    rows = _parse_table(tasks, name) if isinstance(tasks, str | Path) else _parse_objects(tasks, name)
    with files.explain_write_errors("the tasks", file.parent, intact="the run was not started"):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, "".join(f"{json.dumps(row)}\n" for row in rows))
    return str(file)


def _make_reader_settings(training: str, held_out: str | None, given: Tasks | None) -> dict[str, Any]:
    """Return the settings of the task reader for stored tasks.

    Args:
        training: File, data set or reader of the training tasks.
        held_out: File or split of the validation tasks. None without validation.
        given: The caller's argument `validation`.

    Raises:
        UserError: The reader of the training tasks defines its own validation tasks.
    """
    from ajet.config.schema.choices import is_reference

    if training.lower().endswith(_LINES):
        files = {"training": {"file_path": training}, "validation": {"file_path": held_out}}
        return {"type": "jsonl_dataset_file", "jsonl_dataset_file": files}
    if is_reference(training) and given is None:
        return {"type": training}
    if is_reference(training) or not isinstance(given, (str, NoneType)):
        raise UserError(
            f"The validation tasks of {training} cannot be set separately.",
            where="validation",
            expected="the name of a split of a data set; a task reader defines its own validation tasks",
            do="omit validation, or pass both as lists or as JSON Lines files",
        )
    is_single_file = training.lower().endswith(TABLES)  # each split of a single file has all of its rows
    splits = {} if held_out is None and not is_single_file else {"validation_split": held_out}
    return {"type": "huggingface_dat_repo", "huggingface_dat_repo": {"dataset_path": training, **splits}}


ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".xlsx", ".xls", ".ods")
MAX_PATH_CHARS = 255
"""Characters of the longest possible path."""
EXPECTED = "a list or generator of ajet.Task, of questions or of dicts; a DataFrame, a datasets.Dataset; a path"


def _parse_objects(tasks: Any, name: str) -> list[dict[str, Any]]:
    """Return the rows of tasks that the caller passed as objects.

    Args:
        name: The argument of `tune`, for error messages.

    Raises:
        TaskError: There is no task, or an object is none.
    """
    rows = [_make_row(task, f"{name}[{index}]") for index, task in enumerate(_list_elements(tasks, name))]
    if not rows:
        raise TaskError("The list of tasks is empty.", where=name, expected="at least one task")
    return rows


def _parse_table(path: str | Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a CSV, TSV or Parquet file. Raises UserError for an invalid file or a missing package."""
    from ajet.task_reader.hugging_face import load_rows, locate_dataset

    return _parse_objects(load_rows(locate_dataset(str(path), None, Path.cwd()), "train"), name)


def _refuse_question(text: str, name: str) -> None:
    """Raise TaskError if the text is a question rather than a path, data set or reference.

    Args:
        name: The argument of `tune`, for the message.
    """
    is_sentence = len(text.split()) > 1 and ("/" not in text or text.rstrip().endswith(("?", ".", "!", ":")))
    is_file = len(text) <= MAX_PATH_CHARS and Path(text).exists()
    if is_sentence and "->" not in text and not text.lower().endswith(ENDINGS) and not is_file:
        raise TaskError(
            f"{name} is one string, {text[:80]!r}, and no file has that name.",
            where=name,
            expected=EXPECTED,
            do=f"pass questions as a list: {name}=[{text[:40]!r}]",
        )


def _list_elements(tasks: Any, name: str) -> Iterable[Any]:
    """Return the elements of an object with tasks: rows of a table or data set, or the object itself.

    Args:
        name: The argument of `tune`, for error messages.

    Raises:
        TaskError: The elements are no tasks; the message says what to pass instead.
    """
    kind = type(tasks).__name__
    if hasattr(tasks, "notna") and hasattr(tasks, "columns"):  # pandas: an empty cell is NaN, and JSON has no NaN
        if not tasks.columns.is_unique:
            raise _refuse_object("a DataFrame that has two columns with the same name", name, "rename one")
        return tasks.astype(object).where(tasks.notna(), None).to_dict("records")
    for method in ("to_dicts", "to_pylist"):  # polars, pyarrow
        if callable(getattr(tasks, method, None)):
            return getattr(tasks, method)()
    if isinstance(tasks, Mapping):
        raise _refuse_mapping(tasks, name)
    if hasattr(tasks, "features") and hasattr(tasks, "column_names"):
        return _iterate_dataset(tasks)
    if hasattr(tasks, "read") or isinstance(tasks, bytes):
        raise _refuse_object(kind, name, f'pass the path of the file: {name}="train.jsonl"')
    if isinstance(tasks, Set):
        raise _refuse_object(kind, name, f"sort it, so that every start has the same order: {name}=sorted(…)")
    if not isinstance(tasks, Iterable):
        raise _refuse_object(kind, name, f"write {name}=[…]")
    return tasks


def _iterate_dataset(dataset: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a `datasets.Dataset` or `IterableDataset`, with images as `data:` URLs."""
    from ajet.task_reader.image_columns import ImageColumns

    if not hasattr(dataset, "select_columns") or not hasattr(dataset, "__len__"):
        yield from dataset
        return
    images = ImageColumns(dataset.features)
    yield from map(images.urls, images.rows(dataset.with_format(None)))


def _refuse_mapping(tasks: Mapping[Any, Any], name: str) -> TaskError:
    """Return the error for a mapping in place of tasks, with advice: choose a split, pass the rows, or pass a list."""
    kind = type(tasks).__name__
    names = ", ".join(map(str, tasks))[:80]
    first = next(iter(tasks), "train")
    if any(hasattr(value, "column_names") or hasattr(value, "columns") for value in tasks.values()):
        return _refuse_object(f"{kind} of {names}", name, f"choose one split: {name}=data[{first!r}]")
    if tasks and all(isinstance(value, list | tuple) for value in tasks.values()):
        rows = f"{name}=[dict(zip(data, row)) for row in zip(*data.values())]"
        return _refuse_object(f"{kind} of columns ({names})", name, f"pass its rows: {rows}")
    return _refuse_object(f"{kind} of {names}", name, f"pass a single row as a list: {name}=[row]")


def _refuse_object(kind: str, name: str, do: str) -> TaskError:
    """Return the error for an object that cannot be read as tasks.

    Args:
        kind: What the object is, for the message.
        name: The argument of `tune`.
    """
    return TaskError(f"{name} is a {kind}, which ajet cannot read as tasks.", where=name, expected=EXPECTED, do=do)


def _make_row(task: Any, place: str) -> dict[str, Any]:
    """Return a task as a row of JSON values. Raises TaskError if JSON cannot represent it.

    Args:
        place: The task's place in the argument, for the message.
    """
    if isinstance(task, str):
        return {"main_query": str(task)}
    row = row_of(task) if isinstance(task, Task) else task
    try:
        if not isinstance(row, Mapping):
            raise BadRowError(f"the task is a {type(task).__name__}")
        plain_row: dict[str, Any] = to_plain({"" if key is None else key: value for key, value in row.items()})
    except (BadRowError, RecursionError) as error:
        raise TaskError(
            f"A task cannot be written as JSON: {error or 'it is nested too deeply'}.",
            where=place,
            expected="an ajet.Task, a question, or a dict with a question, made of strings, numbers, lists and dicts",
        ) from None
    return plain_row
