"""AgentJetJob: what it dumps is a YAML that loads to what was asked for."""

import functools
import sys

import pytest
import yaml

from ajet import AgentJetJob
from ajet.algorithm import open_algorithm
from ajet.config import load_experiment, resolve_reference
from ajet.rollout.components import load_workflow
from ajet.schema.errors import ConfigError, UserError
from ajet.task_judge import open_judge
from ajet.workflow import Workflow
from tests.support.own_algorithms import AgainstTheMedian

WORKFLOW = """
from ajet import Workflow, WorkflowOutput


class Mine(Workflow):
    async def execute(self, workflow_task, tuner):
        return WorkflowOutput(reward=1.0)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The class Mine, imported from a file of the user's."""
    (tmp_path / "my_workflow.py").write_text(WORKFLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_workflow", raising=False)
    import my_workflow

    return my_workflow.Mine


def test_what_is_dumped_loads(tmp_path):
    job = AgentJetJob(backbone="local", model="embedded:tiny-tools", n_gpu=2, algorithm="rloo", n_gpu_for_infer=3)
    path = job.set_workflow("workflow.py->Mine").dump_job_as_yaml(tmp_path / "job.yaml")
    ajet = load_experiment(path).ajet
    assert (ajet.backbone, ajet.model.path) == ("local", "embedded:tiny-tools")
    assert ajet.trainer_common.n_gpus_per_node == 2
    assert ajet.trainer_common.algorithm.adv_estimator == "rloo"
    assert ajet.rollout.n_vllm_engine == 3
    assert ajet.rollout.user_workflow == "workflow.py->Mine"


def test_the_defaults_of_a_job_are_those_of_a_yaml(tmp_path):
    (tmp_path / "empty.yaml").write_text("ajet: {backbone: local, model: {path: 'embedded:smollm2-135m'}}\n")
    given = load_experiment(tmp_path / "empty.yaml").ajet.model_dump()
    job = load_experiment(AgentJetJob().dump_job_as_yaml(tmp_path / "job.yaml")).ajet.model_dump()
    assert {key for key in given if given[key] != job[key]} == {"experiment_name"}


def test_a_section_of_ones_own_reaches_the_workflow(tmp_path):
    job = AgentJetJob().set_section("frozen_lake", frozen_lake_size=4).set_section("frozen_lake", is_slippery=True)
    loaded = load_experiment(job.dump_job_as_yaml(tmp_path / "job.yaml"))
    for config in (job.config, loaded.config):
        assert config.frozen_lake.to_dict() == {"frozen_lake_size": 4, "is_slippery": True}
    assert AgentJetJob().set_section("mine", name="a key of its own").config.mine.name == "a key of its own"
    with pytest.raises(UserError, match="name of your own section"):
        job.set_section("ajet", model="x")


def test_the_name_is_the_experiment(tmp_path):
    path = AgentJetJob(name="my_run").dump_job_as_yaml(tmp_path / "other.yaml")
    assert load_experiment(path).name == "my_run"


def test_a_workflow_class_becomes_a_reference_that_finds_it(mine, tmp_path):
    path = AgentJetJob().set_workflow(mine).dump_job_as_yaml(tmp_path / "elsewhere.yaml")
    reference = load_experiment(path).ajet.rollout.user_workflow
    found = resolve_reference(reference, base=tmp_path / "elsewhere", expect=Workflow)
    assert found.__name__ == "Mine" and issubclass(found, Workflow)


FUNCTIONS = """
async def agent(task, tuner):
    return "yes"


def reward(task, output):
    return 1.0
"""


def test_functions_become_references_that_find_them(tmp_path, monkeypatch):
    (tmp_path / "my_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_functions", raising=False)
    import my_functions

    job = AgentJetJob().set_workflow(my_functions.agent).set_judge(my_functions.reward)
    experiment = load_experiment(job.dump_job_as_yaml(tmp_path / "elsewhere.yaml"))
    assert issubclass(load_workflow(experiment), Workflow)
    assert str(open_judge(experiment)).endswith("reward")


@pytest.mark.parametrize("function", [lambda task, tuner: 1.0, functools.partial(print), print])
def test_a_function_that_no_reference_can_name_is_refused(function):
    with pytest.raises(UserError, match="cannot be named by a reference"):
        AgentJetJob().set_workflow(function)


def test_a_function_of_a_notebook_is_found_there(monkeypatch):
    """A notebook's `__main__` is of no file."""

    async def agent(task, tuner):
        return 1.0

    agent.__module__, agent.__qualname__ = "__main__", "agent"
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "agent", agent, raising=False)
    job = AgentJetJob().set_workflow(agent)
    assert job.experiment().ajet.rollout.user_workflow == "__main__->agent"
    assert issubclass(load_workflow(job.experiment()), Workflow)
    monkeypatch.delattr(sys.modules["__main__"], "agent")
    with pytest.raises(UserError, match="cannot be named by a reference"):
        AgentJetJob().set_workflow(agent)


def test_an_algorithm_may_be_a_class(tmp_path):
    path = AgentJetJob(algorithm=AgainstTheMedian).dump_job_as_yaml(tmp_path / "elsewhere.yaml")
    assert type(open_algorithm(load_experiment(path).ajet, base=tmp_path)) is AgainstTheMedian


def test_a_class_that_no_reference_can_name_is_refused():
    class Local(Workflow):
        async def execute(self, workflow_task, tuner): ...

    with pytest.raises(UserError, match="cannot be named by a reference"):
        AgentJetJob().set_workflow(Local)


def test_data_of_the_hub(tmp_path):
    job = AgentJetJob().set_data(type="hf", dataset_path="gsm8k/main", training_split="train[:10]")
    reader = load_experiment(job.dump_job_as_yaml(tmp_path / "job.yaml")).ajet.task_reader
    assert reader.type == "huggingface_dat_repo"
    hub = reader.huggingface_dat_repo
    assert (hub.dataset_path, hub.training_split, hub.validation_split) == ("gsm8k/main", "train[:10]", "test")


@pytest.mark.parametrize(
    ("validation", "expected"), [("held_out.jsonl", "held_out.jsonl"), ("test", None)], ids=["file", "none"]
)
def test_data_of_json_lines(tmp_path, validation, expected):
    job = AgentJetJob().set_data("jsonl", "train.jsonl", validation_split=validation)
    reader = load_experiment(job.dump_job_as_yaml(tmp_path / "job.yaml")).ajet.task_reader
    assert reader.type == "jsonl_dataset_file"
    assert reader.jsonl_dataset_file.training.file_path == "train.jsonl"
    assert reader.jsonl_dataset_file.validation.file_path == expected


def test_any_other_key_and_the_judge(tmp_path):
    job = AgentJetJob().set(rollout__num_repeat=8, trainer_common__optim__lr=1e-4).set_judge("judge.py->MyJudge")
    ajet = load_experiment(job.dump_job_as_yaml(tmp_path / "job.yaml")).ajet
    assert (ajet.rollout.num_repeat, ajet.trainer_common.optim.lr) == (8, 1e-4)
    assert ajet.task_judge.judge_protocol == "judge.py->MyJudge"


@pytest.mark.parametrize(
    "job", [AgentJetJob().set(rollout__num_repeats=8), AgentJetJob(backbone="lokal"), AgentJetJob(num_repeat=0)]
)
def test_what_no_run_would_take_is_not_written(job, tmp_path):
    with pytest.raises(ConfigError, match="num_repeat|lokal"):
        job.dump_job_as_yaml(tmp_path / "job.yaml")
    assert not (tmp_path / "job.yaml").exists()


def test_what_it_dumps_is_readable(tmp_path):
    path = AgentJetJob(name="名字").set_workflow("workflow.py->Mine").dump_job_as_yaml(tmp_path / "job.yaml")
    text = path.read_text()
    assert "名字" in text and "!!python" not in text
    assert list(yaml.safe_load(text)) == ["ajet"]


def test_what_python_gave_is_not_said_to_stand_in_a_file_that_nobody_wrote():
    job = AgentJetJob(name="tune").set(rollout__mode="async")
    said = {each.keys: each.where for each in job.experiment().list_idle_keys()}
    assert said["ajet.rollout.mode",] == "ajet.rollout.mode, as given in Python"
    with pytest.raises(ConfigError) as caught:
        job.experiment().require_ready()
    assert caught.value.where == "settings, as given in Python" and "`set(…)` of a job" in caught.value.do
    with pytest.raises(ConfigError) as caught:
        job.set(rollout__num_repat=2, rollout__temperature="hot").experiment()
    assert "tune.yaml" not in str(caught.value) and "ajet.rollout.num_repat, as given in Python" in str(caught.value)
