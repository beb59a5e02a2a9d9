"""Configuration of the readers `data_generation` and `tracing`: a section of the reader's name below `task_reader`."""

from __future__ import annotations

from typing import Literal

from pydantic import SecretStr

from ajet.config.schema.base import EVERYWHERE, Section, key, section
from ajet.config.schema.extended import PluginKeys
from ajet.config.schema.model import JudgeModelConfig
from ajet.config.schema.tasks import NOT_HELD_OUT, EnvServiceReaderConfig, HuggingFaceReaderConfig, JsonlReaderConfig

UNUSED_LANGUAGES = {EVERYWHERE: "text is used unchanged in any language"}
UNUSED_CACHE = {EVERYWHERE: "documents are read at each start, within seconds; generated tasks are stored"}
UNUSED_DATABASE = {EVERYWHERE: "embeddings are stored with the generated tasks, in ajet's cache"}


class DocumentReader(Section):
    """Source documents of generated tasks."""

    document_path: str | list[str] = key(
        [], "A file or folder to read, or several: text, Markdown, HTML, PDF, Word, PowerPoint.", kind="path"
    )
    languages: list[str] = key(["eng"], "Languages of the documents.", idle=UNUSED_LANGUAGES)
    chunk_size: int = key(5120, "Characters of a passage, at most.", ge=1)
    split_by: str = key("sentence", "End of a passage: sentence, paragraph, line or word.")
    cache_enabled: bool = key(True, "Cache the parsed documents.", idle=UNUSED_CACHE)


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

    temperature: float = key(0.0, "0 is greedy.", ge=0)


class DeduplicationParams(Section):
    """Comparison of similar tasks."""

    similarity_threshold: float = key(0.8, "Similarity of duplicate tasks, by embeddings or letters.", ge=0, le=1)
    letters_threshold: float | None = key(
        None, "Threshold for similarity by letters; null: as `similarity_threshold`.", ge=0, le=1
    )
    numbers: Literal["differ", "alike"] = key(
        "differ",
        "`differ`: two tasks with different numbers (in figures) are distinct, however similar their words; `alike`: "
        "numbers are compared like words.",
    )
    db_path: str = key("./.similarity_db", "Folder of stored embeddings.", idle=UNUSED_DATABASE)
    model: str = key(
        "text-embedding-v4",
        "Embedding model at `base_url`; or `embedded:all-minilm-l6-v2`, on this machine.",
    )
    api_key: SecretStr | None = key(
        None,
        "Its key; write `${oc.env:NAME}`. Null: OPENAI_API_KEY's, or the environment's server's own.",
        kind="secret",
        training=False,
    )
    base_url: str | None = key(
        None,
        "Its OpenAI-compatible server, `http://HOST:PORT/v1`. Null: with `api_key` or another `model`, the "
        "environment's server, as for `llm_model`; otherwise tasks are compared by letters only.",
    )


class DeduplicationFilter(Section):
    """Removal of generated tasks similar to others."""

    enabled: bool = key(True, "Drop similar tasks.")
    params: DeduplicationParams = section(DeduplicationParams, "Comparison of similar tasks.")


class DataGeneration(Section):
    """Tasks written by a model, from documents and examples."""

    document_reader: DocumentReader = section(DocumentReader, "Source documents of generated tasks.")
    query_reader: QueryReader = section(QueryReader, "Example tasks for the generating model.")
    task_num: int = key(10, "Tasks to generate, of each split.", ge=1)
    models: list[JudgeModelConfig] = key(
        [], "Task-writing models in order: the next one is used if a model does not answer."
    )
    llm_model: str = key(
        "qwen-long",
        "The model if `models` is empty, at the server of DASHSCOPE_API_KEY or OPENAI_BASE_URL.",
    )
    llm_response_length: int = key(8192, "Tokens of its reply, at most.", ge=1)
    num_workers: int = key(32, "Concurrent requests.", ge=1)
    sampling_params: SamplingParams = section(SamplingParams, "Sampling of the generating model.")
    deduplication_filter: DeduplicationFilter = section(DeduplicationFilter, "Drop similar tasks.")


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
    agents: list[str] = key([], "Agents to use; empty: all.")
    models: list[str] = key([], "Models to use, by their names in the traces; empty: all.")
    longest: int | None = key(None, "Maximum characters of a question; null: unlimited.", ge=1)
    similarity_threshold: float = key(
        0.8,
        "Questions at least this similar, by letters, go into the same split; 1: only equal ones.",
        ge=0,
        le=1,
    )
    numbers: Literal["differ", "alike"] = key(
        "differ",
        "`differ`: two questions with different numbers (in figures) are distinct, however similar their words; "
        "`alike`: numbers are compared like words.",
    )
    validation_share: float = key(0.3, "Share of held-out questions.", training=False, idle=NOT_HELD_OUT, ge=0, lt=1)
    mask: str | None = key(
        None,
        "Function `(text: str) -> str` that masks personal data, as `mask.py->mask_text`; it gets every text of "
        "a trace first. null: no masking.",
        kind="reference",
    )


class ReaderKeys(PluginKeys):
    """Sections of the readers of this package."""

    data_generation: DataGeneration = section(
        DataGeneration, "Tasks written by a model.", when=("task_reader.type", "data_generation")
    )
    tracing: Tracing = section(Tracing, "Traces of a deployed agent.", when=("task_reader.type", "tracing"))
