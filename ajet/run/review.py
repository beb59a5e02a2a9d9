"""A review of the plan: settings that are valid and cannot do what a training is for, said before it costs anything.

Invariant: it refuses nothing, starts nothing and changes nothing. Each finding names the key, where it was set, what
follows from it and a way out. What a YAML alone says is reviewed by `validate`, too; what takes its tasks and its
workflow, by `ajet plan`, `--dry-run` and a launch; these also look at the room on the disk and in memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ajet.config.backbone_names import described
from ajet.config.idle import last_with, users_layers
from ajet.record.console import counted
from ajet.run.footprint import disk_of, gib, memory_words
from ajet.run.room import room_of
from ajet.task_reader.contract import find
from ajet.workflow.function import is_of_function

if TYPE_CHECKING:
    from ajet.algorithm import Algorithm
    from ajet.config import AjetConfig, Experiment
    from ajet.task_reader.contamination import Overlap

SLOWEST, FASTEST, FASTEST_LORA = 1e-8, 1e-3, 1e-2
"""Learning rates of AdamW outside of which nothing moves, or any model comes apart; adapters bear more."""
REPLY = 16
"""Tokens without which a reply is none."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A remark on one setting."""

    key: str
    what: str
    do: str


def review_run(
    experiment: Experiment,
    algorithm: Algorithm | None,
    *,
    train: int,
    validates: bool,
    workflow: type[Any] | None = None,
    judged: bool = True,
    known: Overlap | None = None,
    beside: bool = True,
) -> str:
    """All that is to be said of a plan whose tasks are known, for a screen or a log; "" for nothing. `known`: held-out
    tasks that are trained on. `beside`: with `mode: async` a sampler is on this machine, too. See
    `review_settings`, `review_tasks` and `review_room`."""
    findings = review_settings(experiment.ajet, algorithm)
    findings += review_tasks(experiment, train=train, validates=validates, workflow=workflow, judged=judged)
    findings += review_overlap(experiment, known)
    return review_lines(findings + review_room(experiment, train=train, validates=validates, beside=beside), experiment)


def review_settings(settings: AjetConfig, algorithm: Algorithm | None = None) -> list[Finding]:
    """What is to be said of the YAML alone; nothing where nothing is trained. `algorithm`: the one that it names."""
    return list(_of_settings(settings, algorithm)) if "trains" in described(settings.backbone).can else []


def _of_settings(settings: AjetConfig, algorithm: Algorithm | None) -> Iterator[Finding]:
    rollout, trainer = settings.rollout, settings.trainer_common
    compares = algorithm is not None and "group" in algorithm.needs
    if compares and rollout.num_repeat == 1:
        yield Finding(
            "rollout.num_repeat",
            f"{trainer.algorithm.adv_estimator} compares the attempts at a task with each other, and there is one: no "
            "token gets an advantage",
            "4 or more, or adv_estimator: reinforce_plus_plus",
        )
    rate, lora = trainer.optim.lr, trainer.lora.trains_adapters
    if rate < SLOWEST:
        yield Finding("trainer_common.optim.lr", f"with a learning rate of {rate:g} no weight moves", "1e-6 to 1e-5")
    elif rate > (FASTEST_LORA if lora else FASTEST):
        usual = "1e-5 to 1e-3" if lora else "1e-6 to 1e-5"
        yield Finding(
            "trainer_common.optim.lr",
            f"a learning rate of {rate:g} tears a model apart within a few steps",
            f"{usual}; a model of a few million weights bears 1e-3",
        )
    tasks = settings.data.train_batch_size
    if tasks % trainer.mini_batch_num and "trainer_common.mini_batch_num" not in described(settings.backbone).idle:
        yield Finding(
            "trainer_common.mini_batch_num",
            f"{counted(tasks, 'task')} a step are not dealt out evenly to {trainer.mini_batch_num} updates; verl "
            "refuses such a batch",
            f"a divisor of {tasks}, or another data.train_batch_size",
        )
    room = rollout.max_model_len - settings.data.max_prompt_length
    if room < REPLY:
        yield Finding(
            "rollout.max_model_len",
            f"a prompt of data.max_prompt_length ({settings.data.max_prompt_length}) tokens leaves {max(room, 0)} for "
            "its reply",
            f"more than {settings.data.max_prompt_length + REPLY}, or a smaller data.max_prompt_length",
        )


def review_tasks(
    experiment: Experiment, *, train: int, validates: bool, workflow: type[Any] | None = None, judged: bool = True
) -> list[Finding]:
    """What its tasks say. `train`: how many there are; `validates`: whether the reader has held-out ones; `judged`:
    whether anybody but the workflow gives a reward."""
    if "trains" not in experiment.backbone.can:
        return []
    return list(_of_tasks(experiment, train, validates, None if judged else workflow))


def review_overlap(experiment: Experiment, known: Overlap | None) -> list[Finding]:
    """What held-out tasks that are trained on say."""
    said = known.words() if known is not None else ""
    reader, apart = experiment.ajet.task_reader, ""
    path = reader.huggingface_dat_repo.dataset_path if reader.type == "huggingface_dat_repo" else None
    found = find(path, experiment.base) if path else None
    if found is not None and found.is_file():
        apart = (
            "; a file is one split, by whatever name: split it (training_split: 'train[:90%]', validation_split: "
            "'train[90%:]'), or validate on nothing (validation_split: null)"
        )
    is_lines = reader.type == "jsonl_dataset_file"
    key = "task_reader.jsonl_dataset_file.validation.file_path" if is_lines else "task_reader"
    cure = "other tasks, or none (drop the key)" if is_lines else f"tasks that are held out and not trained on{apart}"
    return [Finding(key, said, cure)] if said else []


def review_room(experiment: Experiment, *, train: int, validates: bool, beside: bool = True) -> list[Finding]:
    """Whether what would be written and held has room here, as far as that can be told beforehand. `beside`: see
    `review_run`."""
    return list(_of_room(experiment, train, validates, beside))


def _of_room(experiment: Experiment, train: int, validates: bool, beside: bool) -> Iterator[Finding]:
    places = disk_of(experiment)
    for place in places:
        if place.refused:
            yield Finding("experiment_dir", place.refused, "a folder that this user may write to (--exp-dir)")
    room = room_of(experiment, train=train, validates=validates)
    if room is None or "trains" not in experiment.backbone.can:
        return
    checkpoints = places[-1]
    if room.disk > checkpoints.free:
        yield Finding(
            "trainer_common.max_checkpoints_to_keep",
            f"checkpoints take about {gib(room.checkpoint)} each, up to {room.at_once} at once, and "
            f"{checkpoints.folder} has {gib(checkpoints.free)} free",
            "fewer, or another disk (trainer_common.checkpoint_base_dir, --exp-dir)",
        )
    if room.local is None or room.memory is None:
        return
    if beside and room.local.peak <= room.memory < room.local.both:
        yield Finding(
            "trainer_common.mode",
            f"trainer and sampler together take about {gib(room.local.both)}: the training {memory_words(room.local)}; "
            f"{gib(room.memory)} are free",
            "sync, where both share one copy of the weights, samplers on another machine (--from-store), or a smaller "
            "max_model_len or max_num_seqs",
        )
    if room.local.peak > room.memory:
        yield Finding(
            "model.path",
            f"training takes {memory_words(room.local)}; {gib(room.memory)} are free",
            "a smaller model, trainer_common.lora.rank: 8, gradient_checkpointing: true, use_kl_loss: false, or a "
            "smaller micro_batch_tokens, max_model_len or max_num_seqs",
        )


def _of_tasks(experiment: Experiment, train: int, validates: bool, workflow: type[Any] | None) -> Iterator[Finding]:
    settings = experiment.ajet
    trainer, batch = settings.trainer_common, settings.data.train_batch_size
    if batch > train:
        least, most = batch // train, -(-batch // train)
        times = f"{least} times" if least == most else f"{least} or {most} times"
        yield Finding(
            "data.train_batch_size",
            f"{counted(batch, 'task')} a step and {train} in the data: each is played {times} within one step, "
            f"{settings.rollout.num_repeat} attempts a time",
            f"at most {train}",
        )
    users = users_layers(experiment.layers)
    asked = [
        name
        for name in ("val_before_train", "test_freq")
        if last_with(("ajet", "trainer_common", name), users) is not None
    ]
    idle = experiment.backbone.idle  # what a backbone never reads is said where settings without an effect are
    asked = [name for name in asked if getattr(trainer, name) > 0 and f"trainer_common.{name}" not in idle]
    if asked and not validates:
        yield Finding(
            f"trainer_common.{asked[0]}",
            "the task reader has no held-out tasks: nothing is measured, and no checkpoint is picked as the best",
            "a validation split of the reader",
        )
    if workflow is not None and not _speaks_of_rewards(workflow):
        yield Finding(
            "task_judge.judge_protocol",
            f"no judge is named, and the code of {workflow.__name__} does not mention a reward: no episode would be "
            "scored",
            "a judge, or WorkflowOutput(reward=…)",
        )


def _speaks_of_rewards(workflow: type[Any]) -> bool:
    """Whether the file that it is written in does; True where that cannot be read, and for a function, for which any
    number that it returns is one."""
    if is_of_function(workflow):
        return True
    try:
        return "reward" in inspect.getsource(inspect.getmodule(workflow) or workflow)
    except (OSError, TypeError):
        return True


def review_lines(findings: Sequence[Finding], experiment: Experiment) -> str:
    """For a screen or a log; "" for nothing."""
    if not findings:
        return ""
    rows = []
    for each in findings:
        where = experiment.layers.where(("ajet", *each.key.split(".")))
        key = where if where.startswith(f"ajet.{each.key}") else f"ajet.{each.key} ({where})"
        rows.append(f"  {key}: {each.what}. Expected: {each.do}.")
    return "\n".join(["Allowed, but probably not meant:", *rows])
