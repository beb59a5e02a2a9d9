"""Measures how well grades agree with people's labels.

Invariant: pure functions. 1 is full agreement, and an answer without a grade never agrees. Rubrics must exceed the
agreement of the best constant grade (the floor).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ajet.record.intervals import Cells, cells_of, kappa, kappa_interval
from ajet_judges.rubrics.examples import RubricExample

Scores = Sequence[Sequence[float | None]]
"""Scores by example and answer, from 0 to 1; None: no score."""


@dataclass(frozen=True, slots=True)
class LabelAgreement:
    """The agreement of grades with labels over all examples."""

    share: float
    """Pointwise: 1 - mean distance from the label, as a share of the scale. Listwise: share of pairs in the right
    order."""
    cells: Cells
    """Pointwise: (label, grade) at least the success threshold. Listwise: for each pair in file order, whether the
    first is better."""
    undecided: int
    total: int

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa; None if chance alone agrees fully, or without decided examples."""
        return kappa(self.cells) if sum(self.cells) else None

    def as_json(self) -> dict[str, object]:
        """Return share, kappa with its interval, cells and counts as JSON values for the rubrics file."""
        low, high = kappa_interval(self.cells) if sum(self.cells) else (None, None)
        return {"share": self.share, "kappa": self.kappa, "kappa_low": low, "kappa_high": high,
                "cells": list(self.cells), "undecided": self.undecided, "total": self.total}  # fmt: skip


def measure_agreement(
    examples: Sequence[RubricExample], scores: Scores, *, listwise: bool, mark: float = 0.5
) -> LabelAgreement:
    """Return the agreement of scores with labels.

    Args:
        scores: for each example, a score from 0 to 1 per answer; None for no grade.
        listwise: True if examples are ranked answers.
        mark: score from which an answer counts as a success.
    """
    if listwise:
        return _measure_pairs(examples, scores)
    labelled = [
        (example.answers[0].label, example_scores[0]) for example, example_scores in zip(examples, scores, strict=True)
    ]
    closeness = [0.0 if score is None else 1.0 - abs(score - label) for label, score in labelled]
    decided = [(label >= mark, score >= mark) for label, score in labelled if score is not None]
    return LabelAgreement(
        fmean(closeness) if closeness else 0.0, cells_of(decided), len(labelled) - len(decided), len(labelled)
    )


def measure_floor(examples: Sequence[RubricExample], *, listwise: bool) -> float:
    """Return the agreement that the best constant grade reaches, from 0 to 1; the median label is that grade."""
    if listwise:
        return 0.5  # equal scores for all: each pair counts as half right
    labels = [example.answers[0].label for example in examples]
    median_label = median(labels) if labels else 0.0
    return fmean(1.0 - abs(median_label - label) for label in labels) if labels else 0.0


def _measure_pairs(examples: Sequence[RubricExample], scores: Scores) -> LabelAgreement:
    """Return the agreement over all pairs of answers of an example with different labels.

    A pair in the right order counts 1, equal scores 0.5, a missing score 0.
    """
    pair_scores, decided = [], []
    for example, example_scores in zip(examples, scores, strict=True):
        for first_index, second_index in itertools.combinations(range(len(example_scores)), 2):
            labels = example.answers[first_index].label, example.answers[second_index].label
            if labels[0] == labels[1]:
                continue
            first, second = example_scores[first_index], example_scores[second_index]
            if first is None or second is None:
                pair_scores.append(0.0)
                continue
            pair_scores.append(0.5 if first == second else float((first > second) == (labels[0] > labels[1])))
            if first != second:
                decided.append((labels[0] > labels[1], first > second))
    return LabelAgreement(
        fmean(pair_scores) if pair_scores else 0.0, cells_of(decided), len(pair_scores) - len(decided), len(pair_scores)
    )
