"""Checks a run before any cost, and prints its plan (`ajet plan`, `--dry-run`, `config validate`).

Invariant: no run directory, no model weights, no port, and no process except the services of the YAML, which are named
and ended again. `require_present`, for `validate`, imports no user code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ajet.commands.gpu_estimate import GpuName, describe_estimate, find_own_gpu
from ajet.commands.launch_checks import require_launchable, require_rewards
from ajet.commands.pace import describe_step_time, read_pace, read_step_seconds
from ajet.commands.runner import apply_sections, format_start_command, load_algorithm
from ajet.config.idle import format_idle_keys
from ajet.config.plugins import find_part
from ajet.config.readiness import get_setting
from ajet.config.references import check_reference
from ajet.config.schema.base import walk_keys
from ajet.config.schema.choices import is_reference
from ajet.config.schema.sft import OBJECTIVE
from ajet.engine.dimensions import parse_size, read_size_and_context
from ajet.engine.embedded import require_embedded
from ajet.engine.model_source import HubUnreachableError, is_local, locate_model, refuse_hosted
from ajet.record.console import console, counted, format_bytes, format_seconds, print_line
from ajet.rollout.components import load_workflow, make_renderer, require_gateway
from ajet.schema.errors import ConfigError, UserError
from ajet.store import Address, check_own_store, check_store, store_address
from ajet.task_judge import open_judge
from ajet.task_judge.registry import check_functions
from ajet.task_reader import TaskSplit, count_local_tasks, open_reader
from ajet.task_reader.contamination import find_overlap
from ajet.task_reader.overlong import drop_overlong
from ajet.train.footprint import (
    describe_memory,
    estimate_checkpoint,
    estimate_footprint,
    estimate_needs,
    find_disks,
    find_tool_workflow,
    render_with_tools,
)
from ajet.train.remarks import describe_remarks

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.engine.dimensions import ModelSize
    from ajet.schema.task import Task


def dry_run(
    experiment: Experiment, services: Sequence[str] = (), store: Address | None = None, *, on_cluster: bool = False
) -> None:
    """Print the plan of a launch with `--dry-run`, after all of its checks.

    Args:
        services: Names of services of `ajet.services` to start for the checks.
        store: The address of `--from-store`. None: without samplers.
        on_cluster: True if the machines are a cluster's.

    Raises:
        UserError: A launch would fail.
    """
    require_gateway(experiment.ajet)
    outcome_text = show_plan(experiment, services, store, here=True, on_cluster=on_cluster)
    if refusal := find_disks(experiment)[0].refused:  # a plan may be for another machine, a dry run is not
        raise UserError(
            f"The record of the run could not be written: {refusal}.",
            where=str(experiment.root / experiment.name),
            expected="a folder that this user may write to",
            do="choose another folder with --exp-dir",
        )
    print_line(f"{outcome_text} (--dry-run).")


def show_plan(
    experiment: Experiment,
    services: Sequence[str] = (),
    from_store: Address | None = None,
    *,
    here: bool = False,
    on_cluster: bool = False,
    gpu: GpuName = "H100",
) -> str:
    """Make all checks of a launch and print the plan.

    Args:
        services: Names of services of `ajet.services` to start for the checks.
        from_store: The store of samplers' episodes. None: without samplers.
        here: True if the run is for this machine. False: a model with only a known size is planned, too.
        on_cluster: True if the run joins a cluster, whose machines have GPUs.
        gpu: The GPU type for estimates of memory and time on other machines.

    Returns:
        A sentence without full stop on which processes were started for the checks and stopped again.

    Raises:
        UserError: A launch would be refused.
    """
    from ajet.commands.services import enter_run_hooks, require_services

    is_own = here and experiment.backbone.shares_gpus
    if experiment.backbone.shares_gpus and not here and experiment.ajet.trainer_common.device == "auto":
        experiment = experiment.replace_defaults({"ajet.trainer_common.device": "cuda"})
    experiment, overridden_text = apply_sections(experiment, from_store)
    experiment.require_ready()
    if experiment.ajet.sft.objective is not None:
        raise ConfigError(
            "There is no plan for learning from given replies (sft.objective), because no agent runs.",
            where=f"ajet.{OBJECTIVE}",
            expected="a configuration that runs an agent",
            do="start the run: it reads and counts the rows before the first step",
        )
    require_launchable(experiment, from_store, here=here)
    estimated_gpu = find_own_gpu(experiment, on_cluster=on_cluster) if is_own else gpu
    store = None
    if "trains" in experiment.backbone.can:
        if from_store is not None:
            check_store(from_store)
        own_store = check_own_store(experiment, experiment.root / experiment.name)
        store = from_store or own_store
    with TemporaryDirectory() as folder, enter_run_hooks(experiment, Path(folder), services) as started_names:
        addresses = [f"{service.name} at {service.address}" for service in require_services(experiment)]
        service_rows = {"services": "; ".join(addresses) + ": there"} if addresses else {}
        _print_plan(experiment, service_rows, store, overridden_text, gpu=estimated_gpu, needs_tokenizer=here)
    if not started_names:
        return "Nothing was started"
    return f"No process was started except {', '.join(started_names)} (stopped again)"


def _print_plan(
    experiment: Experiment,
    services: dict[str, str],
    store: Address | None,
    overridden: str,
    *,
    gpu: GpuName | None,
    needs_tokenizer: bool,
) -> None:
    """Print what a run would do (model, tasks, steps and estimated cost), then remarks about the settings.

    Args:
        services: Rows on the checked services.
        store: The store of the run, if it has one.
        overridden: Sentence on keys that the backbone's own sections override, or "".
        gpu: GPU for the estimate. None: the CPU.
        needs_tokenizer: False to plan a model of which only the size is known.
    """
    from ajet.rollout.episode import TurnSelector
    from ajet.rollout.isolation import require_isolable

    settings = experiment.ajet
    algorithm, workflow = load_algorithm(experiment), load_workflow(experiment)
    TurnSelector.open(experiment)
    require_isolable(experiment, workflow)
    reader = open_reader(experiment)
    judge = open_judge(experiment, reader_judge=reader.judge)
    training = reader.tasks("train")
    validation = reader.tasks("validation") if reader.has("validation") else []
    tokenizer, no_tokenizer = None, ""
    if settings.rollout.engine != "endpoint":
        tokenizer, no_tokenizer = _open_tokenizer(experiment, is_needed=needs_tokenizer)
    if tokenizer is not None:
        training = drop_overlong(training, settings.data, tokenizer)
        validation = drop_overlong(validation, settings.data, tokenizer) if validation else []
    judge.require_for([*training, *validation])
    judge.let_go()
    epoch_tasks = settings.data.curriculum.count_epoch_tasks(len(training))
    task, epoch_text = training[0], f" ({epoch_tasks} an epoch)" if epoch_tasks != len(training) else ""
    has_protocol = settings.task_judge.judge_type == "customized_protocol"
    rows = {
        "experiment": experiment.name,
        "backbone": settings.backbone,
        "workflow": str(settings.rollout.user_workflow),
        "judge": str((has_protocol and settings.task_judge.judge_protocol) or judge),
        "tasks": f"{len(training)} train{epoch_text}, {len(validation) or 'no'} validation",
        "first task": f"{task.task_id}: {task.main_query[:200]}",
    }
    rows |= _describe_model(experiment, task, tokenizer, no_tokenizer)
    rows |= services | _describe_steps(experiment, len(training), epoch_tasks)
    rows["record"] = str(experiment.root / experiment.name)
    if store is not None:
        rows["store"] = store.shown
    rows |= _estimate_rows(experiment, train=epoch_tasks, validates=bool(validation), gpu=gpu)
    plan = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in rows.items():
        plan.add_row(*row)
    console.print(plan)
    remarks = describe_remarks(
        experiment,
        algorithm,
        train=epoch_tasks,
        validates=bool(validation),
        workflow=None if judge.judges else workflow,
        overlap=find_overlap(training, validation) if validation else None,
    )
    for text in (
        overridden,
        format_idle_keys(experiment.list_idle_keys(), f"on the backbone {settings.backbone}"),
        remarks,
    ):
        if text:
            print_line(text)


def _describe_model(experiment: Experiment, task: Task, tokenizer: Any, no_tokenizer: str) -> dict[str, str]:
    """Return the plan's rows on the model and on the first task's prompt.

    Args:
        task: The first task.
        tokenizer: The model's tokenizer, or None.
        no_tokenizer: Reason why there is no tokenizer, or "" if an endpoint needs none.
    """
    path, endpoint = experiment.ajet.model.path, experiment.ajet.rollout.endpoint
    if no_tokenizer:
        return {"model": f"{path}\nno prompt is rendered or measured, because {no_tokenizer}"}
    if tokenizer is None:
        return {"model": f"{endpoint.model} at {endpoint.base_url}"}
    if (rendered := render_with_tools(experiment, task, tokenizer, start=False)) is not None:
        prompt, tools = rendered[0], f", {rendered[1]}"
    else:
        messages = task.init_messages or [{"role": "user", "content": task.main_query}]
        prompt = make_renderer(experiment.ajet, tokenizer).render(messages)
        tool_workflow = find_tool_workflow(experiment)
        tools = ", without tools: a run starts their servers and counts their tokens" if tool_workflow else ""
    return {"model": str(path), "first prompt": f"{len(prompt.ids)} tokens{tools}\n{prompt.shown}"}


def _describe_steps(experiment: Experiment, train: int, epoch: int) -> dict[str, str]:
    """Return the plan's rows on the episodes of a step, and on the number of steps.

    Args:
        train: Number of training tasks.
        epoch: Number of tasks used in an epoch.
    """
    from ajet.algorithm.staleness import describe_importance_weights
    from ajet.commands.sampling.colocated import count_threads_per_side
    from ajet.engine.machine import resolve_device_kind
    from ajet.record.processors import count_cores

    settings = experiment.ajet
    trainer, batch, episodes = settings.trainer_common, settings.data.train_batch_size, settings.rollout.num_repeat
    rows = {}
    if "trains" not in experiment.backbone.can:
        task_text = counted(min(settings.debug.debug_first_n_tasks, train), "task")
        rows["played"] = f"{task_text} × {counted(episodes, 'episode')}, without training"
    else:
        updates = counted(trainer.mini_batch_num, "update")
        rows["a step"] = f"{counted(batch, 'task')} × {counted(episodes, 'episode')}, {updates}"
        rows["steps"] = _describe_length(settings, epoch)
    if trainer.mode == "async" and experiment.backbone.opens is not None:
        share = ", on one device"
        if resolve_device_kind(trainer.device) == "cpu":
            share = f"; each has {count_threads_per_side(trainer)} threads, of {counted(count_cores(), 'core')}"
        rows["both sides"] = f"a trainer and a sampler work at the same time in separate processes{share}"
    if trainer.mode != "sync":
        rows["stale tokens"] = describe_importance_weights(trainer)
    return rows


def _describe_length(settings: AjetConfig, epoch: int) -> str:
    """Return the plan's text on the number of steps, and on tasks that do not fill a step.

    Args:
        epoch: number of tasks in an epoch.
    """
    trainer, steps = settings.trainer_common, settings.count_steps(epoch)
    task_count = steps * settings.data.train_batch_size
    if trainer.total_training_steps:
        return f"{steps}, which is {task_count / epoch:.1f} epochs of {counted(epoch, 'task')}"
    text = f"{steps}, for {counted(trainer.total_epochs, 'epoch')} of {counted(epoch, 'task')}"
    if extra_tasks := task_count - trainer.total_epochs * epoch:
        text += f"; no task is left out: a step continues into the next epoch, the last one by {extra_tasks}"
    return text


def _open_tokenizer(experiment: Experiment, *, is_needed: bool) -> tuple[Any, str]:
    """Return (tokenizer, ""), or (None, reason) if only the size of the model is known.

    Raises:
        UserError: the tokenizer is needed and missing, or the model is refused for another reason.
    """
    from ajet.engine.models import TOKENIZER_FILES, load_tokenizer

    model = experiment.ajet.model
    assert model.path is not None, "require_ready refuses a missing model.path"
    is_planned = not is_needed and _find_size(experiment) is not None
    try:
        source = locate_model(
            model.path, base=experiment.base, weights=False, trust_remote_code=model.trust_remote_code
        )
    except HubUnreachableError as error:
        if is_planned:
            return None, error.what
        raise
    if is_planned and source.folder and not any((source.folder / name).is_file() for name in TOKENIZER_FILES):
        return None, f"{source.folder} contains no tokenizer"
    return load_tokenizer(source), ""


def _find_size(experiment: Experiment) -> ModelSize | None:
    """Return the model's size by its files, else by its name, or None if neither tells it."""
    path, base = experiment.ajet.model.path, experiment.base
    size, _ = read_size_and_context(path, base)
    if size is None and path is not None and (not is_local(path, base) or (base / path / "config.json").is_file()):
        return parse_size(path)
    return size


def _estimate_rows(experiment: Experiment, *, train: int, validates: bool, gpu: GpuName | None) -> dict[str, str]:
    """Return the plan's rows on memory, disk and time, or {} if the run does not train.

    Args:
        train: Number of training tasks in an epoch.
        validates: True if there are held-out tasks.
        gpu: GPU for the estimate. None: the run uses the CPU.
    """
    if "trains" not in experiment.backbone.can:
        return {}
    settings, trainer = experiment.ajet, experiment.ajet.trainer_common
    size, needs = _find_size(experiment), estimate_needs(experiment, train=train, validates=validates)
    is_sharded = trainer.strategy != "megatron" and trainer.mode != "separate_async" and trainer.device != "cpu"
    rows = {}
    if size is None:
        rows["takes"] = "unknown: the model is not on this machine yet, and its name does not contain its size"
    elif gpu is None:
        rows["memory"] = (
            "not estimated: without a GPU the run uses the CPU; `ajet plan --gpu GPU` estimates a run with GPUs"
        )
    elif experiment.backbone.shares_gpus and is_sharded:
        rows = dict(describe_estimate(size, settings, gpu))
    elif experiment.backbone.opens is None:
        rows["memory"] = f"not estimated: the backbone {settings.backbone} distributes its processes itself"
    elif needs is not None and needs.local is not None:
        rows["memory"] = describe_memory(needs.local, needs.free)
    else:
        weights_text = describe_memory(estimate_footprint(size, settings, wide=settings.model.dtype == "float32"))
        rows["memory"] = f"estimated from the size in the model's name, without activations and cache: {weights_text}"
    estimated_time = rows.pop("time", "")
    if size is not None:
        checkpoint = needs.checkpoint if needs else estimate_checkpoint(size, settings, wide=False)
        at_most = f", at most {needs.checkpoints} at once" if needs else ""
        free = format_bytes(find_disks(experiment)[-1].free)
        rows["disk"] = f"about {format_bytes(checkpoint)} per checkpoint{at_most}; {free} are free"
    if (seconds := read_step_seconds(experiment)) is not None:
        rows["time"] = f"about {format_seconds(seconds)} per step, as in the last steps of the recorded run"
    elif (pace := read_pace(experiment)) is not None:
        rows["time"] = f"a step: {describe_step_time(pace, settings)}; estimated from the last debug run"
    else:
        rows["time"] = (
            estimated_time
            or f"not measured yet; to measure it: {format_start_command(experiment, 'debug') or 'a debug run'}"
        )
    return rows


def require_present(experiment: Experiment) -> tuple[list[str], dict[TaskSplit, int] | None]:
    """Raise UserError if a referenced file, task file or model is missing on this machine.

    No user code is imported, no process started, and no network used.

    Returns:
        Sentences on what was not checked, and the number of tasks per split (None if they are not on this machine).
    """
    from ajet.train.sft.reading import require_sources

    settings, base, folder = experiment.ajet, experiment.base, experiment.root / experiment.name
    reference_paths = [path for path, _, notes in walk_keys(type(settings)) if notes.get("kind") == "reference"]
    references = [
        *((path, get_setting(settings, path)) for path in reference_paths),
        *settings.task_judge.list_judges(),
    ]
    for path, value in references:
        if isinstance(value, str) and is_reference(value):
            check_reference(value, base=base, key=f"ajet.{'.'.join(map(str, path))}")
    if settings.sft.objective is not None:
        require_sources(experiment)
    elif find_part("workflow", settings.rollout.user_workflow):
        load_workflow(experiment)  # this is ajet's own workflow, whose check starts no process
        require_rewards(experiment)
    if settings.sft.objective is None:
        check_functions(experiment)
    unchecked = ["whether the code of workflow and judge works"]
    store = store_address(experiment, folder) if "trains" in experiment.backbone.can else None
    if store is not None and store.path is None:
        unchecked.append(f"the store at {store.shown}")
    elif store is not None:
        check_store(store, made=folder)
    if settings.environment.use:
        unchecked.append("the tools of environment.use")
    task_counts = count_local_tasks(experiment)
    if task_counts is None:
        unchecked.append("the tasks")
    model = settings.model.path
    if settings.rollout.engine == "endpoint":
        unchecked.append("the endpoint")
    elif model is not None and is_local(model, base):
        locate_model(model, base=base, weights=False)
    elif model is not None and model.startswith("embedded:"):
        require_embedded(model.removeprefix("embedded:"))
    elif model is not None:
        refuse_hosted(model)
        unchecked.append(f"whether the Hugging Face hub has {model}")
    return unchecked, task_counts
