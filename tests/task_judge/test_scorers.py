"""Scorers: the table of right verdicts of each, how one is registered, called and combined, and which one is chosen."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from ajet.config import Experiment
from ajet.config.schema.tasks import TaskJudgeConfig
from ajet.schema.episode import Episode, Verdict
from ajet.schema.errors import ConfigError, JudgeFailure, SandboxFailure, TaskError
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge import Judge, MCPScorerFactory, open_judge, scorer
from ajet.task_judge.scorers.call import ARGUMENTS
from ajet.task_judge.scorers.gaia import gaia_reward_func, question_scorer
from ajet.task_reader import open_reader
from ajet.train.accounting import episode_metrics

ROOT = Path(__file__).parents[1] / "support"
"""Where `own_scorers.py` is."""


@lru_cache(maxsize=1)
def plain() -> Experiment:
    return Experiment.from_dict({"ajet": {}}, base=ROOT)


def judged_by(judge: dict[str, Any]) -> Judge:
    """What these keys of `task_judge` open."""
    ajet = plain().ajet.model_copy(update={"task_judge": TaskJudgeConfig(**judge)})
    return open_judge(replace(plain(), ajet=ajet))


def experiment(folder: Path, judge: dict[str, Any], **more: Any) -> Experiment:
    return Experiment.from_dict({"ajet": {"task_judge": judge, **more}}, base=folder)


def task_of(step: int = 0, **row: Any) -> WorkflowTask:
    return WorkflowTask(task=Task(main_query="How many?", task_id="t", metadata=row), step=step)


def said(judge: dict[str, Any] | str, given: Any, /, *, step: int = 0, **row: Any) -> Verdict:
    settings = {"scorer": judge} if isinstance(judge, str) else judge
    output = WorkflowOutput(metadata={"final_answer": given})
    return asyncio.run(judged_by(settings).verdict(task_of(step, **row), output))


CHOICES = {"choices": ["a dog", "a cat", "a fox", "an eel"]}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TABLE: list[tuple[str, dict[str, Any], str, dict[str, Any], float | None]] = [
    ("exact", {}, "Paris", {"answer": "paris"}, 1),
    ("exact", {}, r"so it is \boxed{Paris}", {"answer": "Paris"}, 1),
    ("exact", {}, "<think>Paris</think>London", {"answer": "Paris"}, 0),
    ("exact", {}, "not Paris", {"answer": "Paris"}, 0),
    ("exact", {}, "Lutetia", {"answer": ["Paris", "Lutetia"]}, 1),
    ("exact", {"normalize": "none"}, "Paris", {"answer": "paris"}, 0),
    ("exact", {"normalize": "squad"}, "The Paris!", {"answer": "paris"}, 1),
    ("exact", {}, "4", {"answer": 4}, 1),
    ("exact", {}, "", {"answer": "4"}, 0),
    ("exact", {}, "4", {}, None),
    ("exact", {}, "", {}, None),
    ("exact", {}, "4", {"answer": ""}, None),
    ("exact", {}, "4", {"reward_model": {"ground_truth": "4"}}, 1),
    ("f1", {}, "the black cat", {"answer": "a black cat"}, 1),
    ("f1", {}, "black cat sat", {"answer": "black cat"}, 0.8),
    ("f1", {}, "dog", {"answer": "cat"}, 0),
    ("f1", {}, "Lutetia", {"answer": ["Paris", "Lutetia"]}, 1),
    ("contains", {}, "It is Paris, I think.", {"answer": "paris"}, 1),
    ("contains", {}, "incorrect", {"answer": "correct"}, 0),
    ("contains", {"whole_words": False}, "incorrect", {"answer": "correct"}, 1),
    ("contains", {"ignore_case": False}, "paris", {"answer": "Paris"}, 0),
    ("contains", {}, "<think>Paris</think> no", {"answer": "Paris"}, 0),
    ("contains", {"all": True}, "red and blue", {"answer": ["red", "green"]}, 0),
    ("contains", {}, "red and blue", {"answer": ["red", "green"]}, 1),
    ("regex", {"pattern": r"\d{4}"}, "in 1969", {}, 1),
    ("regex", {"pattern": r"\d{4}", "full": True}, "in 1969", {}, 0),
    ("regex", {}, "in 1969", {"answer": r"19\d9"}, 1),
    ("regex", {}, "in 1969", {}, None),
    ("multiple_choice", {}, "B", {"answer": "B"}, 1),
    ("multiple_choice", {}, "(b)", {"answer": "B"}, 1),
    ("multiple_choice", {}, "B) a cat", {"answer": "B", **CHOICES}, 1),
    ("multiple_choice", {}, "B) a dog", {"answer": "B", **CHOICES}, 0),
    ("multiple_choice", {}, "a cat", {"answer": "B", **CHOICES}, 1),
    ("multiple_choice", {}, r"\boxed{\text{B}}", {"answer": 1, **CHOICES}, 1),
    ("multiple_choice", {}, "The answer is (B).", {"answer": "a cat", **CHOICES}, 1),
    ("multiple_choice", {}, "The answer is A. No, the answer is C", {"answer": "C"}, 1),
    ("multiple_choice", {}, "A or B", {"answer": "A"}, 0),
    ("multiple_choice", {}, "(A) or (B)", {"answer": "A"}, 0),
    ("multiple_choice", {}, "The answer is not B", {"answer": "B"}, 0),
    ("multiple_choice", {}, "The answer is a dog", {"answer": "A"}, 0),
    ("multiple_choice", {}, "2", {"answer": "Y", "choices": {"label": ["X", "Y"], "text": ["1", "2"]}}, 1),
    ("numeric", {}, "about 3.14 m", {"answer": "3.14 m"}, 1),
    ("numeric", {}, "5 km", {"answer": "5000 m"}, 1),
    ("numeric", {}, "5 kg", {"answer": "5 m"}, 0),
    ("numeric", {"units": "ignore"}, "5 kg", {"answer": "5 m"}, 1),
    ("numeric", {"units": "required"}, "5", {"answer": "5 m"}, 0),
    ("numeric", {}, "50%", {"answer": "50"}, 0),
    ("numeric", {"tolerance": 0.01}, "3.14", {"answer": "3.14159"}, 1),
    ("numeric", {}, "3.14", {"answer": "3.14159"}, 0),
    ("numeric", {"relative": 0.01}, "99", {"answer": "100"}, 1),
    ("numeric", {}, "between 4 and 5", {"answer": "4"}, 0),
    ("numeric", {}, "it is not 4", {"answer": "4"}, 0),
    ("numeric", {}, "12 + 30", {"answer": "42"}, 0),
    ("numeric", {}, "The total is $1,234.50.", {"answer": 1234.5}, 1),
    ("numeric", {}, "72", {"answer": "6 * 12\n#### 72"}, 1),
    ("math", {}, r"\boxed{\frac12}", {"answer": "0.5"}, 1),
    ("math", {}, "72", {"answer": "6 * 12\n#### 72"}, 1),
    ("math", {}, "12 + 30", {"answer": "42"}, 0),
    ("gaia", {}, "<answer>1</answer> then <answer>2</answer>", {"answer": "2"}, 0),
    ("gaia", {}, "$1,234.50", {"answer": "1234.5"}, 1),
    ("json_schema", {"schema": SCHEMA}, '{"n": 1}', {}, 1),
    ("json_schema", {"schema": SCHEMA}, '```json\n{"n": 1}\n```', {}, 1),
    ("json_schema", {"schema": SCHEMA}, 'Here: ```json\r\n{"n": 1}```', {}, 1),
    ("json_schema", {"schema": SCHEMA}, '<answer>\n~~~ json title="a"\n{"n": 1}\n~~~\n</answer>', {}, 1),
    ("json_schema", {"schema": SCHEMA}, '- it is\n\n  ```json\n  {"n": 1}\n', {}, 1),
    ("json_schema", {"schema": SCHEMA}, '```json\n{"n": 1}\n```\n```json\n{"n": 2}\n```', {}, 0),
    ("json_schema", {"schema": SCHEMA}, '{"n": "1"}', {}, 0),
    ("json_schema", {"schema": SCHEMA}, "n is 1", {}, 0),
    ("json_schema", {}, '{"n": 1}', {"json_schema": json.dumps(SCHEMA)}, 1),
    ("json_schema", {}, '{"n": 1}', {}, None),
]


@pytest.mark.parametrize(("name", "arguments", "answer", "row", "reward"), TABLE)
def test_right_verdicts(name, arguments, answer, row, reward):
    found = said({"scorers": [{"name": name, "arguments": arguments}]}, answer, **row)
    assert found.reward == pytest.approx(reward), found.reason
    assert (found.scorer, found.parts) == (name, {name: found.reward})
    assert found.success is (None if reward is None else reward == 1) and (reward is not None or found.reason)


GAIA: list[tuple[str | None, str | None, bool]] = [
    ("$1,234.50", "1234.5", True), ("Apple,BANANA", "apple,banana", True), ("17%", "17", True),
    ("a, b.", "a, b", False),
    ("10%", "0.1", False), ("a,b,", "a,b", False), ("17 apples", "17", False), ("1.0; $2", "1,2", True),
    ("1e3", "1000", True), ("1,234", "1234", True), ("3.0", "3", True), ("1234", "1,234", False), ("€5", "5", False),
    ("1,234", "1,234", True), ("-5", "- 5", True), ("Sea Gull", "seagull", True), ("foo", "inf", False),
    ("St. Petersburg!", "st petersburg", True), ("2, foo", "2, inf", False), ("The Great Wall", "Great Wall", False),
    ("nan", "nan", False), ("café", "cafe", False), ("１２", "12", True), ("Straße", "STRASSE", False),
    ("apple, banana", "apple,banana", True), ("!!!", "", False), ("banana, apple", "apple, banana", False),
    (None, "None", False), ("apple; banana", "apple, banana", True), ("12:30", "12:30", True),
]  # fmt: skip
"""The leaderboard's verdicts but for its four that take what is no answer for one: foo, "2, foo", "!!!" and None."""


@pytest.mark.parametrize(("answer", "truth", "right"), GAIA)
def test_gaia(answer, truth, right):
    assert question_scorer(answer, truth) is right


@pytest.mark.parametrize(
    ("solution", "truth", "reward"),
    [
        ("<answer>\n 42 \n</answer>", "42", 1.0), ("<Answer>42</Answer>", "42", 0.0), ("<answer>42", "42", 0.0),
        ("<answer>41</answer> then <answer>42</answer>", "42", 0.0), ("<answer>42</answer>", 42, 1.0),
        ("<think><answer>42</answer></think>", "42", 1.0), (None, None, 0.0),
    ],
)  # fmt: skip
def test_aworlds_reward_function(solution, truth, reward):
    assert gaia_reward_func("gaia", solution, truth) == reward


PROGRAMS = [
    ("def add(a, b):\n    return a + b", 1.0),
    ("so:\n```python\ndef add(a, b):\n    return abs(a) + abs(b)\n```", 0.5),
    ("import os\nos._exit(0)", 0.0),
    ("def add(a, b):\n    raise SystemExit", 0.0),
]


def test_code_runs_in_a_sandbox_and_ending_it_passes_nothing():
    judge = {"scorers": [{"name": "code", "arguments": {"partial": True, "timeout": 20}}]}
    asked = judged_by(judge)
    tests = task_of(tests=["assert add(1, 2) == 3", "assert add(-1, 1) == 0"])
    outputs = [WorkflowOutput(metadata={"final_answer": program}) for program, _ in PROGRAMS]
    found = [asyncio.run(asked.verdict(tests, output)) for output in outputs]
    assert [each.reward for each in found] == [reward for _, reward in PROGRAMS], found
    reads = task_of(input_output=json.dumps({"inputs": ["1 2"], "outputs": ["3\n"]}))
    adds = WorkflowOutput(metadata={"final_answer": "print(sum(map(int, input().split())))"})
    assert asyncio.run(asked.verdict(reads, adds)).reward == 1.0
    assert asyncio.run(asked.verdict(task_of(), adds)).reward is None


@pytest.mark.parametrize(
    ("name", "reward", "success", "parts"),
    [
        ("two", 1.0, True, {}), ("later", 0.5, True, {"length": 1.0}), ("compute_score", 1.0, None, {"acc": 1.0}),
        ("undecided", None, None, {}), ("pair", 2.0, False, {}), ("Counts", 1 / 3, None, {}),
        ("AsJudge", 0.25, False, {}),
    ],
)  # fmt: skip
def test_functions_by_reference_get_what_their_parameters_name(name, reward, success, parts):
    row = {"answer": "4", "data_source": "sums", "extra_info": {"index": 7}}
    found = said(f"own_scorers.py->{name}", "4", **row)
    assert (found.reward, found.success, found.parts) == (reward, success, {name: reward, **parts})


def test_without_a_truth_a_function_that_needs_one_is_not_asked():
    assert said("own_scorers.py->two", "4").reward is None
    assert said("own_scorers.py->later", "4").reward == 0.5
    assert said("own_scorers.py->pair", "").reward == 0.0, "no answer is the policy's doing"
    with pytest.raises(JudgeFailure, match="no metadata\\['final_answer'\\]"):
        asyncio.run(judged_by({"scorer": "exact"}).verdict(task_of(answer="4"), WorkflowOutput()))


def test_a_judge_by_reference_whose_parameters_are_a_scorers_is_one():
    assert said({"judge_protocol": "own_scorers.py->later"}, "4").scorer == "later"
    assert said({"judge_protocol": "own_scorers.py->old"}, "4", answer="4") == Verdict(1.0)


@pytest.mark.parametrize("name", ["raises", "no_number", "not_finite"])
def test_a_scorer_that_fails_is_a_failure_of_the_judge(name):
    with pytest.raises(JudgeFailure, match=name):
        said(f"own_scorers.py->{name}", "4")


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ({"scorer": "exakt"}, r"(?s)scorer named exakt.*one of agentcpm, .*code, contains, exact.*did you mean exact"),
        (
            {"scorer": "own_scorers.py->strange"},
            r"(?s)the parameters one, other, third.*own_scorers.py:\d+.*model_answer",
        ),
        ({"scorers": [{"name": "exact", "arguments": {"norm": "x"}}]}, "has no argument norm; it takes normalize"),
        ({"scorers": [{"name": "regex", "arguments": {"pattern": "("}}]}, "is not a valid pattern"),
        ({"scorers": [{"name": "json_schema", "arguments": {"schema": {"type": 3}}}]}, "json_schema"),
        ({"scorer": "exact", "scorers": [{"name": "f1"}]}, "are both set"),
        ({"scorer": "exact", "judge_protocol": "own_scorers.py->old"}, "are both set"),
        ({"scorers": [{"name": "exact", "wieght": 2}]}, "wieght"),
    ],
)
def test_what_is_wrong_is_said_before_the_run(judge, message):
    with pytest.raises(ConfigError, match=message):
        open_judge(experiment(ROOT, judge))


def test_registered_by_name_in_each_way():
    @MCPScorerFactory.register_scorer("test_decorated")
    async def decorated(model_answer, ground_truth):
        return 0.25

    MCPScorerFactory.register_scorer("test_called", lambda model_answer, ground_truth: 0.5)
    scorer("test_named")(lambda question: question == "How many?")
    found = [said(f"test_{name}", "4", answer="4") for name in ("decorated", "called", "named")]
    assert [each.reward for each in found] == [0.25, 0.5, 1.0] and found[0].scorer == "test_decorated"


def test_one_of_agentrls_gets_a_dict_for_the_truth_and_its_section(tmp_path):
    seen: list[object] = []

    async def theirs(model_answer, ground_truth, scorer_agent_config):
        seen.append(scorer_agent_config)
        return float(model_answer == ground_truth["answer"] and ground_truth["query"] == "How many?")

    MCPScorerFactory.register_scorer("test_theirs", scorer_func=theirs)
    told = "scorer_agent: {models: [{model: m, base_url: http://x, api_key: k}], max_retries: 7}\n"
    (tmp_path / "agent_config.yml").write_text(told)
    tree = {"task_judge": {"scorer": "test_theirs"}, "environment": {"agent_config": "agent_config.yml"}}
    task = Task(main_query="How many?", metadata={"answer": "4"})
    for given, section in ((tree, 7), ({"task_judge": tree["task_judge"]}, None)):
        judge = open_judge(Experiment.from_dict({"ajet": given}, base=tmp_path, exp_dir=tmp_path))
        output = WorkflowOutput(metadata={"final_answer": "4"})
        assert asyncio.run(judge.verdict(WorkflowTask(task=task), output)).reward == 1.0
        assert seen.pop().get("max_retries") == section


def test_several_are_weighted_and_one_without_a_score_decides_only_with_weight():
    members = [{"name": "exact"}, {"name": "f1", "weight": 0.5}, {"name": "exact", "weight": 0}]
    found = said({"scorers": members}, "the cat", answer="cat")
    assert (found.reward, found.success, found.scorer) == (0.5, False, "exact+f1+exact_2")
    assert found.parts == {"exact": 0.0, "f1": 1.0, "exact_2": 0.0} and "f1 1" in found.reason
    for weight, reward in ((1.0, None), (0.0, 1.0)):
        for name in ("undecided", "raises")[: 1 if weight else 2]:
            parts = [{"name": "exact"}, {"name": f"own_scorers.py->{name}", "weight": weight}]
            found = said({"scorers": parts}, "cat", answer="cat")
            assert (found.reward, found.parts) == (reward, {"exact": 1.0, name: None}), found.reason


def test_the_last_stage_that_matches_decides():
    stages = [{"from_step": 3, "scorer": "f1"}, {"from_step": 5, "tag": "hard", "scorer": "contains"}]
    judge = {"scorer": "exact", "stages": stages}
    chosen = [said(judge, "4", step=step, answer="4", tag=tag).scorer
              for step, tag in ((2, "hard"), (3, "hard"), (5, "easy"), (5, "hard"), (9, ["x", "hard"]))]  # fmt: skip
    assert chosen == ["exact", "f1", "f1", "contains", "contains"]


def test_the_form_of_an_answer_by_configuration_and_row():
    both = r"<answer>3</answer> \boxed{4}"
    for judge, row, answer in (({}, {}, "4"), ({"answer_schema": "answer"}, {}, "3"),
                               ({"answer_schema": "answer"}, {"answer_schema": "boxed"}, "4")):  # fmt: skip
        assert said({"scorer": "exact", **judge}, both, answer=answer, **row).reward == 1.0
    assert said({"scorer": "exact", "answer_schema": "boxed"}, "4", answer="4").reward == 0.0


def test_agentrls_rows(tmp_path):
    rows: list[dict[str, Any]] = [
        {"id": "a", "query": "2+2?", "answer": "4", "scorer": "exact", "answer_schema": "boxed"},
        {"id": "b", "query": "Why?"},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = {"type": "agentrl", "agentrl": {"training": {"file_path": "rows.jsonl"}}}
    settings = experiment(tmp_path, {}, task_reader=reader)
    one, other = open_reader(settings).tasks("train")
    assert (one.task_id, one.metadata["answer"], one.metadata["answer_schema"]) == ("a", "4", "boxed")
    assert other.main_query == "Why?" and other.metadata["answer_schema"] == "answer" and "answer" not in other.metadata
    judge = open_judge(settings)
    output = WorkflowOutput(metadata={"final_answer": r"\boxed{4}"})
    assert asyncio.run(judge.verdict(WorkflowTask(task=one), output)).scorer == "exact"
    own = WorkflowOutput(reward=0.75)
    assert asyncio.run(judge.verdict(WorkflowTask(task=other), own)) == Verdict(0.75)
    assert "agentcpm" in str(judge), "the default, where nothing else decides"
    judged = experiment(ROOT, {"judge_protocol": "own_scorers.py->old"}, task_reader=reader)
    assert "agentcpm" not in str(open_judge(judged))
    judge.require_for([one, other])
    for name in ("exakt", "own_scorers.py->two"):
        with pytest.raises(TaskError, match="cannot refer to code"):
            judge.require_for([one.model_copy(update={"metadata": {"scorer": name}})])
    for bad in ({"answer_schema": "latex"}, {"scorer": 3}):
        (tmp_path / "rows.jsonl").write_text(json.dumps(rows[0] | bad) + "\n")
        with pytest.raises(TaskError, match=r"rows.jsonl:1"):
            open_reader(settings).tasks("train")


def test_what_decides_nothing_harms_nothing_and_nobody_deciding_is_no_score():
    @scorer("loses its sandbox")
    def loses(model_answer):
        raise SandboxFailure("gone")

    @scorer("has a default")
    def has(model_answer, ground_truth="42"):
        return Verdict(float(model_answer == ground_truth), turns=(0.5, 0.5), metrics={"cost": 2.0}, details={"a": 1})

    beside = {"scorers": [{"name": "has a default"}, {"name": "loses its sandbox", "weight": 0}]}
    found = said(beside, "42")
    assert found.reward == 1.0 and found.parts == {"has a default": 1.0, "loses its sandbox": None}
    assert (found.turns, found.metrics, found.details) == ((0.5, 0.5), {"cost": 2.0}, {"a": 1})
    assert said({"scorers": [{"name": "has a default", "weight": 0}]}, "42").reward is None

    @scorer("says words")
    def says(model_answer):
        return Verdict(1.0, metrics={"why": "it is right"})  # type: ignore[dict-item]

    with pytest.raises(JudgeFailure, match="expected a finite number"):
        said("says words", "42")


def test_metrics_name_scorers_and_choices():
    several = Verdict(1.0, True, scorer="a+b", parts={"a": 1.0, "b": None})
    verdicts = [several, Verdict(0.0, False, scorer="c", parts={"c": 0.0}), None]
    episodes = [Episode(f"e{n}", Task(), n, 1, "train", verdict=each) for n, each in enumerate(verdicts)]
    found = {name: value for name, value in episode_metrics(episodes, "train").items() if "/score" in name}
    del found["train/scored"]
    assert found == {"train/scored_by/a+b": 1, "train/scored_by/c": 1, "train/scorer/a": 1.0, "train/scorer/c": 0.0}


def test_every_argument_is_on_the_page():
    page = (Path(__file__).parents[2] / "docs" / "scorers.md").read_text()
    assert [name for name in ARGUMENTS if f"`{name}`" not in page] == []
