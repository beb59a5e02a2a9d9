"""`task_reader`: where tasks come from. Each reader that has keys has a section of its own name."""

from __future__ import annotations

from typing import Any, Literal

from ajet.config.schema.base import SERVE, Section, key, section
from ajet.config.schema.reasons import NO_VALIDATION

NOT_HELD_OUT = {SERVE: NO_VALIDATION}


class HuggingfaceDatRepo(Section):
    """A data set of the Hugging Face hub, or a local folder or file."""

    dataset_path: str | None = key(
        None, "`gsm8k`, `gsm8k/main`, `org/name[/config]`, a local folder, or a parquet, csv or json file.", kind="path"
    )
    dataset_name: str | None = key(None, "Configuration of the data set, where it has several.")
    training_split: str = key("train", "Split to train on.")
    validation_split: str | None = key("test", "Split to validate on; null: none.", training=False, idle=NOT_HELD_OUT)


class TaskFile(Section):
    """A file of tasks."""

    file_path: str | None = key(None, "A JSON Lines file, one task a line.", kind="path")


class ValidationFile(Section):
    """A file of validation tasks."""

    file_path: str | None = key(
        None, "A JSON Lines file; null: no validation.", kind="path", training=False, idle=NOT_HELD_OUT
    )


class JsonlDatasetFile(Section):
    """JSON Lines files."""

    training: TaskFile = section(TaskFile, "Tasks to train on.")
    validation: ValidationFile = section(ValidationFile, "Tasks to validate on.")


class Agentrl(Section):
    """AgentRL's task files: `id, query, answer, scorer, answer_schema` a line."""

    training: TaskFile = section(TaskFile, "Tasks to train on.")
    validation: ValidationFile = section(ValidationFile, "Tasks to validate on.")


class BenchmarkTraining(Section):
    """A local copy of a benchmark's split."""

    file_path: str | None = key(None, "A file or folder as it is published, or FOLDER/SPLIT.", kind="path")


class BenchmarkValidation(Section):
    """A local copy of a split that is not trained on."""

    file_path: str | None = key(None, "The same; null: no validation.", kind="path", training=False, idle=NOT_HELD_OUT)


class Benchmark(Section):
    """A local copy of a benchmark, as it is published."""

    training: BenchmarkTraining = section(BenchmarkTraining, "Tasks to train on.")
    validation: BenchmarkValidation = section(BenchmarkValidation, "Tasks to validate on.")


class Gaia(Benchmark):
    """A local copy of GAIA: metadata.jsonl, and the files of its tasks beside it."""

    files_at: str | None = key(
        None, "Folder in which the environment has the tasks' files; null: where they lie on this machine."
    )


class HotpotQa(Benchmark):
    """A local copy of HotpotQA."""

    context: bool = key(False, "Put a row's paragraphs before its question.")


class EnvService(Section):
    """An environment service that lists its own tasks."""

    env_type: str = key("appworld", "Kind of environment.")
    env_url: str = key("http://127.0.0.1:8080", "Where the service listens.", training=False)
    env_action_preference: Literal["code", "text", "box"] = key("code", "Form of an action.")
    training_split: str = key("train", "Split to train on.")
    validation_split: str | None = key("dev", "Split to validate on.", training=False)


class RandomDummy(Section):
    """Tasks that carry nothing but a distinct `metadata.random_number`."""

    size: int = key(1000, "Training tasks.", ge=1)
    validation_size: int = key(16, "Validation tasks.", training=False, idle=NOT_HELD_OUT, ge=0)


class ReasoningGym(Section):
    """Procedural tasks of the reasoning-gym package, scored by its own verifiers."""

    dataset: str | None = key(None, "Name of the task family, e.g. `basic_arithmetic`.")
    size: int = key(1000, "Training tasks.", ge=1)
    validation_size: int = key(
        100,
        "Validation tasks, of seeds that training has none of; a family with few questions asks some in both.",
        training=False,
        idle=NOT_HELD_OUT,
        ge=0,
    )
    seed: int = key(42, "Seed of the generator.")
    params: dict[str, Any] = key({}, "Parameters of the family, as its package documents them.")


class Columns(Section):
    """Which columns of a row mean what; null finds the usual names. Case and surrounding blanks do not matter."""

    main_query: str | None = key(None, "The question; null: main_query, question, query, prompt, problem or messages.")
    task_id: str | None = key(None, "The task's name; null: task_id or id, else one made from the content.")
    answer: str | None = key(
        None,
        "The reference answer, kept as `metadata.answer`; null: answer, ground_truth, final_answer, solution or "
        "target.",
    )


class TaskReader(Section):
    """Where tasks come from."""

    type: str = key("huggingface_dat_repo", "One of {names}, or a reference to a reader of your own.", part="reader")
    on_bad_row: Literal["error", "skip"] = key(
        "error", "A row that is no task: an error that names its line, or left out and counted."
    )
    require_question: bool = key(
        True,
        "Refuse rows that hold neither a text question nor messages; false: the workflow makes the question of the "
        "other columns. Tasks of an environment and of a reader of your own need none.",
    )
    columns: Columns = section(Columns, "Which columns of a row mean what.")
    huggingface_dat_repo: HuggingfaceDatRepo = section(
        HuggingfaceDatRepo,
        "A data set of the hub, a folder or a file.",
        when=("task_reader.type", "huggingface_dat_repo"),
    )
    jsonl_dataset_file: JsonlDatasetFile = section(
        JsonlDatasetFile, "JSON Lines files.", when=("task_reader.type", "jsonl_dataset_file")
    )
    agentrl: Agentrl = section(
        Agentrl,
        "AgentRL's task files. A row's own `scorer` scores it; without one, the scorers of `task_judge`, or `agentcpm` "
        "where neither they nor a judge are named.",
        when=("task_reader.type", "agentrl"),
    )
    gsm8k: Benchmark = section(
        Benchmark, "GSM8K; scorer `math` unless `task_judge` names another.", when=("task_reader.type", "gsm8k")
    )
    math: Benchmark = section(
        Benchmark, "MATH; scorer `math` unless `task_judge` names another.", when=("task_reader.type", "math")
    )
    gaia: Gaia = section(
        Gaia, "GAIA; scorer `gaia` unless `task_judge` names another.", when=("task_reader.type", "gaia")
    )
    hotpotqa: HotpotQa = section(
        HotpotQa, "HotpotQA; scorer `f1` unless `task_judge` names another.", when=("task_reader.type", "hotpotqa")
    )
    random_dummy: RandomDummy = section(
        RandomDummy, "Tasks that carry nothing but a random number.", when=("task_reader.type", "random_dummy")
    )
    reasoning_gym: ReasoningGym = section(
        ReasoningGym, "Tasks of the reasoning-gym package.", when=("task_reader.type", "reasoning_gym")
    )
    env_service: EnvService = section(
        EnvService, "An environment service that lists its own tasks.", when=("task_reader.type", "env_service")
    )
