"""Attempts at one task ranked by a model: real episodes and groups; only the models are scripts."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from ajet.config import Experiment
from ajet.record.episode_codec import decode, encode
from ajet.rollout import breaker
from ajet.rollout.judge_caller import OTHERS_BEFORE
from ajet.rollout.served.ranker import WAITING_REASON
from ajet.schema.episode import Verdict
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.task_judge import open_judge
from ajet.workflow import Workflow
from ajet_judges.model_judge.judge import Entrant, rank_entrants
from tests.support import rollout_workflows as flows
from tests.support.judge_fixtures import judge_server, material, ranks
from tests.support.rollouts import stage
from tests.support.served import start_serving

pytestmark = pytest.mark.slow


@pytest.fixture
def server():
    with judge_server(ranks) as made:
        yield made


@pytest.fixture
def judge(server, tmp_path):
    def make(url=None, **asked: Any) -> Any:
        tree = {"judges": [{"model": "m", "base_url": url or server.url}],
                "model_judge": {"retry_delay": 0.0, "max_retries": 0, "cache": False, **asked}}  # fmt: skip
        whole = {"ajet": {"task_judge": tree}}
        return open_judge(Experiment.from_dict(whole, base=tmp_path, exp_dir=tmp_path / "runs"))

    return make


def of(judge: Any, answers: list[str], seed: str = "0/1") -> list[Verdict]:
    return asyncio.run(rank_entrants(judge.ranks, "Which?", "", [Entrant(each) for each in answers], seed))


def test_places_are_rewards_with_ties_and_no_score_in_an_order_by_seed(judge, server):
    made = judge()
    assert [each.reward for each in of(made, ["3", "1", "2", "1", "?"])] == [
        1.0,
        pytest.approx(1 / 6),
        pytest.approx(2 / 3),
        pytest.approx(1 / 6),
        None,
    ]
    assert [each.reward for each in of(made, ["7", "7"])] == [0.5, 0.5], "nothing to prefer"
    assert [each.reward for each in of(made, ["7"])] == [None] and len(server.seen) == 2
    found = of(made, [str(number) for number in range(8)], seed="0/2")
    assert [each.reward for each in found] == [pytest.approx(number / 7) for number in range(8)]
    shown = [each.details["ranking"]["shown"][0] for each in found]
    assert sorted(shown) == list(range(8)) != shown
    again = of(made, [str(number) for number in range(8)], seed="0/2")
    assert [each.details["ranking"]["shown"][0] for each in again] == shown


@pytest.mark.parametrize("said", [
    '{"reason": "", "tiers": [["A"]], "undecided": []}',
    '{"reason": "", "tiers": [["A", "B"], ["B"]], "undecided": []}',
    '{"reason": "", "tiers": [["A", "B", "C"]], "undecided": []}', "A is better than B", "",
])  # fmt: skip
def test_a_ranking_that_does_not_name_each_once_is_none(judge, server, said):
    server.say = lambda asked: said
    assert [each.reward for each in of(judge(), ["1", "2"])] == [None, None]


@pytest.mark.extra_slow
def test_votes_are_shown_other_orders_and_one_that_goes_by_place_says_so(judge, server):
    server.say = lambda asked: json.dumps({"reason": "", "tiers": [["A"], ["B"], ["C"]], "undecided": []})
    found = of(judge(votes=9), ["1", "2", "3"])
    assert max(each.reward for each in found) < 1 and found[0].metrics["agreement"] < 0.9
    assert {tuple(each.details["ranking"]["shown"]) for each in found} != {(0,) * 9}
    server.say = ranks
    assert of(judge(votes=3), ["1", "2", "3"])[2].metrics["agreement"] == 1.0


def test_votes_agree_by_those_attempts_that_both_could_place(judge, server):
    def unsure_at_first(asked: Any) -> str:
        told = json.loads(ranks(asked))
        told["undecided"] = told["tiers"].pop(0) if asked["seed"] == 0 else []
        return json.dumps(told)

    server.say = unsure_at_first
    found = of(judge(votes=3), ["3", "2", "1"])
    assert [each.details["ranking"]["places"] for each in found] == [[1.0, 1.0], [1.0, 0.5, 0.5], [0.0, 0.0, 0.0]]
    assert found[0].metrics["agreement"] == 1.0


class Numbers(Workflow):
    """Answers with its number."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        if task.task_thread_index in REWARDED:
            await flows.ask(tuner, "x")
            return WorkflowOutput(reward=5.0)
        if task.task_thread_index in FAILS:
            raise ValueError("no")
        await flows.ask(tuner, "x")
        if LATE and task.task_thread_index == 0:
            await asyncio.sleep(60)
        return WorkflowOutput(metadata={"final_answer": str(task.task_thread_index)})


REWARDED: set[int] = set()
FAILS: set[int] = set()
LATE: list[bool] = []


@pytest.fixture(autouse=True)
def _fresh():
    yield
    for each in (REWARDED, FAILS, LATE):
        each.clear()


def rewards(group: Any) -> list[float | None]:
    return [episode.reward for episode in group.episodes]


def test_a_group_waits_for_its_attempts_and_holds_no_place_to_play_in(judge, server):
    """More attempts than may be played at once."""
    with stage(Numbers, judge=judge(), num_repeat=4, max_env_worker=2) as made:
        groups = made.play(2)
    assert [rewards(group) for group in groups] == [[0.0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]] * 2
    assert len(server.seen) == 2 and all(episode.timelines for episode in groups[0].episodes)
    assert groups[0].episodes[3].verdict.reason.startswith("m: 1 among 4 attempts")
    verdict = groups[0].episodes[0].verdict
    assert verdict.details["ranking"]["of"] == 4 and verdict.metrics["agreement"] == 1.0
    assert decode(*encode(groups[0].episodes[0])).verdict == verdict, "as the record has it"


def test_what_verdicts_are_kept_in_is_closed_with_the_rollout_and_opened_again(judge, server, tmp_path):
    """No descriptor stays; a kept verdict is had without asking, later too."""

    def held() -> list[str]:
        told = []
        for each in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # closed meanwhile
                told.append(os.readlink(f"/proc/self/fd/{each}"))
        return [each for each in told if str(tmp_path) in each and "judges.sqlite" in each]

    made = judge(cache=True)
    with stage(Numbers, judge=made, num_repeat=2) as staged:
        staged.play(1)
        assert held()
    assert held() == []
    of(made, ["3", "4"])
    asked = len(server.seen)
    assert held() and [each.reward for each in of(made, ["3", "4"])] == [0.0, 1.0] and len(server.seen) == asked
    made.let_go()
    made.let_go()
    assert held() == []


@pytest.mark.parametrize("over", [{(0, 1), (0, 2)}, {(0, 1)}])
def test_attempts_whose_group_was_played_in_part_before_are_compared_with_nobody(judge, server, over):
    """Their places among themselves, or a verdict of one by itself, would be no reward beside those of the others."""
    with stage(Numbers, judge=judge(), num_repeat=3) as made:
        (group,) = made.play(1, finished=over)
    assert {each.verdict.reason for each in group.episodes} == {OTHERS_BEFORE} and len(group.episodes) == 3 - len(over)
    assert rewards(group) == [None] * len(group.episodes) and server.seen == []


def test_it_is_the_same_where_groups_are_played_one_by_one_as_by_verls_workers(judge):
    with stage(Numbers, judge=judge(), num_repeat=3) as made:
        told = made.rollout.play_group(0, flows_task(), step=1, split="train", repeats=3)
        assert rewards(told.result(30)) == [0.0, 0.5, 1.0]


def test_attempts_with_a_reward_of_their_own_and_those_that_failed_are_not_compared(judge, server):
    REWARDED.add(1)
    FAILS.add(2)
    with stage(Numbers, judge=judge(), num_repeat=4, max_env_worker=4) as made:
        (group,) = made.play(1)
    assert rewards(group) == [0.0, 5.0, None, 1.0] and group.episodes[2].failure.boundary == "agent"


def test_what_is_measured_is_judged_by_itself_and_what_was_said_last_is_an_answer(judge, server):
    with stage(Silent, judge=judge(), num_repeat=2) as made:
        (group,) = made.play(1, split="validation", repeats=2)
    assert rewards(group) == [1.0, 1.0] and all(episode.verdict.success for episode in group.episodes)
    assert material(server.seen[0])[3] == "yes"


def finished(served: Any, number: str, **body: Any) -> dict[str, Any]:
    """A client's attempt that answered so."""
    opened = served.open(**body)
    served.ask(opened)
    answer = served.finish(opened, metadata={"final_answer": number})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_attempts_of_clients_are_ranked_when_their_group_is_whole(judge, server):
    with start_serving(judge=judge(), backlog=9, num_repeat=3) as served:
        told = [finished(served, number, task="which?") for number in "12"]
        assert [(each["status"], each["reward"], each["reason"]) for each in told] == [
            ("completed", None, WAITING_REASON)
        ] * 2
        assert server.seen == []
        own = served.open(task="which?")
        served.ask(own)
        assert served.finish(own, reward=5.0).json()["reward"] == 5.0
        group = served.desk.results.get(timeout=60)
        assert rewards(group) == [0.0, 1.0, 5.0] and len(server.seen) == 1
        assert all(each.timelines and each.verdict.reason != WAITING_REASON for each in group.episodes)
        assert [served.client.get(f"/episodes/{each['episode']}").json()["reward"] for each in told] == [0.0, 1.0]
        server.say = lambda asked: (503, "down")
        lost = [finished(served, number, task="and now?")["episode"] for number in "123"]
        assert rewards(served.desk.results.get(timeout=60)) == [None] * 3
        assert served.client.get(f"/episodes/{lost[0]}").json()["boundary"] == "judge"
        assert served.client.get("/episodes").json()["ended"] == {"completed": 3, "failed": 3, "aborted": 0}
    server.say = ranks
    with start_serving(judge=judge(), num_repeat=3) as served:  # nothing is trained: each by itself
        assert finished(served, "1", task="which?")["reward"] == 1.0


def test_a_restarted_server_ranks_the_whole_group_and_trains_the_turns_that_are_chosen(judge, server, tmp_path):
    (tmp_path / "turns.py").write_text("def none(call, episode):\n    return episode.repeat == 1\n")
    asked = {"judge": judge(cache=True), "backlog": 9, "pending": tmp_path / "kept", "num_repeat": 2}
    with start_serving(**asked) as served:
        finished(served, "1", task="which?")
    with start_serving(**asked, train_turn=f"{tmp_path}/turns.py->none") as served:
        finished(served, "2", task="which?")
        group = served.desk.results.get(timeout=60)
    assert rewards(group) == [0.0, 1.0] and len(server.seen) == 1, "with the attempt that was kept before"
    assert [bool(each.timelines) for each in group.episodes] == [False, True]
    with start_serving(**asked) as served:
        again = served.desk.results.get(timeout=60)
    assert rewards(again) == [0.0, 1.0], "what was ranked and not yet used is ranked again"
    assert len(server.seen) == 1, "out of what was kept, in the order in which they were shown then"


class Silent(Workflow):
    """States no answer."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await flows.ask(tuner, "x")
        return WorkflowOutput()


def test_a_deadline_compares_those_that_are_in(judge, server):
    LATE.append(True)
    with stage(Numbers, judge=judge(), num_repeat=3, max_env_worker=3, group_deadline=0.5, min_group=2) as made:
        (group,) = made.play(1)
    assert rewards(group) == [None, 0.0, 1.0] and group.episodes[0].ending == "group_deadline"


@pytest.mark.extra_slow
def test_a_play_that_is_left_while_attempts_wait_ends(judge, server):
    LATE.append(True)
    with stage(Numbers, judge=judge(), num_repeat=3, max_env_worker=3) as made:
        stream = made.rollout.play([(0, flows_task())], step=1, split="train")
        closer = threading.Timer(0.5, made.rollout.close)
        closer.start()
        assert [rewards(group) for group in stream] == []
        closer.join()


def flows_task() -> Any:
    from tests.support.rollouts import tasks

    return tasks(1)[0][1]


@contextmanager
def outage(server: Any, after: int):
    """The judges fail from the start until `after` requests were refused."""
    count = [0]

    def say(asked):
        count[0] += 1
        return (503, "down") if count[0] <= after else ranks(asked)

    server.say = say
    yield count


def test_judges_that_are_down_pause_the_run_and_nothing_is_a_zero(judge, server, monkeypatch):
    """The breaker opens, a probe asks the judges themselves, and what the outage took is played again."""
    monkeypatch.setattr(breaker, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(breaker, "LONGEST_PAUSE", 0.05)
    limits = {"max_retries": 0, "max_env_worker": 4, "num_repeat": 2}
    with (
        outage(server, after=12),
        stage(Numbers, judge=judge(), breaker={"share": 0.4, "window": 8, "patience": 600}, **limits) as made,
    ):
        groups = made.play(8)
        assert [rewards(group) for group in groups] == [[0.0, 1.0]] * 8
        assert made.retries > 0
    with stage(Numbers, judge=judge(url="http://127.0.0.1:9/v1"), num_repeat=2, max_retries=0) as made:
        (group,) = made.play(1)
    assert rewards(group) == [None, None] and {e.failure.boundary for e in group.episodes} == {"judge"}
