"""In a folder with another package called `ajet` (a clone of AgentJet), everything of a run still gets this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ajet
from ajet.config import resolve_reference
from ajet.config.plugin import load_code
from ajet.config.plugins import find_part, hand_to_workers
from ajet.config.programs import build_command
from ajet.task_judge.base_judge import BaseJudge
from tests.support.rollouts import stage

pytestmark = pytest.mark.slow
TOYS = Path(__file__).parents[1] / "support" / "toys"
"""The folder of an installed plug-in."""
WORKFLOW = """
import ajet.schema.task
from ajet import Workflow, WorkflowOutput

class Asks(Workflow):
    async def execute(self, workflow_task, tuner):
        from ajet.workflow import ModelTuner  # what is imported late is ours, too
        reply = await tuner.as_raw_openai_sdk_client().chat.completions.create(
            messages=[{"role": "user", "content": "yes?"}])
        return WorkflowOutput(reward=1.0, metadata={"answer": reply.choices[0].message.content, "of": ajet.__file__})
"""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "ajet" / "task_judge").mkdir(parents=True)
    for package in (tmp_path / "ajet", tmp_path / "ajet" / "task_judge"):
        (package / "__init__.py").write_text("raise RuntimeError('the other ajet')\n")
    (tmp_path / "ajet" / "task_judge" / "base_judge.py").write_text("class BaseJudge: ...\n")
    (tmp_path / "agent").mkdir()
    for folder in (tmp_path, tmp_path / "agent"):
        (folder / "workflow.py").write_text(WORKFLOW)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.mark.parametrize("reference", ["workflow.py->Asks", "agent/workflow.py->Asks", "agent.workflow->Asks"])
def test_users_files_import_this_one(clone, reference):
    found = resolve_reference(reference, base=clone)
    assert issubclass(found, ajet.Workflow)
    assert resolve_reference("ajet.task_judge.base_judge->BaseJudge", base=clone) is BaseJudge


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_episodes_play(clone, isolation):
    found = resolve_reference("workflow.py->Asks", base=clone)
    with stage(found, isolation=isolation, folder=clone, user_workflow="workflow.py->Asks") as made:
        episode = made.episode()
    assert episode.failure is None and episode.reward == 1.0
    assert episode.metadata["of"] == ajet.__file__


def test_agents_of_plugins_play(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker process finds the plug-in, whose code imports this package."""
    monkeypatch.syspath_prepend(str(TOYS))
    part = find_part("workflow", "toy_agent")
    assert part is not None
    found = load_code(part.code)
    with hand_to_workers(), stage(found, isolation="process", folder=clone, user_workflow="toy_agent") as made:
        episode = made.episode()
    assert episode.failure is None and "final_answer" in episode.metadata


def test_the_command_lists_plugins(clone: Path) -> None:
    command = [Path(sys.executable).with_name("ajet"), "plugins"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(TOYS)}, text=True, capture_output=True)
    assert done.returncode == 0 and "ajet_toys" in done.stdout and "ajet_ray" in done.stdout, done.stderr


def test_helpers_are_programs_of_this_one(clone):
    environment = {**os.environ, "PYTHONPATH": str(clone)}
    done = subprocess.run(build_command("ajet.task_judge.math_worker"), env=environment, text=True, capture_output=True,
                          stdin=subprocess.DEVNULL)  # fmt: skip
    assert done.returncode == 0 and done.stdout == "ready\n", done.stderr
    done = subprocess.run([sys.executable, "-c", "import ajet"], text=True, capture_output=True)
    assert "the other ajet" in done.stderr, "the clone does not stand in the way: the test proves nothing"


def test_rays_processes_load_this_one_before_the_working_directory_counts(clone):
    pytest.importorskip("ray")
    from ray import cloudpickle

    from ajet_ray.cluster.ray_cluster import build_setup_hook

    assert build_setup_hook([str(clone / "agent"), str(Path(ajet.__file__).parents[1])]) == {}
    (load,) = build_setup_hook([str(clone)]).values()
    code = "import sys, pickle; pickle.loads(sys.stdin.buffer.read())(); sys.path.insert(0, sys.argv[1])\n"
    code += "sys.path.append(sys.argv[2])\n"
    code += "import ajet.config.programs, ajet_toys.keys, json\n"
    code += "from ajet.config.plugins import list_plugins; broken = [p.place for p in list_plugins() if p.problem]\n"
    code += "print(json.dumps([ajet.__file__, sys.path[0], ajet_toys.keys.PluginKeys.__module__, broken]))"
    said = subprocess.run(
        [sys.executable, "-I", "-c", code, str(clone), str(TOYS)],
        input=cloudpickle.dumps(load),
        capture_output=True,
        check=True,
    ).stdout
    assert json.loads(said) == [ajet.__file__, str(clone), "ajet.config.schema.extended", []]
