"""What the flags of `ajet sample` are to the sampler: a setting, or an option of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ajet.cli import launcher
from ajet.commands.sampling import sample as module
from ajet.commands.sampling.sample import SampleOptions
from ajet.task_reader import open_reader

YAML = """
ajet:
  model: {{path: embedded:tiny-tools}}
  task_reader: {reader}
  rollout: {{user_workflow: workflow.py->W, max_env_worker: 9}}
"""
ROW = '{{"id": "{0}", "main_query": "{0}", "query": "{0}"}}\n'
Sampled = Callable[..., tuple[int, Any, SampleOptions]]


@pytest.fixture
def sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sampled:
    """`ajet sample` over a reader, up to where it would play: its exit code, the experiment, the options."""
    given: list[Any] = []

    def play(*what: Any) -> int:
        given[:] = what
        return 0

    monkeypatch.setattr(module, "sample", play)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workflow.py").write_text("class W: ...\n")
    for name in ("there", "here"):
        (tmp_path / f"{name}.jsonl").write_text(ROW.format(name))

    def call(reader: str, *flags: str) -> tuple[int, Any, SampleOptions]:
        given[:] = [None, None]
        (tmp_path / "x.yaml").write_text(YAML.format(reader=reader))
        with pytest.raises(SystemExit) as ended:
            launcher.main(("sample", "--conf", "x.yaml", "--store", "sqlite:store.db", *flags))
        return int(ended.value.code or 0), given[0], given[1]

    return call


LINES = "{type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: there.jsonl}}}"
AGENTRL = "{type: agentrl, agentrl: {training: {file_path: there.jsonl}}}"


def test_each_flag_is_a_setting_or_an_option(sampled: Sampled, tmp_path: Path) -> None:
    code, experiment, options = sampled(LINES)
    assert code == 0 and experiment.ajet.rollout.max_env_worker == 9 and experiment.ajet.rollout.engine == "auto"
    assert (options.name, options.per_minute, options.grace, options.lease_seconds) == ("", None, 60.0, 120.0)
    assert options.services and options.store.path is not None and options.store.path.resolve() == tmp_path / "store.db"
    pace = ("--concurrency", "3", "--rate", "2.5", "--grace", "1", "--lease", "7")
    address = "http://10.0.0.7:8000/v1"
    code, experiment, options = sampled(LINES, *pace, "--name", "one", "--engine", address, "--no-services", "seed=5")
    rollout = experiment.ajet.rollout
    assert (rollout.max_env_worker, rollout.engine, rollout.vllm.base_url) == (3, "vllm", address)
    assert (experiment.ajet.seed, experiment.ajet.trainer_common.mode) == (5, "async")
    told = (options.name, options.per_minute, options.grace, options.lease_seconds, options.services)
    assert code == 0 and told == ("one", 2.5, 1.0, 7.0, False)


@pytest.mark.parametrize("name", ["here.jsonl", "Anna's tasks, \\new (1).jsonl"], ids=["plain", "any"])
@pytest.mark.parametrize("reader", [LINES, AGENTRL], ids=["jsonl", "agentrl"])
def test_the_tasks_are_those_of_the_file_that_lies_here(
    reader: str, name: str, sampled: Sampled, tmp_path: Path
) -> None:
    """In whatever folder that is named from; the YAML's own file need not be there."""
    (tmp_path / "there.jsonl").unlink()
    (tmp_path / "here.jsonl").rename(tmp_path / name)
    code, experiment, _ = sampled(reader, "--tasks", name)
    assert code == 0
    assert [task.main_query for task in open_reader(experiment).tasks("train")] == ["here"]


@pytest.mark.parametrize(
    "flags, said",
    [
        (("--tasks", "here.jsonl"), "random_dummy reads no file of tasks"),
        (("--rate", "0"), "--rate"),
        (("--concurrency", "0"), "--concurrency"),
        (("--lease", "0"), "--lease"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(
    flags: tuple[str, str], said: str, sampled: Sampled, capsys: pytest.CaptureFixture[str]
) -> None:
    code, experiment, _ = sampled("{type: random_dummy}", *flags)
    told = capsys.readouterr()
    assert code == 2 and experiment is None and said in told.out + told.err
