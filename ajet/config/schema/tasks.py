"""The sections `task_reader`, `environment` and `task_judge`: tasks, their tools and their rewards.

Each task reader with keys has a section of its own name.
"""

from __future__ import annotations

from typing import Any, Literal

from ajet.config.schema.base import NO_VALIDATION, OWN_AGENTS, SERVE, Section, key, section

NOT_HELD_OUT = {SERVE: NO_VALIDATION}


class HuggingFaceReaderConfig(Section):
    """A data set of the Hugging Face hub, or a local folder or file."""

    dataset_path: str | None = key(
        None, "`gsm8k`, `gsm8k/main`, `org/name[/config]`, a local folder, or a parquet, csv or json file.", kind="path"
    )
    dataset_name: str | None = key(None, "Configuration of the data set, if it has several.")
    training_split: str = key("train", "Split to train on.")
    validation_split: str | None = key("test", "Split to validate on; null: none.", training=False, idle=NOT_HELD_OUT)


class TaskFileConfig(Section):
    """A file with a task per line."""

    file_path: str | None = key(None, "A JSON Lines file with one task per line.", kind="path")


class ValidationFileConfig(Section):
    """A file of validation tasks."""

    file_path: str | None = key(
        None, "A JSON Lines file; null: no validation.", kind="path", training=False, idle=NOT_HELD_OUT
    )


class JsonlReaderConfig(Section):
    """Tasks in JSON Lines files, with a file per split."""

    training: TaskFileConfig = section(TaskFileConfig, "Tasks to train on.")
    validation: ValidationFileConfig = section(ValidationFileConfig, "Tasks to validate on.")


class AgentrlReaderConfig(Section):
    """AgentRL's task files: `id, query, answer, scorer, answer_schema` a line."""

    training: TaskFileConfig = section(TaskFileConfig, "Tasks to train on.")
    validation: ValidationFileConfig = section(ValidationFileConfig, "Tasks to validate on.")


class BenchmarkTrainingConfig(Section):
    """A local copy of a benchmark's split."""

    file_path: str | None = key(None, "The published file or folder, or FOLDER/SPLIT.", kind="path")


class BenchmarkValidationConfig(Section):
    """A local copy of a split excluded from training."""

    file_path: str | None = key(
        None, "As in training; null: no validation.", kind="path", training=False, idle=NOT_HELD_OUT
    )


class BenchmarkReaderConfig(Section):
    """A local copy of a published benchmark."""

    training: BenchmarkTrainingConfig = section(BenchmarkTrainingConfig, "Tasks to train on.")
    validation: BenchmarkValidationConfig = section(BenchmarkValidationConfig, "Tasks to validate on.")


class GaiaReaderConfig(BenchmarkReaderConfig):
    """A local copy of GAIA: metadata.jsonl next to the files of its tasks."""

    files_at: str | None = key(
        None, "Folder where the environment finds the tasks' files; null: their folder on this machine."
    )


class HotpotQaReaderConfig(BenchmarkReaderConfig):
    """A local copy of HotpotQA."""

    context: bool = key(False, "Put a row's paragraphs before its question.")


class EnvServiceReaderConfig(Section):
    """An environment service with its own list of tasks."""

    env_type: str = key("appworld", "Kind of environment.")
    env_url: str = key("http://127.0.0.1:8080", "Address of the service.", training=False)
    env_action_preference: Literal["code", "text", "box"] = key("code", "Format of an action.")
    training_split: str = key("train", "Split to train on.")
    validation_split: str | None = key("dev", "Split to validate on.", training=False)


class RandomDummyReaderConfig(Section):
    """Tasks with only a distinct `metadata.random_number`."""

    size: int = key(1000, "Training tasks.", ge=1)
    validation_size: int = key(16, "Validation tasks.", training=False, idle=NOT_HELD_OUT, ge=0)


class ReasoningGymReaderConfig(Section):
    """Procedural tasks of the reasoning-gym package, scored by its own verifiers."""

    dataset: str | None = key(None, "Name of the task family, e.g. `basic_arithmetic`.")
    size: int = key(1000, "Training tasks.", ge=1)
    validation_size: int = key(
        100,
        "Number of validation tasks, with other seeds than in training; small families repeat some questions in both.",
        training=False,
        idle=NOT_HELD_OUT,
        ge=0,
    )
    seed: int = key(42, "Seed of the generator.")
    params: dict[str, Any] = key({}, "Parameters of the task family, as its package documents them.")


class ColumnsConfig(Section):
    """The columns of a row by meaning. null finds the usual names, ignoring case and surrounding blanks."""

    main_query: str | None = key(
        None, "Column of the question; null: main_query, question, query, prompt, problem or messages."
    )
    task_id: str | None = key(
        None, "Column of the task's name; null: task_id or id, else a name made from the content."
    )
    answer: str | None = key(
        None,
        "Column of the reference answer, stored as `metadata.answer`; null: answer, ground_truth, final_answer, "
        "solution or target.",
    )


class TaskReaderConfig(Section):
    """The source of tasks and its options."""

    type: str = key("huggingface_dat_repo", "One of {names}, or a reference to your own reader.", part="reader")
    on_bad_row: Literal["error", "skip"] = key(
        "error",
        "What to do with a row that is not a valid task: end with an error that names its line, or leave it "
        "out and count it.",
    )
    require_question: bool = key(
        True,
        "Refuse rows that contain neither a text question nor messages. false: the workflow builds the question "
        "from the other columns. Tasks of an environment or of your own reader need no question.",
    )
    columns: ColumnsConfig = section(ColumnsConfig, "Names of the columns of a row.")
    huggingface_dat_repo: HuggingFaceReaderConfig = section(
        HuggingFaceReaderConfig,
        "A data set of the Hugging Face hub, a folder or a file.",
        when=("task_reader.type", "huggingface_dat_repo"),
    )
    jsonl_dataset_file: JsonlReaderConfig = section(
        JsonlReaderConfig, "JSON Lines files.", when=("task_reader.type", "jsonl_dataset_file")
    )
    agentrl: AgentrlReaderConfig = section(
        AgentrlReaderConfig,
        "AgentRL's task files. A row's own `scorer` scores it; without one, the scorers of `task_judge`, or "
        "`agentcpm` if neither they nor a judge are set.",
        when=("task_reader.type", "agentrl"),
    )
    gsm8k: BenchmarkReaderConfig = section(
        BenchmarkReaderConfig,
        "GSM8K; its scorer is `math`, unless `task_judge` names another.",
        when=("task_reader.type", "gsm8k"),
    )
    math: BenchmarkReaderConfig = section(
        BenchmarkReaderConfig,
        "MATH; its scorer is `math`, unless `task_judge` names another.",
        when=("task_reader.type", "math"),
    )
    gaia: GaiaReaderConfig = section(
        GaiaReaderConfig,
        "GAIA; its scorer is `gaia`, unless `task_judge` names another.",
        when=("task_reader.type", "gaia"),
    )
    hotpotqa: HotpotQaReaderConfig = section(
        HotpotQaReaderConfig,
        "HotpotQA; its scorer is `f1`, unless `task_judge` names another.",
        when=("task_reader.type", "hotpotqa"),
    )
    random_dummy: RandomDummyReaderConfig = section(
        RandomDummyReaderConfig,
        "Tasks that contain nothing but a random number.",
        when=("task_reader.type", "random_dummy"),
    )
    reasoning_gym: ReasoningGymReaderConfig = section(
        ReasoningGymReaderConfig, "Tasks of the reasoning-gym package.", when=("task_reader.type", "reasoning_gym")
    )
    env_service: EnvServiceReaderConfig = section(
        EnvServiceReaderConfig,
        "An environment service that lists its own tasks.",
        when=("task_reader.type", "env_service"),
    )


class EnvironmentConfig(Section):
    """Tools and worlds for agents, besides tools opened by the agents' own code."""

    use: str | None = key(
        None,
        "Tools: the URL of an MCP server (`http://HOST:PORT/mcp`, or `…/sse`), of AgentDock (`…/mcpapi`), the "
        "name of an environment on this machine (`ajet env up`), a command that speaks MCP over standard input "
        "and output (`{python}` is this Python), or a file with `mcpServers`, as AWorld and Claude write it. Or "
        "an environment of which each attempt gets an instance (`workflow_task.gym_env`), created with the "
        "task's id: `http://HOST:PORT` of an environment service, `openenv:ws://HOST:PORT`, "
        "`nemo_gym:http://HOST:PORT`, `gymnasium:ID`, `textarena:ID`, or your own class (env.py->MyEnv).",
        idle={SERVE: OWN_AGENTS},
    )
    agent_config: str | None = key(
        None,
        "A file in the form of AgentRL's `agent_config.yml`: the models of the browse agent and the pages that "
        "they summarise (`rollout.mcp_agent.browse`); null: the model of BROWSE_LLM_BASE_URL, "
        "BROWSE_LLM_MODEL_NAME and BROWSE_LLM_API_KEY in the environment.",
        kind="path",
        idle={SERVE: OWN_AGENTS},
    )
    replay: str | None = key(
        None,
        "A recorded run, by name or folder, whose recorded tool results replace the tools; null: call the tools.",
        kind="path",
        idle={SERVE: OWN_AGENTS},
    )
    replay_miss: Literal["error", "live"] = key(
        "error",
        "What to do with a tool use that `replay` does not contain: error ends the episode as a failure of the "
        "environment, live calls the tool.",
        idle={SERVE: OWN_AGENTS},
    )
    sandbox: str = key(
        "auto",
        "Sandbox of `tuner.sandbox()`. auto: the first of bubblewrap, landlock, podman and docker that works (a "
        "container for each episode); none: run as the current user, with limits only, logged at each start and "
        "recorded with each episode; or a reference to your own class.",
        training=False,
        part="sandbox",
    )


class WeightedScorerConfig(Section):
    """One of several scorers with its weight."""

    name: str = key("", "Name of a scorer, or a reference to a function.", min_length=1)
    weight: float = key(1.0, "Weight of this score: the reward is the sum of weight times score; 0: recorded only.")
    arguments: dict[str, Any] = key({}, "Further arguments of the function.")


class ScorerStageConfig(Section):
    """Another scorer from a step on, or for certain tasks."""

    scorer: str = key("", "Name of a scorer, or a reference to a function.", min_length=1)
    from_step: int = key(0, "First training step in which this scorer applies.", ge=0)
    tag: str | None = key(None, "Only tasks with this tag (`tag` or `tags` of the row); null: all.")
    arguments: dict[str, Any] = key({}, "Further arguments of the function.")


class TaskJudgeConfig(Section):
    """The source of rewards if the workflow sets none."""

    judge_type: str = key(
        "customized_protocol",
        "One of {names}. customized_protocol calls the class or function that `judge_protocol` names, or the scorers.",
        named="judge",
    )
    judge_protocol: str | None = key(
        None,
        "Reference to a BaseJudge or a function `(task, output)`, e.g. `judge.py->MyJudge`; null if the workflow "
        "sets the reward itself.",
        kind="reference",
    )
    scorer: str | None = key(
        None,
        "Instead of `judge_protocol`: one of {names}, a name that your code registers, or a reference to a "
        "function (`scorer.py->mine`). See docs/scorers.md.",
        kind="reference",
        lists="scorer",
    )
    scorers: list[WeightedScorerConfig] = key(
        [],
        "Several scorers with weights: `{name, weight, arguments}` each. The reward is the sum of weight times "
        "score; each score is recorded.",
    )
    stages: list[ScorerStageConfig] = key(
        [],
        "Another scorer from a training step on, or for tasks with a tag: `{from_step, tag, scorer, arguments}` "
        "each. The last entry that matches applies; if none does, the row's scorer or the ones above.",
    )
    answer_schema: Literal["answer", "boxed"] | None = key(
        None,
        "Where the answer is in a reply, for scorers and the agent `mcp_agent`, unless the task's own "
        "`answer_schema` says so: in `<answer>` tags, or in `\\boxed{}`; null: whichever of these a reply "
        "contains, or all of it.",
    )
    alien_llm_model: str = key(
        "qwen3-235b-a22b-instruct-2507", "Name of a model for your judge to call; only judges read it."
    )
    alien_llm_response_length: int = key(
        512, "Largest number of tokens of that model's reply; only judges read it.", ge=1
    )

    def list_judges(self) -> list[tuple[tuple[str | int, ...], str]]:
        """Return (path below `ajet`, name or reference) of each judge and scorer that decides rewards."""
        judges: list[tuple[tuple[str | int, ...], str | None]] = [
            (("task_judge", "judge_protocol"), self.judge_protocol),
            (("task_judge", "scorer"), self.scorer),
            *((("task_judge", "scorers", index, "name"), scorer.name) for index, scorer in enumerate(self.scorers)),
            *((("task_judge", "stages", index, "scorer"), stage.scorer) for index, stage in enumerate(self.stages)),
        ]
        return [(path, name) for path, name in judges if name]

    def replace_judges(self, *, judge_protocol: str | None = None, scorer: str | None = None) -> TaskJudgeConfig:
        """Return a copy of the settings in which only this judge or scorer decides rewards."""
        judge_settings: dict[str, Any] = {
            "judge_protocol": judge_protocol,
            "scorer": scorer,
            "scorers": [],
            "stages": [],
        }
        return self.model_copy(update={"judge_type": "customized_protocol", **judge_settings})
