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
        """Whether a split is named."""
        return bool(self._splits[split])

    def tasks(self, split: TaskSplit) -> Sequence[Task]:
        """Every row of the split. Raises TaskError, MissingExtraError."""
        if not self._path:
            raise TaskError("No data set is set.", where=f"{KEY}.dataset_path", do=f"set {KEY}.dataset_path")
        name = self._splits[split]
        if not name:
            key = f"{KEY}.{'training' if split == 'train' else split}_split"
            raise TaskError(f"No split is set for the {split} tasks.", where=key, do=f"set {key}")
        dataset = locate_dataset(self._path, self._config, self._base)
        return self._build_tasks(load_rows(dataset, name), f"{dataset}, split {name}")

    def _build_tasks(self, dataset: Any, where: str) -> list[Task]:
        """Convert rows to tasks. A bad row raises TaskError, or is left out and counted with `on_bad_row: skip`."""
        images = ImageColumns({} if isinstance(dataset, list) else dataset.features)
        tasks: list[Task] = []
        bad: list[tuple[int, str]] = []
        for index, row in enumerate(_replace_undecodable(images.rows(dataset))):
            try:
                if isinstance(row, BadRowError):
                    raise row
                tasks.append(task_of(images.urls(row), self._columns))
            except BadRowError as problem:
                if not self._skips_bad_rows:
                    raise TaskError(
                        f"A row cannot be used as a task: {problem}.",
                        where=f"{where}, row {index}",
                        do=problem.do
                        or (
                            "set the columns in ajet.task_reader.columns, or set "
                            "ajet.task_reader.on_bad_row=skip to leave such rows out"
                        ),
                    ) from None
                bad.append((index, str(problem)))
        if bad:
            total = len(bad) + len(tasks)
            logger.warning("{}: ajet left out {} of {} rows; the first, {}: {}", where, len(bad), total, *bad[0])
        if bad and not tasks:
            raise TaskError(
                f"None of {len(bad)} rows can be used as a task. The first: {bad[0][1]}.",
                where=f"{where}, row {bad[0][0]}",
                expected="a question, or messages",
                do="set the columns in ajet.task_reader.columns",
            )
        return tasks


def locate_dataset(path: str, config: str | None, base: Path) -> DatasetPlace:
    """Resolve `dataset_path` and `dataset_name`. Raises TaskError."""
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
        parent = local.parent
        if config is None and local.name in _named_configs(parent):
            return DatasetPlace(str(parent), local.name)
        return _locate_in_folder(local, config)
    head, _, tail = path.rstrip("/").rpartition("/")
    above = find_path(head, base) if head.strip("./~") else None
    is_parent = above is not None and above.is_dir() and config is None
    if is_parent and above is not None and (_named_configs(above) or _config_folders(above)):
        return _locate_in_folder(above, tail)
    advice = advise_on_path(path)
    if advice or Path(path).expanduser().is_absolute() or path.startswith((".", "~")):
        raise TaskError(f"The data set {path} does not exist.", where=f"{KEY}.dataset_path", do=advice)
    return _locate_on_hub(path, config)


def load_rows(place: DatasetPlace, split: str) -> Any:
    """Return the `datasets.Dataset` of one split, or rows; slices such as `train[:100]` work. Raises TaskError."""
    datasets = _import_datasets()
    if place.file is not None:
        return _load_file(datasets, place, split)
    if not place.local:
        logger.info("looking for the data set {} on the Hugging Face hub", place)
    if not place.local and not hub_answers(place.path):
        logger.warning("the Hugging Face hub does not answer; looking for a copy of {} in the cache", place.path)
        unreachable = TaskError(
            f"The Hugging Face hub does not answer, and its cache contains no copy of {place}.",
            where=f"{KEY}.dataset_path",
            expected="network access, or a local folder or file with the data",
            do=f"set {KEY}.dataset_path to a local copy (a folder structured as on the hub, or a parquet, csv "
            "or jsonl file)",
        )
        try:
            with _use_cache_only(datasets):
                return _call_within(CACHE_TIME, lambda: load_split(datasets, place, split), unreachable)
        except TaskError as problem:
            raise unreachable from problem
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
        name, files = split.partition("[")[0], builder.config.data_files or {}
        if isinstance(builder, Json) and name in files:
            extracted = datasets.DownloadManager().download_and_extract([str(each) for each in files[name]])
            return _slice_rows(datasets, [row for each in extracted for row in _json_rows(Path(each))], split)
        options: dict[str, Any] = {}
        if isinstance(builder, Csv) and builder.config.features is None and name in files:
            first = datasets.DownloadManager().download_and_extract(str(files[name][0]))
            options = _text_columns(datasets, Path(first), builder.config.sep)
        return datasets.load_dataset(place.path, place.config, split=split, **options)
    except StopIteration:  # the library raises this if no file has a row
        raise TaskError(f"The data files of {place} contain no rows.", where=f"{KEY}.dataset_path") from None
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as problem:
        raise _load_error(datasets, place, split, problem) from problem


def _load_error(datasets: Any, place: DatasetPlace, split: str, problem: Exception) -> TaskError:
    """Return the error of a failed load, listing configurations or splits if one is unknown."""
    text = str(problem)
    if "BuilderConfig" in text or "Config name is missing" in text:
        names = datasets.get_dataset_config_names(place.path)
        return _unknown_config_error(place.path, place.config, names)
    if "Unknown split" in text or "Bad split" in text:
        names = datasets.get_dataset_split_names(place.path, place.config)
        return _unknown_split_error(str(place), split, names)
    return TaskError(f"The data set {place} cannot be read: {text.splitlines()[0]}", where=f"{KEY}.dataset_path")


def _unknown_config_error(path: str, config: str | None, names: Iterable[str]) -> TaskError:
    problem = f"has no configuration {config}" if config else "has several configurations"
    return TaskError(
        f"The data set {path} {problem}.",
        where=f"{KEY}.dataset_path",
        expected=f"one of: {', '.join(sorted(names))}",
        do=f"append it to the path, as in {path}/{min(names, default='NAME')}",
    )


def _unknown_split_error(where: str, split: str, names: Iterable[str]) -> TaskError:
    return TaskError(
        f"The data set {where} has no split {split}.",
        where=f"{KEY}.training_split, validation_split",
        expected=f"one of: {', '.join(names)}",
    )


def _replace_undecodable(rows: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any] | BadRowError]:
    """Yield the rows; undecodable bytes end the rows with a BadRowError."""
    try:
        yield from rows
    except UnicodeDecodeError:
        yield BadRowError("text that is not UTF-8, in this row or one of the next rows")


def _load_file(datasets: Any, place: DatasetPlace, split: str) -> Any:
    assert place.file is not None
    name = split.partition("[")[0]
    if FORMATS[place.file.suffix.lower()] == "json":
        return _slice_rows(datasets, _json_rows(place.file), split)
    options: dict[str, Any] = {}
    try:
        if FORMATS[place.file.suffix.lower()] == "csv":
            options = _text_columns(datasets, place.file, "\t" if place.file.suffix.lower() == ".tsv" else ",")
        return datasets.load_dataset(
            FORMATS[place.file.suffix.lower()], data_files={name: str(place.file)}, split=split, **options
        )
    except StopIteration:
        raise TaskError("The data file contains no rows.", where=str(place.file)) from None
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as problem:
        cause = problem.__cause__ or problem
        raise TaskError(
            f"The data file cannot be read: {(str(cause).splitlines() or [repr(cause)])[0]}", where=str(place.file)
        ) from problem


def _text_columns(datasets: Any, file: Path, separator: str) -> dict[str, Any]:
    """Return options for reading every CSV cell as text, with null for empty cells.

    By default pandas turns 007 and 1.10 into numbers, drops NA, and makes the first column an index if rows end with a
    separator.
    """
    import pandas

    csv_format = find_csv_format(file, separator)
    if csv_format.separator != separator:
        logger.info("ajet reads {} as a file separated by {}", file.name, SEPARATORS[csv_format.separator])
    names = pandas.read_csv(
        file, sep=csv_format.separator, encoding=csv_format.encoding, nrows=0, index_col=False
    ).columns
    return {
        "sep": csv_format.separator,
        "encoding": csv_format.encoding,
        "features": datasets.Features({str(name): datasets.Value("string") for name in names}),
        "keep_default_na": False,
        "na_values": [""],
        "index_col": False,
    }


def _json_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON array or JSON lines as the jsonl reader does. Raises TaskError.

    pyarrow would turn texts that look like dates into datetimes, and 1 next to 2.5 into 1.0.
    """
    with explain_read_errors(file), file.open("rb") as stream:
        start = stream.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
    located_rows = read_array(file) if start.startswith(b"[") else ((f"{file}:{n}", row) for n, row in line_rows(file))
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
    """Return the rows of a split such as `train[:90%]`."""
    name = split.partition("[")[0]
    try:
        parts = datasets.ReadInstruction.from_spec(split).to_absolute({name: len(rows)})
    except (ValueError, AssertionError) as problem:
        raise TaskError(f"The split {split} cannot be read: {problem}", where=KEY) from None
    return [row for part in parts for row in rows[part.from_ : part.to]]


def _locate_in_folder(folder: Path, config: str | None) -> DatasetPlace:
    """Return the place of a dataset's configuration in a local folder.

    Configurations are named in the folder's README.md, or are its subfolders. `config` None: the default one.
    """
    configs = _named_configs(folder)
    folders = [] if configs else _config_folders(folder)
    if configs:
        if config is None and len(configs) > 1:
            usual = next((name for name, first in configs.items() if first or name == "default"), None)
            config = usual or _usual_config(folder, configs)
        elif config is None:
            config = next(iter(configs))
        if config not in configs:
            raise _unknown_config_error(str(folder), config, configs)
        return DatasetPlace(str(folder), config)
    if folders:
        config = config or (folders[0] if len(folders) == 1 else _usual_config(folder, folders))
        if config not in folders:
            raise _unknown_config_error(str(folder), config, folders)
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
    usual = FIRST_CONFIG.get(HOMES.get(folder.name, folder.name))
    return usual if usual in names else None


def _named_configs(folder: Path) -> dict[str, bool]:
    """Return the configurations of a data card, each with its default flag."""
    card = folder / "README.md"
    if not card.is_file():
        return {}
    text = card.read_text(encoding="utf-8", errors="replace")
    if not text.startswith("---"):
        return {}
    import yaml

    try:
        head = yaml.safe_load(text[3:].partition("\n---")[0])
    except yaml.YAMLError:
        return {}
    configs = head.get("configs") if isinstance(head, dict) else None
    return {str(item["config_name"]): bool(item.get("default")) for item in configs or [] if "config_name" in item}


def _config_folders(folder: Path) -> list[str]:
    if _has_data_files(folder):
        return []
    return sorted(
        item.name
        for item in folder.iterdir()
        if item.is_dir() and item.name.lower() not in SPLIT_FOLDERS and _has_data_files(item, deep=True)
    )


def _has_data_files(folder: Path, *, deep: bool = False) -> bool:
    items = folder.rglob("*") if deep else folder.iterdir()
    return any(item.suffix.lower() in FORMATS for item in items if item.is_file())


def _locate_on_hub(path: str, config: str | None) -> DatasetPlace:
    parts = [part for part in path.split("/") if part]
    if parts and parts[0] in HOMES and len(parts) <= 2:
        repository, rest = HOMES[parts[0]], parts[1:]
    elif len(parts) > 3 or not parts:
        raise TaskError(
            f"{path} is neither a local data set nor a name on the Hugging Face hub.",
            where=f"{KEY}.dataset_path",
            expected="an existing path, or name, name/config, org/name or org/name/config",
        )
    else:
        repository, rest = "/".join(parts[:2]), parts[2:]
    return DatasetPlace(repository, config or (rest[0] if rest else FIRST_CONFIG.get(repository)), local=False)


def hub_answers(repository: str) -> bool:
    """True if the hub responds about the repository, also with "not found"."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    def ask() -> bool:
        try:
            HfApi().dataset_info(repository, timeout=ANSWER_TIME / 2)
        except HfHubHTTPError as problem:
            return problem.response is not None and problem.response.status_code < 500
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

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _call_within(seconds: float, call: Callable[[], T], late: Exception) -> T:
    """Return `call()`, or raise `late` after the limit; the call then continues in a daemon thread."""
    outcome: list[tuple[bool, Any]] = []

    def run() -> None:
        try:
            outcome.append((True, call()))
        except Exception as problem:  # noqa: BLE001 - the waiting thread raises it
            outcome.append((False, problem))

    thread = threading.Thread(target=run, name="ajet-hub", daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise late
    good, value = outcome[0]
    if not good:
        raise value
    return value


def _import_datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtraError("datasets", "local", needed_for="huggingface_dat_repo") from None
    datasets.disable_progress_bars()
    return datasets
