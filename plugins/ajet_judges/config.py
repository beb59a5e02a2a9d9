"""Configuration of model judges and rubrics, below `task_judge`."""

from __future__ import annotations

from typing import Literal

from pydantic import SecretStr

from ajet.config.schema.base import Section, key, section
from ajet.config.schema.extended import PluginKeys
from ajet.config.schema.model import JudgeModelConfig
from ajet.config.schema.tasks import JsonlReaderConfig


class ModelJudgeConfig(Section):
    """How models judge."""

    votes: int = key(1, "Replies to each question; more than half must agree, or there is no score.", ge=1)
    temperature: float | None = key(None, "Sampling temperature; null: 0 for one vote, 1 for several.", ge=0)
    max_tokens: int = key(1024, "Largest number of tokens of a reply, including thinking.", ge=16)
    max_chars: int = key(
        40_000, "Maximum characters of each part in the prompt (task, answer, tool results); the middle is cut.", ge=200
    )
    timeout: float = key(120.0, "Seconds of one request.", training=False, gt=0)
    max_retries: int = key(2, "Retries of a model that does not answer, before the next model.", ge=0)
    retry_delay: float = key(1.0, "Seconds before the first retry; doubled before each further one.", ge=0)
    max_parallel: int = key(64, "Concurrent requests of one process.", training=False, ge=1)
    requests_per_minute: int | None = key(
        None, "Rate limit of one process for one model; null: unlimited.", training=False, ge=1
    )
    max_calls: int | None = key(
        None, "Maximum requests of the experiment, over all processes and resumes; null: unlimited.", training=False,
        ge=1,
    )  # fmt: skip
    max_cost: float | None = key(
        None, "Maximum cost, by the prices of `judges`; null: unlimited.", training=False, gt=0
    )
    cache: bool = key(
        True, "Store verdicts in `judges.sqlite` next to the runs, so that equal questions are sent once.",
        training=False,
    )  # fmt: skip


class RubricsAutoGrader(Section):
    """A model that writes rubrics from labelled examples and grades by them. See docs/rubrics.md."""

    model_name: str = key("qwen-max", "Model that writes and grades if `task_judge.judges` is empty.", min_length=1)
    base_url: str | None = key(
        None, (
            "URL of the model's server; null: DASHSCOPE_BASE_URL, or DashScope's with DASHSCOPE_API_KEY, else "
            "OPENAI_BASE_URL."
            ),
        training=False,
    )  # fmt: skip
    api_key: SecretStr | None = key(
        None, "API key of that server; write `${oc.env:NAME}`. null: the environment's.", kind="secret", training=False
    )
    grader_mode: Literal["pointwise", "listwise"] = key(
        "pointwise", "Grade each attempt, or rank the attempts at a task. Examples are labelled in the same way."
    )
    language: str = key("en", "Language of the rubrics: en, zh, or its name.")
    query_specific_generate_number: int = key(1, "Criteria written for each example.", ge=1, le=20)
    enable_categorization: bool = key(False, "Sort the criteria into categories, each of which is recorded.")
    categories_number: int = key(5, "Maximum number of categories.", ge=1)
    grader_name: str = key("auto_grader", "Name of the grader in records.", training=False, min_length=1)
    query_field: str = key("main_query", "Field of examples and tasks with the question.")
    answer_field: str = key(
        "final_answer", "Field of the workflow's output with the answer; also of an example (otherwise `answer`).",
    )  # fmt: skip
    reference_field: str = key("answer", "Field of a task with the reference answer; of an example, if it has "
                               "the `answer_field`.")  # fmt: skip
    custom_evaluation_prompt: str | None = key(
        None, "Prompt to grade with: {rubrics}, {answer} and any of {question}, {reference}, {tools}, {min_score}, "
        "{max_score}; null: ajet's own.",
    )  # fmt: skip
    input_data_type: str = key(
        "jsonl_dataset_file", "Reader of the examples: this section's files, or the training tasks of another "
        "`task_reader.type`.", part="reader",
    )  # fmt: skip
    jsonl_dataset_file: JsonlReaderConfig = section(
        JsonlReaderConfig, "As `task_reader.jsonl_dataset_file`; agreement is measured on the validation file, if any."
    )
    min_score: float = key(0.0, "Lowest grade: a reward of 0.")
    max_score: float = key(1.0, "Highest grade: a reward of 1.")
    success_threshold: float = key(0.5, "Minimum reward of a success.", ge=0, le=1)
    path: str | None = key(
        None, "File of the rubrics: used if it exists, otherwise written; null: a file by version in the "
        "folder `rubrics` next to the runs.", kind="path",
    )  # fmt: skip
    max_retries: int = key(5, "Retries after an unreadable reply.", ge=0)
    max_epochs: int = key(3, "Revisions of an example's criteria while they grade it wrongly.", ge=0)
    batch_size: int = key(10, "Examples of one iteration.", ge=1)
    mcr_batch_size: int = key(10, "Maximum criteria added by one iteration.", ge=1)
    min_increment_threshold: float = key(0.002, "Minimum gain in agreement of a useful iteration.", ge=0)
    patience: int = key(2, "Consecutive useless iterations before stopping.", ge=1)
    max_iterations: int = key(50, "Largest number of iterations.", ge=1)
    max_total_rubrics: int = key(200, "Largest number of criteria.", ge=1, le=200)


class JudgeKeys(PluginKeys):
    """Keys of `task_judge`."""

    judges: list[JudgeModelConfig] = key(
        [],
        "Models that judge, `[{model, base_url, api_key_env, price_in, price_out}, …]`, in order: if one does "
        "not answer, the next is used. Without another source of rewards they rank the attempts at each task.",
    )
    judge_prompt_template: str | None = key(
        None, "Prompt of the judges, with {answer} and any of {question}, {reference}, {tools}; null: ajet's own."
    )
    model_judge: ModelJudgeConfig = section(ModelJudgeConfig, "Settings of judging models.")
    rubrics_auto_grader: RubricsAutoGrader = section(
        RubricsAutoGrader,
        "A model that writes rubrics and grades.",
        when=("task_judge.judge_type", "rubrics_auto_grader"),
    )
