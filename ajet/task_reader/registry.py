"""Opens the reader named by `task_reader.type` and checks its tasks.

Invariant: `open_reader` gives at least one `Task` per split with unique ids; a split is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from loguru import logger

from ajet.config.plugin import load_code, spell_reference
from ajet.config.plugins import find_all_parts, find_part
from ajet.config.references import resolve_reference
from ajet.config.schema.choices import is_reference
from ajet.schema.errors import ConfigError, TaskError
from ajet.schema.task import Task
from ajet.task_reader.contract import TaskReader, TaskSplit, find_path, require_place
from ajet.task_reader.plain_values import BadRowError, check_json
from ajet.task_reader.rows import assign_ids, explain_ids

if TYPE_CHECKING:
    from ajet.config import Experiment

LOCAL_FILES = ("jsonl_dataset_file", "agentrl", "gsm8k", "math", "gaia", "hotpotqa")  # readers of local files


class OpenedReader:
    """A task reader whose tasks are checked, have unique ids and are read once."""

    def __init__(self, reader: TaskReader, name: str) -> None:
        self._reader, self._name = reader, name
        self._tasks_of_split: dict[TaskSplit, list[Task]] = {}

    @property
    def judge(self) -> Any:
        """The reader's own judge, or None."""
        return getattr(self._reader, "judge", None)

    def has(self, split: TaskSplit) -> bool:
        """True if the split is configured; reading its tasks may still fail."""
        has_split = getattr(self._reader, "has", None)
        return True if has_split is None else bool(has_split(split))

    def tasks(self, split: TaskSplit) -> Sequence[Task]:
        """Return the split's checked tasks with unique ids; they are read once. Raises TaskError."""
        if split not in self._tasks_of_split:
            self._tasks_of_split[split] = self._read_split(split)
        return self._tasks_of_split[split]

    def json_tasks(self, split: TaskSplit) -> Sequence[Task]:
        """Return the split's tasks, which can be written as JSON. Raises TaskError for values JSON cannot represent."""
        tasks = self.tasks(split)
        for index, task in enumerate(tasks):
            require_json(task, f"{self._name}, {split} task {index}")
        return tasks

    def _read_split(self, split: TaskSplit) -> list[Task]:
        """Read the tasks of a split, check that each is a Task, and give a unique id to each.

        Shared and empty ids are logged.
        """
        tasks = list(self._reader.tasks(split))
        if not tasks:
            raise TaskError(
                f"The task reader has no {split} tasks.",
                where=f"ajet.task_reader ({self._name})",
                expected="at least one task",
            )
        for index, task in enumerate(tasks):
            if not isinstance(task, Task):
                raise TaskError(
                    f"The task reader returned a {type(task).__name__} instead of a Task.",
                    where=f"{self._name}, {split} task {index}",
                    expected="ajet.Task objects",
                )
        read_tasks = tasks
        try:
            tasks, shared_ids = assign_ids(tasks)
        except ValueError:  # an integer that is too long to be written: no record could hold the task
            for index, task in enumerate(tasks):
                require_json(task, f"{self._name}, {split} task {index}")
            raise
        locate_task = getattr(self._reader, "place_of", None) or (lambda index: f"{split} task {index}")
        if warning := explain_ids(read_tasks, shared_ids, locate_task):
            logger.warning("{}", warning)
        return tasks


def require_json(task: Task, where: str) -> None:
    """Raise TaskError for a task that JSON cannot represent. `where`: reader and task, for the error."""
    try:
        check_json(dict(task))
    except (BadRowError, RecursionError) as error:
        raise TaskError(
            f"A task cannot be written as JSON: {error or 'it is nested too deeply'}.",
            where=where,
            expected="strings, finite numbers, true, false, null, and lists and objects of these",
            do="convert dates, decimals and bytes to strings where the task is created",
        ) from None


class TrainingAsValidation(OpenedReader):
    """Presents the training tasks as validation tasks, for a trial validation."""

    def __init__(self, reader: OpenedReader) -> None:
        super().__init__(reader._reader, reader._name)

    def has(self, split: TaskSplit) -> bool:
        """Return True if the training split is configured, whichever split is requested."""
        return super().has("train")

    def tasks(self, split: TaskSplit) -> Sequence[Task]:
        """Return the training tasks, whichever split is requested."""
        return super().tasks("train")


def open_reader(experiment: Experiment) -> OpenedReader:
    """Open the task reader of `task_reader.type`: a built-in or plug-in name, a reference to a class, or a class.

    Raises:
        UserError: there is no such reader, or its constructor raised the error.
    """
    name, key = experiment.ajet.task_reader.type, "ajet.task_reader.type"
    if isinstance(name, type):
        return _open_user_reader(name, name.__name__, experiment)
    if is_reference(name):
        return _open_user_reader(resolve_reference(name, base=experiment.base, key=key), name, experiment)
    reader = find_part("reader", name)
    if reader is not None:
        return OpenedReader(load_code(reader.code)(experiment), name)
    raise ConfigError(
        f"There is no task reader named {name}.",
        where=key,
        expected=f"one of {', '.join(find_all_parts('reader'))}, or a reference such as " + spell_reference("reader"),
    )


def _open_user_reader(reader_class: Any, name: str, experiment: Experiment) -> OpenedReader:
    """Construct a user's reader class with the configuration. Raises ConfigError for any other object."""
    if not isinstance(reader_class, type) or not callable(getattr(reader_class, "tasks", None)):
        raise ConfigError(
            f"{name} is not a task reader.",
            where="ajet.task_reader.type",
            expected="a class whose constructor takes the configuration, with a method tasks(split) that returns a "
            "list of ajet.Task",
        )
    return OpenedReader(reader_class(experiment.config), name)


def count_local_tasks(experiment: Experiment) -> dict[TaskSplit, int] | None:
    """Return the number of tasks of each configured split; None unless the tasks come from local files.

    Raises:
        UserError: the files are missing or cannot be read.
    """
    reader = experiment.ajet.task_reader
    if reader.type == "huggingface_dat_repo":
        path = reader.huggingface_dat_repo.dataset_path
        if path is None or not (path.startswith((".", "/", "~")) or find_path(path, experiment.base)):
            return None
        require_place(path, experiment.base, key="ajet.task_reader.huggingface_dat_repo.dataset_path", what="data set")
    elif reader.type not in LOCAL_FILES:
        return None
    task_reader = open_reader(experiment)
    splits: tuple[TaskSplit, ...] = get_args(TaskSplit)
    return {split: len(task_reader.tasks(split)) for split in splits if task_reader.has(split)}
