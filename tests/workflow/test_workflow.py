"""What users subclass, and the breakpoint that stays in their code."""

import asyncio
import functools
import inspect
import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest

from ajet import Task, Workflow, WorkflowOutput, WorkflowTask, bp
from ajet.config import Experiment
from ajet.rollout.components import load_workflow
from ajet.schema.errors import ConfigError
from ajet.workflow.breakpoint import TAGS_VARIABLE, activate
from ajet.workflow.function import as_workflow

TASK = WorkflowTask(task=Task(main_query="q", task_id="t"))


class Mine(Workflow):
    name: str = "mine"
    turns: int = 3

    async def execute(self, task, model):
        self.notes = [task.task.main_query]
        self._hidden = 1
        return WorkflowOutput(reward=float(self.turns))


def test_a_workflow_takes_fields_and_attributes_and_any_parameter_names():
    workflow = Mine()
    assert asyncio.run(workflow.execute(TASK, None)).reward == 3.0
    assert workflow.notes == ["q"] and workflow.trainable_targets is None
    assert Mine(turns=5, extra="x").extra == "x"
    assert Mine().model_fields_set == set()


class Plain(Workflow):
    """Attributes as in any class, none of which pydantic would take."""

    name = "plain"
    trainable_targets = ["solver"]
    max_turns = 3
    history = []
    client = object()

    async def execute(self, task, model):
        self.history.append(task.task.main_query)
        self.max_turns += 1
        return WorkflowOutput()


class SetUp(Plain):
    max_turns = 5
    _hidden = 1

    def __init__(self, seed=7):
        self.seed = seed
        self._hidden += 1


def test_a_workflows_attributes_need_no_annotation_and_stay_with_their_object():
    first, second = Plain(), Plain()
    asyncio.run(first.execute(TASK, None))
    assert (first.name, first.trainable_targets, first.client) == ("plain", ["solver"], Plain.client)
    assert (first.history, second.history, Plain.history) == (["q"], [], [])
    assert (first.max_turns, second.max_turns, Plain.max_turns) == (4, 3, 3)


def test_a_workflow_may_be_set_up_without_pydantics_init():
    made = SetUp()
    assert (made.seed, made._hidden, made.max_turns, made.name, made.trainable_targets) == (
        7,
        2,
        5,
        "plain",
        ["solver"],
    )
    assert SetUp()._hidden == 2


def test_a_workflow_that_needs_arguments_is_refused_before_the_run():
    class Configured(Mine):
        def __init__(self, config):
            super().__init__()

    class Sized(Mine):
        size: int

    with pytest.raises(ConfigError, match=r"__init__ is \(self, config\), but ajet creates the object without") as told:
        as_workflow(Configured, "w.py->Configured")
    assert "tuner.config" in told.value.do and told.value.where.startswith(__file__)
    with pytest.raises(ConfigError, match=r"has no default for size"):
        as_workflow(Sized, "w.py->Sized")
    assert as_workflow(SetUp, "w.py->SetUp") is SetUp


def test_a_workflow_without_execute_cannot_be_made():
    class Empty(Workflow):
        name: str = "empty"

    with pytest.raises(TypeError, match="execute"):
        Empty()


async def agent(task, tuner):
    """Answers with the question."""
    return task.main_query


def plain(task, tuner):
    return agent(task, tuner)


class Called:
    async def __call__(self, task, tuner):
        return task.main_query


@pytest.mark.parametrize("function", [agent, plain, functools.partial(agent), Called()])
def test_a_function_is_a_workflow_under_the_name_of_its_reference(function):
    made = as_workflow(function, "agent.py -> mine")
    assert issubclass(made, Workflow) and made().name == made.__name__ == made.__qualname__ == "mine"
    found = made().execute(TASK, None)
    assert asyncio.run(found).metadata == {"final_answer": "q"}
    assert inspect.iscoroutinefunction(made.execute) == inspect.iscoroutinefunction(function)
    assert as_workflow(Mine, "agent.py->Mine") is Mine


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("text", WorkflowOutput(metadata={"final_answer": "text"})),
        ({"moves": [1]}, WorkflowOutput(metadata={"final_answer": {"moves": [1]}})),
        (0.5, WorkflowOutput(reward=0.5)),
        (2, WorkflowOutput(reward=2.0)),
        (True, WorkflowOutput(reward=1.0, is_success=True)),
        (WorkflowOutput(reward=3.0), WorkflowOutput(reward=3.0)),
        (None, None),
    ],
)
def test_what_a_function_returns_is_an_output(returned, expected):
    made = as_workflow(lambda task, tuner: returned, "agent.py->mine")
    assert made().execute(TASK, None) == expected


def test_a_function_that_cannot_be_called_so_is_refused_when_it_is_resolved(tmp_path):
    (tmp_path / "agent.py").write_text("def agent(task): ...\n")
    experiment = Experiment.from_dict({"ajet": {"rollout": {"user_workflow": "agent.py->agent"}}}, base=tmp_path)
    with pytest.raises(ConfigError) as refused:
        load_workflow(experiment)
    screen = str(refused.value)
    assert "agent.py->agent with the arguments (task, tuner)" in screen
    assert f"{tmp_path / 'agent.py'}:1" in screen and "def agent(task, tuner):" in screen


def test_the_names_are_where_users_look_for_them():
    import ajet.workflow

    assert ajet.workflow.Workflow is Workflow and ajet.workflow.WorkflowOutput is WorkflowOutput
    assert ajet.workflow.WorkflowTask is WorkflowTask and ajet.workflow.bp is bp


@pytest.fixture
def stops(monkeypatch):
    """Where breakpoint() was entered, and no tags left active."""
    entered = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: entered.append("stop"))
    monkeypatch.delenv(TAGS_VARIABLE, raising=False)
    activate([])
    yield entered
    activate([])


def test_bp_is_a_no_op_unless_its_tag_is_active(stops):
    bp("A")
    activate("B|C")
    bp("A")
    bp("")
    assert stops == []


def test_bp_stops_once_per_tag(stops):
    activate("A|B")
    for _ in range(3):
        bp("A")
    assert len(stops) == 1
    bp("B")
    assert len(stops) == 2
    activate(["A"])
    bp("A")
    assert len(stops) == 3


@pytest.mark.slow
def test_active_tags_reach_other_processes(stops):
    activate("A")
    script = "import sys; sys.breakpointhook = lambda: print('stop'); from ajet import bp; bp('A'); bp('B')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "stop\n"


@pytest.mark.slow
def test_pdb_stops_in_the_callers_frame():
    script = "from ajet import bp\ndef play():\n    secret = 41\n    bp('A')\n    return secret\nprint(play())\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        input="p secret + 1\nc\n",
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, TAGS_VARIABLE: "A"},
    )
    assert "42" in done.stdout and done.stdout.rstrip().endswith("41"), done.stderr


@pytest.mark.slow
def test_an_attached_debugger_stops_in_the_callers_frame(tmp_path):
    """debugpy as an editor drives it, over its own protocol."""
    pytest.importorskip("debugpy")
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import debugpy
            print(debugpy.listen(("127.0.0.1", 0))[1], flush=True)
            debugpy.wait_for_client()
            from ajet import bp

            def play():
                bp("A")
                return 41

            print("played", play())
            """
        )
    )
    environment = {**os.environ, TAGS_VARIABLE: "A", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    process = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        editor = Editor(int(process.stdout.readline()))
        editor.send("initialize", adapterID="test")
        editor.send("attach", justMyCode=False)
        editor.until(event="initialized")
        editor.send("configurationDone")
        stopped = editor.until(event="stopped")
        thread = stopped["body"]["threadId"]
        editor.send("stackTrace", threadId=thread)
        frame = editor.until(command="stackTrace")["body"]["stackFrames"][0]
        assert frame["name"] == "play" and frame["source"]["path"] == str(program)
        editor.send("continue", threadId=thread)
        assert process.stdout.readline() == "played 41\n"
        editor.close()
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.wait()


class Editor:
    """The few words of the Debug Adapter Protocol that the test speaks."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=300)
        self.stream, self.number = self.socket.makefile("rb"), 0

    def close(self):
        self.stream.close()
        self.socket.close()

    def send(self, command, **arguments):
        self.number += 1
        body = json.dumps({"seq": self.number, "type": "request", "command": command, "arguments": arguments}).encode()
        self.socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def until(self, **wanted):
        while True:
            length = 0
            while (line := self.stream.readline().strip()) or not length:
                if line.lower().startswith(b"content-length"):
                    length = int(line.split(b":")[1])
            message = json.loads(self.stream.read(length))
            if all(message.get(key) == value for key, value in wanted.items()):
                return message
