"""Parts that another package brings: the commands work with them, and no file of ajet or its plug-ins names them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ajet.cli import launcher
from ajet.commands.runner import load_runner
from ajet.config import load_experiment
from ajet.config.backbones import find_backbone
from ajet.config.plugin import KINDS, load_code
from ajet.config.plugins import KERNEL, find_parts
from ajet.record import RunDirectory
from ajet.schema.commands import find_program
from ajet.schema.task import Task
from ajet.task_reader import TaskOrder
from ajet.train.runner import Runner
from ajet_ray.tickets import open_verl_store
from tests.support.ajet_process import metric_rows
from tests.support.verl_fixtures import without_verl

ROOT = Path(__file__).parents[2]
TOYS = ROOT / "tests" / "support" / "toys"
AGENT = """
async def agent(task, tuner):
    return float(tuner.sandbox().python("6 * 7").stdout == b"6 * 7")
"""
YAML = """
ajet:
  model: {path: "embedded:tiny-tools", dtype: float32}
  task_reader: {type: toy_sums, toy_sums: {count: 3}}
  task_judge: {scorer: toy_letters}
  data: {train_batch_size: 1, max_prompt_length: 96, max_response_length: 32}
  rollout:
    user_workflow: toy_agent
    isolation: toy_thread
    engine: toy_engine
    max_response_length_in_one_turn: 6
    max_model_len: 128
    temperature: 1.0
    compute_madness_checklist: []
  store: {type: toy_memory}
  environment: {sandbox: toy_box}
  trainer_common:
    total_training_steps: 1
    save_freq: 1
    threads: 1
    nnodes: 1
    use_kl_loss: false
    logger: [toy_lines, toy_gone]
    algorithm: {adv_estimator: toy_ranks, policy_loss: toy_loss}
toy: {clip_high: 0.3}
"""
REFERENCES = (
    f"rollout.isolation={TOYS}/ajet_toys/isolation.py->ToyIsolation",
    f"store.type={TOYS}/ajet_toys/store.py->ToyStore",
    f"trainer_common.logger={TOYS}/ajet_toys/tracker.py->ToyTracker",
    f"trainer_common.algorithm.adv_estimator={TOYS}/ajet_toys/algorithm.py->ToyAlgorithm",
    f"trainer_common.algorithm.policy_loss={TOYS}/ajet_toys/loss.py->ToyLoss",
    f"environment.sandbox={TOYS}/ajet_toys/sandbox.py->ToyMaker",
    f"rollout.user_workflow={TOYS}/ajet_toys/workflow.py->ToyWorkflow",
    f"task_judge.scorer={TOYS}/ajet_toys/scorer.py->count_letters",
)
"""The same parts by reference."""
Command = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """`ajet ARGUMENTS` in this process and in the folder of the project: exit code, and all that it printed."""
    monkeypatch.syspath_prepend(str(TOYS))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "x.yaml").write_text(YAML)

    def command(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            launcher.main([*arguments])
        told = capfd.readouterr()
        return int(ended.value.code or 0), told.out + told.err

    yield command


CONF = ("--conf", "x.yaml", "--backbone", "toy")


def test_the_same_parts_are_found_by_reference(run: Command) -> None:
    code, said = run("config", "validate", *CONF, *REFERENCES)
    assert code == 0 and "x.yaml is valid" in said, said


def test_a_plugins_command_and_list(run: Command) -> None:
    assert run("toy", "--number", "4") == (0, "1 2 3 4\n")
    code, said = run("--help")
    assert code == 0 and "Count to a number." in said and "--with-toy-bell" in said
    code, said = run("plugins")
    assert code == 0 and "ajet_toys" in said and "reader: toy_sums" in said and "command: toy" in said
    assert "flag: --with-toy-bell" in said


@pytest.mark.slow
def test_every_command_works_with_another_packages_parts(run: Command, tmp_path: Path) -> None:
    from ajet_toys.backbone import ToyScorer  # type: ignore[import-not-found]
    from ajet_toys.engine import ToyDriver  # type: ignore[import-not-found]
    from ajet_toys.hook import noted  # type: ignore[import-not-found]
    from ajet_toys.isolation import ToyIsolation  # type: ignore[import-not-found]
    from ajet_toys.store import ToyStore  # type: ignore[import-not-found]

    code, said = run("config", "validate", *CONF)
    assert code == 0 and "x.yaml is valid" in said and "a toy is one process" in said
    code, said = run("config", "show", *CONF)
    assert code == 0 and "# What the toy gets.\nclip_high: 0.3" in said
    code, said = run("doctor", *CONF, "--json")
    sections = json.loads(said[said.index("{") :])["sections"]
    assert sections["toy"] == [{"topic": "toy", "state": "ok", "text": "needed", "do": ""}]
    assert sections["toy box"] == [{"topic": "toy_box", "state": "ok", "text": "x", "do": ""}]
    assert sections["experiment"][0]["state"] == "ok"
    code, said = run(*CONF, "--dry-run")
    assert code == 0 and "1 task × 2 episodes" in said, "its layer"
    assert "No process was started except a toy beside the run" in said and noted == ["entered", "left"]
    code, said = run("plan", *CONF)
    assert code == 0 and "1 task × 2 episodes" in said and "a toy is one process" in said, said
    assert f"(stopped again). To start the run: {find_program()} --conf x.yaml --backbone toy" in said, said
    launched = tmp_path / "launcher_record" / "x"
    assert not launched.exists()

    code, said = run(*CONF, "--with-toy-bell")
    assert (launched / "bell.txt").read_text() == "ding dong"
    assert code == 0 and "ToyTrackerThatFails failed (ConnectionError: nobody is there)" in said, said
    (row,) = metric_rows(launched)
    assert row["toy_updates"] == 1 and ToyDriver.opened == 1
    told = [json.loads(line) for line in (launched / "toy.jsonl").read_text().splitlines()]
    assert told[0] == {
        "run": "x", "project": "ajet_default_project", "backbone": "toy",
        "id": json.loads((launched / "run.json").read_text())["run_id"],
    }  # fmt: skip
    episodes, metrics, closed = told[1:]
    assert sorted(episodes["advantages"]) == [-1.0, 1.0] and metrics["numbers"]["toy_updates"] == 1
    assert closed == {"closed": True}
    code, said = run(*CONF, "trainer_common.total_training_steps=2")
    assert code == 0 and [row["step"] for row in metric_rows(launched)] == [1, 2]
    assert ToyIsolation.played == 4
    first, second = ToyStore.opened_at
    assert first is None and second["toy"] is True and second["next"] == 1

    code, said = run("prove", "x", "--at-most", "1")
    assert code == 0 and ToyScorer.opened == 2, said
    code, said = run("export", "x")
    assert code == 0 and (launched / "exports" / "step-2" / "model.safetensors").is_file()


def test_an_engine_that_is_not_installed_is_refused(run: Command) -> None:
    code, said = run("config", "validate", *CONF, "rollout.engine=toy_engines")
    assert code == 2 and "vllm, toy_engine (did you mean toy_engine?)" in said and "rollout.engine" in said, said


def test_a_toy_is_refused_where_it_cannot(run: Command) -> None:
    code, said = run("config", "validate", *CONF, "rollout.deterministic=true")
    assert code == 2 and "is not possible on the backbone toy" in said
    code, said = run("config", "validate", *CONF, "+toy.speed=2")
    assert code == 2 and "A toy has no speed." in said
    code, said = run("config", "validate", "--conf", "x.yaml", "--backbone", "toys")
    assert code == 2 and "did you mean toy?" in said and "--backbone toys" in said
    code, said = run("config", "validate", "--conf", "x.yaml")
    assert code == 0 and "toy:" not in said, "without the backbone its section is the user's own"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rollout.isolation", f"{TOYS}/ajet_toys/reader.py->ToyReader", "has no create, start, locate, stop, close"),
        ("store.type", "agent.py->agent", "is a function"),
        ("rollout.isolation", "threads", "did you mean thread?"),
        ("store.type", "mysql", "one of run_directory"),
        ("task_reader.type", "agent.py->agent", "is not a task reader"),
        ("task_reader.type", "random_dumy", "did you mean random_dummy?"),
        ("trainer_common.logger", "tensorbord", "did you mean tensorboard?"),
    ],
)
@pytest.mark.slow
def test_what_is_no_such_part_is_one_error(run: Command, key: str, value: str, said: str) -> None:
    code, told = run("--conf", "x.yaml", "--backbone", "local", f"{key}={value}")
    assert code == 2 and said in " ".join(told.split()) and "Traceback" not in told, told


@pytest.mark.parametrize("name", sorted(find_parts("backbone")))
def test_each_descriptor_is_its_code(name: str) -> None:
    backbone = find_backbone(name)
    assert backbone.name == name and isinstance(load_runner(backbone), Runner)
    if backbone.opens is not None:
        assert load_code(backbone.opens).trains is ("trains" in backbone.can)
    if backbone.scorer is not None:
        assert all(hasattr(load_code(backbone.scorer), member) for member in ("version_of", "logprobs", "widen"))
    assert backbone.layer is None or backbone.layer.is_file()
    from ajet.config.keys import list_dotted_keys

    assert backbone.idle.keys() <= {*list_dotted_keys()}


@pytest.mark.parametrize(
    ("kind", "part"),
    [(kind, each) for kind in KINDS for each in find_parts(kind).values()],
)
def test_each_line_of_the_tables_is_its_class(kind, part) -> None:
    found = load_code(part.code)
    assert isinstance(found, type) or (kind == "scorer" and callable(found))


def test_the_configuration_names_no_part_of_another_package() -> None:
    """Its code knows kinds of parts, and no line of a table; the kernel's own plug-in is the one exception."""
    above = re.compile(r"""["']ajet\.[\w.]+(->|:)""")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / "ajet" / "config").rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if above.search(line) and KERNEL not in line
    ]
    assert found == []


def test_a_store_of_ones_own_is_what_a_run_of_verl_opens(run: Command, tmp_path: Path) -> None:
    experiment = load_experiment("x.yaml", backbone="verl", exp_dir=tmp_path / "runs")
    with RunDirectory.open(experiment, root=experiment.root) as opened:
        store = open_verl_store(opened, TaskOrder([Task(task_id="1", main_query="?")], seed=0), sessions=2)
    assert type(store).__name__ == "ToyStore"


def test_no_backbone_is_compared_by_its_name() -> None:
    """What matters of one is asked of its descriptor."""
    compared = re.compile(r"""backbone(\.name|_name)?\s*(==|!=|(not )?in)\s*\(?["']""")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / "ajet").rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if compared.search(line)
    ]
    assert found == []


def test_no_file_of_ajet_names_a_toy() -> None:
    files = [path for folder in ("ajet", "plugins") for path in (ROOT / folder).rglob("*.py")]
    assert not [path for path in files if "ajet_toys" in path.read_text()]


@pytest.mark.slow
@without_verl
def test_settings_of_verl_are_checked_without_its_packages(tmp_path: Path) -> None:
    """In a fresh process, as a person would."""
    script = """
import sys
from ajet.cli import launcher
try:
    launcher.main(["config", "validate", "--conf", "x.yaml", "--backbone", "verl"])
finally:
    print([name for name in ("verl", "ray", "torch", "transformers", "vllm") if name in sys.modules])
"""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "x.yaml").write_text(
        "ajet:\n  model: {path: 'embedded:tiny-tools'}\n  task_reader: {type: random_dummy}\n"
        "  rollout: {user_workflow: agent.py->agent, max_model_len: 512, max_response_length_in_one_turn: 64}\n"
        "  data: {max_prompt_length: 256, max_response_length: 128}\n  trainer_common: {device: cuda}\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "x.yaml is valid" in done.stdout and done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
