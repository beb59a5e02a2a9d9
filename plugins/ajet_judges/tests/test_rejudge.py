"""`ajet rejudge`: recorded episodes under a judge, with nothing played and nothing overwritten."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.algorithm import assign_credit
from ajet.config import Experiment
from ajet.record import EpisodeFiles
from ajet.schema.episode import Failure, Group, Outcome, Verdict
from ajet.schema.errors import UserError
from ajet_judges.cli.judge import compare
from ajet_judges.cli.rejudge import rejudge
from ajet_judges.judging.rejudge import RejudgedRun, find_recorded_run, open_run_judge
from ajet_judges.judging.rejudge import rejudge_run as judged
from ajet_judges.judging.what_if import StepRewards
from tests.support.judge_fixtures import judge_server, ranks, says
from tests.support.record_fixtures import episode, failed

JUDGE = """
def strict(task, output):
    if output.metadata["final_answer"] == "stumble":
        raise KeyError("a judge that stumbles")
    return float(output.metadata["final_answer"] == task.metadata["answer"])
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "judge.py").write_text(JUDGE)
    tree: dict[str, Any] = {"ajet": {"task_judge": {"judge_protocol": "judge.py->strict"}}}
    folder = tmp_path / "launcher_record" / "old"
    folder.mkdir(parents=True)
    (folder / "resolved.yaml").write_text(Experiment.from_dict(tree, base=tmp_path).dump_resolved())
    said = [episode("same"), episode("wrong", metadata={"final_answer": "3"}), failed("gone")]
    said += [episode("odd", metadata={"final_answer": "stumble"}, verdict=Verdict(0.0, False))]
    EpisodeFiles(folder / "episodes").write(7, "train", said)
    monkeypatch.chdir(tmp_path)
    return folder


def rejudge_run(named: str, root: Path, *, conf: Path | None = None) -> RejudgedRun:
    folder = find_recorded_run(named, root)
    with open_run_judge(folder, conf=conf) as judge:
        return judged(folder, judge)


def test_changed_rewards_are_shown_and_all_are_in_a_new_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
    assert rejudge("old", exp_dir=run.parent) == 0
    shown = capsys.readouterr().out
    assert "2 rewards of 4 episodes changed" in shown and "mean 0.667 over 3 of 4 → mean 0.5 over 2 of 4" in shown
    with Path("ajet-rejudge-old.csv").open() as table:
        rows = {row["uuid"]: row for row in csv.DictReader(table)}
    assert [(rows[name]["reward"], rows[name]["judged"]) for name in ("same", "wrong", "gone", "odd")] == [
        ("1.0", "1.0"), ("1.0", "0.0"), ("", ""), ("0.0", ""),
    ]  # fmt: skip
    assert "stumbles" in rows["odd"]["failure"] and "agent: ValueError" in rows["gone"]["failure"]
    assert before == {path.name: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
    with pytest.raises(UserError, match="exists already"):
        rejudge("old", exp_dir=run.parent)


def test_what_only_its_judge_failed_at_is_judged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = Failure("judge", "JudgeFailure", "all judges are down", own=True)
    left = {"status": "failed", "failure": lost, "verdict": None, "timelines": []}
    EpisodeFiles(run / "episodes").write(8, "train", [
        episode("unjudged", **left), episode("unplayed", metadata={}, calls=[], **left),
    ])  # fmt: skip
    rejudge("old", exp_dir=run.parent)
    with Path("ajet-rejudge-old.csv").open() as table:
        rows = {row["uuid"]: row for row in csv.DictReader(table)}
    assert [(rows[name]["reward"], rows[name]["judged"]) for name in ("unjudged", "unplayed")] == [
        ("", "1.0"),
        ("", ""),
    ]
    assert rows["unjudged"]["failure"] == "" and "judges are down" in rows["unplayed"]["failure"]


def test_a_run_without_a_judge_needs_one_named(run: Path) -> None:
    (run / "resolved.yaml").write_text(Experiment.from_dict({"ajet": {}}, base=run.parents[1]).dump_resolved())
    with pytest.raises(UserError, match="The run has no judge"):
        rejudge("old", exp_dir=run.parent)
    rejudge("old", judge="judge.py->strict", exp_dir=run.parent, out=Path("b.csv"))
    assert Path("b.csv").exists()
    with pytest.raises(UserError, match="no episodes of a run named never"):
        rejudge("never", exp_dir=run.parent)


def test_what_is_wrong_with_an_option_is_said_of_the_option_and_of_the_judge_first(run: Path) -> None:
    with pytest.raises(UserError, match="unsupported suffix") as refused:
        rejudge("old", exp_dir=run.parent, out=Path("x.txt"))
    assert refused.value.where == "--out" and ".csv" in refused.value.expected and not Path("x.txt").exists()
    Path("taken.csv").touch()
    for judge, what in (("judg.py->strict", "which does not exist"), ("strickt", "no scorer named strickt")):
        with pytest.raises(UserError, match=what) as refused:
            rejudge("old", judge=judge, exp_dir=run.parent, out=Path("taken.csv"))
        assert "ajet.task_judge" not in str(refused.value) and "--judge" in str(refused.value)


def group(answers: list[str], reward: float = 1.0, **more: Any) -> list[Any]:
    """Attempts at one task that were all worth the same."""
    return [
        episode(f"{more.get('group', 'g0')}-{repeat}", seed=repeat, repeat=repeat, verdict=Verdict(reward, True),
                metadata={"final_answer": answer}, **more)
        for repeat, answer in enumerate(answers)
    ]  # fmt: skip


def test_the_runs_curve_and_its_advantages_are_those_of_the_functions_that_train(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A YAML's judge finds something to learn from in a step that taught nothing, and turns another one round."""
    files = EpisodeFiles(run / "episodes")
    files.truncate(0)
    files.write(1, "train", group(["2", "3", "4"], group="even"))
    odd = group(["2", "3"], group="turned")
    odd[0].verdict.reward = 0.0
    gone = replace(failed("gone"), group="turned", repeat=2)
    files.write(2, "train", [*odd, gone])
    files.write(2, "validation", group(["2"], group="held out"))
    (run.parents[1] / "other.yaml").write_text("ajet: {task_judge: {judge_protocol: judge.py->strict}}\n")
    found = rejudge_run("old", run.parent, conf=Path("other.yaml"))
    first, second, held_out = found.steps
    assert (first.recorded, first.judged) == (StepRewards(1.0, 3, 0), StepRewards(pytest.approx(1 / 3), 3, 1))
    assert (second.recorded.reward, second.judged.reward, second.flipped, second.credited) == (0.5, 0.5, 2, 2)
    assert (held_out.split, held_out.recorded.reward, held_out.credited) == ("validation", 1.0, 0)
    settings = Experiment.from_dict({"ajet": {}}, base=run).ajet
    wanted = assign_credit([Group(odd[0].task, 3, odd)], settings).outcomes
    by_uuid = {each.before.uuid: each for each in found.episodes}
    for name, outcome in wanted.items():
        assert by_uuid[name].advantages == (outcome.advantage, pytest.approx(-outcome.advantage))
    assert by_uuid["even-0"].advantages == (0.0, pytest.approx(1.1547, rel=1e-3))
    assert by_uuid["gone"].advantages == (None, None)
    rejudge("old", exp_dir=run.parent, conf=Path("other.yaml"), out=Path("a.jsonl"))
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 1.000 0.333 0/1 1/1 0/3 2 0.500 0.500 1/1 1/1 2/2" in shown and "recorded █▃" in shown
    rows = [json.loads(line) for line in Path("a-steps.jsonl").read_text().splitlines()]
    assert [(row["step"], row["reward_judged"], row["learns_judged"]) for row in rows][1:] == [(2, 0.5, 1), (2, 1.0, 0)]
    assert {row["uuid"]: row["advantage_judged"] for row in map(json.loads, Path("a.jsonl").read_text().splitlines())}[
        "gone"
    ] is None


def test_what_several_steps_trained_on_is_judged_and_counted_once(run: Path, capsys) -> None:
    """`max_trained_count`: an attempt stands in the file of each step that it was part of."""
    files = EpisodeFiles(run / "episodes")
    files.truncate(0)
    for step in (1, 2):
        files.write(step, "train", [*group(["2", "3"]), failed("gone")])
    asked = run.parents[1] / "asked"
    (run.parents[1] / "judge.py").write_text(
        f"def strict(task, output):\n    open({str(asked)!r}, 'a').write('x')\n    return 0.0\n"
    )
    found = rejudge_run("old", run.parent)
    assert len(found.episodes) == 3 and asked.read_text() == "xx"
    assert [(step.step, step.episodes, step.judged.reward) for step in found.steps] == [(1, 3, 0.0), (2, 3, 0.0)]


@pytest.mark.parametrize("algorithm, why", [
    ({"adv_estimator": "own.py->Own"}, "code of a record is not run"),
    ({"use_kl_in_reward": True}, "the log-probabilities of policy and reference model of episode same are not in the"),
])  # fmt: skip
def test_where_credit_cannot_be_had_rewards_are_shown_and_the_reason(run, algorithm, why, capsys) -> None:
    tree = {"task_judge": {"judge_protocol": "judge.py->strict"}, "trainer_common": {"algorithm": algorithm}}
    (run / "resolved.yaml").write_text(Experiment.from_dict({"ajet": tree}, base=run.parents[1]).dump_resolved())
    rejudge("old", exp_dir=run.parent)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{why}" in shown and " 0.667 0.500 " in shown and "–" in shown


def test_a_penalty_in_the_reward_is_what_the_reference_model_said_when_it_trained(run: Path, capsys) -> None:
    """By hand: the tokens of one attempt are 15 times 0.02 nats from the reference model, which at 0.5 costs 0.15."""
    algorithm = {"use_kl_in_reward": True, "kl_in_reward_coef": 0.5, "norm_adv_by_std": False}
    tree = {"task_judge": {"judge_protocol": "judge.py->strict"}, "trainer_common": {"algorithm": algorithm}}
    (run / "resolved.yaml").write_text(Experiment.from_dict({"ajet": tree}, base=run.parents[1]).dump_resolved())
    files = EpisodeFiles(run / "episodes")
    files.truncate(0)
    both, lost = group(["2", "3"], group="both"), group(["2", "3"], group="lost", order=4)
    lost[1] = replace(
        lost[1], verdict=None, status="failed", failure=Failure("judge", "JudgeFailure", "down", own=True)
    )
    gap = np.full(15, 0.02, np.float32)
    said = {both[0].uuid: gap, both[1].uuid: 0 * gap, lost[0].uuid: gap}
    files.write(1, "train", [*both, *lost], {uuid: Outcome(1, 0.0, reference_gap=each) for uuid, each in said.items()})
    files.write(2, "train", group(["2", "3"], group="earlier"))
    found = rejudge_run("old", run.parent)
    told = {each.before.uuid: each.advantages for each in found.episodes}
    assert told["both-0"] == (pytest.approx(-0.075), pytest.approx(0.425))
    assert told["both-1"] == (pytest.approx(0.075), pytest.approx(-0.425))
    assert told["lost-0"][1] is None and told["lost-1"] == (None, None), "nobody asked about one of them"
    assert [(step.credited, step.flipped) for step in found.steps] == [(2, 2), (0, 0)]
    rejudge("old", exp_dir=run.parent, out=Path("a.csv"))
    shown = " ".join(capsys.readouterr().out.split())
    assert "are not in the record of step 2" in shown and "2/2 " in shown and "–" in shown


def test_a_loss_of_the_records_own_is_not_run(run, capsys) -> None:
    """It bears on no advantage, and its file may be gone."""
    (run.parents[1] / "own.py").write_text("raise SystemExit('the code of a record was run')\n")
    algorithm = {"policy_loss": "own.py->Own"}
    tree = {"task_judge": {"judge_protocol": "judge.py->strict"}, "trainer_common": {"algorithm": algorithm}}
    (run / "resolved.yaml").write_text(Experiment.from_dict({"ajet": tree}, base=run.parents[1]).dump_resolved())
    rejudge("old", exp_dir=run.parent)
    assert "no advantages" not in capsys.readouterr().out


def test_models_that_rank_are_asked_about_whole_groups_and_told_what_tools_answered(run: Path) -> None:
    files = EpisodeFiles(run / "episodes")
    files.truncate(0)
    files.write(1, "train", [*group(["1", "3", "2"], group="three"), *group(["7"], group="one", order=4)])
    files.write(1, "validation", group(["7"], group="held out"))
    with judge_server(ranks) as server:
        tree = f"judges: [{{model: m, base_url: '{server.url}'}}], model_judge: {{cache: false, max_retries: 0}}"
        Path("rank.yaml").write_text(f"ajet: {{task_judge: {{{tree}}}}}\n")
        found = rejudge_run("old", run.parent, conf=Path("rank.yaml"))
        asked = [each["messages"][1]["content"] for each in server.seen]
    assert [each.after.reward for each in found.episodes] == [0.0, 1.0, 0.5, 1.0, 1.0]
    assert sum('"tiers"' in text for text in asked) == 1 and all("αβ" in text for text in asked)
    assert [step.judged.learns for step in found.steps] == [1, 0]


def test_the_runs_budget_is_not_spent(run: Path) -> None:
    """A run that goes on after it is judged again has what it had."""
    with judge_server(lambda asked: says("correct")) as server:
        of = {"judges": [{"model": "m", "base_url": server.url}], "model_judge": {"cache": False, "max_calls": 3},
              "judge_protocol": "ajet_judges.model_judge->ModelJudge"}  # fmt: skip
        own = Experiment.from_dict({"ajet": {"task_judge": of}}, base=run.parents[1])
        (run / "resolved.yaml").write_text(own.dump_resolved())
        for _ in range(2):
            assert [each.after.reward for each in rejudge_run("old", run.parent).episodes] == [1.0, 1.0, None, 1.0]


LENIENT = """
from ajet.schema.episode import Verdict

def lenient(task, output):
    near = float(output.metadata["final_answer"] in "23")
    return Verdict(near, None, "near enough", metrics={"calls": 2, "cost": 0.5})
"""


def test_a_judge_that_decides_nothing_is_exit_code_1(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("judge.py").write_text(JUDGE + "\ndef broken(task, output):\n    raise KeyError('gone')\n")
    assert rejudge("old", judge="judge.py->broken", exp_dir=run.parent) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "no episode got a score, mostly: judge: broken raised KeyError: 'gone' (exit code 1)" in shown
    assert compare("old", judge=["judge.py->strict", "judge.py->broken"], exp_dir=run.parent) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "judge.py->broken: no result: the judge returned no score for any episode (exit code 1): judge: " in shown
    assert "judge.py->strict: nothing" not in shown


def test_judges_are_compared_on_the_same_episodes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Agreement over what both decided; where they differ most; what each took."""
    Path("judge.py").write_text(JUDGE + LENIENT)
    asked = ["judge.py->strict", "judge.py->lenient"]
    compare("old", judge=asked, as_json=True, exp_dir=run.parent)
    told = json.loads(capsys.readouterr().out)
    played, strict, lenient = told["judges"]
    assert [each["decided"] for each in told["judges"]] == [3, 2, 3] and played["episodes"] == 3, "one failed in play"
    assert (lenient["calls"], lenient["cost"]) == (6, 1.5) and strict["seconds"] is not None and not strict["calls"]
    pairs = {(each["one"], each["other"]): each for each in told["pairs"]}
    by_both = pairs[tuple(asked)]
    assert (by_both["both"], by_both["agreement"], by_both["correlation"]) == (2, 0.5, None)
    (differs,) = by_both["apart"]
    assert (differs["uuid"], differs["rewards"], differs["reasons"]) == ("wrong", [0.0, 1.0], ["", "near enough"])
    assert compare("old", judge=asked, exp_dir=run.parent) == 0
    assert "judge.py->strict and judge.py->lenient differ in 1 episode" in capsys.readouterr().out
