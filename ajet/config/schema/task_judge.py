"""`task_judge`: who decides the reward when the workflow leaves it open."""

from __future__ import annotations

from typing import Literal

from ajet.config.schema.base import Section, key, section
from ajet.config.schema.task_reader import JsonlDatasetFile


class RubricsAutoGrader(Section):
    """A model that first writes rubrics from examples, then grades by them."""

    model_name: str = key("qwen-max", "Model that grades.")
    grader_mode: Literal["pointwise", "listwise"] = key("pointwise", "Grade one answer, or rank several.")
    language: str = key("en", "Language of the rubrics.")
    query_specific_generate_number: int = key(1, "Rubrics written for each example.", ge=1)
    enable_categorization: bool = key(False, "Group the rubrics.")
    categories_number: int = key(5, "Number of groups.", ge=1)
    grader_name: str = key("auto_grader", "Name of the grader in records.", training=False)
    query_field: str = key("main_query", "Field of an example that holds the question.")
    answer_field: str = key("final_answer", "Field of the output that holds the answer.")
    reference_field: str = key("answer", "Field of an example that holds the reference answer.")
    custom_evaluation_prompt: str | None = key(None, "Prompt to grade with; null: the grader's own.")
    input_data_type: str = key("jsonl_dataset_file", "Reader of the examples.")
    jsonl_dataset_file: JsonlDatasetFile = section(JsonlDatasetFile, "As `task_reader.jsonl_dataset_file`.")
    min_score: float = key(0.0, "Lowest grade.")
    max_score: float = key(1.0, "Highest grade.")


class TaskJudge(Section):
    """Who decides the reward when the workflow leaves it open."""

    judge_type: Literal["customized_protocol", "rubrics_auto_grader"] = key(
        "customized_protocol",
        "customized_protocol calls the class or function named by `judge_protocol`.",
        later={
            "rubrics_auto_grader": "The rubrics_auto_grader judge is not part of this version; "
            "`judge_protocol` takes a judge of your own, which may ask a model."
        },
    )
    judge_protocol: str | None = key(
        None,
        "Reference to a BaseJudge or a function `(task, output)`, e.g. `judge.py->MyJudge`; null where the workflow "
        "sets the reward itself.",
        kind="reference",
    )
    alien_llm_model: str = key("qwen3-235b-a22b-instruct-2507", "For judges to read: a model to ask.")
    alien_llm_response_length: int = key(512, "For judges to read: tokens of its reply.", ge=1)
    rubrics_auto_grader: RubricsAutoGrader = section(
        RubricsAutoGrader,
        "A model that writes rubrics and grades.",
        when=("task_judge.judge_type", "rubrics_auto_grader"),
    )
