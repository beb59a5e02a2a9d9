"""Episodes for agents outside: opened, played, judged, grouped and ended over HTTP."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from ajet.schema.episode import Episode, Group, Verdict
from ajet.schema.tool_use import compute_digest
from tests.support.rollouts import outages_pause
from tests.support.served import (
    AwayStore,
    StoreDownError,
    StoreUnavailableError,
    kept_ends,
    start_serving,
)

pytestmark = pytest.mark.slow


def error(answer: httpx.Response) -> tuple[int, str]:
    told = answer.json()["error"]
    assert told["message"]
    return answer.status_code, told["code"]


def test_an_episode_from_its_opening_to_its_record():
    with start_serving() as served:
        opened = served.open(task={"question": "What is 1 + 2?", "answer": "3", "id": "sum"})
        assert opened["status"] == "open" and opened["task"]["metadata"]["answer"] == "3"
        assert opened["base_url"] == served.gateway.base_url and opened["model"] == "ajet"
        said = served.ask(opened, "What is 1 + 2?").json()
        assert said["choices"][0]["message"]["content"] == "yes"
        assert served.client.get(f"/episodes/{opened['episode']}").json()["status"] == "open"
        use = {"name": "look", "arguments": {"at": 1}, "result": "seen", "started": 1.0, "ended": 2.5, "call_id": "c"}
        told = {"metadata": {"note": "n"}, "metrics": {"turns": 1}, "tool_uses": [use]}
        assert served.finish(opened, reward=0.5, tool_uses=[{"name": "look"}]).status_code == 400
        ended = served.finish(opened, reward=0.5, success=True, **told).json()
        assert (ended["status"], ended["reward"], ended["success"], ended["calls"]) == ("completed", 0.5, True, 1)
        episode = served.take_episode()
        assert episode.uuid == opened["episode"] and episode.task.main_query == "What is 1 + 2?"
        assert episode.verdict == Verdict(0.5, True) and episode.metadata == {"note": "n"}
        assert episode.metrics == {"turns": 1.0} and len(episode.timelines) == 1
        assert [(each.name, each.digest, each.ended) for each in episode.tool_uses] == [
            ("look", compute_digest("seen"), 2.5)
        ]
        assert episode.timelines[0].sampled == episode.sampled_tokens == said["usage"]["completion_tokens"]
        assert served.client.get(f"/episodes/{opened['episode']}").json() == ended


def test_no_episode_begins_while_what_is_outside_fails_but_one_to_see():
    with outages_pause(60.0), start_serving(breaker={"share": 0.0, "window": 1}) as served:
        opened = served.open(task="x")
        assert served.ask(opened).status_code == 200
        lost = served.finish(opened, error="no world", boundary="environment").json()
        assert (lost["status"], lost["boundary"]) == ("failed", "environment")
        refused = served.client.post("/episodes", json={"task": "x"})
        assert error(refused) == (503, "outage") and "the environment (1)" in refused.json()["error"]["message"]
        served.allow_probe()
        assert served.client.post("/episodes", json={}).status_code == 400  # no probe: it never began
        with served.judging_breaks():  # nor is one whose end could not be judged
            finish = f"/episodes/{served.open(task='x')['episode']}/finish"
            broken = served.client.post(finish, json={"reward": 1.0}, headers={"connection": "close"})
            assert broken.status_code == 500
        probe = served.open(task="x")
        assert served.client.post("/episodes", json={"task": "x"}).status_code == 503
        assert served.ask(probe).status_code == 200 and served.finish(probe, reward=1.0).status_code == 200
        assert served.play(task="x")["status"] == "completed"


def test_who_was_admitted_before_an_outage_is_no_probe_of_it():
    with outages_pause(0.0), start_serving(breaker={"share": 0.0, "window": 1}) as served:

        def meanwhile():
            served.begin_outage("engine")
            assert served.is_outage and served.take_probe()  # another client's

        def meanwhile_and_away():
            meanwhile()
            raise StoreUnavailableError("The store does not answer.")

        with served.during_opening(meanwhile):
            opened = served.open(task="x")
            assert served.finish(opened, reward=1.0).status_code == 200 and served.is_outage, "nothing of the outage"
        served.end_outage()
        with served.during_opening(meanwhile_and_away):
            assert error(served.client.post("/episodes", json={"task": "x"})) == (503, "store_down")
        assert not served.take_probe(), "the other client's probe is under way"


def test_a_key_dies_with_its_episode_and_a_path_may_stand_for_it():
    with start_serving() as served:
        opened = served.open(task="hello")
        body = {"model": "x", "messages": [{"role": "user", "content": "hi"}]}
        assert httpx.post(f"{opened['path_base_url']}/chat/completions", json=body).status_code == 200
        served.finish(opened, reward=1)
        assert error(served.ask(opened)) == (410, "episode_finished")


def test_only_the_holder_of_the_admin_key_is_answered():
    with start_serving() as served:
        opened = served.open(task="hello")
        url = str(served.client.base_url).rstrip("/")
        for headers in ({}, {"authorization": f"Bearer {opened['api_key']}"}, {"x-api-key": "wrong"}):
            assert error(httpx.post(f"{url}/episodes", json={"task": "x"}, headers=headers)) == (
                401,
                "invalid_admin_key",
            )
            assert httpx.get(f"{url}/episodes/{opened['episode']}", headers=headers).status_code == 401
        assert httpx.get(f"{url}/episodes", headers={"x-api-key": "an-admin-key"}).status_code == 200


class LengthJudge:
    """Rewards the length of the answer; None for an empty one."""

    def compute_reward(self, workflow_task, workflow_output):
        answer = workflow_output.metadata.get("final_answer")
        if answer == "boom":
            raise ValueError("no number")
        return None if not answer else (float(len(answer)), True)


def test_without_a_reward_the_judge_decides():
    with start_serving(judge=LengthJudge()) as served:
        rewards = []
        for answer in ("four", "", "boom"):
            opened = served.open(task="hello")
            served.ask(opened)
            rewards.append(served.finish(opened, metadata={"final_answer": answer}).json())
        assert [(row["status"], row["reward"]) for row in rewards] == [
            ("completed", 4.0),
            ("completed", None),
            ("failed", None),
        ]
        assert "the judge returned None" in rewards[1]["reason"] and rewards[2]["boundary"] == "judge"
        assert served.take_episode().scored and not served.take_episode().scored


def test_a_finish_that_is_repeated_gets_the_same_answer_and_is_judged_once():
    asked = threading.Event()
    go_on = threading.Event()
    judged = []

    class SlowJudge:
        def compute_reward(self, workflow_task, workflow_output):
            judged.append(workflow_task.episode_uuid)
            asked.set()
            assert go_on.wait(60)
            return 1.0, True

    with start_serving(judge=SlowJudge()) as served, ThreadPoolExecutor() as pool:
        opened = served.open(task="hello")
        served.ask(opened)
        first = pool.submit(served.finish, opened)
        assert asked.wait(60)
        assert served.client.get(f"/episodes/{opened['episode']}").json()["status"] == "judging"
        second = pool.submit(served.finish, opened)
        go_on.set()
        assert first.result().json() == second.result().json() == served.finish(opened, reward=9).json()
        assert judged == [opened["episode"]] and first.result().json()["reward"] == 1.0


def test_a_client_may_say_that_its_agent_failed_or_give_up():
    with start_serving() as served:
        failed, dropped = served.open(task="a"), served.open(task="b")
        served.ask(failed)
        served.ask(dropped)
        told = served.finish(failed, error="the tool is broken").json()
        assert (told["status"], told["boundary"], told["reason"]) == ("failed", "agent", "the tool is broken")
        gone = served.client.delete(f"/episodes/{dropped['episode']}").json()
        assert (gone["status"], gone["reason"]) == ("aborted", "deleted")
        assert served.client.delete(f"/episodes/{dropped['episode']}").json() == gone
        assert error(served.finish(dropped, reward=1)) == (409, "episode_ended")
        one, two = served.take_episode(), served.take_episode()
        assert one.untrained == {"failed": one.sampled_tokens} and two.untrained == {"failed": two.sampled_tokens}


def test_an_episode_without_a_model_call_is_a_failed_one():
    with start_serving() as served:
        told = served.finish(served.open(task="a"), reward=1).json()
        assert told["status"] == "failed" and "without a model call" in told["reason"]


def test_attempts_at_a_task_make_a_group_and_another_one_begins_the_next():
    with start_serving(backlog=9) as served:
        ended = [served.play(reward, task={"question": "q", "id": "one"}) for reward in (0.0, 1.0, 0.5)]
        assert [row["repeat"] for row in ended] == [0, 1, 0]
        group = served.take_group()
        assert group.order == -1 and [episode.reward for episode in group.episodes] == [0.0, 1.0]
        assert served.client.get("/episodes").json()["open_groups"] == 1
        served.play(task={"question": "q", "id": "one"})
        assert served.take_group().order == -2, "a task that a client brings stands in no order"


def test_the_same_id_with_another_question_is_another_task():
    with start_serving(backlog=9) as served:
        assert [served.play(task={"question": text, "id": "one"})["repeat"] for text in ("q", "r", "q", "r")] == [
            0,
            0,
            1,
            1,
        ]


def test_without_a_task_the_readers_next_one_is_given_to_a_whole_group_at_once():
    with start_serving(backlog=9, tasks=3) as served:
        opened = [served.open() for _ in range(5)]
        assert [row["task"]["task_id"] for row in opened] == ["t0", "t0", "t1", "t1", "t2"]
        for row in opened[:4]:
            served.ask(row)
        for row in (opened[3], opened[0], opened[2], opened[1]):
            served.finish(row, reward=1)
        first, second = served.take_group(), served.take_group()
        assert [(first.task.task_id, first.order), (second.task.task_id, second.order)] == [("t1", 1), ("t0", 0)]
        served.mark_trained([0, 1], step=1)
        saved = served.save()
    with start_serving(backlog=9, tasks=3, at=saved) as served:
        again = [served.open()["task"]["task_id"] for _ in range(3)]
        assert again == ["t2", "t2", "t0"], "handed out, and never came back; then the next epoch"


def test_without_a_reader_a_task_is_asked_for():
    with start_serving() as served:
        assert error(served.client.post("/episodes", json={})) == (400, None)
        assert "no task reader" in served.client.post("/episodes").json()["error"]["message"]


def test_episodes_that_do_not_train_are_sampled_as_their_client_wishes_and_join_no_group():
    with start_serving(backlog=9, temperature=0.9) as served:
        opened = served.open(task="hello", train=False)
        served.ask(opened, temperature=0.25)
        served.finish(opened, reward=1)
        episode = served.take_episode()
        assert episode.split == "debug" and episode.calls[0].temperature == 0.25 and not episode.calls[0].trained
        assert episode.untrained == {"not_trainable": episode.sampled_tokens}
        assert served.client.get("/episodes").json()["open_groups"] == 0
        trained = served.open(task="hello")
        served.ask(trained, temperature=0.25)
        served.finish(trained, reward=1)
        served.play(task="hello")
        assert served.take_group().episodes[0].calls[0].temperature == 0.9


def test_only_the_named_targets_train():
    with start_serving() as served:
        opened = served.open(task="hello", agent="solver", trainable_targets=["solver"])
        served.ask(opened)
        headers = {"authorization": f"Bearer {opened['api_key']}", "x-ajet-agent": "critic"}
        body = {"model": "ajet", "messages": [{"role": "user", "content": "hi"}]}
        assert httpx.post(f"{opened['base_url']}/chat/completions", json=body, headers=headers).status_code == 200
        served.finish(opened, reward=1)
        assert [(call.agent, call.trained) for call in served.take_episode().calls] == [
            ("solver", True),
            ("critic", False),
        ]


def test_a_group_closes_at_its_deadline_with_what_it_has():
    with start_serving(backlog=9, num_repeat=4, group_deadline=600, min_group=2) as served:
        slow = served.open(task="q")
        served.ask(slow)
        for reward in (0.0, 1.0):
            served.play(reward, task="q")
        served.overdue()
        group = served.take_group()
        assert [episode.status for episode in group.episodes] == ["aborted", "completed", "completed"]
        assert group.episodes[0].ending == "group_deadline"
        assert error(served.finish(slow, reward=1)) == (409, "episode_ended")


def test_more_episodes_than_allowed_and_a_trainer_that_is_behind_are_refused_for_now():
    with start_serving(backlog=1, max_env_worker=2, num_repeat=1) as served:
        one = served.open(task="a")
        served.open(task="b")
        full = served.client.post("/episodes", json={"task": "c"})
        assert error(full) == (429, "too_many_episodes") and full.headers["retry-after"] == "1"
        served.ask(one)
        served.finish(one, reward=1)
        assert error(served.client.post("/episodes", json={"task": "c"})) == (429, "trainer_busy")
        served.take_group()
        served.open(task="c")


def test_closing_records_what_is_under_way_and_groups_that_are_not_complete():
    with start_serving(backlog=9) as served:
        served.play(task="half")
        opened = served.open(task="open")
        served.ask(opened)
        served.close()
        groups = [served.take_group(), served.take_group()]
        assert [[episode.status for episode in group.episodes] for group in groups] == [["completed"], ["aborted"]]
        assert error(served.client.get("/episodes")) == (503, "closing")


def test_many_clients_at_once_are_all_accounted_for():
    with start_serving(backlog=1000, num_repeat=4, max_env_worker=64) as served, ThreadPoolExecutor(16) as pool:
        ended = list(pool.map(lambda n: served.play(float(n % 2), task=f"task {n % 10}"), range(80)))
        groups = [served.take_group() for _ in range(20)]
        assert sorted(episode.uuid for group in groups for episode in group.episodes) == sorted(
            row["episode"] for row in ended
        )
        assert sorted(group.order for group in groups) == list(range(-20, 0))
        assert all([episode.repeat for episode in group.episodes] == [0, 1, 2, 3] for group in groups)
        assert served.client.get("/episodes").json() == {
            "open": [],
            "ended": {"completed": 80, "failed": 0, "aborted": 0},
            "open_groups": 0,
            "waiting_groups": 0,
            "held_out_tasks": 0,
            "version": 0,
        }


def test_the_next_server_takes_up_what_was_acknowledged(tmp_path):
    """A complete group, half a one whose first attempt was under way, one that does not train: all of the reader's."""
    with start_serving(tasks=3, backlog=9, pending=tmp_path) as served:
        whole = [served.play(reward) for reward in (0.0, 1.0)]
        under_way, half = served.open(), served.play(0.5)
        alone = served.play(task="hello", train=False)
        assert under_way["task_id"] == half["task_id"] == "t1"
        kept = {one.uuid: one for one in kept_ends(tmp_path)}
        assert kept.keys() == {row["episode"] for row in (*whole, half, alone)}
        assert [kept[row["episode"]].reward for row in whole] == [0.0, 1.0]
    assert len(kept_ends(tmp_path)) == 4, "what the closing desk ended counts as no attempt"

    with start_serving(tasks=3, backlog=9, pending=tmp_path) as served:
        found = [served.take() for _ in range(2)]
        (group,) = (result for result in found if isinstance(result, Group))
        (single,) = (result for result in found if isinstance(result, Episode))
        assert single.uuid == alone["episode"]
        assert [episode.uuid for episode in group.episodes] == [row["episode"] for row in whole]
        assert served.finish(half, reward=0.5).json() == half, "asked again, it answers again"
        again, fresh = served.open(), served.open()
        assert (again["task_id"], again["repeat"]) == ("t1", 0), "the attempt that was lost"
        assert fresh["task_id"] == "t2", "t0 is not given out again"
        served.ask(again)
        served.finish(again, reward=0.0)
        other = served.take_group()
        assert [episode.uuid for episode in other.episodes] == [again["episode"], half["episode"]]
        served.mark_trained([group.order], step=1)
        assert served.save()["unfinished"] == [1, 2], "and the reader knows"


def test_what_a_step_used_is_no_longer_taken_up_and_a_torn_end_is_not_read(tmp_path):
    with start_serving(backlog=9, pending=tmp_path) as served:
        ended = [served.play(reward, task=name) for name, reward in (("a", 0.0), ("a", 1.0), ("b", 0.0))]
        served.mark_trained([served.take_group().order], step=1)
        saved = served.save()
        served.forget_before(1)
    assert [one.uuid for one in kept_ends(tmp_path, saved)] == [ended[2]["episode"]]
    (lines,) = tmp_path.glob("*.jsonl")
    lines.write_bytes(lines.read_bytes() + b'{"half": ')
    assert [one.uuid for one in kept_ends(tmp_path, saved)] == [ended[2]["episode"]]


def test_a_group_that_its_deadline_closed_takes_no_more_attempts_after_a_restart(tmp_path):
    with start_serving(backlog=9, pending=tmp_path, num_repeat=3, group_deadline=600, min_group=2) as served:
        served.open(task="q")
        for reward in (0.0, 1.0):
            served.play(reward, task="q")
        served.overdue()
        assert len(served.take_group().episodes) == 3
    with start_serving(backlog=9, pending=tmp_path, num_repeat=3) as served:
        assert len(served.take_group().episodes) == 3 and served.play(task="q")["repeat"] == 0


def test_a_task_is_played_by_as_many_at_once_as_may_be():
    with start_serving(backlog=9, num_repeat=4, tasks=3, serve={"max_per_task": 1}) as served:
        first = served.open(task="q")
        assert error(served.client.post("/episodes", json={"task": "q"})) == (429, "task_busy")
        assert served.open(task="another")["task"]["main_query"] == "another"
        assert [served.open()["task"]["task_id"] for _ in range(2)] == ["t0", "t1"], "the reader's next one instead"
        served.ask(first)
        served.finish(first, reward=1)
        assert served.open(task="q")["repeat"] == 1


def test_a_reader_with_all_tasks_busy_begins_nothing_more_however_often_it_is_asked():
    with start_serving(backlog=9, num_repeat=4, tasks=2, serve={"max_per_task": 1}) as served:
        first, second = served.open(), served.open()
        for _ in range(5):
            assert error(served.client.post("/episodes", json={})) == (429, "task_busy")
        assert served.client.get("/episodes").json()["open_groups"] <= 4, "an epoch ahead at most"
        served.ask(second)
        served.finish(second, reward=1)
        assert served.open()["task"] == second["task"] != first["task"]


def test_who_is_refused_for_a_busy_task_takes_no_position():
    with start_serving(backlog=9, serve={"max_per_task": 1}) as served:
        served.open(task="q", train=False)
        given = []
        with served.during_opening(lambda: given.append("a position for nobody")):
            for train in (True, False):
                assert error(served.client.post("/episodes", json={"task": "q", "train": train})) == (429, "task_busy")
        assert not given


def test_a_store_that_is_away_holds_up_nobody_who_does_not_need_it():
    store = AwayStore()
    with start_serving(backlog=9, num_repeat=2, store=store) as served, ThreadPoolExecutor() as pool:
        opened = [served.open(task="q") for _ in range(2)]
        store.away.set()
        waiting = [pool.submit(served.open, task="new") for _ in range(2)]
        assert store.asked.wait(60)
        store.asked.clear()
        for each in opened:
            assert served.ask(each).status_code == 200
        assert served.finish(opened[0], reward=1).json()["status"] == "completed"
        last = pool.submit(served.finish, opened[1], reward=0)
        assert store.asked.wait(60), "the group is whole, and the store is to be told"
        assert served.client.get(f"/episodes/{opened[0]['episode']}").json()["status"] == "completed"
        assert opened[1]["episode"] in served.client.get("/episodes").json()["open"]
        store.back.set()
        assert last.result().json()["status"] == "completed" and served.take_group().order == -1
        assert sorted(each.result()["repeat"] for each in waiting) == [0, 1], "one group, whoever came first"


def test_a_store_that_cannot_be_asked_is_said_so_and_the_request_is_good_later():
    def down():
        raise StoreDownError("nobody answers")

    with start_serving(backlog=9) as served:
        with served.during_opening(down):
            refused = served.client.post("/episodes", json={"task": "q"})
            assert error(refused) == (503, "store_down") and refused.headers["retry-after"] == "1"
        assert served.open(task="q")["repeat"] == 0


def test_an_attempt_at_a_held_out_task_is_a_validations_and_no_groups():
    with start_serving(backlog=9, temperature=0.9) as served:
        assert error(served.client.post("/episodes", json={"held_out": True}))[0] == 400
        opened = served.open(task="hello", held_out=True)
        served.ask(opened, temperature=0.0)
        served.finish(opened, reward=1)
        episode = served.take_episode()
        assert (episode.split, episode.calls[0].temperature, episode.calls[0].trained) == ("validation", 0.0, False)
        assert served.client.get("/episodes").json()["open_groups"] == 0
        assert served.sort_into_batch(episode) == ([episode], [])
    with start_serving() as served:
        opened = served.open(task="hello", held_out=True)
        served.ask(opened)
        served.finish(opened, reward=1)
        assert served.take_episode().split == "debug", "without a trainer all are recorded alike"


def test_held_out_tasks_of_the_server_s_own_are_given_out_in_turns_and_never_trained():
    with start_serving(backlog=9, held_out=2, temperature=0.9) as served:
        assert served.client.get("/episodes").json()["held_out_tasks"] == 2
        first, second = (served.open(held_out=True) for _ in range(2))
        assert [each["task"]["task_id"] for each in (first, second)] == ["h0", "h1"]
        served.client.delete(f"/episodes/{first['episode']}")
        assert served.take_episode().status == "aborted"
        again = served.open(held_out=True)
        assert again["task"]["task_id"] == "h0", "what was given up was no turn"
        for opened in (again, second):
            served.ask(opened)
            served.finish(opened, reward=1)
            episode = served.take_episode()
            assert (episode.split, episode.calls[0].trained, episode.calls[0].temperature) == ("validation", False, 0)
        assert served.open(held_out=True)["task"]["task_id"] == "h0", "and round again"
        assert error(served.client.post("/episodes", json={"train": False}))[0] == 400
    with start_serving(backlog=9) as served:
        assert error(served.client.post("/episodes", json={"held_out": True}))[0] == 400
