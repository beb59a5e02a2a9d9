"""Refuses at once the settings that verl would refuse after minutes of starting.

Invariants: rules read effective values, including the user's `verl:` section. They return every problem, with the keys
known to the user and their places, and all problems are reported together. verl need not be installed. Each rule names
verl's own check, and a test compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ajet.config.validate import join_errors
from ajet.engine.model_limits import ModelLimits
from ajet.schema.errors import ConfigError
from ajet_ray.modes import DECOUPLED, SEPARATE, SYNC
from ajet_verl.config.batches import check_batch_sizes, check_fixed_micro_batches
from ajet_verl.config.checkpoints import check_checkpoints
from ajet_verl.config.credit import find_unsupported
from ajet_verl.config.effective import (
    ACTOR,
    MACHINES,
    MEGATRON_SIZES,
    ROLLOUT,
    TRAINER,
    ULYSSES,
    EffectiveSettings,
)
from ajet_verl.verls import HERE

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet.config.experiment import Experiment

VLLM_LARGEST_LORA_RANK = 512
TREES = "actor_rollout_ref.ajet_trees"
"""ajet's key in verl's config: if true, the trainer computes prefixes shared by several rows only once ("trees")."""
ROUTED, MEGATRON_REPLAY = f"{ROLLOUT}.enable_rollout_routing_replay", f"{ACTOR}.megatron.router_replay.mode"
"""verl keys: servers report the experts of each token, and Megatron replays them (mode R3)."""
MODES = (SYNC, "ajet_colocate_async", SEPARATE, DECOUPLED)
"""Trainer names registered by `ajet_verl.trainer.trainers`."""


def refuse(experiment: Experiment, tree: DictConfig, model: ModelLimits, gpu_bytes: int | None = None) -> None:
    """Raise one ConfigError with all settings that verl would not accept.

    Args:
        tree: verl's config from ajet's layers and the user's sections, over verl's defaults if verl is installed.
        model: facts known about the model.
        gpu_bytes: memory of one GPU, if known.
    """
    settings = EffectiveSettings(experiment, tree, model, gpu_bytes)
    problems = [problem for rule in RULES for problem in rule(settings)]
    if problems:
        raise join_errors(problems)


_TP = "rollout.tensor_model_parallel_size"


def _check_machines(settings: EffectiveSettings) -> Iterator[ConfigError]:
    """Check the device, the number of GPUs, and that trainer and engine work on a machine without GPUs."""
    device, ajet_key = settings.value("trainer.device"), f"{TRAINER}.device"
    if device not in ("cuda", "npu", "cpu"):
        yield settings.make_error(
            f"verl does not train on {device!r}.", "trainer.device", ajet_key, expected="auto, cuda, npu or cpu"
        )
    if settings.gpus < 1:
        key = f"{TRAINER}.n_gpus_per_node"
        yield settings.make_error(
            "The run has no GPU to train on.", "trainer.n_gpus_per_node", key, expected="at least 1"
        )
    if device != "cpu":
        return
    if settings.is_megatron or settings.ajet.trainer_common.strategy == "megatron":
        yield settings.make_error(
            f"Megatron needs GPUs{_explain_cpu(settings)}.",
            "",
            f"{TRAINER}.strategy",
            expected="fsdp or fsdp2",
            do=_advise_gpus(settings),
        )
    if settings.value(f"{ROLLOUT}.name") == "sglang":
        yield settings.make_error(
            f"sglang needs GPUs{_explain_cpu(settings)}.",
            f"{ROLLOUT}.name",
            "rollout.name",
            expected="vllm, which has a version for CPUs",
            do=_advise_gpus(settings),
        )


def _explain_cpu(settings: EffectiveSettings) -> str:
    """Return an addition to an error that says that this machine has no GPU, or "" if the user chose the device."""
    return ", and this machine has none" if _is_device_open(settings) else ""


def _is_device_open(settings: EffectiveSettings) -> bool:
    """True if the device is `auto` and verl's section does not set it, so that the machine decides."""
    return settings.ajet.trainer_common.device == "auto" and not settings.name("trainer.device")


def _advise_gpus(settings: EffectiveSettings) -> str:
    """Return advice for checking a GPU configuration on a machine without GPUs."""
    if not _is_device_open(settings):
        return f"or ajet.{TRAINER}.device: cuda, on a machine with GPUs"
    return f"to check it for machines with GPUs: ajet.{TRAINER}.device=cuda, or `ajet plan --gpu`"


def _check_strategy(settings: EffectiveSettings) -> Iterator[ConfigError]:
    """Check the training strategy (verl: `EngineRegistry`, FSDPEngineConfig, McoreEngineConfig)."""
    strategy, verl_strategy = settings.ajet.trainer_common.strategy, settings.value(f"{ACTOR}.strategy")
    if verl_strategy not in ("fsdp", "fsdp2", "megatron") or (verl_strategy == "megatron") != (strategy == "megatron"):
        yield settings.make_error(
            f"verl's strategy is {verl_strategy!r}, but ajet.trainer_common.strategy is {strategy}; they need "
            "different sections.",
            f"{ACTOR}.strategy",
            f"{TRAINER}.strategy",
            expected="ajet.trainer_common.strategy: fsdp, fsdp2 or megatron, and no other under verl",
        )
    if strategy == "megatron":
        if settings.ajet.trainer_common.ulysses_sequence_parallel_size > 1:
            yield settings.make_error(
                "Megatron cannot split sequences by Ulysses.",
                "",
                ULYSSES[1],
                expected="1 with strategy: megatron",
                do="use ajet.trainer_common.megatron.context_parallel_size",
            )
        if settings.ajet.model.dtype == "float32":
            yield settings.make_error(
                "verl trains in bfloat16 with Megatron.", "", "model.dtype", expected="auto or bfloat16, or an FSDP"
            )
        return
    for verl, ajet_key in MEGATRON_SIZES:
        name = ajet_key.rpartition(".")[2]
        if getattr(settings.ajet.trainer_common.megatron, name) > 1:
            fsdp_hint = " (FSDP has ajet.trainer_common.ulysses_sequence_parallel_size)" if "context" in name else ""
            yield settings.make_error(
                f"{settings.name(verl, ajet_key)} splits the model over GPUs, which {strategy} cannot do.",
                verl,
                ajet_key,
                expected=f"1, or strategy: megatron{fsdp_hint}",
            )


def _check_parallel_sizes(settings: EffectiveSettings) -> Iterator[ConfigError]:
    """Check that GPUs, experts and attention heads can be divided by the parallel sizes.

    verl's own checks: FSDPEngine._init_device_mesh, apply_monkey_patch, validate_config, and those of Megatron.
    """
    sizes = MEGATRON_SIZES[:3] if settings.is_megatron else (ULYSSES,)
    names = " × ".join(settings.name(verl, ajet_key) for verl, ajet_key in sizes)
    if settings.gpus % settings.model_parallel:
        verl, ajet_key = next(size for size in sizes if settings.count(size[0]) > 1)
        yield settings.make_error(
            f"{settings.gpus} GPUs cannot be divided into groups of {settings.model_parallel} ({names}).",
            verl,
            ajet_key,
            also=MACHINES,
            expected=f"a divisor of {settings.gpus}",
        )
    verl, ajet_key = MEGATRON_SIZES[3]
    pipeline, expert_parallel = settings.count(MEGATRON_SIZES[1][0]), settings.count(verl)
    if settings.is_megatron and expert_parallel > 1:
        expert_tensor_parallel = settings.count(
            f"{ACTOR}.megatron.expert_tensor_parallel_size", settings.count(MEGATRON_SIZES[0][0])
        )
        if settings.gpus % (expert_parallel * expert_tensor_parallel * pipeline):
            yield settings.make_error(
                f"{settings.gpus} GPUs cannot be divided into groups of "
                f"{expert_parallel * expert_tensor_parallel * pipeline} ({settings.name(verl, ajet_key)} "
                "× tensor × pipeline parallel).",
                verl,
                ajet_key,
                also=MACHINES,
                expected=f"a divisor of {settings.gpus}",
            )
        if settings.model.positions is not None and (
            not settings.model.experts or settings.model.experts % expert_parallel
        ):
            yield settings.make_error(
                f"The model has {settings.model.experts or 'no'} experts, which cannot be divided among "
                f"{expert_parallel} GPUs.",
                verl,
                ajet_key,
            )
    heads, kv_heads = settings.model.heads, settings.model.kv_heads or settings.model.heads
    for verl, ajet_key in (ULYSSES, MEGATRON_SIZES[0], (f"{ROLLOUT}.tensor_model_parallel_size", _TP)):
        # Key-value heads may also be repeated, if the number of parts is a multiple of their number.
        parts = settings.count(verl)
        if heads is None or kv_heads is None or not (heads % parts or (kv_heads % parts and parts % kv_heads)):
            continue
        kv_heads_text = f" ({kv_heads} of keys and values)" if kv_heads != heads else ""
        yield settings.make_error(
            f"The model's {heads} attention heads{kv_heads_text} cannot be split over {parts} GPUs "
            f"({settings.name(verl, ajet_key)}).",
            verl,
            ajet_key,
            expected=f"a divisor of {heads}",
        )


def _check_trees(settings: EffectiveSettings) -> Iterator[ConfigError]:
    """Check the settings that computing shared prefixes once (`ajet_verl.trainer.trees`) cannot be combined with."""
    attention = settings.value("actor_rollout_ref.model.override_config.attn_implementation", "flash_attention_2")
    if not settings.value(TREES, False):
        hardware = "a CPU" if settings.value("trainer.device") == "cpu" else f"attn_implementation {attention}"
        if (
            (hardware == "a CPU" or "flash" not in str(attention))
            and not settings.is_megatron
            and settings.count(ULYSSES[0]) > 1
        ):
            yield settings.make_error(
                "verl splits sequences with flash attention, which needs GPUs.",
                *ULYSSES,
                do=_advise_gpus(settings) if hardware == "a CPU" else "",
                expected=f"1 with {hardware}, or verl.{TREES}: true, which splits them with any attention",
            )
        return
    trees_off = f"verl.{TREES}: false"
    if settings.is_megatron:
        yield settings.make_error(
            "Only the FSDP engine can compute shared prefixes as trees.",
            TREES,
            expected=f"strategy: fsdp2, or {trees_off}",
        )
    if settings.model.images:
        yield settings.make_error(
            "Rows with images cannot be computed as trees of shared prefixes.",
            TREES,
            expected="false for a vision model",
        )
    if settings.value("actor_rollout_ref.model.use_fused_kernels", False):
        yield settings.make_error(
            "Computing shared prefixes as trees needs the model's own forward pass.",
            "actor_rollout_ref.model.use_fused_kernels",
            expected="false",
        )
    sums_squares = settings.value(f"{ACTOR}.calculate_sum_pi_squared", False)
    if sums_squares and settings.count(ULYSSES[0]) > 1 and "flash" not in str(attention):
        yield settings.make_error(
            "Sums of squared probabilities need verl's own passes, which can split sequences only with flash "
            "attention.",
            f"{ACTOR}.calculate_sum_pi_squared",
            expected=f"calculate_sum_pi_squared: false, or {settings.name(*ULYSSES)}: 1",
        )
    for key in (f"{ACTOR}.use_dynamic_bsz", f"{ROLLOUT}.log_prob_use_dynamic_bsz"):
        if not settings.value(key, True):
            yield settings.make_error(
                "Computing shared prefixes as trees needs passes that are filled by tokens, not by rows.",
                key,
                expected=f"true, or {trees_off}",
            )


def _check_replay(settings: EffectiveSettings) -> Iterator[ConfigError]:
    """Check the settings for training a mixture of experts with the experts that the servers chose.

    verl's own checks: ActorRolloutRefWorker.__init__, MegatronEngine.forward_step.
    """
    mode = settings.value(MEGATRON_REPLAY, "disabled")
    if not settings.value(ROUTED) and mode == "disabled":
        return
    if not settings.is_megatron:
        yield settings.make_error(
            "verl's FSDP does not replay the experts of its servers.",
            ROUTED,
            f"{TRAINER}.strategy",
            expected=f"strategy: megatron with {MEGATRON_REPLAY}: R3, or {ROUTED}: false",
        )
        return
    if bool(settings.value(ROUTED)) != (mode == "R3"):
        yield settings.make_error(
            f"Experts of the servers are reported by {ROUTED} and replayed by {MEGATRON_REPLAY}: R3, and one is set "
            "without the other.",
            ROUTED if settings.value(ROUTED) else MEGATRON_REPLAY,
            expected=f"both, or neither (R2 replays without {ROUTED})",
        )
    if settings.model.positions is not None and not settings.model.experts:
        yield settings.make_error(
            "The model has no experts to replay.", MEGATRON_REPLAY, expected=f"no {MEGATRON_REPLAY} and no {ROUTED}"
        )
    if settings.value(ROUTED) and settings.value("trainer.v1.trainer_mode") == DECOUPLED:
        yield settings.make_error(
            "Episodes of samplers come without their experts.",
            ROUTED,
            f"{TRAINER}.mode",
            expected="ajet.trainer_common.mode: sync, colocate_async or separate_async",
        )


def _check_engine(settings: EffectiveSettings) -> Iterator[ConfigError]:
    """Check parallel sizes, batch limits and memory share of the inference engine.

    verl's own checks: RolloutConfig, RolloutReplica, ActorRolloutRefWorker.init_model. vLLM's: SchedulerConfig.
    """
    tensor_parallel, data_parallel = (
        settings.count(f"{ROLLOUT}.tensor_model_parallel_size"),
        settings.count(f"{ROLLOUT}.data_parallel_size"),
    )
    key, gpus_per_engine = f"{ROLLOUT}.tensor_model_parallel_size", tensor_parallel * data_parallel
    if settings.count(f"{ROLLOUT}.pipeline_model_parallel_size") > 1:
        yield settings.make_error(
            "verl's engines do not support pipeline parallelism.", f"{ROLLOUT}.pipeline_model_parallel_size"
        )
    expert_parallel = settings.count(f"{ROLLOUT}.expert_parallel_size")
    if expert_parallel > 1 and expert_parallel != gpus_per_engine:
        yield settings.make_error(
            f"The engine's expert_parallel_size is {expert_parallel}.",
            f"{ROLLOUT}.expert_parallel_size",
            expected=f"{gpus_per_engine}",
        )
    gpus_per_node = settings.count("trainer.n_gpus_per_node")
    if settings.value("trainer.v1.trainer_mode") != SEPARATE and settings.gpus % gpus_per_engine:
        yield settings.make_error(
            f"{settings.gpus} GPUs cannot be divided into engines of {gpus_per_engine} GPUs "
            f"({settings.name(key, _TP)}).",
            key,
            _TP,
            also=MACHINES,
            expected=f"a divisor of {settings.gpus}",
        )
    elif gpus_per_node and gpus_per_engine % min(gpus_per_node, gpus_per_engine):
        yield settings.make_error(
            f"An engine of {gpus_per_engine} GPUs ({settings.name(key, _TP)}) does not fill nodes of {gpus_per_node}.",
            key,
            _TP,
            also=MACHINES,
            expected=f"a divisor or a multiple of {gpus_per_node}",
        )
    sequences, tokens = (
        settings.count(f"{ROLLOUT}.max_num_seqs"),
        settings.count(f"{ROLLOUT}.max_num_batched_tokens", 8192),
    )
    if settings.value(f"{ROLLOUT}.name") == "vllm" and sequences > tokens:
        yield settings.make_error(
            f"{sequences} sequences at a time do not fit into a pass of {tokens} tokens with one token each.",
            f"{ROLLOUT}.max_num_seqs",
            "rollout.max_num_seqs",
            expected=f"at most {tokens}, or a larger verl.{ROLLOUT}.max_num_batched_tokens",
        )
    memory_share = float(settings.value(f"{ROLLOUT}.gpu_memory_utilization", 0.5))
    if not 0 < memory_share <= 1:
        yield settings.make_error(
            f"The engine's share of the GPU's memory is {memory_share}.",
            f"{ROLLOUT}.gpu_memory_utilization",
            "rollout.gpu_memory_utilization",
            expected="above 0, at most 1",
        )


def _check_memory(settings: EffectiveSettings) -> Iterator[ConfigError]:
    """Check that the engine's share of GPU memory holds the weights and the KV cache of one longest sequence.

    This is a lower bound of what the engine needs. vLLM checks the same after loading the weights.
    """
    if settings.gpu_bytes is None or settings.model.parameters is None or settings.value("trainer.device") == "cpu":
        return
    tensor_parallel, max_length = (
        settings.count(f"{ROLLOUT}.tensor_model_parallel_size"),
        settings.count(f"{ROLLOUT}.max_model_len"),
    )
    number_bytes, memory_share = (
        4 if settings.value(f"{ROLLOUT}.dtype") == "float32" else 2,
        settings.value(f"{ROLLOUT}.gpu_memory_utilization", 0.5),
    )
    weight_bytes, cache_bytes = (
        settings.model.parameters * number_bytes / tensor_parallel,
        (settings.model.cached_numbers or 0) * number_bytes * max_length / tensor_parallel,
    )
    if weight_bytes + cache_bytes <= settings.gpu_bytes * memory_share:
        return
    gib = 2**30
    yield settings.make_error(
        f"On each GPU the engine needs {weight_bytes / gib:.3g} GiB for weights and {cache_bytes / gib:.3g} GiB for "
        f"one sequence of {max_length} tokens, but it gets {memory_share:g} of {settings.gpu_bytes / gib:.3g} GiB.",
        f"{ROLLOUT}.gpu_memory_utilization",
        "rollout.gpu_memory_utilization",
        also=((f"{ROLLOUT}.max_model_len", "rollout.max_model_len"), (f"{ROLLOUT}.tensor_model_parallel_size", _TP)),
        do="raise ajet.rollout.gpu_memory_utilization or tensor_model_parallel_size, or lower max_model_len",
    )


def _check_lengths(settings: EffectiveSettings) -> Iterator[ConfigError]:
    """Check that prompts, sequences and forward passes fit the model's maximum length and each other.

    verl's own checks: vLLMHttpServer._validate_configs, vLLMHttpServer.generate, rearrange_micro_batches.
    """
    prompt, max_length = settings.count("data.max_prompt_length"), settings.count(f"{ROLLOUT}.max_model_len")
    key, ajet_key = f"{ROLLOUT}.max_model_len", "rollout.max_model_len"
    if settings.model.positions is not None and max_length > settings.model.positions:
        yield settings.make_error(
            f"{settings.name(key, ajet_key)} is {max_length}, but the model supports "
            f"{settings.model.positions} tokens.",
            key,
            ajet_key,
            expected=f"at most {settings.model.positions}",
            do=f"set {settings.name(key, ajet_key)}: {settings.model.positions}, and data.max_prompt_length below it",
        )
    rotary_border = settings.model.rotary_border
    if rotary_border is not None and max_length > rotary_border:
        yield settings.make_error(
            f"{settings.name(key, ajet_key)} is {max_length}, but in sequences of more than {rotary_border} tokens "
            "the model uses other rotary frequencies: verl's trainer chooses them by each batch's longest "
            "sequence, its servers by max_model_len.",
            key,
            ajet_key,
            expected=f"at most {rotary_border}, where trainer and servers use the same frequencies",
            do="use --backbone local, which sets the frequencies once and can train longer sequences",
        )
    if prompt >= max_length:
        yield settings.make_error(
            f"A prompt of {prompt} tokens ({settings.name('data.max_prompt_length', 'data.max_prompt_length')}) leaves "
            f"no room for a reply in {max_length} ({settings.name(key, ajet_key)}).",
            "data.max_prompt_length",
            "data.max_prompt_length",
            also=((key, ajet_key),),
            expected=f"less than {max_length}",
        )
    sequence_parts = settings.count(MEGATRON_SIZES[2][0] if settings.is_megatron else ULYSSES[0])
    token_limit_key = f"{ACTOR}.ppo_max_token_len_per_gpu"
    if (
        settings.value(f"{ACTOR}.use_dynamic_bsz", True)
        and settings.count(token_limit_key, max_length) * sequence_parts < max_length
    ):
        yield settings.make_error(
            f"A pass of {settings.value(token_limit_key)} tokens on each of {sequence_parts} GPU(s) cannot contain a "
            f"sequence of {max_length} tokens.",
            token_limit_key,
            f"{TRAINER}.micro_batch_tokens",
            expected=f"at least {-(-max_length // sequence_parts)}",
        )


def _check_sampling(settings: EffectiveSettings) -> Iterator[ConfigError]:
    """Check the temperature: verl divides logits by it, and validate_config refuses 0 for sampled validation."""
    if float(settings.value(f"{ROLLOUT}.temperature", 1.0)) <= 0:
        yield settings.make_error(
            "Replies sampled at temperature 0 have no probabilities to train on.",
            f"{ROLLOUT}.temperature",
            "rollout.temperature",
            expected="above 0 (validation uses ajet.rollout.val_kwargs.temperature)",
        )


def _check_learning(settings: EffectiveSettings) -> Iterator[ConfigError]:
    """Check the learning-rate schedule, LoRA, and the format of the model file.

    verl's own checks: FSDPOptimizerConfig, FSDPEngine._build_lr_scheduler, get_vllm_max_lora_rank.
    """
    schedule = settings.value(f"{ACTOR}.optim.lr_scheduler_type")
    if not settings.is_megatron and schedule not in (None, "constant", "cosine"):
        yield settings.make_error(
            f"verl's FSDP does not support the learning-rate schedule {schedule}.",
            f"{ACTOR}.optim.lr_scheduler_type",
            f"{TRAINER}.optim.lr_schedule",
            expected="constant or cosine; ajet.trainer_common.optim.lr_schedule also linear",
        )
    key = "actor_rollout_ref.model." + ("lora.rank" if settings.is_megatron else "lora_rank")
    rank = settings.count(key, 0)
    sends_adapters = not settings.value("actor_rollout_ref.model.lora.merge")
    if sends_adapters and rank and settings.value("trainer.v1.trainer_mode") in (SEPARATE, DECOUPLED):
        yield settings.make_error(
            "verl sends no adapters to servers with GPUs of their own: they would sample without.",
            "actor_rollout_ref.model.lora.merge",
            expected="true in this mode",
        )
    if sends_adapters and rank > VLLM_LARGEST_LORA_RANK and settings.value(f"{ROLLOUT}.name") == "vllm":
        yield settings.make_error(
            f"vLLM does not support adapters of rank {rank}.",
            key,
            f"{TRAINER}.lora.rank",
            expected=f"at most {VLLM_LARGEST_LORA_RANK}",
        )
    if settings.ajet.trainer_common.lora.alpha % 1:
        yield settings.make_error(
            f"verl's LoRA does not support an alpha of {settings.ajet.trainer_common.lora.alpha}.",
            "",
            f"{TRAINER}.lora.alpha",
            expected="a whole number",
        )
    if (settings.ajet.model.path or "").endswith(".gguf"):
        yield settings.make_error(
            "verl cannot load a .gguf file.",
            "",
            "model.path",
            expected="a folder in Hugging Face layout, or a name on the hub",
        )


def _check_modes(settings: EffectiveSettings) -> Iterator[ConfigError]:
    """Check the training mode and the settings that separate_async needs (verl: PPOTrainerSeparateAsync.__init__)."""
    mode = settings.value("trainer.v1.trainer_mode")
    if mode not in MODES:
        yield settings.make_error(
            f"verl's trainer {mode} does not use ajet's advantages and loss.",
            "trainer.v1.trainer_mode",
            f"{TRAINER}.mode",
            expected="ajet.trainer_common.mode: sync, async, colocate_async or separate_async",
        )
    if mode != SEPARATE:
        return
    if settings.value(f"{ROLLOUT}.nnodes", 0) < 1:
        yield settings.make_error(
            "separate_async needs separate machines for the engines.",
            f"{ROLLOUT}.nnodes",
            f"{TRAINER}.mode",
            expected=f"the number of machines in verl.{ROLLOUT}.nnodes",
        )
    if settings.value(f"{ROLLOUT}.checkpoint_engine.backend", "naive") == "naive":
        yield settings.make_error(
            "separate_async needs a way to send weights to other machines.",
            f"{ROLLOUT}.checkpoint_engine.backend",
            f"{TRAINER}.mode",
            expected=f"nccl, nixl or similar in verl.{ROLLOUT}.checkpoint_engine.backend",
        )
    steps, batch = (
        settings.count("trainer.v1.separate_async.parameter_sync_step"),
        settings.count("data.train_batch_size"),
    )
    users_key = settings.name("trainer.v1.separate_async.parameter_sync_step") or settings.name(
        f"{ACTOR}.ppo_mini_batch_size"
    )
    if users_key and batch != steps * settings.count(f"{ACTOR}.ppo_mini_batch_size"):
        yield settings.make_error(
            f"In separate_async {batch} tasks must be {steps} mini-batches, one for each weight transfer.",
            users_key.removeprefix("verl."),
            f"{TRAINER}.mini_batch_num",
            do="set only ajet.trainer_common.mini_batch_num",
        )


def _check_credit(settings: EffectiveSettings) -> Iterator[ConfigError]:
    """Check that ajet's own advantages and loss, which replace verl's, support the settings in verl's config."""
    for key, current, expected in find_unsupported(lambda key: settings.value(key)):
        yield settings.make_error(
            f"{key} is {str(current).lower() if isinstance(current, bool) else current}, which ajet's advantages and "
            "loss, the same on every backbone, do not support.",
            key,
            f"{TRAINER}.algorithm",
            expected=expected,
            do=f"in ajet, set {HERE[key]}" if key in HERE else "",
        )


def _check_agent_loop(settings: EffectiveSettings) -> Iterator[ConfigError]:
    """Check that verl's workers (AgentLoopWorkerTQ) run ajet's agent loop and no other."""
    key = f"{ROLLOUT}.agent.default_agent_loop"
    if (name := settings.value(key, "ajet")) != "ajet":
        yield settings.make_error(
            f"With the agent loop {name}, verl would not run the workflow.",
            key,
            "rollout.user_workflow",
            expected="ajet",
            do="delete the key: ajet.rollout.user_workflow names the agent",
        )


RULES: tuple[Callable[[EffectiveSettings], Iterator[ConfigError]], ...] = (
    _check_machines, _check_strategy, check_batch_sizes, check_fixed_micro_batches, _check_parallel_sizes,
    _check_trees, _check_replay, _check_engine, _check_memory, _check_lengths, _check_sampling, _check_learning,
    check_checkpoints, _check_modes, _check_credit, _check_agent_loop,
)  # fmt: skip
