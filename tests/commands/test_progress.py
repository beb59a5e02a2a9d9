"""What the screen says of a step's time, from its first episodes."""

from __future__ import annotations

from ajet.commands.progress import StepEstimate


def test_first_quarter_of_episodes_estimates_the_step() -> None:
    estimate = StepEstimate(episodes=32, at_once=64)
    lines = [estimate.add_episode(2.0 * (number + 1)) for number in range(32)]
    (line,) = filter(None, lines)
    assert lines.index(line) == 7
    assert "about 2 min:" in line
    assert "64 s for 32 episodes" in line


def test_estimate_waits_for_the_first_wave() -> None:
    estimate = StepEstimate(episodes=128, at_once=4)
    lines = [estimate.add_episode(10.0) for _ in range(8)]
    assert [bool(line) for line in lines] == [False] * 3 + [True] + [False] * 4


def test_short_step_is_not_estimated() -> None:
    estimate = StepEstimate(episodes=8, at_once=8)
    assert not any(estimate.add_episode(0.1 * number) for number in range(1, 9))
