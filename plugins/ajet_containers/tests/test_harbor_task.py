"""Harbor's task folders are read, and refused by name where ajet plays them differently."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.config import Experiment
from ajet.schema.errors import TaskError
from ajet.task_reader.registry import open_reader
from ajet_containers.harbor.task import HarborTask, resolve_variables
from ajet_containers.tests.harbor_tasks import write_task


def test_the_reader_reads_folders_in_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_task(tmp_path / "tasks" / name, toml="memory_mb = 512\n[agent]\nuser = 1000\ntimeout_sec = 7.5")
    (tmp_path / "tasks" / "notes").mkdir()
    tree = {"ajet": {"task_reader": {"type": "harbor", "harbor": {"path": "tasks", "validation": "tasks/a"}}}}
    reader = open_reader(Experiment.from_dict(tree, base=tmp_path))
    tasks = reader.tasks("train")
    assert [(each.task_id, each.main_query) for each in tasks] == [("a", "Repair calc.py."), ("b", "Repair calc.py.")]
    assert [each.task_id for each in reader.tasks("validation")] == ["a"]
    table = HarborTask.read(Path(tasks[0].metadata["folder"])).table
    assert (table.environment.memory_mb, table.agent.user, table.agent.timeout_sec) == (512, 1000, 7.5)
    assert table.verifier.timeout_sec == 600


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("gpus = 1", "environment.gpus"),
        ("os = 'windows'", "environment.os"),
        ("skills_dir = '/skills'", "environment.skills_dir"),
        ("[[environment.mcp_servers]]\nname = 'x'", "environment.mcp_servers"),
        ("[verifier]\nenvironment_mode = 'separate'", "environment_mode = 'separate'"),
        ("[agent]\nnetwork_mode = 'allowlist'", "network_mode = 'allowlist'"),
        ("[[steps]]\nname = 'first'", "steps"),
        ("[[verifier.collect]]\ncommand = 'x'", "verifier.collect"),
    ],
)
def test_what_ajet_does_not_do_is_named(tmp_path: Path, toml: str, named: str) -> None:
    with pytest.raises(TaskError, match=named):
        HarborTask.read(write_task(tmp_path / "task", toml=toml))


@pytest.mark.parametrize("file", ["environment/docker-compose.yaml", "tests/.harborignore", "trajectory.json"])
def test_files_ajet_does_not_read_are_named(tmp_path: Path, file: str) -> None:
    task = write_task(tmp_path / "task", **{file: ""})
    with pytest.raises(TaskError, match=Path(file).name):
        HarborTask.read(task)


def test_a_later_schema_is_refused(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", **{"task.toml": 'schema_version = "1.5"'})
    with pytest.raises(TaskError, match="schema_version 1.5"):
        HarborTask.read(task)


def test_variables_come_from_the_launching_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_SHELL", "yes")
    given = {"A": "${OF_THE_SHELL}", "B": "${UNSET:-so}", "C": "${UNSET:-}", "D": "plain ${OF_THE_SHELL}"}
    assert resolve_variables(given, tmp_path) == {"A": "yes", "B": "so", "C": "", "D": "plain ${OF_THE_SHELL}"}
    with pytest.raises(TaskError, match="UNSET"):
        HarborTask.read(write_task(tmp_path / "task", toml="[environment.env]\nA = '${UNSET}'"))
