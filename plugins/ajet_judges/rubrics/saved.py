"""Rubrics on disk: one JSON file with the criteria, their inputs and their agreement.

Invariant: the version is a digest of the examples and all relevant settings, so rubrics of other inputs are never used.
A file is written atomically. People may edit criteria without changing the version.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.record.files import write_atomically
from ajet.schema.errors import UserError
from ajet_judges.config import JudgeKeys
from ajet_judges.rubrics.criterion import Criterion, parse_criteria
from ajet_judges.rubrics.examples import RubricExample
from ajet_judges.rubrics.making import MadeRubrics

if TYPE_CHECKING:
    from ajet.config import Experiment

NAME = "auto_grader.json"
"""File name in a run's folder, from AgentJet."""
FORM = 1
"""Version of the writing procedure; increase if equal examples would give other rubrics."""
BEARS = (
    "grader_mode", "language", "query_specific_generate_number", "enable_categorization", "categories_number",
    "custom_evaluation_prompt", "min_score", "max_score", "success_threshold", "max_epochs", "batch_size",
    "mcr_batch_size", "min_increment_threshold", "patience", "max_iterations", "max_total_rubrics",
)  # fmt: skip
"""Settings included in the version digest."""


@dataclass(frozen=True, slots=True)
class Rubrics:
    """The criteria of a judge, as stored in a file."""

    criteria: tuple[Criterion, ...]
    version: str
    listwise: bool
    content: dict[str, Any]  # content of the file


def compute_version(
    experiment: Experiment, models: Sequence[str], examples: Sequence[RubricExample], held_out: Sequence[RubricExample]
) -> str:
    """Return the digest (16 hex digits) of all inputs from which rubrics are written."""
    settings = JudgeKeys.of(experiment.ajet).rubrics_auto_grader.model_dump(include=set(BEARS))
    content = {
        "form": FORM,
        "settings": settings,
        "models": list(models),
        "seed": experiment.ajet.seed,
        "examples": [example.as_json() for example in examples],
        "held_out": [example.as_json() for example in held_out],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def find_rubrics_file(experiment: Experiment, version: str) -> Path:
    """Return the path of the rubrics: the configured `path`, or a file named by the version next to the runs."""
    settings = JudgeKeys.of(experiment.ajet).rubrics_auto_grader
    if settings.path is not None:
        return experiment.base / settings.path
    name = re.sub(r"\W+", "_", settings.grader_name).strip("_").lower() or "auto_grader"
    return experiment.root / "rubrics" / f"{name}-{version}.json"


def read_rubrics(path: Path) -> Rubrics | None:
    """Return the rubrics of a file, or None without a file. Raises UserError for a malformed file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("form") != FORM:
            raise ValueError(f"its form is {content.get('form')!r:.40}; this version reads {FORM}")
        mode = content["mode"]
        if mode not in ("pointwise", "listwise"):
            raise ValueError(f"its mode is {mode!r:.40}")
        return Rubrics(tuple(parse_criteria(content["rubrics"])), str(content["version"]), mode == "listwise", content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise UserError(
            f"A file of rubrics cannot be used ({type(problem).__name__}: {problem}).",
            where=str(path),
            expected='{"form": 1, "mode": "pointwise", "version": "…", "rubrics": [{"criterion": "…"}, …]}',
            do="correct the file, or delete it to write new rubrics",
        ) from problem


def write_rubrics(
    path: Path, made: MadeRubrics, experiment: Experiment, version: str, models: Sequence[str], examples: int
) -> Rubrics:
    """Write the rubrics file and return its content as `Rubrics`.

    Args:
        made: the criteria with their agreement and cost.
        version: digest of the inputs (`compute_version`).
        models: names of the writing models.
        examples: number of examples.

    Raises:
        UserError: the file cannot be written.
    """
    settings = JudgeKeys.of(experiment.ajet).rubrics_auto_grader
    content = {
        "form": FORM,
        "grader_name": settings.grader_name,
        "version": version,
        "mode": settings.grader_mode,
        "scale": [settings.min_score, settings.max_score],
        "models": list(models),
        "rubrics": [
            {
                "criterion": criterion.text,
                "weight": criterion.weight,
                **({"category": criterion.category} if criterion.category else {}),
            }
            for criterion in made.criteria
        ],
        "examples": examples,
        "measured_on": f"{made.held_out} held out" if made.held_out else "the examples from which they were written",
        "before": made.before.as_json(),
        "after": made.after.as_json(),
        "stopped": made.stopped,
        "history": made.history,
        "dropped": made.dropped,
        "calls": made.calls,
        "cost": made.cost,
    }
    write_file(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return Rubrics(tuple(made.criteria), version, settings.grader_mode == "listwise", content)


def write_file(path: Path, text: str) -> None:
    """Write a rubrics file atomically, with its folder. Raises UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text, sync=True)
    except OSError as error:
        raise UserError(
            f"The rubrics cannot be stored: {error}.", where=str(path), do="make its folder writable"
        ) from error
