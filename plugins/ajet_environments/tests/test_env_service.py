"""Episodes in an environment service, from its list of tasks to its score, wherever the workflow runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ajet.config import Experiment
from ajet.environment.services import EnvService
from ajet.environment.services.chosen import is_service_url
from ajet.schema.errors import ConfigError, EnvironmentFailure, TaskError
from ajet.task_judge import open_judge
from ajet.task_reader import open_reader
from ajet_environments.services.serving import LocalWorldService
from ajet_environments.services.sources import open_world
from tests.support import world_fixtures, world_workflows
from tests.support.rollouts import stage
from tests.support.waiting import until
from tests.support.world_fixtures import Count, on_a_loop, openenv_app

HERE = Path(world_fixtures.__file__).parent
JUDGE = "ajet.task_judge.env_service_as_judge->EnvServiceJudge"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Any:
    Count.made.clear()
    beside = LocalWorldService(open_world("world_fixtures.py->Count", base=HERE))
    monkeypatch.setenv("ENV_SERVICE_TOKEN", str(beside.service.token))
    yield beside.service
    beside.close()


def settings(url: str) -> dict[str, Any]:
    section = {"env_url": url, "env_type": "count", "training_split": "train", "validation_split": "dev"}
    return {"task_reader": {"type": "env_service", "env_service": section}, "task_judge": {"judge_protocol": JUDGE}}


def experiment(tree: dict[str, Any]) -> Experiment:
    return Experiment.from_dict({"ajet": tree}, base=HERE)


@pytest.mark.parametrize(
    ("isolation", "workflow"),
    [
        ("thread", world_workflows.Plays),
        ("thread", world_workflows.PlaysPlain),
        ("loop", world_workflows.Plays),
        pytest.param("process", world_workflows.Plays, marks=pytest.mark.extra_slow),  # an interpreter is started
    ],
)
def test_tasks_are_played_scored_and_released_wherever_the_workflow_runs(
    isolation: str, workflow: type[Any], service: EnvService
) -> None:
    found = experiment(settings(service.url))
    reader = open_reader(found)
    tasks = list(enumerate(reader.tasks("train")))
    assert [task.task_id for _, task in tasks] == ["1", "2", "3"] and tasks[0][1].env_type == "count"
    assert reader.has("validation") and [task.task_id for task in reader.tasks("validation")] == ["4"]
    repeats = 1 if isolation == "process" else 2  # each first one there costs the start of an interpreter
    with stage(
        workflow, lambda _: "It is 2", tree=settings(service.url), judge=open_judge(found), isolation=isolation,
        num_repeat=repeats, max_env_worker=1 if isolation == "process" else 64,
    ) as made:  # fmt: skip
        groups = sorted(made.rollout.play(tasks, step=1, split="train"), key=lambda group: group.order)
    episodes = [episode for group in groups for episode in group.episodes]
    assert [episode.failure for episode in episodes] == [None] * 3 * repeats
    right = [False] * repeats + [True] * repeats + [False] * repeats
    assert [episode.reward for episode in episodes] == right
    assert [episode.verdict and episode.verdict.success for episode in episodes] == right
    assert episodes[repeats].metadata["seen"] == ["right"] and len(episodes[0].metadata["seen"]) == 3
    assert episodes[0].messages[0]["content"] == "Say 1."
    assert [use.result for use in episodes[0].tool_uses] == ["wrong"] * 3, "each action is an item of its episode"
    assert (
        episodes[0].tool_uses[0].arguments == {"content": "It is 2"} and episodes[0].tool_uses[0].server == service.url
    )
    assert len(Count.made) == 3 * repeats, "one an attempt"
    assert until(lambda: all(each.released for each in Count.made))


@pytest.mark.parametrize("use", ["world_fixtures.py->Count", "openenv"])
def test_an_environment_is_used_for_the_tasks_of_any_reader(use: str) -> None:
    """Whatever it is, workflow and judge see the same."""
    Count.made.clear()
    from ajet.schema.task import Task

    with on_a_loop(openenv_app()) as place:
        tree = {"environment": {"use": f"openenv:ws://{place}" if use == "openenv" else use}}
        judge = open_judge(experiment({"task_judge": {"judge_protocol": JUDGE}}))
        with stage(
            world_workflows.Plays, lambda _: "It is 2", tree=tree, judge=judge, folder=HERE, num_repeat=1
        ) as made:
            tasks = [(order, Task(main_query="x", task_id=str(order))) for order in (1, 2)]
            groups = sorted(made.rollout.play(tasks, step=1, split="train"), key=lambda group: group.order)
    assert [group.episodes[0].failure for group in groups] == [None, None]
    assert [group.episodes[0].reward for group in groups] == [0, 1]
    assert groups[1].episodes[0].metadata["query"].endswith("Say 2.")


def test_a_service_that_is_not_there_is_one_error_that_says_what_to_do() -> None:
    reader = open_reader(experiment(settings("http://127.0.0.1:9")))
    with pytest.raises(TaskError) as caught:
        reader.tasks("train")
    assert "no connection" in caught.value.what and "env_url" in caught.value.where
    assert "env serve" in caught.value.do and "env check" in caught.value.do


def test_two_environments_are_one_too_many() -> None:
    from ajet.environment.services.chosen import choose_environment

    with pytest.raises(ConfigError, match="environment.use sets another environment"):
        choose_environment(
            experiment({**settings("http://127.0.0.1:9"), "environment": {"use": "gymnasium:FrozenLake-v1"}})
        )


@pytest.mark.parametrize("environment", [{"use": "gymnasium:FrozenLake-v1"}, {"use": "openenv:ws://127.0.0.1:9"}, None])
def test_a_recorded_run_cannot_stand_for_an_environment_with_a_state(environment: dict[str, str] | None) -> None:
    from ajet.environment.services.chosen import choose_environment

    told = {"environment": environment} if environment else settings("http://127.0.0.1:9")
    told["environment"] = {**(environment or {}), "replay": "before"}
    with pytest.raises(ConfigError, match="A replay contains the tools' results only") as caught:
        choose_environment(experiment(told))
    assert "rejudge" in caught.value.do


def test_an_address_that_is_none_is_said_in_words() -> None:
    from ajet.environment.services.chosen import choose_environment
    from ajet_environments.services.check import run_check
    from ajet_environments.services.reachable import list_services

    def open_openenv(url: str) -> None:
        open_world(f"openenv:{url.replace('http', 'ws')}", base=HERE)

    of_reader = experiment(settings("http://127.0.0.1:80800"))
    used = experiment({"environment": {"use": "http://[::1:8080"}})
    for found, key in ((of_reader, "ajet.task_reader.env_service.env_url"), (used, "ajet.environment.use")):
        for reads in (choose_environment, lambda found: list(list_services(found))):
            with pytest.raises(ConfigError, match="is not the URL of an environment service") as caught:
                reads(found)
            assert caught.value.where == key
    for url in ("http://127.0.0.1:port/x", "http://", "http://[::1"):
        for asks in (open_openenv, partial(run_check, env_type="", split="train", actions=[], steps=1)):
            with pytest.raises(ConfigError, match="is not the URL of an"):
                asks(url)
    with pytest.raises(EnvironmentFailure, match="is not a URL such as"):
        EnvService("http://127.0.0.1:80800").task_ids("train")


def test_an_address_is_a_tool_servers_by_its_path_alone() -> None:
    from ajet_mcp import servers_of

    for path, kind in {"mcp": "http", "mcp/?key=1": "http", "sse?a=/x": "sse", "mcpapi#top": "dock"}.items():
        assert not is_service_url(f"http://host:1/{path}")
        assert servers_of(f"http://host:1/{path}", HERE)[0].kind == kind
    assert is_service_url("http://host:1") and is_service_url("http://host:1/env?of=/mcp")


def test_what_a_check_raises_is_its_answer_and_the_others_are_asked() -> None:
    from ajet.commands.services import check_services
    from ajet.config.services import RequiredService

    def raises(seconds: float) -> str:
        raise KeyError("data")

    both = [RequiredService("one", "a", "k", raises, "", ""), RequiredService("other", "b", "k", lambda _: "", "", "")]
    assert [why for _, why in check_services(both)] == ["the request failed: KeyError: 'data'", ""]


def test_whatever_is_raised_where_an_instance_is_made_is_the_environments_loss(service: EnvService) -> None:
    from ajet.schema.task import Task

    with stage(world_workflows.Plays, tree=settings(service.url), num_repeat=1, max_retries=0) as made:
        task = Task(main_query="", task_id="1", metadata={"of": {(1, 2): "no name that JSON has"}})
        (group,) = made.rollout.play([(0, task)], step=1, split="train")
    failure = group.episodes[0].failure
    assert failure is not None and failure.boundary == "environment" and "TypeError: keys must be" in failure.message


def test_the_judge_without_an_environment_says_so() -> None:
    from ajet.schema.errors import JudgeFailure
    from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
    from ajet.task_judge.env_service_as_judge import EnvServiceJudge

    with pytest.raises(JudgeFailure, match="the episode has none"):
        EnvServiceJudge(None).compute_reward(WorkflowTask(task=Task()), WorkflowOutput())
