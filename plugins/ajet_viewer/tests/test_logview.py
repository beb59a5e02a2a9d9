"""`--with-logview`: what a run plays can be looked at while it goes on, and the viewer ends with it."""

import json
import os
import pty
import signal
import subprocess
import time
import urllib.error
import urllib.request

import psutil
import pytest

from tests.support.ajet_process import command, environment, start

WORKFLOW = """
from pathlib import Path
import time
from ajet import ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask

class Two:
    def __init__(self, config): pass
    def tasks(self, split):
        return [Task(task_id=str(number), main_query="hello") for number in range(2)]

class Agent(Workflow):
    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client()
        await client.chat.completions.create(messages=[{"role": "user", "content": "hello"}])
        if workflow_task.task.task_id == "1":
            while not Path("go on").exists():
                time.sleep(0.05)
        return WorkflowOutput(reward=1.0)
"""
YAML = """
ajet:
  model: {path: "embedded:tiny-tools"}
  task_reader: {type: workflow.py->Two}
  rollout: {user_workflow: workflow.py->Agent, num_repeat: 1, max_response_length_in_one_turn: 8, max_model_len: 256}
  debug: {debug_first_n_tasks: 2, debug_max_parallel: 2}
"""


def asked(address: str, path: str):
    root, _, token = address.partition("?")
    with urllib.request.urlopen(f"{root}api/{path}?{token}", timeout=60) as answer:
        return json.load(answer)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["finished", "killed"])
def test_episodes_can_be_looked_at_while_the_run_goes_on(tmp_path, ending):
    (tmp_path / "workflow.py").write_text(WORKFLOW)
    (tmp_path / "look.yaml").write_text(YAML)
    log = tmp_path / "out.txt"
    run = start("--conf", "look.yaml", "--backbone", "debug", "--with-logview", cwd=tmp_path, log=log)
    try:
        deadline = time.monotonic() + 120
        address, rows = "", []
        while not rows and time.monotonic() < deadline and run.poll() is None:
            time.sleep(0.2)
            address = next((line.split()[-1] for line in log.read_text().split("\n")[:-1] if "Viewer:" in line), "")
            if address:
                (name,) = (row["name"] for row in asked(address, "runs")["runs"])
                rows = asked(address, f"episodes/{name}")["rows"]
        assert run.poll() is None, log.read_text()
        assert [row["task"] for row in rows] == ["0"], "the first episode is there while the second is played"
        assert asked(address, f"episode/{rows[0]['uuid']}/of/{name}")["calls"]
        (status,) = tmp_path.glob("launcher_record/look/debug/*/status.json")
        viewer = next(each for each in json.loads(status.read_text())["processes"] if each["role"] == "viewer")
        process = psutil.Process(viewer["pid"])
        if ending == "finished":
            (tmp_path / "go on").touch()
            assert run.wait(240) == 0, log.read_text()
        else:
            run.kill()
        process.wait(240)
        with pytest.raises(urllib.error.URLError):
            asked(address, "runs")
    finally:
        run.kill()
        run.wait()


@pytest.mark.extra_slow
def test_a_finished_run_is_recorded_before_its_pages_are_left(tmp_path):
    (tmp_path / "workflow.py").write_text(WORKFLOW)
    (tmp_path / "look.yaml").write_text(YAML)
    (tmp_path / "go on").touch()
    log = tmp_path / "out.txt"
    keyboard, terminal = pty.openpty()
    with log.open("w") as out:
        run = subprocess.Popen(
            command("--conf", "look.yaml", "--backbone", "debug", "--with-logview"), cwd=tmp_path, env=environment(),
            stdin=terminal, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while "press Enter" not in log.read_text() and time.monotonic() < deadline and run.poll() is None:
            time.sleep(0.1)
        assert run.poll() is None, log.read_text()
        (status,) = tmp_path.glob("launcher_record/look/debug/*/status.json")
        assert json.loads(status.read_text())["outcome"] == "finished"
        address = next(line.split()[-1] for line in log.read_text().splitlines() if "Viewer:" in line)
        assert asked(address, "runs")["runs"]
        run.send_signal(signal.SIGINT)
        assert run.wait(240) == 0, log.read_text()
        assert json.loads(status.read_text())["outcome"] == "finished"
        with pytest.raises(urllib.error.URLError):
            asked(address, "runs")
    finally:
        run.kill()
        run.wait()
        os.close(keyboard)
        os.close(terminal)
