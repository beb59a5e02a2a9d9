"""Rewards are read by Harbor's rules: a finite number, or a failure of the judge."""

from __future__ import annotations

import pytest

from ajet.schema.errors import JudgeFailure
from ajet_containers.harbor.verifier import choose_reward, parse_rewards


@pytest.mark.parametrize(
    ("content", "rewards"),
    [
        (b'{"reward": 0.5, "style": 1}', {"reward": 0.5, "style": 1.0}),
        (b'{"passed": true}', {"passed": 1.0}),
    ],
)
def test_a_json_file_has_rewards_by_name(content: bytes, rewards: dict[str, float]) -> None:
    assert parse_rewards(content, is_json=True) == rewards


def test_a_text_file_has_one_number() -> None:
    assert parse_rewards(b" 0.25\n", is_json=False) == {"reward": 0.25}


@pytest.mark.parametrize("content", [b"", b"1", b"[1]", b"{}", b"{", b'{"a": "1"}', b'{"a": NaN}', b'{"a": 1e999}',
                                     b'{"a": null}', b"\xff", b'{"a": 1' + b"0" * 400 + b"}"])  # fmt: skip
def test_json_without_finite_numbers_is_no_reward(content: bytes) -> None:
    with pytest.raises(JudgeFailure):
        parse_rewards(content, is_json=True)


@pytest.mark.parametrize("content", [b"", b"nan", b"inf", b"one", b"1 2", b"\xff"])
def test_text_without_a_finite_number_is_no_reward(content: bytes) -> None:
    with pytest.raises(JudgeFailure):
        parse_rewards(content, is_json=False)


def test_the_reward_is_named_or_the_only_one() -> None:
    assert (choose_reward({"a": 0.0, "reward": 1.0}), choose_reward({"a": 0.5})) == (1.0, 0.5)
    with pytest.raises(JudgeFailure, match="a, b"):
        choose_reward({"a": 1.0, "b": 0.0})
