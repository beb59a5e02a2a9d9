"""`task_reader`: where tasks come from. Each reader that has keys has a section of its own name."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import SecretStr

from ajet.config.schema.base import EVERYWHERE, SERVE, Section, key, section
from ajet.config.schema.model_judge import JudgeModel
from ajet.config.schema.reasons import NO_VALIDATION

NOT_HELD_OUT = {SERVE: NO_VALIDATION}
UNUSED_LANGUAGES = {EVERYWHERE: "the text is taken as it stands, whatever its language"}
UNUSED_CACHE = {EVERYWHERE: "documents are read anew each time, which takes seconds; what was generated is kept"}
UNUSED_DATABASE = {EVERYWHERE: "embeddings are kept with what was generated, in ajet's cache"}


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


class DocumentReader(Section):
    """Documents that tasks are generated from."""

    document_path: str | list[str] = key(
        [], "A file or folder to read, or several: text, Markdown, HTML, PDF, Word, PowerPoint.", kind="path"
    )
    languages: list[str] = key(["eng"], "Languages of the documents.", idle=UNUSED_LANGUAGES)
    chunk_size: int = key(5120, "Characters of a passage, at most.", ge=1)
    split_by: str = key("sentence", "Where passages may end: sentence, paragraph, line or word.")
    cache_enabled: bool = key(True, "Keep the parsed documents.", idle=UNUSED_CACHE)


class QueryReader(Section):
    """Example tasks that generated ones are modelled on."""

    type: str = key("jsonl_dataset_file", "Reader of the example tasks.", part="reader")
    jsonl_dataset_file: JsonlDatasetFile = section(JsonlDatasetFile, "As `task_reader.jsonl_dataset_file`.")
    huggingface_dat_repo: HuggingfaceDatRepo = section(HuggingfaceDatRepo, "As `task_reader.huggingface_dat_repo`.")
    env_service: EnvService = section(EnvService, "As `task_reader.env_service`.")


class SamplingParams(Section):
    """Sampling of the generating model."""

    temperature: float = key(0.0, "0 is greedy.", ge=0)


class DeduplicationParams(Section):
    """How similar tasks are found."""

    similarity_threshold: float = key(
        0.8, "Two tasks at least this similar count as one, by their embeddings or by their letters.", ge=0, le=1
    )
    letters_threshold: float | None = key(
        None, "The same by their letters alone; null: as `similarity_threshold`.", ge=0, le=1
    )
    numbers: Literal["differ", "alike"] = key(
        "differ",
        "`differ`: two tasks that both have numbers (in figures), and not the same ones, are two, however alike their "
        "words; `alike`: numbers are words like any.",
    )
    db_path: str = key("./.similarity_db", "Where the embeddings are kept.", idle=UNUSED_DATABASE)
    model: str = key(
        "text-embedding-v4",
        "Embedding model, asked at `base_url`; or `embedded:all-minilm-l6-v2`, which runs on this machine.",
    )
    api_key: SecretStr | None = key(
        None,
        "Its key; write `${oc.env:NAME}`. Null: OPENAI_API_KEY's, or the environment's server's own.",
        kind="secret",
        training=False,
    )
    base_url: str | None = key(
        None,
        "Its OpenAI-compatible server, `http://HOST:PORT/v1`. Null: the environment's, as for `llm_model`, where "
        "`api_key` or another `model` than the default is set; else tasks are compared by their letters alone.",
    )


class DeduplicationFilter(Section):
    """Leave out generated tasks that resemble others."""

    enabled: bool = key(True, "Whether to.")
    params: DeduplicationParams = section(DeduplicationParams, "How similar tasks are found.")


class DataGeneration(Section):
    """Tasks written by a model, from documents and examples."""

    document_reader: DocumentReader = section(DocumentReader, "Documents that tasks are generated from.")
    query_reader: QueryReader = section(QueryReader, "Example tasks that generated ones are modelled on.")
    task_num: int = key(10, "Tasks to generate, of each split.", ge=1)
    models: list[JudgeModel] = key([], "Models that write them, in order: the next is asked where one does not answer.")
    llm_model: str = key(
        "qwen-long",
        "The model where `models` names none, at the server that DASHSCOPE_API_KEY or OPENAI_BASE_URL names.",
    )
    llm_response_length: int = key(8192, "Tokens of its reply, at most.", ge=1)
    num_workers: int = key(32, "Requests at the same time.", ge=1)
    sampling_params: SamplingParams = section(SamplingParams, "Sampling of the generating model.")
    deduplication_filter: DeduplicationFilter = section(DeduplicationFilter, "Leave out tasks that resemble others.")


class Tracing(Section):
    """What a deployed agent was asked and said, and what people thought of it."""

    sources: str | list[str] = key(
        [],
        "Files of spans (AgentScope Studio's SQLite, OTLP JSON), and folders of `ajet observe` or of other runs.",
        kind="path",
    )
    feedback: str | list[str] = key(
        [],
        "JSON lines with `reply` or `session`, and `reward`, `liked`, `corrected`; those of observed runs are read "
        "unnamed.",
        kind="path",
    )
    only: Literal["any", "rated", "liked", "corrected"] = key(
        "any", "Which replies: all, those that somebody rated, liked or corrected ones, or corrected ones."
    )
    liked_from: float = key(0.5, "The least reward of a reply that counts as liked.")
    answers: Literal["any", "liked"] = key(
        "any",
        "Which replies become the task's `metadata.answer`: all but disliked ones, or liked ones. A corrected text "
        "always does.",
    )
    agents: list[str] = key([], "Agents whose replies are taken; empty: all.")
    models: list[str] = key([], "Models whose replies are taken, as the traces call them; empty: all.")
    longest: int | None = key(None, "Characters that a question may have; null: any number.", ge=1)
    similarity_threshold: float = key(
        0.8,
        "Questions at least this alike, by their letters, go into the same split; 1: only equal ones.",
        ge=0,
        le=1,
    )
    numbers: Literal["differ", "alike"] = key(
        "differ",
        "`differ`: two questions that both have numbers (in figures), and not the same ones, are two, however alike "
        "their words; `alike`: numbers are words like any.",
    )
    validation_share: float = key(
        0.3, "Of the questions, how many are held out.", training=False, idle=NOT_HELD_OUT, ge=0, lt=1
    )
    mask: str | None = key(
        None,
        "Function `(text: str) -> str` that masks personal data, as `mask.py->mask_text`; it is called with every text "
        "of a trace before anything else is done with it. null: nothing is masked.",
        kind="reference",
    )


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
    data_generation: DataGeneration = section(
        DataGeneration, "Tasks written by a model.", when=("task_reader.type", "data_generation")
    )
    tracing: Tracing = section(Tracing, "Traces of a deployed agent.", when=("task_reader.type", "tracing"))
