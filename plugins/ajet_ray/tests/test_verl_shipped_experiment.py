"""An experiment arrives in verl's processes as it was, also on a node that has a copy of its folder only."""

import os
import sys

import pytest

from ajet.config import load_experiment, resolve_reference
from ajet.workflow import Workflow
from ajet_ray import shipped_experiment as module
from ajet_ray.shipped_experiment import pack_experiment, restore_experiment

pytestmark = pytest.mark.verl

WORKFLOW = """from ajet import Workflow


class Mine(Workflow):
    async def execute(self, workflow_task, tuner):
        ...
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "workflow.py").write_text(WORKFLOW)
    (folder / "x.yaml").write_text(
        "ajet:\n  model: {path: embedded:tiny-tools}\n  task_reader: {type: random_dummy}\n"
        "  rollout: {user_workflow: workflow.py->Mine, num_repeat: 3}\n  trainer_common: {device: cpu}\n"
        "mine: {key: '${oc.env:CARRIED_SECRET}', plain: 7}\n"
    )
    (folder / ".env").write_text("CARRIED_SECRET=a value\n")
    monkeypatch.setenv("CARRIED_SECRET", "a value")
    monkeypatch.setattr(sys, "path", list(sys.path))
    module.compose_experiment.cache_clear()
    return folder


@pytest.mark.slow
def test_it_is_the_same_experiment_and_carries_no_secret(project, tmp_path):
    experiment = load_experiment(project / "x.yaml", backbone="verl", overrides=["seed=5"], exp_dir=tmp_path / "runs")
    about = pack_experiment(experiment, run_id="r")
    assert "a value" not in str(about)
    again = restore_experiment(about)
    settled = experiment.replace_defaults({"ajet.trainer_common.algorithm.is_cap": None})  # what `auto` is here
    assert again.ajet == settled.ajet.model_copy(update={"base_dir": again.ajet.base_dir, **_places(again)})
    assert (again.name, again.root, again.base) == (experiment.name, experiment.root, experiment.base)
    assert again.sections == {"mine": {"key": "a value", "plain": 7}} and again.ajet.seed == 5


@pytest.mark.slow
def test_a_secret_in_the_yaml_itself_arrives_by_the_environment(project, tmp_path, monkeypatch):
    literal = "mine: {pass: hunter-one, url: 'https://me:hunter-two@host/a', api_key: hunter-three}\n"
    (project / "y.yaml").write_text((project / "x.yaml").read_text().partition("mine:")[0] + literal)
    experiment = load_experiment(project / "y.yaml", backbone="verl", exp_dir=tmp_path / "runs")
    about = pack_experiment(experiment, run_id="r")
    assert "hunter" not in str(about)
    assert restore_experiment(about).sections == experiment.sections
    for name in [name for name in os.environ if name.startswith("AJET_LITERAL_")]:
        monkeypatch.delenv(name)


@pytest.mark.slow
def test_on_another_node_the_working_directory_is_a_copy_of_the_folder(project, tmp_path, monkeypatch):
    about = pack_experiment(load_experiment(project / "x.yaml", backbone="verl", exp_dir=tmp_path / "runs"), run_id="r")
    copy = tmp_path / "there"
    project.rename(copy)
    monkeypatch.chdir(copy)
    monkeypatch.delenv("CARRIED_SECRET")
    again = restore_experiment(about)
    found = resolve_reference(again.ajet.rollout.user_workflow, base=again.base, expect=Workflow, key="workflow")
    assert found.__name__ == "Mine" and again.base == copy
    assert again.sections["mine"]["key"] == "a value", "out of the .env beside the YAML"


def _places(experiment):
    """What the resolved YAML writes out: names, places, references with their whole path."""
    ajet = experiment.ajet
    return {"experiment_name": ajet.experiment_name, "experiment_dir": ajet.experiment_dir, "rollout": ajet.rollout}
