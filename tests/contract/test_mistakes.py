"""Mistakes that people made on their first day: each is answered with what, where, expected, do."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from ajet.cli import launcher
from ajet.commands import episode_panel
from ajet.config import load_experiment
from ajet.rollout.components import load_workflow
from ajet.rollout.isolation import worker_process
from ajet.schema.errors import AgentFailure, UserError
from ajet.schema.task import WorkflowOutput
from ajet.task_judge import Judge
from ajet.task_reader import open_reader
from ajet_command.running import Ended
from ajet_command.settings import CommandSettings
from ajet_command.workflow import _raise_unless_good
from tests.support.rollouts import stage, time_is_up

AGENT = """
from ajet import Workflow, WorkflowOutput
class Good(Workflow):
    async def execute(self, task, tuner): return WorkflowOutput()
class NoTuner(Workflow):
    async def execute(self, task): return WorkflowOutput()
def function(task, tuner): return 1.0
def narrow(task): return 1.0
async def late(task, tuner): return function_of(task)
async def function_of(task): return 1.0
def nothing(task, tuner): pass
def thing(task, tuner): return Good()
"""
TASKS = "task_reader: {type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: %s}}}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"question": "q"}\n')
    (tmp_path / "array.jsonl").write_text('[{"question": "q"}, {"question": "r"}]\n')
    (tmp_path / "lines.jsonl").write_text('[\n{"question": "q"},\n{"question": "r"}\n]\n')
    return tmp_path


@pytest.mark.parametrize(
    ("number", "yaml", "expected"),
    [
        (5, TASKS % "task.jsonl", ["task.jsonl does not exist", "training.file_path", "did you mean tasks.jsonl?"]),
        (7, TASKS % "array.jsonl", ["JSON array", "array.jsonl:1", "one object per line", "jq -c"]),
        (7, TASKS % "lines.jsonl", ["JSON array", "lines.jsonl:1", "one object per line", "jq -c"]),
        (11, "rollout.num_repeat: 4", ["contains a dot", "x.yaml:2:3", "`rollout: {num_repeat: …}`"]),
        (23, "trainer_common: {algorithm: ppo}", ["is 'ppo'", "x.yaml:2:31", "adv_estimator", "{adv_estimator: ppo}"]),
        (30, "rollout: {user_workflow: flow.py->NoTuner}", ["flow.py->NoTuner.execute", "flow.py:6", "tuner"]),
        (29, "rollout: {user_workflow: flow.py->narrow}", ["(task)", "flow.py:8", "def narrow(task, tuner)"]),
    ],
)  # fmt: skip
def test_in_the_files(project, number, yaml, expected):
    (project / "x.yaml").write_text(f"ajet:\n  {yaml}\n")
    with pytest.raises(UserError) as caught:
        experiment = load_experiment(project / "x.yaml")
        load_workflow(experiment) if "rollout" in yaml else open_reader(experiment).tasks("train")
    error = caught.value
    shown = f"{error.what}\n{error.where}\n{error.expected}\n{error.do}"
    assert all(words in shown for words in expected), (number, shown)
    assert error.where and error.expected and error.do, (number, shown)
    assert shown.count(str(project)) <= 2, "no folder is named twice"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("late", "late returned a coroutine: the call that created it needs an `await`; expected text, a list"),
        ("nothing", "nothing returned None; expected text, a list"),
        ("thing", "thing returned an object of the class Good; expected text, a list"),
    ],
)
def test_what_a_function_returns_is_told_as_a_functions(project, name, said):
    (project / "x.yaml").write_text(f"ajet: {{rollout: {{user_workflow: flow.py->{name}}}}}")
    with stage(load_workflow(load_experiment(project / "x.yaml")), judge=Judge(None)) as made:
        failure = made.episode().failure
    assert failure is not None and failure.message.startswith(said), failure


def test_a_function_is_a_workflow(project):
    (project / "x.yaml").write_text("ajet: {rollout: {user_workflow: flow.py->function}}")
    assert load_workflow(load_experiment(project / "x.yaml")).__name__ == "function"


class Playing:
    trainable_targets = None

    async def execute(self, task: Any, tuner: Any) -> Any:
        self.client, self.at = tuner.as_raw_openai_sdk_client(), tuner.as_oai_baseurl_apikey()
        self.workflow_task, self.task = task, task.task
        await self.ask()
        return await self.go()

    async def ask(self, **more: Any) -> Any:
        return await self.client.chat.completions.create([{"role": "user", "content": "hi"}], **more)

    async def go(self) -> Any:
        raise NotImplementedError


class NotANumber(Playing):  # 32
    async def go(self) -> Any:
        return WorkflowOutput(reward=float("nan"))


class Good(Playing):  # 33
    async def go(self) -> Any:
        return WorkflowOutput(reward="good")  # type: ignore[arg-type]


class RunsALoop(Playing):  # 42
    async def go(self) -> Any:
        asyncio.run(asyncio.sleep(0))


class ForgetsAwait(Playing):  # 42
    forgotten: list[Coroutine[Any, Any, Any]] = []

    async def go(self) -> Any:
        reply = self.ask()
        self.forgotten.append(reply)
        return reply.choices  # type: ignore[attr-defined]


class LooksAtNoStatus(Playing):
    """Plain HTTP: what a refusal lacks is what it raises at, in the second turn as in the first."""

    async def go(self) -> Any:
        at, said = self.at, []
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {at.api_key}"}) as http:
            for content in ("hi", {"text": "hi"}):
                asked = {"model": "x", "messages": [{"role": "user", "content": content}]}
                reply = await http.post(f"{at.base_url}/chat/completions", json=asked)
                said.append(reply.json()["choices"][0]["message"]["content"])


class OwnField(Playing):
    async def go(self) -> Any:
        return self.task.colour


class NoTask(Playing):
    async def go(self) -> Any:
        return self.workflow_task.main_query


@pytest.fixture
def nothing_forgotten() -> Iterator[None]:
    """What nobody awaited is closed, not told of by another test's collection of garbage."""
    yield
    while ForgetsAwait.forgotten:
        ForgetsAwait.forgotten.pop().close()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("nothing_forgotten")
@pytest.mark.parametrize(
    ("workflow", "expected"),
    [
        (NotANumber, ["the workflow's reward is nan", "expected a finite number"]),
        (Good, ["WorkflowOutput(reward='good')", "expected a number, a list of numbers"]),
        (RunsALoop, ["asyncio.run() cannot be called", "use `await` there"]),
        (LooksAtNoStatus, ["'choices' (", "refused its last model call: Invalid value for 'messages[0].content'"]),
        (OwnField, ["no attribute 'colour' (the columns of a row are in its `metadata`"]),
        (NoTask, ["no attribute 'main_query' (a class gets the task as `workflow_task.task`)"]),
        (ForgetsAwait, ["'coroutine' object has no attribute 'choices'", "an `await` is missing"]),
    ],
)
def test_in_the_agents_code(workflow, expected):
    with stage(workflow, judge=Judge(None)) as made:
        failure = made.episode().failure
    assert failure is not None and failure.boundary == "agent"
    assert all(words in failure.message for words in expected), failure.message
    assert "pydantic" not in failure.message


class NoRoom(Playing):  # 40
    async def go(self) -> Any:
        await self.ask(max_tokens=0)


class Human(Playing):  # 40
    async def go(self) -> Any:
        await self.client.chat.completions.create(messages=[{"role": "human", "content": "hi"}])


@pytest.mark.parametrize(("workflow", "named"), [(NoRoom, "max_tokens"), (Human, "role")])
def test_a_call_that_is_refused_shows_the_own_line_that_made_it(workflow, named, monkeypatch):
    with stage(workflow) as made:
        episode = made.episode()
    assert episode.failure is not None and episode.failure.boundary == "agent"
    assert "400" in episode.failure.message and named in episode.failure.message, episode.failure.message
    out = io.StringIO()
    monkeypatch.setattr(episode_panel, "console", Console(file=out, width=200))
    monkeypatch.chdir(Path(__file__).parent)
    episode_panel.show_episode(episode)
    line = workflow.go.__code__.co_firstlineno + 1
    assert f"{Path(__file__).name}:{line} in go" in out.getvalue() and "openai" in out.getvalue()
    assert "site-packages" not in out.getvalue()


RELEASE, HELD = threading.Event(), threading.Event()
IN_ANOTHER = "AJET_TEST_HELD"
"""Names the file that says of a workflow in another process that it is held."""


class LoopsForEver(Playing):  # 44
    async def go(self) -> Any:
        Path(os.environ[IN_ANOTHER]).touch()
        HELD.set()
        while not RELEASE.is_set():
            RELEASE.wait(0.01)


class WaitsForEver(Playing):
    async def go(self) -> Any:
        Path(os.environ[IN_ANOTHER]).touch()
        HELD.set()
        await asyncio.Event().wait()


@pytest.fixture
def released() -> Iterator[None]:
    HELD.clear()
    RELEASE.clear()
    yield
    RELEASE.set()


@pytest.mark.parametrize(
    ("workflow", "isolation"),
    [
        *((each, isolation) for each in (LoopsForEver, WaitsForEver) for isolation in ("thread", "loop")),
        (LoopsForEver, "process"), pytest.param(WaitsForEver, "process", marks=pytest.mark.extra_slow),
    ],
)  # fmt: skip
def test_a_timeout_says_at_which_line_it_stood(released, workflow, isolation, tmp_path, monkeypatch):
    monkeypatch.setenv(IN_ANOTHER, str(tmp_path / "held"))
    monkeypatch.setattr(worker_process, "LOCATE_TIMEOUT_S", 60.0)  # a worker gives way to whoever wants the processor
    held = (tmp_path / "held").exists if isolation == "process" else HELD.is_set
    with time_is_up(held), stage(workflow, isolation=isolation) as made:
        failure = made.episode().failure
    line = workflow.go.__code__.co_firstlineno
    assert failure is not None and failure.kind == "timeout"
    assert any(f"it was last at {__file__}:{line + more} in go" in failure.message for more in (3, 4)), failure.message


@pytest.mark.parametrize(
    ("program", "problem", "said"),
    [
        (
            "./agent.sh",
            "No such file",
            "each episode runs in a new folder: write {base}/… for a file next to the YAML",
        ),
        ("{base}/agent.sh", "No such file", "No such file; {base} is the folder of the YAML"),
        (
            "{base}/agent.py",
            "PermissionError: no",
            'make the file executable (chmod +x), or put its interpreter first: ["{python}", ',
        ),
    ],
)
def test_a_command_that_cannot_be_run_names_what_to_change(program, problem, said):  # 52
    settings = CommandSettings(command=[program])
    with pytest.raises(AgentFailure) as caught:
        _raise_unless_good(Ended(None, "", "", "", problem=problem), settings)
    assert said in str(caught.value) and str(caught.value).count("{base}/…") <= (program[0] == ".")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["agent.py"], ["agent.py is a Python file", "user_workflow: agent.py->NAME"]),
        (["validate", "bare.yaml"], ["ajet.model.path", "move `model` below `ajet:`"]),
        (["--conf", "x.yaml", "--rollout.num_repeat=4"], ["without dashes", "write rollout.num_repeat=4"]),
        (["plan", "x.yaml", "rollout.num_repeat", "4"], ["write rollout.num_repeat=VALUE, without spaces"]),
        (["plan", "x.yaml", "rollout.user_workflow=flow.Good"], ["write flow->Good"]),
        (["validate", "x.yaml", "rollout.user_workflow=null"], ["user_workflow", "ajet serve --conf FILE.yaml"]),
        (["validate", "x.yaml", "model.path=embedded:smollm-135m"], ["did you mean embedded:smollm2-135m?"]),
        (["deploy", "played"], ["played exists only as a recording of debug", "--backbone local"]),
    ],
)
def test_on_the_command_line(project, typed, expected, capsys):
    """Its words are ours or those of another tool; what is meant is said."""
    reads = TASKS % "tasks.jsonl"
    (project / "x.yaml").write_text(
        f"ajet: {{model: {{path: 'embedded:tiny-tools'}}, rollout: {{user_workflow: flow.py->Good}}, {reads}}}"
    )
    (project / "bare.yaml").write_text("model: {path: 'embedded:tiny-tools'}\n")
    (project / "launcher_record" / "played" / "debug").mkdir(parents=True)
    with pytest.raises(SystemExit) as ended:
        launcher.main(typed)
    said = "".join(capsys.readouterr())
    assert ended.value.code == 2 and all(words in said for words in expected), said
