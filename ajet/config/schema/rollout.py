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
        30,
        "Largest number of timelines (token sequences) trained per episode; of more, a seeded choice is left "
        "out and counted.",
        ge=1,
    )
    max_steps: int = key(
        30,
        "Number of turns after which the agent should stop; only workflows read it.",
        idle={SERVE: OWN_AGENTS},
        ge=1,
    )
    expected_steps: int = key(
        1,
        "Expected number of turns of an episode.",
        idle=idle_everywhere(ALL_TIMELINES),
        ge=1,
    )


class ValidationSamplingConfig(Section):
    """How replies are sampled during validation."""

    temperature: float = key(0.0, "Sampling temperature; 0: greedy decoding.", training=False, ge=0)
    top_k: int = key(-1, "Sample among the k likeliest tokens; -1: all tokens.", training=False, ge=-1)
    top_p: float = key(1.0, "Nucleus sampling; 1: all tokens.", training=False, gt=0, le=1)
    do_sample: bool = key(False, "false: greedy decoding whatever the temperature.", training=False)
    num_repeat: int = key(1, "Attempts at each validation task.", training=False, ge=1)


class EndpointConfig(Section):
    """An OpenAI-compatible server, for `engine: endpoint`."""

    base_url: str | None = key(None, "URL of the server, up to and including /v1.")
    model: str | None = key(None, "Name of the model on the server.")
    api_key_env: str = key(
        "OPENAI_API_KEY",
        "Environment variable that contains the API key (a YAML never contains the key itself).",
        training=False,
    )
    timeout: float = key(
        300.0,
        "Seconds without data after which the server counts as hanging: the call fails, and the attempt does not "
        "count for the model. An unstreamed reply arrives at once, a streamed reply in many parts.",
        training=False,
        gt=0,
    )


class VllmConfig(Section):
    """The vLLM engine, for `engine: vllm`."""

    base_url: str | None = key(
        None,
        "URL of a running vLLM or SGLang server to sample from (debug, ajet sample); null: ajet starts vLLM in "
        "child processes.",
    )
    api_key_env: str = key(
        "VLLM_API_KEY",
        "Environment variable that contains the server's API key.",
        training=False,
    )
    timeout: float = key(
        300.0,
        "Seconds for which that server may send nothing. Then it counts as hanging, and the call fails.",
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
        None, "Do not compile and capture the model; null: eager on a CPU, compiled on a GPU.", training=False
    )


class BreakerConfig(Section):
    """The pause of new attempts during failures outside of the model."""

    share: float | None = key(
        0.5,
        "Share of the last `window` attempts that may fail because of engine, tool, environment, sandbox or "
        "judge. Above it ajet starts no new attempts, except single test attempts, until one of these succeeds; "
        "null: no limit.",
        training=False,
        ge=0,
        lt=1,
    )
    window: int = key(
        64,
        "Number of recent attempts over which the share is computed; with fewer attempts the limit does not apply.",
        training=False,
        ge=1,
    )
    patience: float = key(1800.0, "Longest pause in seconds; after it, attempts start again.", training=False, gt=0)


class RolloutConfig(Section):
    """How tasks are turned into episodes."""

    user_workflow: str | None = key(
        None,
        "Reference to a Workflow class or a function `(task, tuner)`, e.g. `workflow.py->MathAgentWorkflow`; or "
        "`mcp_agent`, an agent that comes with ajet.",
        kind="reference",
        idle={SERVE: OWN_AGENTS},
    )
    engine: str = key(
        "auto",
        "Program that samples tokens on debug and local, one of {names}; auto: transformers. `endpoint` is for debug "
        "only.",
        named="engine",
    )
    vllm: VllmConfig = section(VllmConfig, "The vLLM engine, for `engine: vllm`.", when=("rollout.engine", "vllm"))
    endpoint: EndpointConfig = section(
        EndpointConfig,
        "An OpenAI-compatible server, for `engine: endpoint`.",
        when=("rollout.engine", "endpoint"),
    )
    isolation: str = key(
        "thread",
        "Where workflow code runs. thread: one thread and event loop per episode; loop: one event loop for all "
        "(for code known to be async); loops: one event loop in each of several processes; process: processes "
        "that can be killed when they hang; sandbox: one process per attempt that can access only its project "
        "folder and the gateway; or a reference to your own isolation.",
        training=False,
        part="isolation",
        idle={SERVE: OWN_AGENTS},
    )
    processes: int | None = key(
        None,
        "Number of processes with one event loop each; null: one fewer than the available cores (a container's "
        "quota counts), at least one.",
        training=False,
        idle={SERVE: OWN_AGENTS},
        when=("rollout.isolation", "loops"),
        ge=1,
    )
    max_env_worker: int = key(
        64,
        "Largest number of episodes that run at the same time.",
        training=False,
        idle={SERVE: None},
        ge=1,
    )
    episode_timeout: float | None = key(600.0, "Seconds after which an episode fails; null: no limit.", gt=0)
    tool_timeout: float | None = key(
        None,
        "Seconds after which a call of an async function wrapped by `tuner.tool` times out; less if its episode "
        "has less time left. null: only the episode's limit applies.",
        idle={SERVE: OWN_AGENTS},
        gt=0,
    )
    max_retries: int = key(1, "Number of retries of an episode that failed for a retryable reason.", ge=0)
    breaker: BreakerConfig = section(
        BreakerConfig, "Pauses new attempts while components other than the model fail.", training=False
    )
    group_deadline: float | None = key(
        None,
        "Seconds after which a group closes with the episodes it has (at least `min_group`); null: no limit.",
        gt=0,
    )
    min_group: int = key(2, "Episodes a group needs to close at its deadline.", ge=1)
    deterministic: bool = key(
        False,
        "Process requests in fixed rounds, so that an interrupted and resumed run equals an uninterrupted one "
        "bit for bit (not with verl).",
        needs={True: "deterministic"},
    )
    num_repeat: int = key(4, "Number of episodes per task: the size of a group.", ge=1)
    temperature: float = key(0.9, "Sampling temperature in training.", ge=0)
    top_p: float = key(
        1.0,
        "Nucleus sampling; 1: all tokens. With a lower value or `top_k`, ajet compares a step's "
        "log-probabilities with the trainer's on a sample of its episodes only, on verl not at all.",
        gt=0,
        le=1,
    )
    top_k: int = key(-1, "Sample among the k likeliest tokens; -1: all tokens. See `top_p`.", ge=-1)
    gamma: float = key(1.0, "Discount over a list of per-turn rewards, in the reward of the attempt.", ge=0, le=1)
    train_turn: str | None = key(
        None,
        "Reference to a function `(call, episode) -> bool` that decides whether a call of a trained agent is "
        "trained; otherwise its tokens are context only. null: all calls are trained.",
        kind="reference",
    )
    val_kwargs: ValidationSamplingConfig = section(
        ValidationSamplingConfig, "Sampling during validation.", training=False, idle={SERVE: NO_VALIDATION}
    )
    max_response_length_in_one_turn: int = key(4096, "Largest number of tokens of one reply.", ge=1)
    max_model_len: int = key(18000, "Largest number of tokens of prompt and reply together.", ge=2)
    multi_turn: MultiTurnConfig = section(MultiTurnConfig, "Limits of an episode with several turns.")
    force_disable_toolcalls: bool = key(False, "Remove `tools` from every request and parse no tool calls.")
    compute_madness_checklist: list[Literal["nonsense", "wrong_toolcall"]] = key(
        ["nonsense"], "Checks for abnormal output, run on every reply."
    )
    agent_madness_termination: bool = key(True, "End an episode when an output check finds abnormal output.")
    agent_madness_reward: float = key(-1.0, "Reward of an episode with abnormal output.")
    policy_failure_reward: float | None = key(
        None,
        "Reward of an episode that failed because of the model or the agent's own code: context full, an answer "
        "on which the code raised, a timeout in the agent; null: such an episode is recorded and not trained on.",
    )
    max_num_seqs: int = key(10, "Number of replies that the engine decodes at the same time.", training=False, ge=1)
    enable_oversample: bool = key(
        False,
        "Start more groups than the batch needs and train on the first that complete (not with verl).",
        idle={SERVE: CLIENTS_BEGIN},
        needs={True: "oversamples"},
    )
    submit_oversample_multiplier: float = key(
        1.5,
        "Factor by which more groups are started, with `enable_oversample`.",
        idle={SERVE: CLIENTS_BEGIN},
        when=("rollout.enable_oversample", "true"),
        ge=1,
    )
    tensor_model_parallel_size: int = key(
        1,
        "Number of GPUs over which one engine is split (verl and trinity).",
        training=False,
        ge=1,
    )
    gpu_memory_utilization: float = key(
        0.5,
        "Share of each GPU's memory that the engine uses for weights and cache (verl).",
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
        """True if top_p or top_k restricts training samples to a part of the distribution.

        The log-probabilities of the sampled and of the complete distribution then differ.
        """
        return self.top_p < 1 or self.top_k > 0
