"""`ajet.client` against a served desk over its socket, and the OpenAPI document against what is really said."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from typing import Any

import httpx
import pytest

from ajet.client import Client, Episode, EpisodeLost, Refused, Unreachable
from ajet.schema.episode import Group
from tests.support.ports import free_port
from tests.support.served import (
    KEY,
    LONGEST_PAUSE,
    RunningServer,
    episode_routes,
    pass_client_pauses,
    reply_types,
    start_serving,
)

pytestmark = pytest.mark.slow


def client_of(served: RunningServer, **more: Any) -> Client:
    return Client(str(served.client.base_url), KEY, **{"patience": 60, **more})


def asks(episode: Episode) -> float:
    """An agent that asks once."""
    body = {"model": episode.model, "messages": [{"role": "user", "content": episode.question}]}
    headers = {"authorization": f"Bearer {episode.api_key}"}
    reply = httpx.post(f"{episode.base_url}/chat/completions", json=body, headers=headers, timeout=60)
    return float(reply.json()["choices"][0]["message"]["content"] == "yes")


def test_it_needs_httpx_and_nothing_else_of_ajets_packages() -> None:
    code = (
        "import sys, httpx; before = set(sys.modules); import ajet.client; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names; "
        "rooms = {name.split('.')[1] for name in sys.modules if name.startswith('ajet.')}; print(sorted(new), rooms)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().startswith("['ajet']")
    assert "'schema'" not in done.stdout and "'rollout'" not in done.stdout


def test_an_episode_ends_by_its_block_whatever_happens_in_it() -> None:
    with start_serving() as served, client_of(served) as client:
        with client.episode({"question": "What is 1 + 2?", "answer": "3"}) as episode:
            assert episode.question == "What is 1 + 2?" and episode.task["metadata"]["answer"] == "3"
            assert episode.environment["ANTHROPIC_BASE_URL"] + "/v1" == episode.environment["OPENAI_BASE_URL"]
            assert episode.environment["GOOGLE_GEMINI_BASE_URL"] == episode.environment["ANTHROPIC_BASE_URL"]
            asks(episode)
            assert episode.state()["status"] == "open"
            told = episode.finish(0.5, success=True, metadata={"note": "n"}, metrics={"turns": 1})
            assert (told["status"], told["reward"], told["calls"]) == ("completed", 0.5, 1)
            assert episode.finish(9) == episode.fail("late") == told, "it ended once"
        with pytest.raises(KeyError, match="gone"), client.episode("b") as failed:
            raise KeyError("gone")
        assert failed.ended is not None and failed.ended["reason"] == "KeyError: 'gone'"
        with client.episode("c", train=False) as left:
            pass
        assert left.ended is not None and left.ended["status"] == "aborted"
        with pytest.raises(Refused, match="task") as refused:
            client.begin()
        assert (refused.value.status, refused.value.param) == (400, "task")
        assert KEY not in repr(client.begin("d")) and client.overview()["ended"] == {
            "completed": 1, "failed": 1, "aborted": 1,
        }  # fmt: skip


def test_an_episode_that_the_next_server_does_not_know_is_lost() -> None:
    port = free_port()
    with start_serving(port=port) as served:
        client = client_of(served)
        left = client.begin("c", train=False)
    with client, start_serving(port=port), pytest.raises(EpisodeLost):
        left.finish(1.0)


def test_many_are_played_at_once_and_who_comes_too_early_waits() -> None:
    def agent(episode: Episode) -> Any:
        if episode.question == "3":
            raise ValueError("a broken agent")
        return {"reward": asks(episode), "metrics": {"length": 1}}

    with start_serving(max_env_worker=2) as served, client_of(served) as client:
        assert client.play(agent, at_once=4, tasks=(str(n) for n in range(6))) == {"completed": 5, "failed": 1}
        ended = [served.take() for _ in range(6)]
    assert {each.task.main_query for each in ended} == {str(n) for n in range(6)}
    assert all(each.metrics == {"length": 1.0} for each in ended if each.status == "completed")


@pytest.mark.parametrize("answer", [{"score": 1.0}, float("nan"), object()])
def test_an_episode_whose_agent_answers_no_reward_does_not_stay_open(answer: Any) -> None:
    with start_serving() as served, client_of(served) as client:
        with pytest.raises((TypeError, ValueError)):
            client.play(lambda episode: answer, episodes=1, tasks=iter(["a"]))
        told = client.overview()
        assert (told["open"], told["ended"]["failed"]) == ([], 1)


def test_an_agent_that_exits_fails_its_episode_and_the_others_are_played() -> None:
    def agent(episode: Episode) -> float:
        if episode.question == "a":
            sys.exit("its own code")
        return asks(episode)

    with start_serving() as served, client_of(served) as client:
        assert client.play(agent, tasks=iter(["a", "b"])) == {"failed": 1, "completed": 1}
        assert client.overview()["open"] == []


def test_the_server_s_held_out_tasks_are_played_as_a_validation() -> None:
    with start_serving(backlog=9, held_out=3) as served, client_of(served) as client:
        assert client.validate(asks, at_once=2) == {"completed": 3}
        ended = [served.take() for _ in range(3)]
        assert client.overview()["open_groups"] == 0, "nothing of it is trained on"
    assert {each.task.task_id for each in ended} == {"h0", "h1", "h2"}
    assert {each.split for each in ended} == {"validation"}
    with (
        start_serving(backlog=9) as served,
        client_of(served) as client,
        pytest.raises(ValueError, match="no held-out"),
    ):
        client.validate(asks)


class Clock:
    """Passes by being slept."""

    def __init__(self) -> None:
        self.now, self.pauses = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)


def test_a_server_that_is_away_is_asked_again_until_the_patience_is_over() -> None:
    clock = Clock()
    with socket.socket() as nobody, pass_client_pauses(clock):
        nobody.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable):
            Client(f"http://127.0.0.1:{nobody.getsockname()[1]}", KEY, patience=60).begin("a")
    longest = 1.2 * LONGEST_PAUSE
    assert len(clock.pauses) > 9 and max(clock.pauses) <= longest and 60 - longest <= clock.now <= 60
    with pytest.raises(ValueError, match="AJET_URL"):
        Client(admin_key=KEY)


def test_a_place_whose_client_is_gone_is_given_to_another_one_once() -> None:
    """And so is one that was lost outside of the agent; each is recorded by itself."""
    with start_serving(backlog=9, gateway={"idle_timeout": 600}, num_repeat=2) as served, client_of(served) as client:
        gone = client.begin("a")
        asks(gone)
        served.forgotten(gone.name)
        lost = served.take()
        assert not isinstance(lost, Group) and lost.uuid == gone.name and lost.split == "debug"
        assert lost.failure is not None and lost.failure.retryable and lost.order != -1
        again, other = client.begin("a"), client.begin("a")
        assert (again.repeat, other.repeat) == (0, 1)
        other.fail("no world", "environment")
        another = served.take()
        assert another.uuid == other.name and another.failure.boundary == "environment"
        asks(again)
        again.finish(1.0)
        with client.episode("a") as last:
            assert last.repeat == 1
            last.fail("no world again", "environment")  # its place was given again once
        group = served.take()
    assert isinstance(group, Group) and [each.uuid for each in group.episodes] == [again.name, last.name]
    assert [each.status for each in group.episodes] == ["completed", "failed"]


def test_a_task_whose_only_attempt_was_lost_is_given_again_after_its_deadline() -> None:
    limits = {"gateway": {"idle_timeout": 0.1}, "group_deadline": 0.2, "num_repeat": 2}
    with start_serving(tasks=2, backlog=9, **limits) as served, client_of(served) as client:
        gone = client.begin()
        assert gone.question == "task 0"
        lost = served.take()
        assert not isinstance(lost, Group) and lost.uuid == gone.name
        until = time.monotonic() + 60
        while client.overview()["open_groups"] and time.monotonic() < until:
            time.sleep(0.02)
        assert served.results_waiting == 0 and served.tasks_begun() == [0], "nothing was tried: nothing is over"
        assert client.begin().question == "task 0"


def test_what_is_said_is_what_the_document_says() -> None:
    with start_serving(judge=None) as served, client_of(served) as client:
        opened = served.open(task="a")
        document = served.client.get("/openapi.json").json()
        shown = served.client.get(f"/episodes/{opened['episode']}").json()
        asks(client.begin("b"))
        ended = served.finish(opened, error="so").json()
        refused = served.client.get("/episodes/none").json()
        overview = client.overview()
        answered = episode_routes(served)
    protocol = reply_types()
    told = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert told == answered and document == protocol.build_openapi()
    for model, said in (
        (protocol.OpenedEpisode, opened), (protocol.OpenEpisode, shown), (protocol.EndedEpisode, ended),
        (protocol.Problem, refused), (protocol.Overview, overview),
    ):  # fmt: skip
        assert model.model_validate(said, strict=True).model_dump() == said
