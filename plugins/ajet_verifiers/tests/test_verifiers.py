"""Tasksets of verifiers: what a command that judges itself prints, and the real package at our gateway."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.config import Experiment
from ajet.config.references import resolve_reference
from ajet.schema.errors import BoundaryError, ConfigError, TaskError, UserError
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet_command.settings import fill_placeholders
from ajet_command.workflow import apply_score
from ajet_environments import venvs
from ajet_environments.venvs import prepare_python
from ajet_verifiers.bridge import BOUNDARIES, SETUP, build_result, lock_preparation, make_error
from ajet_verifiers.settings import VerifiersSettings
from ajet_verifiers.tasks import VerifiersTasks
from ajet_verifiers.workflow import VerifiersWorkflow
from tests.support.command_agents import agent, shell
from tests.support.mcp_fixtures import lives
from tests.support.workflow_fixtures import scene

TUTORIAL = Path(__file__).resolve().parents[3] / "tutorial" / "example_verifiers"
TASKSET = """
import verifiers.v1 as vf


class Data(vf.TaskData):
    fault: str = ""


class Broken(vf.Toolset[vf.ToolsetConfig, vf.State]):
    async def setup(self) -> None:
        raise OSError("no such tool server")


class Play(vf.Task[Data, vf.State, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Broken(vf.ToolsetConfig())] if FAULT == "tool" else []

    async def setup(self, trace, runtime):
        if self.data.fault == "sandbox":
            raise vf.SandboxError("the box is gone")

    @vf.reward(weight=0.5)
    async def right(self, trace) -> float:
        if self.data.fault == "task":
            raise ZeroDivisionError("of the taskset's own")
        return float("4" in trace.last_reply)


class Plays(vf.Taskset[Play, vf.TasksetConfig]):
    def load(self):
        for fault in ("", "task", "sandbox"):
            yield Play(Data(prompt=f"What is 2 + 2? {fault}", fault=fault, id=fault or "plain"), self.config.task)


__all__ = ["Plays"]

if __name__ == "__main__":
    Broken.run()
"""


def test_a_harness_that_could_not_be_set_up_is_not_the_policys_fault() -> None:
    assert make_error("HarnessError", f"{SETUP} RuntimeError: no room on the disk")["boundary"] == "environment"


def test_the_environment_of_a_harness_is_made_by_one_process_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    inside, most = list[str](), list[int]()

    async def prepare(runtime: str, script: str) -> str:
        inside.append(runtime)
        most.append(len(inside))
        await asyncio.sleep(0.02)
        inside.remove(runtime)
        return runtime

    async def both() -> list[str]:
        return list(await asyncio.gather(*(lock_preparation(prepare)(each, "script") for each in ("a", "b", "c"))))

    assert asyncio.run(both()) == ["a", "b", "c"] and most == [1, 1, 1]
    assert asyncio.run(both()) == ["a", "b", "c"] and max(most) > 1, "what is made waits for nobody"


@pytest.mark.parametrize("kind", [*BOUNDARIES, "KeyError"])
def test_each_of_their_errors_is_somebodys_and_never_a_reward(kind: str) -> None:
    printed = json.dumps({"reward": 0.0, "errors": [make_error(kind, "it broke")]})
    with pytest.raises(BoundaryError, match=f"{kind}: it broke") as caught:
        apply_score(WorkflowOutput(), printed)
    expected = {"ProviderError": "engine", "HarnessError": "agent", "ToolsetError": "tool", "SandboxError": "sandbox"}
    assert caught.value.boundary == expected.get(kind, "environment")
    assert caught.value.retryable == (kind != "HarnessError"), "what failed outside the agent is played again"


@pytest.mark.parametrize(
    "printed",
    ["", "done", "[]", "{}", '{"reward": null}', '{"reward": NaN}', '{"reward": "1"}', '{"reward": 1, "errors": 3}'],
)
def test_a_line_without_a_reward_is_none_of_0(printed: str) -> None:
    with pytest.raises(BoundaryError, match="the command printed n|is not a score"):
        apply_score(WorkflowOutput(), printed)


def test_what_failed_or_was_asked_by_others_in_an_episode_is_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked at our gateway is captured: an attempt that failed before, and another agent's calls."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://ours")
    failed = [SimpleNamespace(type="ProviderError", message="it broke")]

    def seat(trainable: bool, url: str = "http://ours", errors: Any = ()) -> Any:
        agent = SimpleNamespace(trainable=trainable, config=SimpleNamespace(client=SimpleNamespace(base_url=url)))
        judged = {"reward": 1.0, "metrics": {}, "rewards": {}, "root_reply": "4"}
        return SimpleNamespace(agent=agent, errors=errors, ok=True, **judged)

    def came_to(*traces: Any, errors: Any = ()) -> tuple[Any, str]:
        found = build_result(SimpleNamespace(traces=traces, errors=errors, ok=True))
        return found["reward"], "".join(each["type"] for each in found["errors"])

    trained, user = seat(True), seat(False, "http://theirs")
    assert came_to(trained, user) == (1.0, "")
    assert came_to(trained, user, errors=failed) == (None, "ProviderError")
    assert came_to(seat(True, errors=failed), user) == (None, "ProviderError")
    assert came_to(trained, seat(False, "http://theirs", failed)) == (1.0, ""), "its own calls, at its own model"
    assert came_to(trained, seat(False)) == (None, "Episode")


def test_what_looks_like_a_placeholder_in_a_tasksets_settings_stays() -> None:
    given = {"template": '{task} by {model}, {base} {{folder}} {metadata.id} {other} "quoted"'}
    block = VerifiersSettings(taskset="plays", config=given).encode_block()
    read = json.loads(fill_placeholders(block, {"task": 'say "x"\n', "model": "m", "base": "/b", "folder": "/f"}))
    assert read["taskset"] == {**given, "id": "plays"}


def test_a_command_that_judges_itself(tmp_path: Path) -> None:
    line = {"reward": 0.25, "errors": [], "answer": "4", "metrics": {"turns": 2, "name": "x"}}
    with agent(tmp_path, command=shell(f"echo playing; echo '{json.dumps(line)}'"), score="printed") as (_, run):
        output = run()
    assert output.reward == 0.25 and output.metadata["final_answer"] == "4" and output.log_metrics["turns"] == 2
    assert "name" not in output.log_metrics


def test_what_cannot_be_played_is_said_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match="verifiers.taskset: Field required"):
        VerifiersWorkflow.check(Experiment.from_dict({"ajet": {}, "verifiers": {}}, base=tmp_path).config)
    with pytest.raises(UserError, match="The file of requirements cannot be read"):
        VerifiersWorkflow.check(Experiment.from_dict({"ajet": {}, "verifiers": {"taskset": "x"}}, base=tmp_path).config)
    (tmp_path / "requirements.txt").write_bytes(b"\xff")
    with pytest.raises(UserError, match="it is not UTF-8"):
        prepare_python(tmp_path / "requirements.txt")
    (tmp_path / "requirements.txt").write_text("verifiers")
    (tmp_path / "cache").write_text("no folder")
    with pytest.raises(UserError, match="cannot write to the folder .*cache"):
        prepare_python(tmp_path / "requirements.txt")


def test_a_step_that_is_not_done_in_time_ends_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["/bin/sh", "-c", 'sleep 60 & echo $! > "$0"; wait', str(tmp_path / "pid")]
    for seconds in (1.0, 10.0, 50.0):  # on a busy machine it may not have begun by then
        monkeypatch.setattr(venvs, "LIMIT_S", seconds)
        assert venvs.run_command(words, "the packages") == f"the packages: not finished within {seconds:g} s"
        if (tmp_path / "pid").exists():
            break
    pid, until = int((tmp_path / "pid").read_text()), time.monotonic() + 60
    while lives(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not lives(pid)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a taskset; the environment that its requirements ask for is made."""
    folder = tmp_path_factory.mktemp("verifiers")
    shutil.copy(TUTORIAL / "requirements.txt", folder)
    for name, fault in (("plays", ""), ("without_tools", "tool")):
        (folder / f"{name}.py").write_text(f"FAULT = {fault!r}\n{TASKSET}")
    try:
        prepare_python(folder / "requirements.txt")
    except UserError as problem:
        pytest.skip(f"verifiers could not be installed here: {problem.do}")
    return folder


@contextmanager
def played(folder: Path, *script: str, taskset: str = "plays") -> Iterator[Any]:
    section = {"taskset": taskset, "train": 2, "validation": 1}
    config = Experiment.from_dict({"ajet": {}, "verifiers": section}, base=folder).config
    VerifiersWorkflow.check(config)
    with scene(*script, config=config) as made:

        def run(task: Task) -> WorkflowOutput:
            given = WorkflowTask(task=task, task_id=task.task_id, episode_uuid="0123456789abcdef")
            return asyncio.run(VerifiersWorkflow().execute(given, made.tuner))

        yield made, VerifiersTasks(config), run


@pytest.mark.extra_slow
def test_the_real_package_plays_at_our_gateway_and_its_errors_are_whose_they_are(real: Path) -> None:
    with played(real, "It is 4.", "It is 4.") as (made, reader, run):
        (plain,), (task, sandbox) = reader.tasks("validation"), reader.tasks("train")
        assert [each.metadata["id"] for each in (plain, task, sandbox)] == ["plain", "task", "sandbox"]
        assert plain.main_query == "What is 2 + 2? "
        output = run(plain)
        assert output.reward == 0.5 and output.metadata["final_answer"] == "It is 4."
        assert output.log_metrics["reward_right"] == 1
        for wrong, boundary, said in ((task, "environment", "ZeroDivisionError"), (sandbox, "sandbox", "box is gone")):
            with pytest.raises(BoundaryError, match=said) as caught:
                run(wrong)
            assert caught.value.boundary == boundary
        assert len(made.session.close().calls) == 2, "the sandbox was lost before the model was asked"
    with played(real, taskset="without_tools") as (_, _, run):
        with pytest.raises(BoundaryError, match="no such tool server") as caught:
            run(plain)
        assert caught.value.boundary == "tool"
    with played(real, taskset="not_there") as (_, reader, _), pytest.raises(TaskError, match="not_there"):
        reader.tasks("train")


def test_yamls_may_name_the_module_as_before(tmp_path: Path) -> None:
    for name, expected in (("VerifiersTasks", VerifiersTasks), ("VerifiersWorkflow", VerifiersWorkflow)):
        assert resolve_reference(f"ajet.workflow.verifiers->{name}", base=tmp_path) is expected
