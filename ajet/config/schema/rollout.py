"""`rollout`: how tasks are turned into episodes."""

from __future__ import annotations

from typing import Literal

from ajet.config.schema.base import (
    ALL_TIMELINES,
    CLIENTS_BEGIN,
    NO_VALIDATION,
    OWN_AGENTS,
    SERVE,
    Section,
    idle_everywhere,
    key,
    section,
)


class MultiTurnConfig(Section):
    """Limits of an episode with several turns."""

    max_sample_per_task: int = key(
        30, "Timelines of one episode to train on, at most; more are left out by a seeded choice and counted.", ge=1
    )
    max_steps: int = key(
        30,
        "For workflows to read: the number of turns after which they should stop.",
        idle={SERVE: OWN_AGENTS},
        ge=1,
    )
    expected_steps: int = key(
        1,
        "Turns an episode is expected to take.",
        idle=idle_everywhere(ALL_TIMELINES),
        ge=1,
    )


class ValidationSamplingConfig(Section):
    """How replies are sampled during validation."""

    temperature: float = key(0.0, "0 is greedy.", training=False, ge=0)
    top_k: int = key(-1, "-1 does not truncate.", training=False, ge=-1)
    top_p: float = key(1.0, "1 does not truncate.", training=False, gt=0, le=1)
    do_sample: bool = key(False, "false forces greedy decoding whatever the temperature.", training=False)
    num_repeat: int = key(1, "Attempts at each validation task.", training=False, ge=1)


class EndpointConfig(Section):
    """An OpenAI-compatible server, for `engine: endpoint`."""

    base_url: str | None = key(None, "Its URL, up to and including /v1.")
    model: str | None = key(None, "Name of the model there.")
    api_key_env: str = key(
        "OPENAI_API_KEY",
        "Environment variable that holds the key (the key itself never stands in a YAML).",
        training=False,
    )
    timeout: float = key(
        300.0,
        "Seconds without data after which the server counts as hanging: the call fails, and the attempt does not count "
        "for the model. An unstreamed reply arrives in one piece, a streamed reply in many.",
        training=False,
        gt=0,
    )


class VllmConfig(Section):
    """The vLLM engine, for `engine: vllm`."""

    base_url: str | None = key(
        None,
        "A running vLLM or SGLang server to sample from (debug, ajet sample); null starts vLLM in child processes.",
    )
    api_key_env: str = key(
        "VLLM_API_KEY",
        "Environment variable that holds the server's key.",
        training=False,
    )
    timeout: float = key(
        300.0,
        "Seconds for which that server may send nothing; then it hangs, and the call fails.",
        training=False,
        gt=0,
    )
    cache_gib: float | None = key(
        None,
        "GiB for keys and values; null: enough for `max_num_seqs` sequences, at most an eighth of the free memory.",
        training=False,
        gt=0,
    )
    eager: bool | None = key(
        None, "Do not compile and capture the model; null: eager on a CPU, not on a GPU.", training=False
    )


class BreakerConfig(Section):
    """The pause of new attempts during failures outside of the model."""

    share: float | None = key(
        0.5,
        "Share of the last `window` attempts lost to engine, tool, environment, sandbox or judge above which no new "
        "one begins until one that is tried is not lost; null: never.",
        training=False,
        ge=0,
        lt=1,
    )
    window: int = key(
        64,
        "Attempts for computing the share; inactive with fewer.",
        training=False,
        ge=1,
    )
    patience: float = key(1800.0, "Maximum seconds of a pause; then attempts continue.", training=False, gt=0)


class RolloutConfig(Section):
    """How tasks are turned into episodes."""

    user_workflow: str | None = key(
        None,
        "Reference to a Workflow class or a function `(task, tuner)`, e.g. `workflow.py->MathAgentWorkflow`; or "
        "`mcp_agent`, the agent that comes with ajet.",
        kind="reference",
        idle={SERVE: OWN_AGENTS},
    )
    engine: Literal["auto", "transformers", "vllm", "endpoint"] = key(
        "auto",
        "Who produces tokens on debug and local; auto is transformers. An endpoint serves debug only.",
    )
    vllm: VllmConfig = section(VllmConfig, "The vLLM engine, for `engine: vllm`.", when=("rollout.engine", "vllm"))
    endpoint: EndpointConfig = section(
        EndpointConfig,
        "An OpenAI-compatible server, for `engine: endpoint`.",
        when=("rollout.engine", "endpoint"),
    )
    isolation: str = key(
        "thread",
        "Where workflow code runs. thread: a thread and event loop per episode; loop: one shared loop (for code known "
        "to be async); loops: such a loop in each of several processes; process: in processes, whose hangs can be "
        "killed; sandbox: a process an attempt that sees its project folder and the gateway, nothing else; or a "
        "reference to an isolation of your own.",
        training=False,
        part="isolation",
        idle={SERVE: OWN_AGENTS},
    )
    processes: int | None = key(
        None,
        "Processes with a loop each; null: one fewer than the cores that it may use (a container's quota counts), "
        "at least one.",
        training=False,
        idle={SERVE: OWN_AGENTS},
        when=("rollout.isolation", "loops"),
        ge=1,
    )
    max_env_worker: int = key(
        64,
        "Episodes that run at the same time, at most.",
        training=False,
        idle={SERVE: None},
        ge=1,
    )
    episode_timeout: float | None = key(600.0, "Seconds after which an episode fails; null waits for ever.", gt=0)
    tool_timeout: float | None = key(
        None,
        "Seconds after which one use of an async function that `tuner.tool` wraps ends as a timeout; less where its "
        "episode has less time left. null: only then.",
        idle={SERVE: OWN_AGENTS},
        gt=0,
    )
    max_retries: int = key(1, "Further attempts at an episode that failed for a retryable reason.", ge=0)
    breaker: BreakerConfig = section(
        BreakerConfig, "Pauses new attempts while components outside of the model fail.", training=False
    )
    group_deadline: float | None = key(
        None, "Seconds after which a group closes with the episodes it has (at least `min_group`); null waits.", gt=0
    )
    min_group: int = key(2, "Episodes a group needs to close at its deadline.", ge=1)
    deterministic: bool = key(
        False,
        "Admit requests in rounds, so that a killed and resumed run equals an uninterrupted one bit for bit (verl "
        "refuses it).",
        needs={True: "deterministic"},
    )
    num_repeat: int = key(4, "Episodes per task: the size of a group.", ge=1)
    temperature: float = key(0.9, "Sampling temperature in training.", ge=0)
    top_p: float = key(
        1.0,
        "Nucleus sampling; 1 does not truncate. Where it does, or `top_k`, a step's log-probabilities are compared "
        "with the trainer's on a sample of its episodes only, and on verl not at all.",
        gt=0,
        le=1,
    )
    top_k: int = key(-1, "Sample among the k likeliest tokens; -1 does not truncate. See `top_p`.", ge=-1)
    gamma: float = key(1.0, "Discount over a list of per-turn rewards, in the reward of the attempt.", ge=0, le=1)
    train_turn: str | None = key(
        None,
        "Reference to a function `(call, episode) -> bool`: whether a call of a trained agent is trained; otherwise "
        "its tokens are context. null: all are.",
        kind="reference",
    )
    val_kwargs: ValidationSamplingConfig = section(
        ValidationSamplingConfig, "Sampling during validation.", training=False, idle={SERVE: NO_VALIDATION}
    )
    max_response_length_in_one_turn: int = key(4096, "Tokens of one reply, at most.", ge=1)
    max_model_len: int = key(18000, "Tokens of prompt and reply together, at most.", ge=2)
    multi_turn: MultiTurnConfig = section(MultiTurnConfig, "Limits of an episode with several turns.")
    force_disable_toolcalls: bool = key(False, "Drop `tools` from every request and parse no tool calls.")
    compute_madness_checklist: list[Literal["nonsense", "wrong_toolcall"]] = key(
        ["nonsense"], "Checks for abnormal output, run on every reply."
    )
    agent_madness_termination: bool = key(True, "End an episode when a check fires.")
    agent_madness_reward: float = key(-1.0, "Reward of an episode in which a check fired.")
    policy_failure_reward: float | None = key(
        None,
        "Reward of an episode that failed by the policy's own doing: context full, an answer that the agent's code "
        "raised at, its time lost over one; null: such an episode is recorded and not trained on.",
    )
    max_num_seqs: int = key(10, "Replies that the engine decodes at the same time.", training=False, ge=1)
    enable_oversample: bool = key(
        False,
        "Start more groups than the batch needs and train on the first that close (verl refuses it).",
        idle={SERVE: CLIENTS_BEGIN},
        needs={True: "oversamples"},
    )
    submit_oversample_multiplier: float = key(
        1.5,
        "How many more, as a factor, with `enable_oversample`.",
        idle={SERVE: CLIENTS_BEGIN},
        when=("rollout.enable_oversample", "true"),
        ge=1,
    )
    tensor_model_parallel_size: int = key(
        1,
        "GPUs that one engine is split over (verl and trinity).",
        training=False,
        ge=1,
    )
    gpu_memory_utilization: float = key(
        0.5,
        "Part of each GPU's memory that the engine takes for weights and cache (verl).",
        training=False,
        gt=0,
        le=1,
    )
    n_vllm_engine: int = key(1, "Number of engines (trinity).", training=False, ge=1)
    name: Literal["vllm", "sglang"] = key(
        "vllm",
        "Engine of the verl and trinity backbones.",
        training=False,
    )

    @property
    def truncates_sampling(self) -> bool:
        """True if training samples from a part of the distribution only.

        Then log-probabilities of the sampled and of the whole distribution differ.
        """
        return self.top_p < 1 or self.top_k > 0
