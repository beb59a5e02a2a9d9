"""`task_judge`: who decides the reward when the workflow leaves it open."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import SecretStr

from ajet.config.schema.base import Section, key, section
from ajet.config.schema.model_judge import JudgeModel, ModelJudge
from ajet.config.schema.task_reader import JsonlDatasetFile


class RubricsAutoGrader(Section):
    """A model that first writes rubrics from labelled examples, then grades by them. See docs/rubrics.md."""

    model_name: str = key(
        "qwen-max", "Model that writes and grades, where `task_judge.judges` names none.", min_length=1
    )
    base_url: str | None = key(
        None, "Its server; null: DASHSCOPE_BASE_URL or DashScope's with DASHSCOPE_API_KEY, else OPENAI_BASE_URL.",
        training=False,
    )  # fmt: skip
    api_key: SecretStr | None = key(
        None, "Its key; write `${oc.env:NAME}`. null: the environment's.", kind="secret", training=False
    )
    grader_mode: Literal["pointwise", "listwise"] = key(
        "pointwise", "Grade each attempt, or rank the attempts at a task; so are the examples labelled."
    )
    language: str = key("en", "Language of the rubrics: en, zh, or its name.")
    query_specific_generate_number: int = key(1, "Criteria written for each example.", ge=1, le=20)
    enable_categorization: bool = key(False, "Sort the criteria into categories, each of which is recorded.")
    categories_number: int = key(5, "Categories at most.", ge=1)
    grader_name: str = key("auto_grader", "Name of the grader in records.", training=False, min_length=1)
    query_field: str = key("main_query", "Field of an example, and of a task, that holds the question.")
    answer_field: str = key(
        "final_answer", "Field of the workflow's output that holds the answer; of an example, if it has it (else "
        "`answer`).",
    )  # fmt: skip
    reference_field: str = key("answer", "Field of a task that holds the reference answer; of an example, if it has "
                               "the `answer_field`.")  # fmt: skip
    custom_evaluation_prompt: str | None = key(
        None, "Prompt to grade with: {rubrics}, {answer} and any of {question}, {reference}, {tools}, {min_score}, "
        "{max_score}; null: ajet's own.",
    )  # fmt: skip
    input_data_type: str = key(
        "jsonl_dataset_file", "Reader of the examples: this section's files, or another of `task_reader.type`, whose "
        "training tasks they are.", part="reader",
    )  # fmt: skip
    jsonl_dataset_file: JsonlDatasetFile = section(
        JsonlDatasetFile, "As `task_reader.jsonl_dataset_file`; agreement is measured on the validation file, if any."
    )
    min_score: float = key(0.0, "Lowest grade: a reward of 0.")
    max_score: float = key(1.0, "Highest grade: a reward of 1.")
    success_threshold: float = key(0.5, "Reward from which on an attempt is a success.", ge=0, le=1)
    path: str | None = key(
        None, "File of the rubrics: used if it is there, whatever made it, else written; null: by version in the "
        "folder `rubrics` beside the runs.", kind="path",
    )  # fmt: skip
    max_retries: int = key(5, "Further replies asked for where what was written cannot be read.", ge=0)
    max_epochs: int = key(3, "Revisions of what was written for an example, while it grades it wrongly.", ge=0)
    batch_size: int = key(10, "Examples of an iteration.", ge=1)
    mcr_batch_size: int = key(10, "Criteria that an iteration may add.", ge=1)
    min_increment_threshold: float = key(
        0.002, "Agreement that an iteration has to bring, of 1; less is in vain.", ge=0
    )
    patience: int = key(2, "Iterations in vain, in a row, that end the making.", ge=1)
    max_iterations: int = key(50, "Iterations at most.", ge=1)
    max_total_rubrics: int = key(200, "Criteria at most.", ge=1, le=200)


class WeightedScorer(Section):
    """One of several scorers."""

    name: str = key("", "A scorer's name, or a reference to a function.", min_length=1)
    weight: float = key(1.0, "The reward is the sum of weight times score; 0: recorded only.")
    arguments: dict[str, Any] = key({}, "Arguments beside those of the attempt.")


class Stage(Section):
    """From when on, or for which tasks, another scorer decides."""

    scorer: str = key("", "Its name, or a reference.", min_length=1)
    from_step: int = key(0, "Training step from which on.", ge=0)
    tag: str | None = key(None, "Only tasks with this tag (`tag` or `tags` of their row); null: all.")
    arguments: dict[str, Any] = key({}, "Arguments beside those of the attempt.")


class TaskJudge(Section):
    """Who decides the reward when the workflow leaves it open."""

    judge_type: Literal["customized_protocol", "rubrics_auto_grader"] = key(
        "customized_protocol",
        "customized_protocol calls the class or function named by `judge_protocol`, or the scorers; "
        "rubrics_auto_grader grades by rubrics that a model writes from labelled examples.",
    )
    judge_protocol: str | None = key(
        None,
        "Reference to a BaseJudge or a function `(task, output)`, e.g. `judge.py->MyJudge`; null where the workflow "
        "sets the reward itself.",
        kind="reference",
    )
    scorer: str | None = key(
        None,
        "In place of `judge_protocol`: one of {names}, a name that your code registers, or a reference to a function "
        "(`scorer.py->mine`). See docs/scorers.md.",
        kind="reference",
        lists="scorer",
    )
    scorers: list[WeightedScorer] = key(
        [],
        "Several, weighted: `{name, weight, arguments}` each. The reward is the sum of weight times score; each score "
        "is recorded.",
    )
    stages: list[Stage] = key(
        [],
        "Another scorer from a training step on, or for tasks with a tag: `{from_step, tag, scorer, arguments}` each. "
        "The last that matches decides; where none does, the scorer of the row or the ones above.",
    )
    answer_schema: Literal["answer", "boxed"] | None = key(
        None,
        "Where the answer stands in a reply, for scorers and the agent `mcp_agent`, unless the task's own "
        "`answer_schema` says: in `<answer>` tags, or in `\\boxed{}`; null: whichever of these a reply has, or all "
        "of it.",
    )
    judges: list[JudgeModel] = key(
        [],
        "Models that judge, `[{model, base_url, api_key_env, price_in, price_out}, …]`: the first is asked, the next "
        "where it does not answer. Where nothing else gives a reward, they rank the attempts at each task.",
    )
    judge_prompt_template: str | None = key(
        None, "What they are asked, with {answer} and any of {question}, {reference}, {tools}; null: ajet's own."
    )
    model_judge: ModelJudge = section(ModelJudge, "How they judge.")
    alien_llm_model: str = key("qwen3-235b-a22b-instruct-2507", "For judges to read: a model to ask.")
    alien_llm_response_length: int = key(512, "For judges to read: tokens of its reply.", ge=1)
    rubrics_auto_grader: RubricsAutoGrader = section(
        RubricsAutoGrader,
        "A model that writes rubrics and grades.",
        when=("task_judge.judge_type", "rubrics_auto_grader"),
    )

    def named(self) -> list[tuple[tuple[str | int, ...], str]]:
        """The judges and scorers that decide by this, a name or a reference each, with its path below `ajet`."""
        found: list[tuple[tuple[str | int, ...], str | None]] = [
            (("task_judge", "judge_protocol"), self.judge_protocol),
            (("task_judge", "scorer"), self.scorer),
            *((("task_judge", "scorers", index, "name"), each.name) for index, each in enumerate(self.scorers)),
            *((("task_judge", "stages", index, "scorer"), each.scorer) for index, each in enumerate(self.stages)),
        ]
        return [(path, name) for path, name in found if name]

    def deciding(self, *, judge_protocol: str | None = None, scorer: str | None = None) -> TaskJudge:
        """A copy of these settings with this judge or this scorer, and no other."""
        chosen: dict[str, Any] = {"judge_protocol": judge_protocol, "scorer": scorer, "scorers": [], "stages": []}
        return self.model_copy(update={"judge_type": "customized_protocol", **chosen})
