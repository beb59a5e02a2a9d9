"""An environment service that dies, hangs, lies or floods: the episode is the environment's loss, never a reward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ajet.environment.services import EnvService, GymEnv, wire
from ajet.rollout import attempt_runner
from ajet.schema.episode import Episode
from ajet.schema.errors import EnvironmentFailure
from ajet.schema.task import Task
from ajet.task_judge.env_service_as_judge import EnvServiceJudge
from ajet.task_judge.judge import Judge
from ajet_environments.services.serving import LocalWorldService
from ajet_environments.services.sources import open_world
from tests.support import world_fixtures, world_workflows
from tests.support.rollouts import Stage, stage
from tests.support.waiting import until
from tests.support.world_fixtures import NEMO_ROWS, Count, Failing, nemo_gym_app, on_a_loop, openenv_app, whole

pytestmark = pytest.mark.slow

HERE = Path(world_fixtures.__file__).parent


@contextmanager
def in_service(workflow: type[Any], url: str, *, script: Any = None, **rollout: Any) -> Iterator[Stage]:
    tree = {"task_reader": {"type": "env_service", "env_service": {"env_url": url, "env_type": "count"}}}
    settings = {"num_repeat": 1, "max_retries": 0, **rollout}
    with stage(
        workflow, script or (lambda _: "It is 1"), tree=tree, judge=Judge(EnvServiceJudge(None)), **settings
    ) as made:
        yield made


def lost(episode: Episode) -> str:
    """The message of an episode that the environment lost."""
    assert episode.status == "failed" and episode.reward is None and not episode.timelines
    assert episode.failure is not None and episode.failure.boundary == "environment", episode.failure
    return episode.failure.message


FLOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n" + b" " * (64 << 20)
STEPS: dict[str, Any] = {
    "killed": ("close", "the connection broke before the answer was complete"),
    "garbage": (whole(b"<html>proxy</html>"), "is not JSON (status 200): '<html>proxy</html>'"),
    "cut": (whole(b"[" * 100000), "is not JSON"),
    "half": (b'HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{"data"', "the connection broke"),
    "error": (whole(b'{"detail": "boom"}', "500 Server Error"), "refuses the request (status 500): boom"),
    "hidden error": (whole(b'{"success": false, "detail": "boom"}'), "refuses the request (status 200): boom"),
    "no state": (whole(b'{"success": true, "data": {"reward": 1}}'), "contains no state"),
    "no number": (
        whole(b'{"data": {"state": [{"role": "user", "content": ""}], "reward": NaN}}'),
        "contains nan instead of",
    ),
    "64 MB": (FLOOD, "is longer than 16 MiB"),
}


@pytest.mark.parametrize("fault", STEPS)
def test_a_step_that_fails_is_an_environment_lost_and_is_asked_once(fault: str) -> None:
    answer, said = STEPS[fault]
    service = Failing(step=answer)
    workflow = world_workflows.Stumbles if fault == "garbage" else world_workflows.Swallows
    with in_service(workflow, service.url) as made:
        episode = made.episode()
        assert said in lost(episode) and [use.error for use in episode.tool_uses] == ["environment"]
    assert service.heard == ["create", "step", "release"]
    service.close()


def test_a_hung_step_ends_before_its_episode_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_runner, "RESERVE_S", 1.0)
    for left in (1.0, 10.0, 50.0):  # on a busy machine the step may come later than that
        monkeypatch.setattr(attempt_runner, "MOST_RESERVED_S", 120.0 - left)
        service = Failing(step="hang")
        with in_service(world_workflows.Swallows, service.url, episode_timeout=120.0) as made:
            why = lost(made.episode())
        service.close()
        if "step" in service.heard:
            break
    assert "/step: no answer within " in why and service.heard == ["create", "step", "release"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (whole(b'{"detail": "no room"}', "503 Full"), "refuses the request (status 503): no room"),
        (whole(b'{"success": true, "data": {"state": []}}'), "contains no state"),
    ],
)
def test_a_refused_create_is_a_failed_episode_without_a_model_call(answer: bytes, said: str) -> None:
    service = Failing(create=answer)
    with in_service(world_workflows.Plays, service.url, max_retries=1) as made:
        episode = made.episode()
        assert said in lost(episode) and episode.attempts == 2 and not episode.calls
        assert made.retries == 1
    assert service.heard.count("create") == 2
    service.close()


@pytest.mark.parametrize("score", [whole(b"[]"), whole(b'{"data": null}'), whole(b'{"data": NaN}'), "close"])
def test_a_score_that_does_not_come_is_no_score_of_0(score: Any) -> None:
    service = Failing(evaluate=score)
    with in_service(world_workflows.Plays, service.url) as made:
        lost(made.episode())
    assert service.heard.count("evaluate") == (wire.TRIES if score == "close" else 1), "it changes nothing: ask again"
    service.close()


def test_a_service_that_dies_between_two_steps_is_known_by_the_next() -> None:
    beside = LocalWorldService(open_world("world_fixtures.py->Count", base=HERE))
    env = GymEnv(beside.service, "1")
    env.create()
    env.step("2")
    beside.close()
    with pytest.raises(EnvironmentFailure, match="no connection"):
        env.step("1")
    assert env.lost


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("nothing", "before the environment's answer to the request step"),
        ("garbage", "answer to the request step is not JSON"),
        (
            '{"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "boom"}}',
            "the environment could not act: boom",
        ),
        ("x" * (17 << 20), "before the environment's answer to the request step"),
    ],
)
def test_an_openenv_server_that_fails_is_an_environment_lost(answer: str, said: str) -> None:
    told = None if answer == "nothing" else answer
    with on_a_loop(openenv_app(lambda _: told)) as place:
        tree = {"environment": {"use": f"openenv:ws://{place}"}}
        settings: dict[str, Any] = {"num_repeat": 1, "max_retries": 0}
        with stage(world_workflows.Swallows, tree=tree, **settings) as made:
            assert said in lost(made.episode())


MASKED = {"reward": 0.0, "mask_sample": True, "failure_kind": "judge", "failure_reason": "no judge was there"}


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        ("seed_session", (500, "boom"), "refused /seed_session (status 500)"),
        ("say", (500, "boom"), "the tool say answered status 500"),
        ("say", (404, "gone"), "the tool say answered status 404"),
        ("verify", (500, "boom"), "/verify answered status 500"),
        ("verify", (200, b"<html>"), "/verify answered status 200: <html>"),
        ("verify", (200, {}), "contains no reward"),
        ("verify", (200, MASKED), "its reward is not valid: no judge was there"),
        ("verify", (200, {"reward": 0.0, "failure_reason": "sandbox"}), "its reward is not valid: sandbox"),
    ],
)
def test_a_resource_server_of_nemo_gym_that_fails_is_an_environment_lost(path: str, answer: Any, said: str) -> None:
    heard: list[str] = []
    with on_a_loop(nemo_gym_app(heard, **{path: answer})) as place:
        tree = {"environment": {"use": f"nemo_gym:http://{place}"}}
        with stage(world_workflows.CallsSay, tree=tree, num_repeat=1, max_retries=0) as made:
            task = Task(task_id="1", metadata=NEMO_ROWS["1"])
            episode = next(iter(made.rollout.play([(0, task)], step=1, split="train"))).episodes[0]
            assert said in lost(episode)
    assert heard.count(path) == 1, "nothing is sent twice"


def test_a_repeated_attempt_gets_an_instance_of_its_own_and_all_are_released() -> None:
    Count.made.clear()
    beside = LocalWorldService(open_world("world_fixtures.py->Count", base=HERE))
    tree = {"environment": {"use": beside.service.url}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(wire.TOKEN, str(beside.service.token))
        replies = iter(["crash", "It is 1"])
        with stage(
            world_workflows.Plays, lambda _: next(replies), tree=tree, judge=Judge(EnvServiceJudge(None)),
            num_repeat=1, max_retries=1,
        ) as made:  # fmt: skip
            episode = next(iter(made.rollout.play([(0, _task("1"))], step=1, split="train"))).episodes[0]
    assert episode.attempts == 2 and episode.reward == 1 and episode.failure is None
    assert len(Count.made) == 2 and until(lambda: all(each.released for each in Count.made))
    beside.close()


def _task(task_id: str) -> Task:
    return Task(main_query="", task_id=task_id)


def test_a_service_by_another_name_is_asked_with_its_path_and_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Failing()
    with pytest.raises(EnvironmentFailure, match="is not a URL such as"):
        EnvService("127.0.0.1:8080").task_ids("train")
    assert EnvService(service.url, "count").task_ids("train") == ["1", "2"]
    service.close()
