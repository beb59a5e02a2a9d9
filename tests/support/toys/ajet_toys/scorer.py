"""A number that differs between most replies."""

from __future__ import annotations


def count_letters(model_answer, ground_truth):
    return float(sum(map(ord, model_answer))), True
