"""The model card of a checkpoint: the model's training and results, from the run's record.

Invariant: every number is in the record, and the card names the place. Missing parts are named as missing. The card
contains no address and no key.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config import AjetConfig, load_recorded_experiment
from ajet.config.record_file import list_record_folder
from ajet.record.console import printable
from ajet.record.curve import MetricCurve, held_out_course, training_course
from ajet.record.evaluations import base_evaluations_of, evaluations_of
from ajet.record.files import read_json, read_rows, write_atomically
from ajet.record.secrets import SHAPES_ONLY
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.record.checkpoint import Checkpoint

CARD_FILE = "model_card.md"
PACKAGES = ("ajet", "torch", "transformers", "peft", "vllm", "verl", "trinity-rft", "agentscope", "aworld")
_FOLDERS = re.compile(r"(?<![\w:/.])/(?:[^/\s]+/)+")
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]*://[^\s'\"\])}>,]+")
SHOWN_POINTS = 12
"""Maximum number of curve points shown in a table."""


def write_card(folder: Path, checkpoint: Checkpoint, target: Path | None = None) -> Path:
    """Write the model card of a checkpoint of the run in `folder`, and return its path.

    Args:
        target: Folder of the card. None: the run's folder.

    Raises:
        UserError: The record cannot be read.
        OSError: The card cannot be written.
    """
    card = (target or folder) / CARD_FILE
    write_atomically(card, SHAPES_ONLY(make_card(folder, checkpoint)))
    return card


def make_card(folder: Path, checkpoint: Checkpoint) -> str:
    """Return the model card of a checkpoint as Markdown, from the record of the run in `folder`.

    Raises:
        UserError: The record cannot be read.
    """
    if not os.path.lexists(folder / "resolved.yaml"):
        title = f"# {flatten_text(folder.name)}, step {checkpoint.step}"
        return f"{title}\n\nThe record has no resolved.yaml, so the settings are unknown.\n"
    settings = load_recorded_experiment(folder / "resolved.yaml").ajet
    metrics = folder / "metrics.jsonl"
    rows = list(read_rows(metrics))
    rows = [row for row in rows if row.get("step", 0) <= checkpoint.step]
    base = flatten_text(settings.model.path)
    sections = [
        f"---\nbase_model: {json.dumps(base)}\nlibrary_name: transformers\ntags: [ajet]\n---",
        f"# {flatten_text(folder.name)}, step {checkpoint.step}",
        (
            f"{base}, trained by ajet: {_describe_training(settings)}. Written {time.strftime('%Y-%m-%d')} from the "
            "record of the run, which is the source of every number below."
        ),
        "## Data\n\n" + _describe_data(settings, rows),
        "## Rewards\n\n" + _describe_rewards(settings),
        "## Curve\n\n" + _describe_curve(rows),
        "## Evaluation\n\n" + _describe_evaluations(folder, checkpoint, settings.model.path),
        "## Versions\n\n" + _list_versions(folder),
    ]
    return "\n\n".join(sections) + "\n"


def _describe_training(settings: AjetConfig) -> str:
    """Return how the model was trained, in one phrase: method, learning rate, batch size, adapters."""
    trainer = settings.trainer_common
    method = settings.sft.objective or f"reinforcement learning ({trainer.algorithm.adv_estimator})"
    rank = trainer.lora.rank
    adapters = f", LoRA of rank {rank} (merged; the adapter itself is in `adapter/`)" if rank else ", all weights"
    if adapter_list := [
        f"{flatten_text(name)} (rank {trainer.lora.resolve_adapter(name).rank})" for name in trainer.lora.adapters
    ]:
        adapters = f", adapters {', '.join(adapter_list)}, each in `adapters/`; the weights are the base model's"
    return f"{method}, learning rate {trainer.optim.lr:g}, {settings.data.train_batch_size} tasks a step{adapters}"


def _describe_data(settings: AjetConfig, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what the model was trained on: files of replies, or the task reader's settings and the number of tasks."""
    if settings.sft.objective is not None:
        source = settings.sft.train_files or f"the run {settings.sft.from_run}"
        source_list = ", ".join(map(flatten_text, source if isinstance(source, list) else [source]))
        return f"Given replies: {source_list}."
    reader = settings.task_reader
    section = getattr(reader, str(reader.type), None)
    values = section.model_dump(mode="json", exclude_none=True) if section is not None else {}
    lines = [f"- {flatten_text(name)}: {flatten_text(value)}" for name, value in _list_leaves(values)]
    count = sum(len(row["tasks"]) for row in rows if isinstance(row.get("tasks"), list))
    return "\n".join(
        [f"Task reader `{flatten_text(reader.type)}`; trained on {count} tasks, counting repetitions.", *lines]
    )


def _describe_rewards(settings: AjetConfig) -> str:
    """Return which judges and scorers gave the rewards, as a Markdown list."""
    if settings.sft.objective is not None:
        return "None: the run trained on given replies."
    judges = [
        f"- {flatten_text(path[-1])}: `{flatten_text(value)}`" for path, value in settings.task_judge.list_judges()
    ]
    return "\n".join(judges) or "The workflow's own reward, or the task reader's judge."


def _describe_curve(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the held-out and the training curve as Markdown tables."""
    tables = [_curve_table(course) for course in (held_out_course(rows), training_course(rows)) if course.points]
    return "\n\n".join(tables) or "The record has no metrics up to this step."


def _curve_table(course: MetricCurve) -> str:
    """Return a curve as a Markdown table of at most `SHOWN_POINTS` points, below a line with its extremes."""
    points = course.points
    values = [value for _, value in points]
    indices = (
        sorted({round(index * (len(points) - 1) / (SHOWN_POINTS - 1)) for index in range(SHOWN_POINTS)})
        if len(points) > 1
        else [0]
    )
    first = values[0]
    last = values[-1]
    highest = max(values)
    lowest = min(values)
    summary = f"First {first:.4g}, last {last:.4g}, highest {highest:.4g}, lowest {lowest:.4g}"
    summary += f", of {len(points)} measurements."
    body = "\n".join(f"| {points[index][0]:g} | {points[index][1]:.4g} |" for index in indices)
    return f"{summary}\n\n| step | {course.label} |\n|---|---|\n{body}"


def _describe_evaluations(folder: Path, checkpoint: Checkpoint, base: str | None) -> str:
    """Return a Markdown list of the evaluations of the checkpoint and of its base model."""
    lines = [
        line
        for name in list_record_folder(folder / "eval")
        for line in describe_evaluation(folder / "eval" / name, name)
    ]
    tuned_evaluations = evaluations_of(folder, checkpoint)
    for evaluation in (*base_evaluations_of(folder, tuned_evaluations, base), *tuned_evaluations):
        if evaluation.folder.parent.parent.resolve() != folder.resolve():
            lines += describe_evaluation(evaluation.folder, "/".join(evaluation.folder.parts[-3:]))
    return "\n".join(lines) or "No evaluation by `ajet eval` is recorded."


def describe_evaluation(folder: Path, name: str) -> Iterator[str]:
    """Yield Markdown lines with the results of the evaluation in `folder`, one for each recorded row.

    Args:
        name: The evaluation's name in the card.
    """
    try:
        about = read_json(folder / "evaluation.json") or {}
        rows = list(read_rows(folder / "metrics.jsonl"))
    except (OSError, ValueError, UserError) as error:
        yield f"- {flatten_text(name)}: its record cannot be read ({type(error).__name__})"
        return
    for row in rows:
        numbers = {key.removeprefix("validation/"): value for key, value in row.items() if key in _EVALUATION_METRICS}
        values = ", ".join(f"{key} {value:.4g}" for key, value in numbers.items() if isinstance(value, (int, float)))
        yield f"- {flatten_text(name)}, {flatten_text(about.get('label') or about.get('model') or 'a model')}: {values}"


_EVALUATION_METRICS = ("validation/success_rate", "validation/reward", "validation/episodes", "validation/tasks")


def _list_versions(folder: Path) -> str:
    """Return a Markdown list of the versions of packages and Python, and of the GPUs, as recorded."""
    try:
        environment = read_json(folder / "environment.json") or {}
    except (OSError, ValueError) as error:
        return f"Not recorded ({type(error).__name__})."
    packages, gpus = environment.get("packages"), environment.get("gpus")
    versions = packages if isinstance(packages, dict) else {}
    lines = [f"- {name} {flatten_text(versions[name])}" for name in PACKAGES if name in versions]
    lines.append(f"- Python {flatten_text(environment.get('python', '')).split(' ')[0]}")
    lines += [f"- {flatten_text(gpu)}" for gpu in (gpus if isinstance(gpus, list) else ())]
    return "\n".join(lines)


def _list_leaves(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of the values in nested mappings; empty and false values are left out."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _list_leaves(value, f"{before}{name}.")
        elif value not in ([], "", False):
            yield f"{before}{name}", value


def flatten_text(value: Any) -> str:
    """Return a value as a line of plain text in Markdown, without addresses and the folders of this machine."""
    line = _FOLDERS.sub("", _ADDRESS.sub("(an address)", " ".join(printable(str(value)).split())))[:300]
    # The record's text must not create a table, code, HTML, an image or a link.
    return line.replace("`", "'").replace("|", "\\|").replace("<", "\\<").replace("](", "] (")
