"""The gateway answers every golden request as recorded: bytes, status, headers, and the token ids of each record."""

from __future__ import annotations

import pytest

from tests.support.golden_replay import replay_requests
from tests.support.golden_requests import (
    FEATURES,
    Line,
    count_features,
    diff_answers,
    load_answers,
    load_requests,
)

REQUESTS = load_requests()
SHOWN = 5
"""Differences that a failure shows; `make golden` shows all."""
WITHOUT = {("completions", "images"), ("responses", "n"), ("messages", "n"), ("messages", "logprobs"),
           ("gemini", "logprobs")}  # fmt: skip
"""Features that a dialect does not have: their requests are refused."""


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, list[Line]]]:
    return replay_requests(REQUESTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
def test_answers_are_as_recorded(name: str, answers: dict[str, dict[str, list[Line]]]) -> None:
    diffs = list(diff_answers(name, load_answers(name), answers[name]).values())
    shown = "\n\n".join(diffs[:SHOWN])
    assert not diffs, f'{len(diffs)} answers changed; all: make golden ARGS="--only {name}"\n{shown}'


def test_every_feature_is_covered(answers: dict[str, dict[str, list[Line]]]) -> None:
    assert sum(len(listed) for listed in REQUESTS.values()) >= 200
    table = count_features(REQUESTS, answers)
    missing = [
        (name, feature, "streamed" if streamed else "whole")
        for name, row in table.items()
        for feature in FEATURES
        for streamed in (False, True)
        if not row[feature][streamed] and not (streamed and (name, feature) in WITHOUT)
    ]
    assert not missing
