"""Reads data sets with the `datasets` library: the hub's, folders laid out like the hub's, plain files.

Invariant: the meaning of a path never depends on the network. A local file or folder wins, then `name/config` below a
local folder, then the hub. An unreachable hub is an error within about a minute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from loguru import logger

from ajet.schema.advice import advise_on_path
from ajet.schema.errors import MissingExtraError, TaskError
from ajet.schema.task import Task
from ajet.task_reader.benchmark_files import read_array
from ajet.task_reader.contract import TaskSplit, explain_read_errors, find_path
from ajet.task_reader.csv_format import SEPARATORS, find_csv_format, require_no_spreadsheet
from ajet.task_reader.image_columns import ImageColumns
from ajet.task_reader.jsonl import line_rows
from ajet.task_reader.rows import BadRowError, ColumnNames, task_of

if TYPE_CHECKING:
    from ajet.config import Experiment

KEY = "ajet.task_reader.huggingface_dat_repo"
FORMATS = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json"}
HOMES = {
    "gsm8k": "openai/gsm8k",
    "squad": "rajpurkar/squad",
    "ai2_arc": "allenai/ai2_arc",
    "boolq": "google/boolq",
    "hotpot_qa": "hotpotqa/hotpot_qa",
    "commonsense_qa": "tau/commonsense_qa",
}
"""Hub repositories of data sets known by one word."""
FIRST_CONFIG = {"openai/gsm8k": "main"}
"""Default configuration of a data set on the hub."""
SPLIT_FOLDERS = {"train", "test", "validation", "valid", "val", "dev", "eval", "data"}
ANSWER_TIME = 20.0
"""Seconds within which the hub must answer a first request."""
CACHE_TIME = 60.0
"""Seconds to look for a cached copy when it did not."""
T = TypeVar("T")


@dataclass(frozen=True)
class DatasetPlace:
    """Where the rows are: exactly one of a data file, and a folder or repository with a configuration."""

    path: str
    config: str | None = None
    file: Path | None = None
    local: bool = True

    def __str__(self) -> str:
        return f"{self.path}, configuration {self.config}" if self.config else self.path


class HuggingFaceReader:
    """`huggingface_dat_repo`: rows become tasks with the complete row as metadata and images as `data:` URLs."""

    judge = None

    def __init__(self, experiment: Experiment) -> None:
        reader = experiment.ajet.task_reader
        section = reader.huggingface_dat_repo
        self._base = experiment.base
        self._path, self._config = section.dataset_path, section.dataset_name
        self._splits = {"train": section.training_split, "validation": section.validation_split}
        self._columns = ColumnNames.of(experiment)
        self._skips_bad_rows = reader.on_bad_row == "skip"

    def has(self, split: TaskSplit) -> bool:
        """Return True if the settings name a split of the data set for these tasks."""
        return bool(self._splits[split])

    def tasks(self, split: TaskSplit) -> Sequence[Task]:
        """Return every row of the split as a task.

        Raises:
            TaskError: the data set or split is not set, cannot be read, or has a bad row.
            MissingExtraError: the library `datasets` is not installed.
        """
        if not self._path:
            raise TaskError("No data set is set.", where=f"{KEY}.dataset_path", do=f"set {KEY}.dataset_path")
        split_name = self._splits[split]
        if not split_name:
            key = f"{KEY}.{'training' if split == 'train' else split}_split"
            raise TaskError(f"No split is set for the {split} tasks.", where=key, do=f"set {key}")
        dataset = locate_dataset(self._path, self._config, self._base)
        return self._build_tasks(load_rows(dataset, split_name), f"{dataset}, split {split_name}")

    def _build_tasks(self, dataset: Any, where: str) -> list[Task]:
        """Convert rows to tasks. A bad row raises TaskError, or is left out and counted with `on_bad_row: skip`."""
        images = ImageColumns({} if isinstance(dataset, list) else dataset.features)
        tasks: list[Task] = []
        bad_rows: list[tuple[int, str]] = []
        for index, row in enumerate(_replace_undecodable(images.rows(dataset))):
            try:
                if isinstance(row, BadRowError):
                    raise row
                tasks.append(task_of(images.urls(row), self._columns))
            except BadRowError as error:
                if not self._skips_bad_rows:
                    raise TaskError(
                        f"A row cannot be used as a task: {error}.",
                        where=f"{where}, row {index}",
                        do=error.do
                        or (
                            "set the columns in ajet.task_reader.columns, or set "
                            "ajet.task_reader.on_bad_row=skip to leave such rows out"
                        ),
                    ) from None
                bad_rows.append((index, str(error)))
        if bad_rows:
            total = len(bad_rows) + len(tasks)
            logger.warning(
                "{}: ajet left out {} of {} rows; the first, {}: {}", where, len(bad_rows), total, *bad_rows[0]
            )
        if bad_rows and not tasks:
            raise TaskError(
                f"None of {len(bad_rows)} rows can be used as a task. The first: {bad_rows[0][1]}.",
                where=f"{where}, row {bad_rows[0][0]}",
                expected="a question, or messages",
                do="set the columns in ajet.task_reader.columns",
            )
        return tasks


def locate_dataset(path: str, config: str | None, base: Path) -> DatasetPlace:
    """Return where `dataset_path` and `dataset_name` point to: a local file, a local folder, or the hub.

    `dataset_path` may end with the name of a configuration, as in `FOLDER/CONFIG`.

    Args:
        path: The value of `dataset_path`.
        config: The value of `dataset_name`. None: the configuration of the path, or the default one.
        base: Folder of relative paths.

    Raises:
        TaskError: the path does not exist, or there is no such configuration.
    """
    local = find_path(path, base)
    if local is not None and local.is_file():
        require_no_spreadsheet(local)
        if local.suffix.lower() not in FORMATS:
            raise TaskError(
                f"{local.name} is not a data file that ajet can read.",
                where=f"{KEY}.dataset_path",
                expected=f"a folder, a name on the Hugging Face hub, or a file ending in {', '.join(FORMATS)}",
            )
        return DatasetPlace(str(local), file=local)
    if local is not None:
        # The folder of a configuration that is named in the README.md above it.
        parent = local.parent
        if config is None and local.name in _named_configs(parent):
            return DatasetPlace(str(parent), local.name)
        return _locate_in_folder(local, config)
    parent_path, _, last_part = path.rstrip("/").rpartition("/")
    parent_folder = find_path(parent_path, base) if parent_path.strip("./~") else None
    is_config_possible = parent_folder is not None and parent_folder.is_dir() and config is None
    if (
        is_config_possible
        and parent_folder is not None
        and (_named_configs(parent_folder) or _config_folders(parent_folder))
    ):
        return _locate_in_folder(parent_folder, last_part)
    advice = advise_on_path(path)
    if advice or Path(path).expanduser().is_absolute() or path.startswith((".", "~")):
        raise TaskError(f"The data set {path} does not exist.", where=f"{KEY}.dataset_path", do=advice)
    return _locate_on_hub(path, config)


def load_rows(place: DatasetPlace, split: str) -> Any:
    """Return the rows of one split as a `datasets.Dataset`, or as a list for JSON files.

    If the hub does not answer, a copy in its cache is used.

    Args:
        split: Name of the split, or a slice such as `train[:100]`.

    Raises:
        TaskError: the data cannot be read, or neither the hub nor the cache has them.
    """
    datasets = _import_datasets()
    if place.file is not None:
        return _load_file(datasets, place, split)
    if not place.local:
        logger.info("looking for the data set {} on the Hugging Face hub", place)
    if not place.local and not hub_answers(place.path):
        logger.warning("the Hugging Face hub does not answer; looking for a copy of {} in the cache", place.path)
        unreachable_error = TaskError(
            f"The Hugging Face hub does not answer, and its cache contains no copy of {place}.",
            where=f"{KEY}.dataset_path",
            expected="network access, or a local folder or file with the data",
            do=f"set {KEY}.dataset_path to a local copy (a folder structured as on the hub, or a parquet, csv "
            "or jsonl file)",
        )
        try:
            with _use_cache_only(datasets):
                return _call_within(CACHE_TIME, lambda: load_split(datasets, place, split), unreachable_error)
        except TaskError as error:
            raise unreachable_error from error
    return load_split(datasets, place, split)


def load_split(datasets: Any, place: DatasetPlace, split: str) -> Any:
    """Load one split with the library `datasets`.

    ajet reads JSON rows itself, because pyarrow would turn texts that look like dates into datetimes. CSV cells are
    read as text, because pandas would turn 007 into 7.
    """
    from datasets.packaged_modules.csv.csv import Csv
    from datasets.packaged_modules.json.json import Json

    try:
        builder = datasets.load_dataset_builder(place.path, place.config)
        split_name, files_by_split = split.partition("[")[0], builder.config.data_files or {}
        if isinstance(builder, Json) and split_name in files_by_split:
            local_files = datasets.DownloadManager().download_and_extract(
                [str(file) for file in files_by_split[split_name]]
            )
            return _slice_rows(datasets, [row for file in local_files for row in _json_rows(Path(file))], split)
        csv_options: dict[str, Any] = {}
        if isinstance(builder, Csv) and builder.config.features is None and split_name in files_by_split:
            first_file = datasets.DownloadManager().download_and_extract(str(files_by_split[split_name][0]))
            csv_options = _text_columns(datasets, Path(first_file), builder.config.sep)
        return datasets.load_dataset(place.path, place.config, split=split, **csv_options)
    except StopIteration:  # the library raises this if no file has a row
        raise TaskError(f"The data files of {place} contain no rows.", where=f"{KEY}.dataset_path") from None
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
        raise _load_error(datasets, place, split, error) from error


def _load_error(datasets: Any, place: DatasetPlace, split: str, problem: Exception) -> TaskError:
    """Return the error to show for a failed load; if a configuration or split is unknown, it lists the known ones.

    Args:
        problem: The exception of the library `datasets`; only its text tells the cause.
    """
    error_text = str(problem)
    if "BuilderConfig" in error_text or "Config name is missing" in error_text:
        names = datasets.get_dataset_config_names(place.path)
        return _unknown_config_error(place.path, place.config, names)
    if "Unknown split" in error_text or "Bad split" in error_text:
        names = datasets.get_dataset_split_names(place.path, place.config)
        return _unknown_split_error(str(place), split, names)
    return TaskError(f"The data set {place} cannot be read: {error_text.splitlines()[0]}", where=f"{KEY}.dataset_path")


def _unknown_config_error(path: str, config: str | None, names: Iterable[str]) -> TaskError:
    """Return the error for an unknown configuration, or for None where a data set has several."""
    description = f"has no configuration {config}" if config else "has several configurations"
    return TaskError(
        f"The data set {path} {description}.",
        where=f"{KEY}.dataset_path",
        expected=f"one of: {', '.join(sorted(names))}",
        do=f"append it to the path, as in {path}/{min(names, default='NAME')}",
    )


def _unknown_split_error(where: str, split: str, names: Iterable[str]) -> TaskError:
    """Return the error for an unknown split, listing the known ones."""
    return TaskError(
        f"The data set {where} has no split {split}.",
        where=f"{KEY}.training_split, validation_split",
        expected=f"one of: {', '.join(names)}",
    )


def _replace_undecodable(rows: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any] | BadRowError]:
    """Yield the rows; text that is not UTF-8 ends them with a BadRowError, since later rows cannot be read either."""
    try:
        yield from rows
    except UnicodeDecodeError:
        yield BadRowError("text that is not UTF-8, in this row or one of the next rows")


def _load_file(datasets: Any, place: DatasetPlace, split: str) -> Any:
    """Return the rows of a local data file. The split's name is arbitrary, its slice selects rows. Raises TaskError."""
    assert place.file is not None
    split_name = split.partition("[")[0]
    if FORMATS[place.file.suffix.lower()] == "json":
        return _slice_rows(datasets, _json_rows(place.file), split)
    csv_options: dict[str, Any] = {}
    try:
        if FORMATS[place.file.suffix.lower()] == "csv":
            csv_options = _text_columns(datasets, place.file, "\t" if place.file.suffix.lower() == ".tsv" else ",")
        return datasets.load_dataset(
            FORMATS[place.file.suffix.lower()], data_files={split_name: str(place.file)}, split=split, **csv_options
        )
    except StopIteration:  # the library raises this for a file without rows
        raise TaskError("The data file contains no rows.", where=str(place.file)) from None
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
        cause = error.__cause__ or error
        raise TaskError(
            f"The data file cannot be read: {(str(cause).splitlines() or [repr(cause)])[0]}", where=str(place.file)
        ) from error


def _text_columns(datasets: Any, file: Path, separator: str) -> dict[str, Any]:
    """Return options for reading every CSV cell as text, with null for empty cells.

    By default pandas turns 007 and 1.10 into numbers, drops NA, and makes the first column an index if rows end with a
    separator.
    """
    import pandas

    csv_format = find_csv_format(file, separator)
    if csv_format.separator != separator:
        logger.info("the cells of {} are separated by {}", file.name, SEPARATORS[csv_format.separator])
    column_names = pandas.read_csv(
        file, sep=csv_format.separator, encoding=csv_format.encoding, nrows=0, index_col=False
    ).columns
    return {
        "sep": csv_format.separator,
        "encoding": csv_format.encoding,
        "features": datasets.Features({str(name): datasets.Value("string") for name in column_names}),
        "keep_default_na": False,
        "na_values": [""],
        "index_col": False,
    }


def _json_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON array or JSON lines as the jsonl reader does. Raises TaskError.

    pyarrow would turn texts that look like dates into datetimes, and 1 next to 2.5 into 1.0.
    """
    with explain_read_errors(file), file.open("rb") as stream:
        first_bytes = stream.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")  # without byte order mark
    located_rows = (
        read_array(file) if first_bytes.startswith(b"[") else ((f"{file}:{n}", row) for n, row in line_rows(file))
    )
    rows: list[dict[str, Any]] = []
    for location, row in located_rows:
        if isinstance(row, BadRowError):
            raise TaskError(
                f"A row is not a valid JSON object: {row}.", where=location, expected="one JSON object per line"
            )
        rows.append(row)
    if not rows:
        raise TaskError("The data file contains no rows.", where=str(file))
    return rows


def _slice_rows(datasets: Any, rows: list[dict[str, Any]], split: str) -> list[dict[str, Any]]:
    """Return the rows that a split such as `train[:90%]` selects; its name counts as the name of all rows.

    Raises:
        TaskError: the split is not valid.
    """
    split_name = split.partition("[")[0]
    try:
        row_ranges = datasets.ReadInstruction.from_spec(split).to_absolute({split_name: len(rows)})
    except (ValueError, AssertionError) as error:
        raise TaskError(f"The split {split} cannot be read: {error}", where=KEY) from None
    return [row for row_range in row_ranges for row in rows[row_range.from_ : row_range.to]]


def _locate_in_folder(folder: Path, config: str | None) -> DatasetPlace:
    """Return where the configuration of a data set in a local folder is.

    Configurations are named in the folder's README.md, or are its subfolders.

    Args:
        config: Name of the configuration. None: the default one.

    Raises:
        TaskError: there is no such configuration, no default one, or no data file.
    """
    is_default_by_config = _named_configs(folder)
    config_folders = [] if is_default_by_config else _config_folders(folder)
    if is_default_by_config:
        if config is None and len(is_default_by_config) > 1:
            default_config = next(
                (name for name, is_default in is_default_by_config.items() if is_default or name == "default"), None
            )
            config = default_config or _usual_config(folder, is_default_by_config)
        elif config is None:
            config = next(iter(is_default_by_config))
        if config not in is_default_by_config:
            raise _unknown_config_error(str(folder), config, is_default_by_config)
        return DatasetPlace(str(folder), config)
    if config_folders:
        config = config or (config_folders[0] if len(config_folders) == 1 else _usual_config(folder, config_folders))
        if config not in config_folders:
            raise _unknown_config_error(str(folder), config, config_folders)
        return DatasetPlace(str(folder / config))
    if config is not None and config != "default":
        raise _unknown_config_error(str(folder), config, ["default"])
    if not _has_data_files(folder, deep=True):
        raise TaskError(
            f"The folder {folder} contains no data file.",
            where=f"{KEY}.dataset_path",
            expected=f"files ending in {', '.join(FORMATS)}",
        )
    return DatasetPlace(str(folder))


def _usual_config(folder: Path, names: Collection[str]) -> str | None:
    """Return the default configuration of the hub data set with the folder's name, if present."""
    default_config = FIRST_CONFIG.get(HOMES.get(folder.name, folder.name))
    return default_config if default_config in names else None


def _named_configs(folder: Path) -> dict[str, bool]:
    """Return the configurations named in a folder's data card (README.md), each with its default flag; {} without."""
    card = folder / "README.md"
    if not card.is_file():
        return {}
    text = card.read_text(encoding="utf-8", errors="replace")
    if not text.startswith("---"):  # no YAML header
        return {}
    import yaml

    try:
        card_header = yaml.safe_load(text[3:].partition("\n---")[0])
    except yaml.YAMLError:
        return {}
    configs = card_header.get("configs") if isinstance(card_header, dict) else None
    return {str(item["config_name"]): bool(item.get("default")) for item in configs or [] if "config_name" in item}


def _config_folders(folder: Path) -> list[str]:
    """Return the names of subfolders that are configurations: they contain data files and are not named as a split.

    A folder with data files of its own has no configurations.
    """
    if _has_data_files(folder):
        return []
    return sorted(
        item.name
        for item in folder.iterdir()
        if item.is_dir() and item.name.lower() not in SPLIT_FOLDERS and _has_data_files(item, deep=True)
    )


def _has_data_files(folder: Path, *, deep: bool = False) -> bool:
    """Return True if a folder contains data files, with `deep` also in subfolders."""
    items = folder.rglob("*") if deep else folder.iterdir()
    return any(item.suffix.lower() in FORMATS for item in items if item.is_file())


def _locate_on_hub(path: str, config: str | None) -> DatasetPlace:
    """Return the hub repository and configuration of a path such as `org/name/config` or `gsm8k`. Raises TaskError."""
    path_parts = [path_part for path_part in path.split("/") if path_part]
    if path_parts and path_parts[0] in HOMES and len(path_parts) <= 2:
        repository, config_parts = HOMES[path_parts[0]], path_parts[1:]
    elif len(path_parts) > 3 or not path_parts:
        raise TaskError(
            f"{path} is neither a local data set nor a name on the Hugging Face hub.",
            where=f"{KEY}.dataset_path",
            expected="an existing path, or name, name/config, org/name or org/name/config",
        )
    else:
        repository, config_parts = "/".join(path_parts[:2]), path_parts[2:]
    return DatasetPlace(
        repository, config or (config_parts[0] if config_parts else FIRST_CONFIG.get(repository)), local=False
    )


def hub_answers(repository: str) -> bool:
    """Return True if the hub responds to a question about the repository, also with "not found"."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    def ask() -> bool:
        """Return True for any response but a server's error."""
        try:
            HfApi().dataset_info(repository, timeout=ANSWER_TIME / 2)
        except HfHubHTTPError as error:
            return error.response is not None and error.response.status_code < 500
        except (OfflineModeIsEnabled, OSError):
            return False
        return True

    import httpx

    try:
        return _call_within(ANSWER_TIME, ask, TimeoutError())
    except (TimeoutError, httpx.HTTPError):
        return False


@contextmanager
def _use_cache_only(datasets: Any) -> Iterator[None]:
    """Make the libraries use only their cache; an unreachable hub would cost half a minute of printed retries."""
    from huggingface_hub import constants

    previous_settings = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = previous_settings


def _call_within(seconds: float, call: Callable[[], T], late: Exception) -> T:
    """Return `call()` or raise its exception; raise `late` after the limit in seconds.

    A late call continues in a daemon thread, since a thread cannot be stopped.
    """
    outcome: list[tuple[bool, Any]] = []

    def run() -> None:
        """Call the function and store (True, its result) or (False, its exception)."""
        try:
            outcome.append((True, call()))
        except Exception as error:  # noqa: BLE001 - the waiting thread raises it
            outcome.append((False, error))

    thread = threading.Thread(target=run, name="ajet-hub", daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise late
    has_returned, value = outcome[0]
    if not has_returned:
        raise value
    return value


def _import_datasets() -> Any:
    """Return the library `datasets` without its progress bars. Raises MissingExtraError."""
    try:
        import datasets
    except ImportError:
        raise MissingExtraError("datasets", "local", needed_for="huggingface_dat_repo") from None
    datasets.disable_progress_bars()
    return datasets
