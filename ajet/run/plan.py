"""`ajet plan` and `--dry-run`: everything that can be checked and estimated without starting anything.

Invariant: no run directory, no model weights, no port; no process but the services that the YAML tells to start, which
are ended again and named. It reads one task and renders one prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ajet.config.schema.sft import OBJECTIVE
from ajet.record.console import console, counted
from ajet.schema.errors import ConfigError, UserError

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.engine.weight_shapes import ModelSize
    from ajet.run.gpu_estimate import GpuName
    from ajet.store import Address


def dry_run(
    experiment: Experiment,
    services: Sequence[str] = (),
    from_store: Address | None = None,
    *,
    on_cluster: bool = False,
) -> None:
    """The plan of a launch that was asked for with `--dry-run`, the services of `--with-NAME` and the store of
    `--from-store`. Raises UserError for what is wrong.

    Args:
        on_cluster: True with `--with-ray-cluster`: the machines are the cluster's.
    """
    from ajet.rollout.wiring import require_gateway
    from ajet.run.footprint import disk_of

    require_gateway(experiment.ajet)
    started = show_plan(experiment, services, from_store, here=True, on_cluster=on_cluster)
    if why := disk_of(experiment)[0].refused:  # a plan may be of another machine's run; this one is not to start here
        raise UserError(
            f"The record of the run could not be written: {why}.",
            where=str(experiment.root / experiment.name),
            expected="a folder that can be written to",
            do="name another with --exp-dir",
        )
    console.print(f"{started} (--dry-run).", markup=False, soft_wrap=True)


def show_plan(
    experiment: Experiment,
    services: Sequence[str] = (),
    from_store: Address | None = None,
    *,
    here: bool = False,
    on_cluster: bool = False,
    gpu: GpuName = "H100",
) -> str:
    """Look at the store, ask the services, resolve references, read one task, render one prompt, print the plan, what
    it takes and what is to be said of it; answers what was started for that, in words. Raises UserError for what is
    wrong.

    Args:
        here: True if the run is to be on this machine. False: a model of which only the size is known is planned, too.
        on_cluster: True if that run joins a cluster, whose machines have GPUs.
        gpu: the kind of GPU that memory and time of a run elsewhere are estimated for.
    """
    from ajet.run.companions import beside
    from ajet.run.gpu_estimate import find_own_gpu
    from ajet.run.launchable import require_launchable
    from ajet.run.runner import apply_sections
    from ajet.run.services import require_services

    if not here and experiment.backbone.shares_gpus and experiment.ajet.trainer_common.device == "auto":
        experiment = experiment.with_defaults({"ajet.trainer_common.device": "cuda"})  # planned for `gpu`
    experiment, overridden = apply_sections(experiment, from_store)
    experiment.require_ready()
    if experiment.ajet.sft.objective is not None:
        raise ConfigError(
            "There is no plan of learning from given replies: nothing is played.",
            where=f"ajet.{OBJECTIVE}",
            expected="a run that plays tasks",
            do="start it: the rows are read and counted before the first step",
        )
    require_launchable(experiment, from_store, here=here)
    is_own = here and experiment.backbone.shares_gpus
    estimated = find_own_gpu(experiment.ajet, on_cluster=on_cluster) if is_own else gpu
    store = _looked_at(experiment, from_store)
    with TemporaryDirectory() as folder, beside(experiment, Path(folder), services) as started:
        there = [f"{each.name} at {each.address}" for each in require_services(experiment)]
        about = "" if store is None else store.shown
        _show_plan(experiment, there, about, overridden, gpu=estimated, needs_tokenizer=here)
    if not started:
        return "Nothing was started"
    return f"Nothing was started but {', '.join(started)} of ajet.services, ended again"


def _looked_at(experiment: Experiment, from_store: Address | None) -> Address | None:
    """The shared store that a start would open, if there is one. Raises UserError where it would be refused."""
    from ajet.store import look_at_own_store, look_at_store

    if "trains" not in experiment.backbone.can:
        return None
    if from_store is not None:
        look_at_store(from_store)
    own = look_at_own_store(experiment, experiment.root / experiment.name)
    return from_store or own


def _show_plan(
    experiment: Experiment,
    services: Sequence[str],
    store: str,
    overridden: str,
    *,
    gpu: GpuName | None,
    needs_tokenizer: bool,
) -> None:
    from ajet.algorithm.staleness import importance_weights
    from ajet.config.idle import idle_lines
    from ajet.rollout.isolation import require_isolable
    from ajet.rollout.train_turn import TrainTurn
    from ajet.rollout.wiring import renderer_of, workflow_of
    from ajet.run.review import review_run
    from ajet.run.runner import algorithm_of
    from ajet.run.tool_room import counts_tools_later, tool_room
    from ajet.task_judge import open_judge
    from ajet.task_reader import open_reader
    from ajet.task_reader.contamination import overlap
    from ajet.task_reader.overlong import within_prompt_length

    settings = experiment.ajet
    algorithm, workflow = algorithm_of(experiment), workflow_of(experiment)
    TrainTurn.of(experiment)
    require_isolable(experiment, workflow)
    reader = open_reader(experiment)
    judge = open_judge(experiment, reader_judge=reader.judge)
    training = reader.tasks("train")
    validation = reader.tasks("validation") if reader.has("validation") else []
    tokenizer, lacking = None, ""
    if settings.rollout.engine != "endpoint":
        tokenizer, lacking = _open_tokenizer(experiment, is_needed=needs_tokenizer)
    if tokenizer is not None:
        training = within_prompt_length(training, settings.data, tokenizer)
        validation = within_prompt_length(validation, settings.data, tokenizer) if validation else []
    judge.require_for([*training, *validation])
    judge.let_go()
    task = training[0]
    messages = task.init_messages or [{"role": "user", "content": task.main_query}]

    plan = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    plan.add_row("experiment", experiment.name)
    plan.add_row("backbone", settings.backbone)
    plan.add_row("workflow", str(settings.rollout.user_workflow))
    protocol = settings.task_judge.judge_protocol if settings.task_judge.judge_type == "customized_protocol" else None
    plan.add_row("judge", str(protocol or judge))
    an_epoch = settings.data.curriculum.tasks_an_epoch(len(training))
    drawn = f" ({an_epoch} an epoch)" if an_epoch != len(training) else ""
    plan.add_row("tasks", f"{len(training)} train{drawn}, {len(validation) or 'no'} validation")
    plan.add_row("first task", f"{task.task_id}: {task.main_query[:200]}")
    if lacking:
        plan.add_row("model", f"{settings.model.path}\nno prompt is rendered or measured: {lacking}")
    elif tokenizer is None:
        plan.add_row("model", f"{settings.rollout.endpoint.model} at {settings.rollout.endpoint.base_url}")
    else:
        plan.add_row("model", settings.model.path)
        if (found := tool_room(experiment, task, tokenizer, start=False)) is not None:
            rendered, beside = found.prompt, f", {found.tokens} of them for {counted(len(found.tools), 'tool')}"
        else:
            later = counts_tools_later(experiment)
            beside = ", without tools: a launch starts their server and counts them" if later else ""
            rendered = renderer_of(settings, tokenizer).render(messages)
        plan.add_row("first prompt", f"{len(rendered.ids)} tokens{beside}\n{rendered.shown}")
    if services:
        plan.add_row("services", "; ".join(services) + ": there")
    data, rollout, trainer = settings.data, settings.rollout, settings.trainer_common
    if "trains" not in experiment.backbone.can:
        first = min(settings.debug.debug_first_n_tasks, len(training))
        plan.add_row("played", f"{counted(first, 'task')} × {counted(rollout.num_repeat, 'episode')}, nothing trained")
    else:
        played = f"{counted(data.train_batch_size, 'task')} × {counted(rollout.num_repeat, 'episode')}"
        plan.add_row("a step", f"{played}, {counted(trainer.mini_batch_num, 'update')}")
        plan.add_row("steps", describe_steps(settings, an_epoch))
    if trainer.mode == "async" and experiment.backbone.opens is not None:
        plan.add_row("both sides", _sides(experiment))
    if trainer.mode != "sync":
        plan.add_row("stale tokens", importance_weights(trainer))
    plan.add_row("record", str(experiment.root / experiment.name))
    if store:
        plan.add_row("store", store)
    for name, told in estimates(experiment, train=an_epoch, validates=bool(validation), gpu=gpu):
        plan.add_row(name, told)
    console.print(plan)
    for said in (overridden, idle_lines(experiment.idle(), f"on the backbone {settings.backbone}")):
        if said:
            console.print(said, markup=False, highlight=False, soft_wrap=True)
    review = review_run(
        experiment,
        algorithm,
        train=an_epoch,
        validates=bool(validation),
        workflow=workflow,
        judged=judge.judges,
        known=overlap(training, validation) if validation else None,
    )
    if review:
        console.print(review, markup=False, highlight=False, soft_wrap=True)


def describe_steps(settings: AjetConfig, an_epoch: int) -> str:
    """Return how many steps a run takes, and what becomes of tasks that fill no step.

    Args:
        an_epoch: tasks of an epoch.
    """
    trainer, batch = settings.trainer_common, settings.data.train_batch_size
    steps = settings.total_steps(an_epoch)
    if trainer.total_training_steps:
        return f"{steps}, which is {steps * batch / an_epoch:.1f} epochs of {counted(an_epoch, 'task')}"
    epochs = f"{counted(trainer.total_epochs, 'epoch')} of {counted(an_epoch, 'task')}"
    if further := steps * batch - trainer.total_epochs * an_epoch:
        epochs += f"; no task is left out: a step goes on into the next epoch, the last one by {further}"
    return f"{steps}, for {epochs}"


def _open_tokenizer(experiment: Experiment, *, is_needed: bool) -> tuple[Any, str]:
    """Return the model's tokenizer and "", or None and why there is none; that only where the model's size is known.

    Raises:
        UserError: there is none and it is needed, or the model is refused for something else.
    """
    from ajet.engine.model_source import HubUnreachableError, locate
    from ajet.engine.models import TOKENIZER_FILES, load_tokenizer

    model = experiment.ajet.model
    assert model.path is not None, "require_ready asks for it"
    is_planned = not is_needed and _planned_size(experiment) is not None
    try:
        source = locate(model.path, base=experiment.base, weights=False, trust_remote_code=model.trust_remote_code)
    except HubUnreachableError as error:
        if is_planned:
            return None, error.what
        raise
    if is_planned and source.folder and not any((source.folder / name).is_file() for name in TOKENIZER_FILES):
        return None, f"{source.folder} holds no tokenizer"
    return load_tokenizer(source), ""


def _sides(experiment: Experiment) -> str:
    from ajet.backbone.local.cores import cores
    from ajet.engine.machine import device_kind
    from ajet.run.sampling.beside import threads_of_a_side

    trainer = experiment.ajet.trainer_common
    words = "a trainer and a sampler at once, a process each"
    if device_kind(trainer.device) != "cpu":
        return f"{words}, on one device"
    return f"{words}; threads of each: {threads_of_a_side(trainer)}, of {counted(cores(), 'core')}"


def _planned_size(experiment: Experiment) -> ModelSize | None:
    """Return the size of the model by its files, or else by its name; None for a folder that is not there."""
    from ajet.engine.model_source import is_local
    from ajet.run.room import size_by_name, size_of

    path, base = experiment.ajet.model.path, experiment.base
    found = size_of(path, base)[0]
    if found is not None or path is None:
        return found
    is_there = not is_local(path, base) or (base / path / "config.json").is_file()
    return size_by_name(path) if is_there else None


def estimates(
    experiment: Experiment, *, train: int, validates: bool, gpu: GpuName | None = "H100"
) -> Iterator[tuple[str, str]]:
    """The rows of the plan on what a run would take. Nothing where nothing is trained."""
    from ajet.run.footprint import checkpoint_bytes, disk_of, footprint, gib, memory_words
    from ajet.run.gpu_estimate import describe_estimate
    from ajet.run.measured import last_pace, last_step
    from ajet.run.next_command import command_for
    from ajet.run.outlook import span, step_line
    from ajet.run.room import room_of

    settings = experiment.ajet
    if "trains" not in experiment.backbone.can:
        return
    size, room = _planned_size(experiment), room_of(experiment, train=train, validates=validates)
    trainer = settings.trainer_common
    is_sharded = trainer.strategy != "megatron" and trainer.mode != "separate_async" and trainer.device != "cpu"
    rows: dict[str, str] = {}
    if size is None:
        yield "takes", "not known: the model is not on this machine yet, and its name says no size"
    elif experiment.backbone.shares_gpus and gpu is None:
        rows["memory"] = "not estimated: without a GPU the run is on the CPU; `ajet plan --gpu` is for one with GPUs"
    elif experiment.backbone.shares_gpus and gpu is not None and is_sharded:
        rows = dict(describe_estimate(size, settings, gpu))
    elif experiment.backbone.opens is None:
        rows["memory"] = f"not estimated: {settings.backbone} lays out processes of its own"
    elif room is not None and room.local is not None:
        free = f"; {gib(room.memory)} are free" if room.memory is not None else ""
        rows["memory"] = memory_words(room.local) + free
    else:
        least = memory_words(footprint(size, settings, wide=settings.model.dtype == "float32"))
        rows["memory"] = f"estimated by the size in its name, without activations and cache: {least}"
    if "memory" in rows:
        yield "memory", rows["memory"]
    if size is not None:
        a_checkpoint = room.checkpoint if room else checkpoint_bytes(size, settings, wide=False)
        most = f", at most {room.at_once} at once" if room else ""
        yield "disk", f"about {gib(a_checkpoint)} a checkpoint{most}; {gib(disk_of(experiment)[-1].free)} are free"
    if (seconds := last_step(experiment)) is not None:
        yield "time", f"about {span(seconds)} a step, as in the last steps of the run that is recorded"
    elif (pace := last_pace(experiment)) is not None:
        yield "time", f"a step: {step_line(pace, settings)}; measured by the last debug run"
    elif "time" in rows:
        yield "time", rows["time"]
    else:
        debug = command_for(experiment, "debug") or "a debug run"
        yield "time", f"not measured yet: {debug}"
