"""Scores over tasks, two models side by side: the formulas against what they estimate."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from ajet.commands.evaluation import report
from ajet.commands.evaluation.models import EvaluatedModel
from ajet.commands.evaluation.play import EvaluationResult, ModelScores
from ajet.commands.summary import describe_flips
from ajet.record.attempts import AttemptRecord
from ajet.record.episodes import EpisodeFiles
from ajet.record.scores import Scores, compare, failure_reward, noise_floor, paired_p, pass_at_k
from ajet.schema.episode import Episode, Verdict
from ajet.schema.task import Task


def an_attempt(task, repeat, reward=None, *, failure="", **more):
    success = reward is not None and reward > 0.5
    given = {"judged": True, "left_out": False, "status": "failed" if failure else "completed", **more}
    return AttemptRecord(f"{task}/{repeat}", task, 0, repeat, reward=reward, success=success, failure=failure, **given)


def scores_of(table, **more):
    """By task: the rewards of its attempts, None for a failed one."""
    return Scores(
        [
            an_attempt(task, repeat, reward, failure="" if reward is not None else "agent: ValueError: x")
            for task, rewards in table.items()
            for repeat, reward in enumerate(rewards)
        ],
        **more,
    )


@pytest.mark.parametrize("n, c, k", [(5, 2, 1), (5, 2, 3), (6, 0, 4), (6, 6, 2), (4, 3, 4)])
def test_pass_at_k_is_the_share_of_all_choices_of_k_attempts_with_a_success(n, c, k):
    chosen = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(fmean(map(any, chosen)))


def test_pass_at_k_beyond_the_attempts_is_refused():
    with pytest.raises(ValueError, match="pass@3"):
        pass_at_k(2, 1, 3)


def test_all_tasks_count_failures_too_and_only_our_own_failures_do_not():
    scores = scores_of({"a": [1.0, 0.0], "b": [None, None], "c": [1.0, 1.0]})
    assert scores.pass_rate(1).value == pytest.approx(0.5) and scores.pass_rate(2).value == pytest.approx(2 / 3)
    assert scores.reward == pytest.approx(0.5) and scores.failed == 2 and scores.pass_rate(2).tasks == 3
    ours = an_attempt("d", 0, failure="engine: model_call: gone", left_out=True)
    more = Scores([*scores.attempts, ours])
    assert more.pass_rate(1) == scores.pass_rate(1) and more.left_out == 1 and "d" not in more.by_task


def test_a_failure_is_worth_no_more_than_the_worst_that_was_scored():
    table = {"a": [-2.0], "b": [None], "c": [3.0]}
    lowest = failure_reward(scores_of(table).attempts)
    assert lowest == -2.0 and scores_of(table, lowest=lowest).reward == pytest.approx(-1 / 3)
    assert failure_reward(scores_of({"a": [2.0], "b": [None]}).attempts) == 0.0


def test_tags_are_scored_apart_and_a_task_with_two_counts_for_both():
    attempts = [
        an_attempt("a", 0, 1.0, metadata={"tags": ["easy", "sum"], "level": 1}),
        an_attempt("b", 0, 0.0, metadata={"tag": "hard", "level": 2}),
        an_attempt("c", 0, 0.0, metadata={"tags": ["sum"], "level": 2}),
    ]
    told = {tag: scores.pass_rate(1).value for tag, scores in Scores(attempts).group_by_tag().items()}
    assert told == {"easy": 1.0, "hard": 0.0, "sum": 0.5}
    assert {tag: len(each.by_task) for tag, each in Scores(attempts).group_by_tag(["level"]).items()} == {
        "level=1": 1,
        "level=2": 2,
    }


def test_scorers_that_stages_chose_are_scored_apart_and_shown_with_what_each_gave(capsys, monkeypatch):
    """A row a choice, and the mean of each scorer over those that it gave a score."""
    monkeypatch.setenv("COLUMNS", "160")
    given = [
        ("exact", 1.0, {"exact": 1.0}),
        ("exact", 0.0, {"exact": 0.0}),
        ("f1+exact", 0.5, {"f1": 0.5, "exact": None}),
    ]
    scores = Scores([an_attempt("t", at, reward, scorer=name, parts=parts, seconds=1.0)
                     for at, (name, reward, parts) in enumerate(given)])  # fmt: skip
    assert {name: each.reward for name, each in scores.group_by_scorer().items()} == {"exact": 0.5, "f1+exact": 0.5}
    assert scores.average_by_scorer() == {"exact": (0.5, 2, 3), "f1": (0.5, 1, 1)}
    result = EvaluationResult(
        (ModelScores(EvaluatedModel("m"), Path("r"), scores, {}),), tasks=1, repeats=3, sampling="greedy", seed=0
    )
    report.print_report(result)
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("scorer f1+exact") for line in shown) and "m exact 0.500 2/3" in shown
    assert json.loads(report.dump_json(result))["models"][0]["scorers"]["exact"]["reward"] == 0.5


def test_where_nobody_says_success_there_is_no_pass_rate_and_rewards_are_compared():
    def rewarded(table):
        return Scores([an_attempt(task, 0, reward, judged=False) for task, reward in table.items()])

    before, after = rewarded({"a": 0.1, "b": 0.5, "c": 0.2}), rewarded({"a": 0.4, "b": 0.5, "c": 0.1})
    assert before.pass_rate(1) is None
    found = compare(before, after)
    assert (found.quantity, found.gained, found.lost) == ("reward", ("a",), ("c",))
    assert found.difference == pytest.approx(0.2 / 3)


def test_one_attempt_a_task_is_mcnemars_exact_test():
    before = scores_of({str(task): [float(task < 5)] for task in range(20)})
    after = scores_of({str(task): [float(task < 2 or task >= 12)] for task in range(20)})
    found = compare(before, after)  # 3 lost, 8 gained: 2 * (1 + 11 + 55 + 165) / 2^11
    assert found.test == "exact McNemar test" and found.p == pytest.approx(464 / 2048)
    assert len(found.gained) == 8 and len(found.lost) == 3 and found.noise is None


def test_the_permutation_test_counts_out_all_signs():
    differences = [0.5, 0.25, -0.25, 0.75, 0.0]
    values = [value for value in differences if value]
    reached = [
        abs(sum(s * abs(v) for s, v in zip(signs, values, strict=True))) >= sum(values) - 1e-12
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    p, name = paired_p(differences)
    assert name == "exact permutation test" and p == pytest.approx(fmean(reached))
    assert paired_p([0.0, 0.0]) == (1.0, "no task differs")


def test_beyond_a_few_tasks_signs_are_drawn_by_the_seed():
    draw = random.Random(3)
    differences = [draw.gauss(0.3, 1.0) for _ in range(60)]
    p, name = paired_p(differences, seed=1)
    assert name == "permutation test" and paired_p(differences, seed=1) == (p, name) != paired_p(differences, seed=2)
    t = fmean(differences) / (np.std(differences, ddof=1) / math.sqrt(60))
    assert p == pytest.approx(math.erfc(abs(t) / math.sqrt(2)), abs=0.02)


def test_chance_alone_is_called_a_difference_in_one_of_twenty():
    draw = np.random.default_rng(5)
    called = [paired_p(draw.normal(size=12).round(2).tolist())[0] < 0.05 for _ in range(200)]
    assert 2 <= sum(called) <= 20


def test_the_noise_floor_is_what_two_runs_of_one_model_differ_by():
    draw = np.random.default_rng(11)
    rates = draw.random(40)

    def run():
        return {str(task): (draw.random(4) < rate).astype(float).tolist() for task, rate in enumerate(rates)}

    first = scores_of(run())
    floor = noise_floor(first, list(first.by_task), success=True)
    runs = [fmean(scores_of(run()).solved.values()) for _ in range(200)]
    apart = [abs(one - other) for one, other in zip(runs[::2], runs[1::2], strict=True)]
    assert fmean(each <= floor for each in apart) >= 0.88 and floor == pytest.approx(np.quantile(apart, 0.95), rel=0.35)


def test_the_formula_of_the_floor_is_the_mean_over_all_halves():
    rewards = [0.0, 1.0, 0.5, 0.25]
    halves = [
        (fmean(rewards[i] for i in half) - fmean(rewards[i] for i in range(4) if i not in half)) ** 2
        for half in itertools.combinations(range(4), 2)
    ]
    floor = noise_floor(scores_of({"a": rewards}), ["a"], success=False)
    assert floor == pytest.approx(
        1.959964 * math.sqrt(fmean(halves) / 2)
    )  # runs of the whole length: half the variance


def test_a_runs_end_says_which_held_out_tasks_flipped(tmp_path):
    files = EpisodeFiles(tmp_path / "episodes")
    for step, solved in ((0, {1, 2}), (20, {2, 3, 4})):
        files.write(
            step,
            "validation",
            [
                Episode(f"{step}/{n}", Task(task_id=f"t{n}"), 0, step, "validation", order=n, verdict=Verdict(*won))
                for n in range(6)
                for won in [(float(n in solved), n in solved)]
            ],
        )
    said = describe_flips(files, 0, 20)
    assert said.startswith("2 held-out tasks newly solved, 1 no longer; success +16.7%"), said
    assert "p = 1.000 (exact McNemar test): may be chance" in said
    assert describe_flips(files, 0, 40) is None
    with files.path(0, "validation").open("a") as file:
        file.write("{}\n")
    assert "unknown" in describe_flips(files, 0, 20)


def test_where_nothing_was_scored_no_task_flipped(tmp_path):
    files = EpisodeFiles(tmp_path / "episodes")
    for step in (0, 20):
        attempt = Episode(f"{step}", Task(task_id="t"), 0, step, "validation", order=0, verdict=Verdict(None))
        files.write(step, "validation", [attempt])
    assert describe_flips(files, 0, 20) is None


def test_equal_differences_have_no_interval() -> None:
    before, after = (scores_of({f"t{number}": [reward] for number in range(12)}) for reward in (0.0, 1.0))
    found = compare(before, after)
    assert found is not None and found.error is None and "±" not in found.describe_difference()
