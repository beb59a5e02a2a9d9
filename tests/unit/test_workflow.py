"""What users subclass, and the breakpoint that stays in their code."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest

from ajet import Task, Workflow, WorkflowOutput, WorkflowTask, bp
from ajet.workflow.breakpoint import TAGS_VARIABLE, activate

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


def test_a_workflow_without_execute_cannot_be_made():
    class Empty(Workflow):
        name: str = "empty"

    with pytest.raises(TypeError, match="execute"):
        Empty()


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


def test_active_tags_reach_other_processes(stops):
    activate("A")
    script = "import sys; sys.breakpointhook = lambda: print('stop'); from ajet import bp; bp('A'); bp('B')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "stop\n"


def test_pdb_stops_in_the_callers_frame():
    script = "from ajet import bp\ndef play():\n    secret = 41\n    bp('A')\n    return secret\nprint(play())\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        input="p secret + 1\nc\n",
        capture_output=True,
        text=True,
        timeout=60,
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
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


class Editor:
    """The few words of the Debug Adapter Protocol that the test speaks."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
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
