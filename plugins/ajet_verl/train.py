"""Trains on verl: this code prepares and follows the run in the process that the user started.

Invariant: configuration errors are reported before Ray starts and before the run directory is created. `on_ray` handles
the launch itself and its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.algorithm import open_algorithm
from ajet.algorithm.staleness import log_staleness
from ajet.engine.models import load_image_tokens
from ajet.record.status import TO_VALIDATE
from ajet.schema.errors import ConfigError, UserError
from ajet.task_reader import TaskOrder
from ajet.task_reader.contamination import find_overlap
from ajet.task_reader.overlong import drop_overlong
from ajet_ray.cluster.gpus import refuse_busy
from ajet_ray.cluster.resources import Demand
from ajet_ray.modes import DECOUPLED, SYNC
from ajet_ray.on_ray import find_address, run_on_ray
from ajet_ray.record import RayRecord
from ajet_ray.shipped_experiment import KEY, pack_experiment
from ajet_ray.store_tickets import open_store_tickets
from ajet_ray.tickets import LaunchTickets, find_drop_age, find_oldest_version, open_verl_store
from ajet_verl.config.credit import read_credit_settings
from ajet_verl.settings import build_environment, build_needs, build_settings

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.record import RunDirectory
    from ajet.store import Address
    from ajet.tokens import Renderer
    from ajet.tokens.image_tokens import ImageTokens
    from ajet.train.interrupts import Interrupts
    from ajet.train.runner import LaunchOptions
    from ajet.train.sink import RunSink


def train_on_verl(
    experiment: Experiment, run: RunDirectory, options: LaunchOptions, interrupts: Interrupts, sink: RunSink
) -> None:
    """Train until the last step, and pass each finished step to `sink`.

    Raises:
        KeyboardInterrupt: the run was interrupted, after saving.
        UserError: the run cannot start.
        Exception: as raised by verl.
    """
    from omegaconf import OmegaConf

    from ajet_verl.trainer.process import TrainerProcess

    address = find_address(options)
    config, order, renderer, tokenizer = _prepare_config(experiment, run, sink, own=address is None)
    require_store(config, options.from_store)
    if options.from_store is not None:
        require_one_sampling(experiment.ajet, config)
    steps = config["trainer"]["total_training_steps"]
    is_finished = run.resumed is not None and run.resumed.step >= steps
    if is_finished and options.from_store is None:
        return
    if (
        not is_finished
        and address is None
        and config["trainer"]["device"] == "cuda"
        and not options.skip_check_avail_gpu
    ):
        refuse_busy(Demand.of(config).accelerators)
    tickets: LaunchTickets
    if options.from_store is not None:
        config["trainer"]["save_freq"] = 1  # announced weights must be on disk
        tickets = open_store_tickets(experiment, run, options.from_store, order, tokenizer, steps=steps)
    else:
        tickets = open_tickets(experiment, run, config, order)
    if is_finished:  # a killed run may not have marked its end
        tickets.finish_run()
        return
    announce_staleness(config)
    logger.info(
        "The memory check before step 1 is not available on verl; verl's first step shows whether the settings fit."
    )
    if run.resumed is not None:
        recovery_note = run.recovery(tickets.list_begun(), dead=tickets.list_dead())
        logger.info("resumed after step {} from {}{}", run.resumed.step, run.resumed.path, recovery_note)
    sink.begin(renderer, total=steps)
    record = RayRecord(experiment, run, sink, tickets)
    run.status.set(phase="starting Ray", steps=steps)
    run_on_ray(
        "verl",
        TrainerProcess,
        OmegaConf.create(config),
        build_needs(config),
        record,
        tickets,
        experiment=experiment,
        run=run,
        address=address,
        environment=build_environment(config),
        interrupts=interrupts,
    )
    tickets.finish_run()


def open_tickets(
    experiment: Experiment, run: RunDirectory, config: Mapping[str, Any], order: TaskOrder
) -> LaunchTickets:
    """Open the run's store and create the tickets of this launch, from the resumed checkpoint on.

    A ticket is the trainer's claim on one group. verl's data set has a row for each ticket, without a task: the run's
    store assigns the task when the row's episodes are about to run.

    Args:
        config: verl's complete config.
        order: the training order of the tasks.
    """
    settings = experiment.ajet
    oldest = find_oldest_version(config, run.resumed.step if run.resumed else 0)
    store = open_verl_store(run, order, sessions=settings.rollout.num_repeat, oldest=oldest)
    return LaunchTickets(store, order, batch=settings.data.train_batch_size, dropped_after=find_drop_age(config))


def require_store(config: Mapping[str, Any], address: Address | None) -> None:
    """Check that a store is set exactly if remote samplers run the episodes, and that they can load weights.

    Args:
        config: verl's complete config.
        address: address of the store shared with samplers, or None.

    Raises:
        ConfigError: the store and the settings do not fit.
    """
    mode = config["trainer"]["v1"]["trainer_mode"]
    if mode == DECOUPLED and address is None:
        raise ConfigError(
            "On verl, `mode: async` trains on episodes that samplers put into a store, and no store is set.",
            where="ajet.trainer_common.mode: async",
            expected="--from-store ADDRESS, and `ajet sample` running; colocate_async and separate_async need no store",
        )
    if mode != DECOUPLED and address is not None:
        raise ConfigError(
            f"--from-store trains on episodes of samplers, but verl's trainer {mode} samples with its own servers.",
            where="verl.trainer.v1.trainer_mode",
            do="delete that key",
        )
    if address is not None and config["algorithm"]["filter_groups"]["enable"]:
        raise ConfigError(
            "verl's group filter may request more groups in a step than samplers may run in advance.",
            where="verl.algorithm.filter_groups.enable",
            expected="false with --from-store; ajet.trainer_common.algorithm.dynamic_sampling leaves out groups with "
            "equal rewards",
        )
    if address is not None and config["actor_rollout_ref"]["actor"]["strategy"] == "megatron":
        raise ConfigError(
            "Samplers load a checkpoint in Hugging Face layout, but a run does not merge Megatron's checkpoints "
            "into it.",
            where="ajet.trainer_common.strategy: megatron",
            expected="fsdp or fsdp2 with --from-store",
        )


def require_one_sampling(settings: AjetConfig, config: Mapping[str, Any]) -> None:
    """Check that verl trains with the sampling parameters of the samplers, which read the keys below `ajet` only.

    Args:
        settings: the experiment's settings below `ajet`.
        config: verl's complete config.

    Raises:
        ConfigError: a sampling parameter differs.
    """
    effective = read_credit_settings(config).rollout
    for ajet_key, verl_key in (
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("top_k", "top_k"),
        ("num_repeat", "n"),
    ):
        if (verl_value := getattr(effective, ajet_key)) != getattr(settings.rollout, ajet_key):
            raise ConfigError(
                f"verl would train with {verl_key} {verl_value}, but samplers use "
                f"{getattr(settings.rollout, ajet_key)}.",
                where=f"verl.actor_rollout_ref.rollout.{verl_key}",
                do=f"set only ajet.rollout.{ajet_key}, which both sides read",
            )


def announce_staleness(config: Mapping[str, Any]) -> None:
    """Log how stale tokens are trained, if the training mode allows them.

    Args:
        config: verl's complete config.
    """
    v1 = config["trainer"]["v1"]
    if v1["trainer_mode"] != SYNC:
        threshold = v1["sampler"]["max_off_policy_threshold"]
        log_staleness(read_credit_settings(config).trainer_common, None if threshold is None else threshold - 1)


def _prepare_config(
    experiment: Experiment, run: RunDirectory, sink: RunSink, *, own: bool
) -> tuple[dict[str, Any], TaskOrder, Renderer, Any]:
    """Return verl's config for this run, the training order of the tasks, the renderer and the tokenizer.

    Args:
        own: True if the run starts a Ray cluster on this machine.

    Raises:
        TaskError: the resumed run had other tasks.
    """
    from ajet.engine.model_limits import warn_unreplayed_experts
    from ajet.engine.model_source import locate_configured_model
    from ajet.engine.models import load_tokenizer, prepare_folder
    from ajet.rollout.components import make_renderer
    from ajet.task_reader import open_reader

    settings = experiment.ajet
    source = locate_configured_model(settings, experiment.base)
    folder = prepare_folder(source)
    config = build_settings(experiment, model_folder=folder, run_folder=run.path, own_cluster=own)
    if not config["actor_rollout_ref"]["rollout"].get("enable_rollout_routing_replay"):
        warn_unreplayed_experts(folder)
    images = require_image_tokens(folder)
    reader = open_reader(experiment)
    tokenizer = load_tokenizer(source)
    renderer = make_renderer(settings, tokenizer, images)
    tasks = drop_overlong(reader.tasks("train"), settings.data, tokenizer)
    order = TaskOrder(tasks, seed=settings.seed, shuffle=settings.data.shuffle)
    steps = settings.count_steps(len(tasks))
    algorithm = open_algorithm(read_credit_settings(config), base=experiment.base)
    validation_tasks = reader.tasks("validation") if reader.has("validation") else []
    overlap = find_overlap(tasks, validation_tasks) if reader.has("validation") else None
    run.status.set(**{TO_VALIDATE: len(validation_tasks) * settings.validation_repeats})
    sink.review(algorithm, train=len(tasks), validates=overlap is not None, overlap=overlap)
    config["data"][KEY] = pack_experiment(experiment, run_id=run.run_id)
    config["trainer"].update(total_training_steps=steps, total_epochs=1)  # verl's list of tasks is endless
    if not reader.has("validation"):
        config["trainer"].update(test_freq=-1, val_before_train=False)
        config["data"]["val_batch_size"] = 1
    config["trainer"]["resume_mode"] = "disable"
    if run.resumed is not None:
        if "verl" not in run.resumed.state:
            raise ConfigError(
                "The checkpoint belongs to another backbone, so verl cannot resume from it.",
                where=str(run.resumed.path),
                do=f"start a new run from its weights with ajet.model.path: {run.resumed.path}",
            )
        folder = run.resumed.path / run.resumed.state["verl"]
        config["trainer"].update(resume_mode="resume_path", resume_from_path=str(folder), val_before_train=False)
    return config, order, renderer, tokenizer


# Checks before the start of Ray whether verl can train a vision model.
# Invariant: a processor unknown to verl is refused. verl would drop the processor with a warning and train the
# model as a text model.
KNOWN = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Glm4v", "Glm46V", "Mllama", "Gemma4")
"""Processor names, without `Processor`, accepted by verl's `hf_processor`; a test compares them."""


def require_image_tokens(folder: Path) -> ImageTokens | None:
    """Return the image tokens of the model in `folder`, or None for a text model.

    Raises:
        UserError: verl does not support the model's processor.
    """
    tokens = load_image_tokens(folder)
    if tokens is None:
        return None
    name = tokens.processor_name.removesuffix("Processor")
    if name not in KNOWN:
        raise UserError(
            f"verl does not support this model's image processor ({name}).",
            where=str(folder),
            expected="one of the families " + ", ".join(KNOWN[:5]),
        )
    return tokens
