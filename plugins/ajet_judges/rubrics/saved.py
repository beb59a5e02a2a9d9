"""Rubrics on the disk: one JSON file, with what they were made of and how well they agree.

Invariant: the version is the digest of the examples and of every setting that bears on them, so that what was made of
others is never taken for them; a file is written whole. People may edit the criteria: the version stays.
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
"""In a run's folder, as AgentJet calls it."""
FORM = 1
"""Of how they are made: grows where the same examples would give others."""
BEARS = (
    "grader_mode", "language", "query_specific_generate_number", "enable_categorization", "categories_number",
    "custom_evaluation_prompt", "min_score", "max_score", "success_threshold", "max_epochs", "batch_size",
    "mcr_batch_size", "min_increment_threshold", "patience", "max_iterations", "max_total_rubrics",
)  # fmt: skip
"""Keys of the section that a version is made of."""


@dataclass(frozen=True, slots=True)
class Rubrics:
    """The criteria that a judge grades by, and their version."""

    criteria: tuple[Criterion, ...]
    version: str
    listwise: bool
    content: dict[str, Any]
    """The file."""


def compute_version(
    experiment: Experiment, models: Sequence[str], examples: Sequence[RubricExample], held_out: Sequence[RubricExample]
) -> str:
    """The version of the rubrics that would be made."""
    settings = JudgeKeys.of(experiment.ajet).rubrics_auto_grader.model_dump(include=set(BEARS))
    content = {
        "form": FORM,
        "settings": settings,
        "models": list(models),
        "seed": experiment.ajet.seed,
        "examples": [each.as_json() for each in examples],
        "held_out": [each.as_json() for each in held_out],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def find_rubrics_file(experiment: Experiment, version: str) -> Path:
    """The file where rubrics are kept: `path`, else beside the runs, by version."""
    settings = JudgeKeys.of(experiment.ajet).rubrics_auto_grader
    if settings.path is not None:
        return experiment.base / settings.path
    name = re.sub(r"\W+", "_", settings.grader_name).strip("_").lower() or "auto_grader"
    return experiment.root / "rubrics" / f"{name}-{version}.json"


def read_rubrics(path: Path) -> Rubrics | None:
    """The rubrics in a file; None where there is none. Raises UserError for one that holds no rubrics."""
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
            do="mend it, or remove it: they are made again",
        ) from problem


def write_rubrics(
    path: Path, made: MadeRubrics, experiment: Experiment, version: str, models: Sequence[str], examples: int
) -> Rubrics:
    """Raises UserError where it cannot be written."""
    settings = JudgeKeys.of(experiment.ajet).rubrics_auto_grader
    content = {
        "form": FORM,
        "grader_name": settings.grader_name,
        "version": version,
        "mode": settings.grader_mode,
        "scale": [settings.min_score, settings.max_score],
        "models": list(models),
        "rubrics": [
            {"criterion": each.text, "weight": each.weight, **({"category": each.category} if each.category else {})}
            for each in made.criteria
        ],
        "examples": examples,
        "measured_on": f"{made.held_out} held out" if made.held_out else "the examples they were made of",
        "before": made.before.as_json(),
        "after": made.after.as_json(),
        "stopped": made.stopped,
        "history": made.history,
        "dropped": made.dropped,
        "calls": made.calls,
        "cost": made.cost,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n", sync=True)
    except OSError as error:
        raise UserError(
            f"The rubrics cannot be kept: {error}.", where=str(path), do="make its folder writable"
        ) from error
    return Rubrics(tuple(made.criteria), version, settings.grader_mode == "listwise", content)


def make_write_error(path: Path, error: OSError) -> UserError:
    """The error where rubrics cannot be written."""
    return UserError(f"The rubrics cannot be kept: {error}.", where=str(path), do="make its folder writable")
