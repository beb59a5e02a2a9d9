"""Intervals of what is held out, and which measurement is the better one: over all tasks, and not by chance."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.commands.summary import RunTally
from ajet.record.checkpoints import Checkpoints
from ajet.record.held_out import Measurement, format_short_validation, format_validation
from ajet.record.intervals import exceeds_noise, half_width, plus_minus, t_quantile, wilson
from ajet.schema.episode import Failure, Group, Verdict
from ajet.schema.task import Task
from ajet.train.accounting import episode_metrics, interval_metrics, measurement_of, pass_metrics
from tests.train.test_accounting import an_episode

REWARDS = st.floats(-5, 5, allow_nan=False).map(lambda value: round(value, 3))


def failed(boundary="agent", *, own=False, **more):
    return an_episode(None, status="failed", failure=Failure(boundary, "x", "y", own=own), **more)


def groups_of(*rows):
    return [Group(Task(task_id=f"t{order}"), order, list(row)) for order, row in enumerate(rows)]


@given(st.integers(1, 2000), st.data())
def test_a_rate_lies_in_its_interval_and_more_tasks_narrow_it(count, data):
    rate = data.draw(st.integers(0, count)) / count
    low, high = wilson(rate, count)
    assert 0 <= low <= rate <= high <= 1 and high > low
    wider_low, wider_high = wilson(rate, max(1, count // 2))
    assert high - low <= wider_high - wider_low + 1e-12


def test_the_intervals_hold_what_they_say():
    draw, held = random.Random(7), [0, 0]
    for _ in range(1000):
        rate = draw.random()
        low, high = wilson(sum(draw.random() < rate for _ in range(40)) / 40, 40)
        held[0] += low <= rate <= high
        values = [draw.gauss(1.0, 2.0) for _ in range(8)]
        held[1] += abs(sum(values) / 8 - 1.0) <= (half_width(values) or 0)
    assert all(930 <= each <= 970 for each in held), held


@pytest.mark.parametrize(("freedom", "exact"), [(1, 12.706), (30, 2.042), (31, 2.0395), (60, 2.0003), (1000, 1.9623)])
def test_students_quantiles(freedom, exact):
    assert t_quantile(freedom) == pytest.approx(exact, abs=6e-4)


@given(st.lists(REWARDS, max_size=30))
def test_noise_is_the_same_in_both_directions_and_nothing_beats_itself(differences):
    assert not (exceeds_noise(differences) and exceeds_noise([-value for value in differences]))
    measured = Measurement({str(at): (value,) for at, value in enumerate(differences)})
    assert not measured.beats(measured)


def test_a_clear_gain_exceeds_noise_and_a_single_task_never_does():
    assert exceeds_noise([1.0] * 20) and exceeds_noise([1.0] * 10 + [0.0] * 20)
    assert not exceeds_noise([1.0]) and not exceeds_noise([1.0] + [0.0] * 40) and not exceeds_noise([])


def test_of_equally_good_policies_the_first_mostly_stays():
    """Twenty validations of the same policy: the best of them is luck, and is picked rarely."""
    draw, replaced = random.Random(3), 0
    for _ in range(50):
        first = Measurement({str(task): (float(draw.random() < 0.7),) for task in range(32)})
        again = Measurement({str(task): (float(draw.random() < 0.7),) for task in range(32)})
        replaced += again.beats(first)
    assert replaced <= 4


@given(st.lists(st.one_of(st.none(), REWARDS), min_size=1, max_size=20), st.data())
def test_failing_never_raises_a_score(rewards, data):
    before = Measurement({str(at): (value,) for at, value in enumerate(rewards)})
    scored = [at for at, value in enumerate(rewards) if value is not None]
    if len(scored) < 2:
        return
    at = data.draw(st.sampled_from(scored))
    lowest = min(value for value in rewards if value is not None)
    rest = [value for place, value in enumerate(rewards) if value is not None and place != at]
    if rewards[at] == lowest and min(rest) > lowest and lowest < 0:
        return  # what a failure is worth is read off the others
    after = Measurement({**before.attempts, str(at): (None,)})
    assert after.score is not None and before.score is not None and after.score <= before.score + 1e-9
    assert not after.beats(before)


@pytest.mark.parametrize(("other", "score"), [(0.0, (0.5 + 0.5) / 2), (-1.0, (0.0 + 0.0) / 2)])
def test_a_failed_attempt_counts_among_those_of_its_task(other, score):
    """As 0, or as the lowest reward there is."""
    tasks = {"half failed": (1.0, None), "half right": (1.0, other)}
    assert Measurement(tasks).score == score
    right = Measurement({**tasks, "half failed": (1.0, 1.0)})
    assert right.score is not None and right.score > score


def test_an_agent_that_fails_where_it_is_wrong_is_not_better_by_it():
    """64 tasks, 1 right: whoever raises on the other 63 has a mean of 1 over the one that is left."""
    raises = groups_of([an_episode(1.0, True)], *([failed()] for _ in range(63)))
    metrics = episode_metrics([e for group in raises for e in group.episodes], "validation")
    metrics |= interval_metrics(raises, "validation") | {"validation/tasks": 64}
    assert metrics["validation/success_rate"] == 1 / 64 and metrics["validation/success_high"] < 0.1
    assert "1 of 64 scored" in format_validation(metrics) and "63 failed" in format_validation(metrics)
    honest = groups_of([an_episode(1.0, True)], *([an_episode(0.0, False)] for _ in range(63)))
    assert measurement_of(raises).score == measurement_of(honest).score == 1 / 64
    assert (
        RunTally.from_rows([metrics]).held_out_failed == 63
        and "63 held-out episodes failed" in RunTally.from_rows([metrics]).describe_counts()
    )


def test_only_what_ajet_failed_at_is_left_out_and_much_of_it_is_no_measurement():
    episodes = [an_episode(1.0, True)] * 18 + [failed("tool"), failed("engine", own=True)]
    metrics = episode_metrics(episodes, "validation")
    assert metrics["validation/success_rate"] == 18 / 19 and metrics["validation/left_out"] == 1
    assert "5.0% left out" in format_validation(metrics)
    assert measurement_of(groups_of(*([e] for e in episodes))).score == 18 / 19
    more = [*episodes, failed("judge", own=True)]
    assert measurement_of(groups_of(*([e] for e in more))).score is None
    assert not failed("engine").left_out, "an exception of the user's code, whatever it calls itself"


def test_no_score_is_no_success():
    undecided = replace(an_episode(1.0), verdict=Verdict(None))
    assert episode_metrics([undecided, an_episode(1.0, True)], "validation")["validation/success_rate"] == 0.5


def test_pass_at_n_counts_failed_attempts():
    groups = groups_of([an_episode(1.0, True), failed()], [failed(), failed()])
    metrics = pass_metrics(groups, "validation") | interval_metrics(groups, "validation")
    assert (metrics["validation/pass@2"], metrics["validation/all@2"]) == (0.5, 0.0)
    assert metrics["validation/pass@2_low"] < 0.5 < metrics["validation/pass@2_high"]


def test_pass_at_n_is_over_the_tasks_that_have_n_attempts():
    """One that ajet itself failed at leaves a task with fewer: in it every one succeeds more often, any less."""
    lacks = failed("engine", own=True)
    groups = groups_of(
        [an_episode(1.0, True), lacks], [an_episode(1.0, True), failed()], [failed(), lacks], [lacks] * 2
    )
    metrics = pass_metrics(groups, "validation") | interval_metrics(groups, "validation")
    assert (metrics["validation/pass@2"], metrics["validation/all@2"]) == (1.0, 0.0)
    assert (metrics["validation/pass@2_low"], metrics["validation/pass@2_high"]) == wilson(1.0, 1)


def measured(*rewards):
    return Measurement({str(at): (value,) for at, value in enumerate(rewards)})


def test_a_later_checkpoint_is_best_only_where_it_is_better_than_chance(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)

    def write(folder):
        (folder / "weights").write_bytes(b"w")

    def best():
        found = checkpoints.best()
        return found and found.step

    checkpoints.save(1, write, {}, measured=measured(*[0.0] * 10, *[1.0] * 10))
    checkpoints.save(2, write, {}, measured=measured(*[0.0] * 9, *[1.0] * 11))
    assert best() == 1, "one task more is chance"
    checkpoints.save(3, write, {}, measured=measured(*[1.0] * 20))
    checkpoints.save(4, write, {}, measured=Measurement({"0": (1.0,)}, left_out=0.2))
    checkpoints.save(5, write, {})
    assert best() == 3 and sorted(path.name for path in tmp_path.iterdir()) == ["step-3", "step-5"]


@given(st.floats(-1e6, 1e6), st.integers(2, 20))
@settings(max_examples=50)
def test_equal_values_have_no_interval(value: float, count: int) -> None:
    assert half_width([value] * count) is None
    assert half_width([value, value * (1 + 1e-15)]) is None


@given(st.floats(0, 1e3), st.sampled_from([".0%", ".2g", ".3f", ".2f"]))
def test_interval_is_never_printed_as_zero(error: float, form: str) -> None:
    shown = plus_minus(error, form)
    assert (shown == "") == (error == 0)
    assert not shown or any(digit in shown for digit in "123456789")


def test_equal_rewards_print_no_interval() -> None:
    numbers = {"validation/tasks": 12, "validation/reward": 1.0, "validation/scored": 12, "validation/episodes": 12,
               "validation/success_rate": 1.0, "validation/success_low": 0.76,
               "validation/success_high": 1.0}  # fmt: skip
    assert "±" not in format_validation(numbers) and "76%" in format_validation(numbers)
    for error, printed in ((1e-5, "±"), (0.0, "")):
        assert ("±" in format_validation(numbers | {"validation/reward_error": error})) == bool(printed)
        assert ("±" in (format_short_validation(numbers | {"validation/reward_error": error}) or "")) == bool(printed)
