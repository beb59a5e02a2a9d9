"""Remarks on valid settings that defeat the purpose of a training, made before the training costs anything.

Invariant: a remark refuses, starts and changes nothing. A remark names the key, the place of its definition, the
consequence and a way out. `config validate` reviews the YAML alone; a plan and a launch also review tasks, disk and
memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ajet.config.backbones import find_backbone
from ajet.config.idle import find_last_layer, list_user_layers
from ajet.record.console import counted, format_bytes
from ajet.task_reader.contract import find_path
from ajet.train.footprint import REPLY, describe_memory, estimate_needs, find_disks
from ajet.workflow.function import is_of_function

if TYPE_CHECKING:
    from ajet.algorithm import Algorithm
    from ajet.config import AjetConfig, Experiment
    from ajet.task_reader.contamination import TaskOverlap

SLOWEST, FASTEST, FASTEST_LORA = 1e-8, 1e-3, 1e-2
"""Learning rates: below `SLOWEST` no weight moves, above `FASTEST` (adapters: `FASTEST_LORA`) a model diverges."""


class PlanRemark(NamedTuple):
    """A remark on a valid setting that defeats the purpose of a training."""

    key: str
    what: str
    do: str


def describe_remarks(
    experiment: Experiment,
    algorithm: Algorithm | None,
    *,
    train: int,
    validates: bool,
    workflow: type[Any] | None = None,
    overlap: TaskOverlap | None = None,
    is_colocated: bool = True,
) -> str:
    """Return the text of all remarks on a plan with known tasks, for a screen or a log.

    Args:
        algorithm: The algorithm of the training. None: not known yet.
        train: the number of training tasks.
        validates: True if held-out tasks exist.
        workflow: the class responsible for rewards. None: a judge is responsible.
        overlap: Held-out tasks that are also training tasks. None: no overlap is known.
        is_colocated: True if, with `mode: async`, a sampler runs on this machine, too.
    """
    remarks = [
        *review_settings(experiment.ajet, algorithm),
        *review_tasks(experiment, train=train, validates=validates, workflow=workflow),
        *review_overlap(experiment, overlap),
        *review_machine(experiment, train=train, validates=validates, is_colocated=is_colocated),
    ]
    return format_remarks(remarks, experiment)


def format_remarks(remarks: Iterable[PlanRemark], experiment: Experiment) -> str:
    """Return the remarks with the places of their keys, or "" without remarks."""
    rows = []
    for key, problem, do in remarks:
        location = experiment.layers.locate(("ajet", *key.split(".")))
        key_place = location if location.startswith(f"ajet.{key}") else f"ajet.{key} ({location})"
        rows.append(f"\n  {key_place}: {problem}. Expected: {do}.")
    return "".join(["These settings are allowed, but probably not intended:", *rows]) if rows else ""


def review_settings(settings: AjetConfig, algorithm: Algorithm | None = None) -> Iterator[PlanRemark]:
    """Yield remarks on the YAML alone, if the backbone trains."""
    rollout, trainer, backbone = settings.rollout, settings.trainer_common, find_backbone(settings.backbone)
    if "trains" not in backbone.can:
        return
    if algorithm is not None and "group" in algorithm.needs and rollout.num_repeat == 1:
        yield PlanRemark(
            "rollout.num_repeat",
            f"{trainer.algorithm.adv_estimator} compares the attempts at a task, but each task has only one "
            "attempt, so no token gets an advantage",
            "4 or more, or adv_estimator: reinforce_plus_plus",
        )
    key, rate, lora = "trainer_common.optim.lr", trainer.optim.lr, trainer.lora.trains_adapters
    if rate < SLOWEST:
        yield PlanRemark(key, f"with a learning rate of {rate:g} the weights do not change", "1e-6 to 1e-5")
    elif rate > (FASTEST_LORA if lora else FASTEST):
        usual = "1e-5 to 1e-3" if lora else "1e-6 to 1e-5"
        yield PlanRemark(
            key,
            f"with a learning rate of {rate:g} a model diverges within a few steps",
            f"{usual}; a model of a few million weights tolerates 1e-3",
        )
    key, tasks = "trainer_common.mini_batch_num", settings.data.train_batch_size
    if tasks % trainer.mini_batch_num and key not in backbone.idle:
        yield PlanRemark(
            key,
            f"{counted(tasks, 'task')} per step cannot be split evenly into {trainer.mini_batch_num} updates; "
            "verl refuses such a batch",
            f"a divisor of {tasks}, or another data.train_batch_size",
        )
    prompt = settings.data.max_prompt_length
    if (reply_room := rollout.max_model_len - prompt) < REPLY:
        yield PlanRemark(
            "rollout.max_model_len",
            f"a prompt of data.max_prompt_length ({prompt}) tokens leaves {max(reply_room, 0)} tokens for its reply",
            f"more than {prompt + REPLY}, or a smaller data.max_prompt_length",
        )


def review_tasks(
    experiment: Experiment, *, train: int, validates: bool, workflow: type[Any] | None = None
) -> Iterator[PlanRemark]:
    """Yield remarks on tasks and workflow, if the backbone trains.

    Args:
        train: The number of training tasks.
        validates: True if held-out tasks exist.
        workflow: The class responsible for rewards. None: a judge is responsible.
    """
    if "trains" not in experiment.backbone.can:
        return
    trainer, batch = experiment.ajet.trainer_common, experiment.ajet.data.train_batch_size
    if batch > train:
        fewest_times, most_times = batch // train, -(-batch // train)
        times = f"{fewest_times} times" if fewest_times == most_times else f"{fewest_times} or {most_times} times"
        yield PlanRemark(
            "data.train_batch_size",
            f"a step has {counted(batch, 'task')}, but the data have only {train}: each task runs {times} within "
            f"one step, with {experiment.ajet.rollout.num_repeat} attempts each time",
            f"at most {train}",
        )
    user_layers, idle = list_user_layers(experiment.layers), experiment.backbone.idle
    for name in () if validates else ("val_before_train", "test_freq"):
        is_set = (
            find_last_layer(("ajet", "trainer_common", name), user_layers) is not None and getattr(trainer, name) > 0
        )
        if is_set and f"trainer_common.{name}" not in idle:
            yield PlanRemark(
                f"trainer_common.{name}",
                "the task reader has no held-out tasks: the run has no validation, and cannot choose the best "
                "checkpoint",
                "a validation split of the reader",
            )
            break
    if workflow is not None and not _mentions_rewards(workflow):
        yield PlanRemark(
            "task_judge.judge_protocol",
            f"no judge is set, and the code of {workflow.__name__} does not mention a reward: no episode would "
            "be scored",
            "a judge, or WorkflowOutput(reward=…)",
        )


def _mentions_rewards(workflow: type[Any]) -> bool:
    """Return True if the workflow's file mentions rewards or cannot be read.

    Also True for a workflow made from a function, because its returned number is the reward.
    """
    try:
        return is_of_function(workflow) or "reward" in inspect.getsource(inspect.getmodule(workflow) or workflow)
    except (OSError, TypeError):
        return True


def review_overlap(experiment: Experiment, known: TaskOverlap | None) -> Iterator[PlanRemark]:
    """Yield a remark if held-out tasks are also training tasks.

    Args:
        known: Held-out tasks that are also training tasks. None: no overlap is known.
    """
    reader = experiment.ajet.task_reader
    if known is None or not (overlap := known.words()):
        return
    if reader.type == "jsonl_dataset_file":
        key = "task_reader.jsonl_dataset_file.validation.file_path"
        yield PlanRemark(key, overlap, "other tasks, or no validation tasks (delete the key)")
        return
    do, path = "validation tasks that the run does not train on", reader.huggingface_dat_repo.dataset_path
    file = find_path(path, experiment.base) if path and reader.type == "huggingface_dat_repo" else None
    if file is not None and file.is_file():
        do += (
            "; a single file is one split, whatever its name: split it (training_split: 'train[:90%]', "
            "validation_split: 'train[90%:]'), or run no validation (validation_split: null)"
        )
    yield PlanRemark("task_reader", overlap, do)


def review_machine(
    experiment: Experiment, *, train: int, validates: bool, is_colocated: bool = True
) -> Iterator[PlanRemark]:
    """Yield remarks on disk and memory of this machine, if they do not suffice for the run.

    Args:
        train: The number of training tasks.
        validates: True if held-out tasks exist.
        is_colocated: True if, with `mode: async`, a sampler runs on this machine, too.
    """
    disks = find_disks(experiment)
    for disk in disks:
        if disk.refused:
            yield PlanRemark("experiment_dir", disk.refused, "a folder that this user may write to (--exp-dir)")
    needs = estimate_needs(experiment, train=train, validates=validates)
    if needs is None or "trains" not in experiment.backbone.can:
        return
    if needs.checkpoint * needs.checkpoints > disks[-1].free:
        yield PlanRemark(
            "trainer_common.max_checkpoints_to_keep",
            f"checkpoints take about {format_bytes(needs.checkpoint)} each, up to {needs.checkpoints} exist at "
            f"the same time, and {disks[-1].folder} has {format_bytes(disks[-1].free)} free",
            "fewer checkpoints, or another disk (trainer_common.checkpoint_base_dir, --exp-dir)",
        )
    local, free = needs.local, needs.free
    if local is None or free is None:
        return
    memory = describe_memory(local, free)
    if local.peak > free:
        yield PlanRemark(
            "model.path",
            f"training needs {memory}",
            "a smaller model, trainer_common.lora.rank: 8, gradient_checkpointing: true, use_kl_loss: false, or a "
            "smaller micro_batch_tokens, max_model_len or max_num_seqs",
        )
    elif is_colocated and local.both > free:
        yield PlanRemark(
            "trainer_common.mode",
            f"trainer and sampler together need about {format_bytes(local.both)}: the training {memory}",
            "sync, where both share one copy of the weights; or samplers on another machine (--from-store), or a "
            "smaller max_model_len or max_num_seqs",
        )
