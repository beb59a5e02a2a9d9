"""The tutorial of repositories with bugs: its tasks are sound, its agent repairs them in containers, and it learns."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ajet.config import load_experiment, resolve_reference
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet_containers.harbor.task import HarborTask
from ajet_containers.harbor.workflow import HarborWorkflow
from tests.support.container_fixtures import IMAGE
from tests.support.sandbox_fixtures import require
from tests.support.tutorial_runs import TUTORIALS, learned, taught
from tests.support.workflow_fixtures import scene

FOLDER = TUTORIALS / "example_swe"
HOTEL = "hotel-beds-operator"


def of(reference: str) -> Any:
    return resolve_reference(reference, base=FOLDER)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swe")
    of("repositories.py->write_tasks")(folder, IMAGE)
    return folder


def list_tasks(tasks: Path) -> list[Path]:
    return sorted(chain(*((tasks / split).iterdir() for split in ("train", "held_out"))))


def explain_failure(test: Path, module: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the failing assertion of a test program, or "" if all hold."""
    repository = ModuleType(module.stem)
    exec(module.read_text(), repository.__dict__)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module.stem, repository)
        try:
            exec(test.read_text(), {})
        except AssertionError as error:
            return str(error)
    return ""


def test_broken_repositories_fail_and_solutions_pass(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = list_tasks(tasks)
    assert len(folders) == 60
    for folder in folders:
        name = folder.name.partition("-")[0]
        repository, solution = folder / "environment" / "repository", folder / "solution" / f"{name}.py"
        for test in (repository / f"test_{name}.py", folder / "tests" / f"test_{name}.py"):
            function = folder.name.split("-")[1]
            assert explain_failure(test, repository / f"{name}.py", monkeypatch).startswith(f"{function}(")
            assert explain_failure(test, solution, monkeypatch) == ""


def test_one_repair_passes_the_visible_test() -> None:
    for repository in of("repositories.py->read_repositories")():
        for function in repository.functions:
            for bug in function.bugs():
                repairs = [each for each in bug.bugs() if each.call(10) == function.call(10)]
                assert repairs == [function], "the agent can know the repair from the failing assertion"


def test_the_readers_read_every_task(tasks: Path) -> None:
    for folder in list_tasks(tasks):
        assert HarborTask.read(folder).table.environment.network_mode == "no-network"


def test_no_function_of_the_ten_is_demonstrated() -> None:
    draw, draw_repository = random.Random(0), of("repositories.py->draw_repository")
    known = {each for repository in of("repositories.py->read_repositories")() for each in repository.functions}
    for _ in range(300):
        assert known.isdisjoint(draw_repository(draw).functions)


@pytest.mark.parametrize(
    ("reply", "second"),
    [
        ("line 2: return a - 1", "    return a - 1"),
        (" line 2: return 1\n", "    return 1"),
        ("line 3: return a - 1", None),
        ("line 9: return a - 1", None),
        ("line 0: return a - 1", None),
        ("return a - 1", None),
        ("line 2: return a - 1\nrun tests", None),
    ],
)
def test_an_edit_replaces_a_line_with_text(reply: str, second: str | None, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(before := "def f(a):\n    return a + 1\n\n\ndef g(a):\n    return a + 2\n")
    assert of("agent.py->apply_edit")(reply, program) is (second is not None)
    assert program.read_text() == before.replace("    return a + 1", second or "    return a + 1")


def test_the_yamls_are_valid(tasks: Path) -> None:
    places = [f"task_reader.harbor.path={tasks}/train", f"task_reader.harbor.validation={tasks}/held_out"]
    for name, more in (("sft.yaml", []), ("swe.yaml", places)):
        load_experiment(FOLDER / name, overrides=["model.path=embedded:tiny-tools", *more]).require_ready()


def play(task: Path, *replies: str, **settings: Any) -> tuple[WorkflowOutput, list[Any]]:
    """Play a task in a container with a scripted model."""
    overrides = [f"{name.replace('__', '.')}={json.dumps(value)}" for name, value in settings.items()]
    experiment = load_experiment(FOLDER / "swe.yaml", overrides=["model.path=embedded:tiny-tools", *overrides])
    given = Task(main_query="", task_id=task.name, metadata={"folder": str(task)})
    with scene(*(replies or ("",)), config=experiment.config) as played:
        output = asyncio.run(HarborWorkflow().execute(WorkflowTask(task=given, task_id=given.task_id), played.tuner))
        return output, played.session.close().calls


@pytest.mark.extra_slow
def test_the_agent_repairs_in_a_container(tasks: Path) -> None:
    require("podman")
    task = tasks / "held_out" / HOTEL
    output, calls = play(task, "run tests", "what?", "line 2: return n * 2")
    assert output.reward == 1.0 and len(calls) == 3 and output.metadata["flags"] == {}
    assert "+    return n * 2\n" in output.metadata["final_answer"], "the patch"
    output, _ = play(task, "line 2: return n * 3")
    assert output.reward == 0.0


@pytest.mark.extra_slow
def test_a_solution_is_rewarded_in_a_container(tasks: Path) -> None:
    require("podman")
    task = tasks / "held_out" / HOTEL
    mounts = [f"{task}/solution:/solution"]
    for script, reward in (("bash /solution/solve.sh", 1.0), ("echo pass > test_hotel.py", 0.0)):
        output, _ = play(task, command_agent__command=["bash", "-c", script], container__mounts=mounts)
        assert output.reward == reward, "an edit of the visible test earns nothing"


@pytest.mark.extra_slow
@pytest.mark.timeout(2400)
def test_it_learns_to_run_the_tests(tasks: Path, tmp_path: Path) -> None:
    require("podman")
    with (tmp_path / "demonstrations.jsonl").open("w") as rows:
        program = [sys.executable, str(FOLDER / "repositories.py"), "--demonstrations"]
        subprocess.run(program, stdout=rows, check=True, timeout=120)
    subprocess.run([sys.executable, str(FOLDER / "make_model.py"), "coder"], check=True, cwd=tmp_path, timeout=120)
    model = taught(FOLDER / "sft.yaml", tmp_path)
    places = [f"task_reader.harbor.path={tasks}/train", f"task_reader.harbor.validation={tasks}/held_out"]
    steps = ["trainer_common.total_training_steps=16", "trainer_common.test_freq=16"]  # the page's ten are few
    held_out, _ = learned(FOLDER / "swe.yaml", tmp_path, "swe", model, *places, *steps)
    assert held_out[-1] > held_out[0] + 0.2, held_out
