"""Configuration of the readers `data_generation` and `tracing`: a section of the reader's name below `task_reader`."""

from __future__ import annotations

from typing import Literal

from pydantic import SecretStr

from ajet.config.schema.base import EVERYWHERE, Section, key, section
from ajet.config.schema.extended import PluginKeys
from ajet.config.schema.model import JudgeModelConfig
from ajet.config.schema.tasks import NOT_HELD_OUT, EnvServiceReaderConfig, HuggingFaceReaderConfig, JsonlReaderConfig

UNUSED_LANGUAGES = {EVERYWHERE: "ajet uses the text unchanged, in any language"}
UNUSED_CACHE = {EVERYWHERE: "documents are read at each start, within seconds; generated tasks are stored"}
UNUSED_DATABASE = {EVERYWHERE: "embeddings are stored with the generated tasks, in ajet's cache"}


class DocumentReader(Section):
    """Source documents of generated tasks."""

    document_path: str | list[str] = key(
        [], "A file or folder to read, or several: text, Markdown, HTML, PDF, Word, PowerPoint.", kind="path"
    )
    languages: list[str] = key(["eng"], "Languages of the documents.", idle=UNUSED_LANGUAGES)
    chunk_size: int = key(5120, "Largest number of characters of a passage.", ge=1)
    split_by: str = key("sentence", "End of a passage: sentence, paragraph, line or word.")
    cache_enabled: bool = key(True, "Cache the text of parsed documents.", idle=UNUSED_CACHE)


class QueryReader(Section):
    """Example tasks for the generating model."""

    type: str = key("jsonl_dataset_file", "Reader of the example tasks.", part="reader")
    jsonl_dataset_file: JsonlReaderConfig = section(JsonlReaderConfig, "As `task_reader.jsonl_dataset_file`.")
    huggingface_dat_repo: HuggingFaceReaderConfig = section(
        HuggingFaceReaderConfig, "As `task_reader.huggingface_dat_repo`."
    )
    env_service: EnvServiceReaderConfig = section(EnvServiceReaderConfig, "As `task_reader.env_service`.")


class SamplingParams(Section):
    """Sampling of the generating model."""

    temperature: float = key(0.0, "Sampling temperature; 0: greedy decoding.", ge=0)


class DeduplicationParams(Section):
    """Comparison of similar tasks."""

    similarity_threshold: float = key(0.8, "Similarity of duplicate tasks, by embeddings or letters.", ge=0, le=1)
    letters_threshold: float | None = key(
        None, "Threshold for similarity by letters; null: as `similarity_threshold`.", ge=0, le=1
    )
    numbers: Literal["differ", "alike"] = key(
        "differ",
        "`differ`: two tasks with different numbers (in figures) are distinct, however similar their words are; "
        "`alike`: numbers count like words.",
    )
    db_path: str = key("./.similarity_db", "Folder of stored embeddings.", idle=UNUSED_DATABASE)
    model: str = key(
        "text-embedding-v4",
        "Name of the embedding model at `base_url`; or `embedded:all-minilm-l6-v2`, a model on this machine.",
    )
    api_key: SecretStr | None = key(
        None,
        "API key of the embedding server; write `${oc.env:NAME}`. Null: OPENAI_API_KEY, or the key of the "
        "environment's server.",
        kind="secret",
        training=False,
    )
    base_url: str | None = key(
        None,
        "URL of the OpenAI-compatible embedding server, `http://HOST:PORT/v1`. Null: with `api_key` or another "
        "`model`, the environment's server, as for `llm_model`; otherwise tasks are compared by letters only.",
    )


class DeduplicationFilter(Section):
    """Removal of generated tasks similar to others."""

    enabled: bool = key(True, "Drop similar tasks.")
    params: DeduplicationParams = section(DeduplicationParams, "How similar tasks are compared.")


class DataGeneration(Section):
    """Tasks written by a model, from documents and examples."""

    document_reader: DocumentReader = section(DocumentReader, "Source documents of generated tasks.")
    query_reader: QueryReader = section(QueryReader, "Example tasks for the generating model.")
    task_num: int = key(10, "Number of tasks to generate for each split.", ge=1)
    models: list[JudgeModelConfig] = key(
        [], "Models that write tasks, in order: if one does not answer, the next is used."
    )
    llm_model: str = key(
        "qwen-long",
        "The model if `models` is empty, at the server of DASHSCOPE_API_KEY or OPENAI_BASE_URL.",
    )
    llm_response_length: int = key(8192, "Largest number of tokens of a reply.", ge=1)
    num_workers: int = key(32, "Concurrent requests.", ge=1)
    sampling_params: SamplingParams = section(SamplingParams, "How the generating model samples.")
    deduplication_filter: DeduplicationFilter = section(DeduplicationFilter, "Whether similar tasks are dropped.")


class Tracing(Section):
    """Conversations of a deployed agent, with ratings by people."""

    sources: str | list[str] = key(
        [],
        "Files of spans (AgentScope Studio's SQLite, OTLP JSON), and folders of `ajet observe` or of other runs.",
        kind="path",
    )
    feedback: str | list[str] = key(
        [],
        "JSON lines with `reply` or `session`, and `reward`, `liked`, `corrected`. Feedback of observed runs is read "
        "automatically.",
        kind="path",
    )
    only: Literal["any", "rated", "liked", "corrected"] = key(
        "any", "Replies to use: all, rated, liked or corrected, or corrected."
    )
    liked_from: float = key(0.5, "Minimum reward of a liked reply.")
    answers: Literal["any", "liked"] = key(
        "any",
        "Replies used as the task's `metadata.answer`: all except disliked ones, or liked ones. Corrected texts are "
        "always used.",
    )
    agents: list[str] = key([], "Names of the agents to use; empty: all.")
    models: list[str] = key([], "Names of the models to use, as in the traces; empty: all.")
    longest: int | None = key(None, "Largest number of characters of a question; null: no limit.", ge=1)
    similarity_threshold: float = key(
        0.8,
        "Questions at least this similar, by letters, go into the same split; 1: only equal ones.",
        ge=0,
        le=1,
    )
    numbers: Literal["differ", "alike"] = key(
        "differ",
        "`differ`: two questions with different numbers (in figures) are distinct, however similar their words "
        "are; `alike`: numbers count like words.",
    )
    validation_share: float = key(
        0.3, "Share of questions that are held out.", training=False, idle=NOT_HELD_OUT, ge=0, lt=1
    )
    mask: str | None = key(
        None,
        "Function `(text: str) -> str` that masks personal data, such as `mask.py->mask_text`; it gets every "
        "text of a trace before anything else. null: no masking.",
        kind="reference",
    )


class ReaderKeys(PluginKeys):
    """Sections of the readers of this package."""

    data_generation: DataGeneration = section(
        DataGeneration, "Tasks written by a model.", when=("task_reader.type", "data_generation")
    )
    tracing: Tracing = section(Tracing, "Traces of a deployed agent.", when=("task_reader.type", "tracing"))
