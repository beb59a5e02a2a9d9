"""What every algorithm promises: those that come with ajet, and the ones of the documentation, which users copy."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ajet.algorithm import assign_credit, open_algorithm
from ajet.algorithm.registry import KEY
from ajet.config import AjetConfig, Experiment, load_recorded_experiment
from ajet.config.plugin import load_code
from ajet.config.plugins import find_parts
from ajet.config.schema.base import describe_field, walk_keys
from ajet.record.episodes import EpisodeFiles
from ajet.schema.errors import UserError
from ajet_verl.config.credit import ESTIMATOR, find_unsupported
from tests.docs.snippets import ROOT, blocks
from tests.support.ajet_process import ajet, metric_rows
from tests.support.local_fixtures import config_of, episode_of, group_of

PAGE = ROOT / "docs" / "algorithms.md"
FORMULAS = ROOT / "docs" / "reference" / "algorithms.md"
OWN = ["own.py->AgainstTheMedian", "own.py->AgainstHalf"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """With the page's algorithms in a file."""
    made = tmp_path_factory.mktemp("project")
    (made / "own.py").write_text("\n".join(block.text for block in blocks(PAGE) if block.language == "python"))
    return made


ALGORITHMS = {name: load_code(part.code) for name, part in find_parts("algorithm").items()}
COMPARE = [name for name in ALGORITHMS if ALGORITHMS[name].needs <= {"group", "reference"}]


@pytest.fixture(params=[*COMPARE, *OWN])
def config(request, folder) -> AjetConfig:
    made = config_of(
        algorithm__adv_estimator=request.param, algorithm__use_kl_in_reward=True, algorithm__kl_in_reward_coef=0.1
    )
    made.base_dir = str(folder)
    return made


def groups_of(*rewards: list[float | None]) -> list:
    """One group for each list; a scored attempt has two timelines, None has no score."""
    return [
        group_of(*(episode_of(reward, (2, 3), uuid=f"{at}/{n}") for n, reward in enumerate(group)))
        for at, group in enumerate(rewards)
    ]


def alike(samples):
    """Logprobs of policy and reference that are the same: penalties of 0."""
    return [s.timeline.logprobs for s in samples], [s.timeline.logprobs for s in samples]


def apart(samples):
    return [s.timeline.mask.astype(np.float32) * (1 + len(s.episode)) for s in samples], [
        np.zeros(s.timeline.ids.size, np.float32) for s in samples
    ]


def advantages(batch):
    return {(s.episode, s.timeline.spans[0].call): s.advantages.tolist() for s in batch.samples}


MIXED = ([1.0, 0.0, 0.25], [1.0, None], [0.5, 0.5], [0.0, 1.0], [None, None])


def test_the_same_groups_get_the_same_credit(config):
    """Also from the second call on, and from an object of another process."""
    algorithm = open_algorithm(config)
    found = [
        advantages(assign_credit(groups_of(*MIXED), config, each, reference=apart))
        for each in (algorithm, algorithm, pickle.loads(pickle.dumps(algorithm)))
    ]
    assert found[0] and found[1] == found[0] and found[2] == found[0]


def test_what_there_is_to_learn_from_is_what_gets_an_advantage(config):
    """By itself and without penalties; one scored attempt alone is compared with the batch, if with anything."""
    algorithm = open_algorithm(config)
    for rewards in MIXED:
        (group,) = groups_of(rewards)
        trained = assign_credit([copy.deepcopy(group)], config, algorithm, reference=alike).samples
        if len(group.scored) == 1:
            assert algorithm.learns_from(group) == ("group" not in algorithm.needs)
        else:
            assert algorithm.learns_from(group) == bool(trained)
    assert algorithm.learns_from(groups_of([1.0, 0.0])[0]) and not algorithm.learns_from(groups_of([None, None])[0])


def test_dynamic_sampling_keeps_what_there_is_to_learn_from(config):
    config.trainer_common.algorithm.dynamic_sampling = True
    algorithm, groups = open_algorithm(config), groups_of(*MIXED)
    batch = assign_credit(groups, config, algorithm, reference=alike)
    nothing = [group for group in groups if not algorithm.learns_from(group)]
    assert batch.metrics["credit/left_out_groups"] == batch.metrics["credit/zero_variance_groups"] == len(nothing)
    assert {s.group for s in batch.samples} == {at for at, group in enumerate(groups) if algorithm.learns_from(group)}


def test_a_judges_rounding_is_nothing_to_learn_from(config):
    if config.trainer_common.algorithm.adv_estimator == "own.py->AgainstHalf":
        pytest.skip("it compares with a number")
    algorithm = open_algorithm(config)
    assert not algorithm.learns_from(groups_of([0.7, 0.70005])[0]) and algorithm.learns_from(groups_of([0.7, 0.71])[0])


def test_the_loss_of_a_token_has_a_gradient(config):
    import torch

    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    loss, clipped = open_algorithm(config).policy_loss(logprobs, logprobs.detach(), torch.tensor([1.0, -1.0, 0.0]))
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    torch.testing.assert_close(gradient, torch.tensor([-1.0, 1.0, 0.0]))
    assert clipped.dtype == torch.bool and not clipped.any()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_line_of_the_table_is_its_class(name):
    asked = {"adv_estimator": name, "teacher": {"path": "embedded:tiny-tools"}}
    settings = AjetConfig.model_validate({"rollout": {"temperature": 1.0}, "trainer_common": {"algorithm": asked}})
    algorithm = open_algorithm(settings)
    assert (algorithm.name, algorithm.needs) == (name, ALGORITHMS[name].needs)
    told = {".".join(path): describe_field(field) for path, field, _ in walk_keys(AjetConfig)}
    assert name in str(told["trainer_common.algorithm.adv_estimator"]) and f"\n| `{name}` |" in FORMULAS.read_text()


@pytest.mark.parametrize(("value", "taken"), [*((name, True) for name in [*ALGORITHMS, *OWN]), ("opo", False)])
def test_the_schema_and_verls_layer_take_the_same(value, taken):
    local = value in ALGORITHMS and value not in COMPARE
    assert (ESTIMATOR not in [key for key, *_ in find_unsupported({ESTIMATOR: value}.get)]) == (taken and not local)
    tree = {"ajet": {"trainer_common": {"algorithm": {"adv_estimator": value}}}}
    if taken:
        assert Experiment.from_dict(tree, base=Path()).ajet.trainer_common.algorithm.adv_estimator == value
    else:
        with pytest.raises(
            UserError,
            match="one of grpo, rloo, maxrl, gigpo, reinforce_plus_plus, gdpo, rae, echo, gae, distillation, gkd, "
            "opsd, or a ref",
        ):
            Experiment.from_dict(tree, base=Path())


WRONG = """
from ajet import Algorithm
from ajet.schema.errors import UserError

class Plain: pass
class Silent(Algorithm): pass
class Pairs(Algorithm):
    needs = frozenset({"pairs"})
    def of_group(self, returns_G): return returns_G
class Refers(Algorithm):
    needs = frozenset({"reference"})
    def of_group(self, returns_G): return returns_G
class Expects(Algorithm):
    needs = frozenset({"critic"})
    def of_group(self, returns_G): return returns_G
class Fails(Algorithm):
    def __init__(self, settings): raise KeyError("alpha")
    def of_group(self, returns_G): return returns_G
class Short(Algorithm):
    def of_group(self, returns_G): return returns_G[:1]
class Infinite(Algorithm):
    def of_group(self, returns_G): return returns_G / 0.0
class Rows(Algorithm):
    def advantages(self, rewards_E, penalties_E_T, groups_E): return [[reward] for reward in rewards_E]
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("absent.py->A", "absent.py, which does not exist"),
        ("wrong.py->Silnt", "refers to Silnt, which the file does not define(.|\n)*write wrong.py->Silent"),
        ("wrong.py->Plain", "is the class Plain, not a subclass of Algorithm(.|\n)*a subclass of ajet.Algorithm"),
        ("wrong.py->Silent", "wrong.py->Silent(.|\n)*of_group"),
        ("wrong.py->Pairs", "unknown needs: pairs(.|\n)*group, reference"),
        ("wrong.py->Refers", "needs the reference model's log-probabilities(.|\n)*use_kl_in_reward: true"),
        ("wrong.py->Expects", "needs a critic(.|\n)*of_values"),
        ("wrong.py->Fails", "Fails could not be created: KeyError: 'alpha'"),
    ],
)
def test_what_is_no_algorithm_is_refused_before_a_run(tmp_path, name, said):
    (tmp_path / "wrong.py").write_text(WRONG)
    with pytest.raises(UserError, match=said) as refused:
        open_algorithm(config_of(algorithm__adv_estimator=name), base=tmp_path)
    assert KEY in str(refused.value)


@pytest.mark.parametrize(
    ("name", "said"), [("Short", r"shape \(1,\) for 2"), ("Infinite", "NaN"), ("Rows", r"\(1,\).*\(5,\)")]
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_credit_that_is_none_ends_the_step(tmp_path, name, said):
    (tmp_path / "wrong.py").write_text(WRONG)
    config = config_of(algorithm__adv_estimator=f"wrong.py->{name}")
    with pytest.raises(UserError, match=said):
        assign_credit(groups_of([1.0, 0.0]), config, open_algorithm(config, base=tmp_path))


def test_a_node_without_the_folder_finds_it_in_its_copy(folder, monkeypatch):
    """Where verl's processes on another machine have the project: in their working directory."""
    config = config_of(algorithm__adv_estimator=OWN[0])
    config.base_dir = "/not/on/this/machine"
    packed = pickle.dumps(open_algorithm(config, base=folder))
    monkeypatch.chdir(folder)
    assert type(open_algorithm(config)) is type(pickle.loads(packed))


@pytest.mark.slow
def test_it_travels_by_its_reference(folder, tmp_path):
    """To a process that has not loaded the file, and cannot import it by a name."""
    (tmp_path / "packed").write_bytes(
        pickle.dumps(open_algorithm(config_of(algorithm__adv_estimator=OWN[0]), base=folder))
    )
    script = "import pickle; print(type(pickle.load(open('packed', 'rb'))).__name__)"
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=own, capture_output=True, text=True)
    assert done.stdout == "AgainstTheMedian\n", done.stderr


WORKFLOW = """
from ajet import ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask


class Two:
    def __init__(self, config): pass
    def tasks(self, split):
        return [Task(task_id=str(number), main_query=f"hello {number}") for number in range(2)]


class Long(Workflow):
    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client()
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        reply = await client.chat.completions.create(messages=messages)
        return WorkflowOutput(reward=float(len(reply.choices[0].message.content or "")))
"""
YAML = """
ajet:
  model: {path: "embedded:tiny-tools"}
  data: {train_batch_size: 2}
  task_reader: {type: workflow.py->Two}
  rollout: {user_workflow: workflow.py->Long, num_repeat: 3, max_response_length_in_one_turn: 8, max_model_len: 256}
  trainer_common:
    total_training_steps: 1
    use_kl_loss: false
    algorithm: {adv_estimator: own.py->AgainstTheMedian}
"""


@pytest.mark.slow
def test_a_run_trains_with_it_and_is_read_without_its_file(folder, tmp_path):
    """A record is data: who looks at it runs no code of the user's."""
    for name, text in {"workflow.py": WORKFLOW, "own.yaml": YAML, "own.py": (folder / "own.py").read_text()}.items():
        (tmp_path / name).write_text(text)
    done = ajet("--conf", "own.yaml", "--backbone", "local", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    run = tmp_path / "launcher_record" / "own"
    recorded = EpisodeFiles(run / "episodes").recorded(1)
    medians = {
        group: np.median([episode.reward for episode, _ in recorded if episode.group == group])
        for group in {episode.group for episode, _ in recorded}
    }
    wanted = [episode.reward - medians[episode.group] for episode, _ in recorded]
    assert len(recorded) == 6 and any(wanted)
    assert [outcome.advantage or 0.0 for _, outcome in recorded] == wanted
    assert metric_rows(run)[0]["grad_norm"] > 0
    (tmp_path / "own.py").unlink()
    assert load_recorded_experiment(run / "resolved.yaml").ajet.trainer_common.algorithm.adv_estimator.endswith(OWN[0])
