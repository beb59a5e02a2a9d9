"""F5 in VS Code: the committed launch configuration, run by debugpy, stops at a breakpoint in workflow.py.

A small client of the Debug Adapter Protocol plays the editor.
"""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ajet_process import ajet, environment

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def launch_configuration(name: str) -> dict:
    text = re.sub(r"^\s*//.*$", "", (ROOT / ".vscode" / "launch.json").read_text(), flags=re.M)
    return next(each for each in json.loads(text)["configurations"] if each["name"] == name)


class Editor:
    """Speaks DAP over a socket, one message at a time."""

    def __init__(self, port: int) -> None:
        self.stream = socket.create_connection(("127.0.0.1", port), timeout=120).makefile("rwb")
        self.sequence = 0

    def send(self, command: str, **arguments) -> None:
        self.sequence += 1
        body = json.dumps(
            {"seq": self.sequence, "type": "request", "command": command, "arguments": arguments}
        ).encode()
        self.stream.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.stream.flush()

    def wait_for(self, kind: str, name: str) -> dict:
        """Read until the event, or the response to the command, of that name."""
        while True:
            length = 0
            while line := self.stream.readline().strip():
                length = int(line.removeprefix(b"Content-Length: "))
            message = json.loads(self.stream.read(length))
            assert message.get("event") != "terminated" or name == "terminated", "the program ended before that"
            if message["type"] == kind and message.get("event" if kind == "event" else "command") == name:
                return message


LISTEN = """
import runpy, sys, debugpy
print(debugpy.listen(("127.0.0.1", 0))[1], flush=True)
debugpy.wait_for_client()
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""What `python -m debugpy --listen` does, on a port of the kernel's choice."""


@pytest.mark.extra_slow
@pytest.mark.parametrize("name", ["Debug the tool template", "Debug the open YAML"])
def test_a_breakpoint_in_the_workflow_stops(tmp_path, name):
    """Offline, with the value of `${file}` in VS Code. tests/workflow/test_workflow.py attaches a debugger."""
    configuration = launch_configuration(name)
    assert configuration["type"] == "debugpy" and configuration["module"] == "ajet.cli.launcher"
    opened = str(tmp_path / "some" / "where" / "opened.yaml")
    arguments = [each.replace("${file}", opened) for each in configuration["args"]]
    yaml = tmp_path / arguments[arguments.index("--conf") + 1]
    folder = yaml.parent
    folder.parent.mkdir(parents=True)
    made = ajet("init", str(folder), "--template", "tool", cwd=tmp_path)
    assert made.returncode == 0, made.stdout
    next(folder.glob("*.yaml")).rename(yaml)
    workflow = folder / "workflow.py"
    line = next(n for n, text in enumerate(workflow.read_text().splitlines(), 1) if "task = workflow_task.task" in text)

    process = subprocess.Popen(
        [sys.executable, "-c", LISTEN, configuration["module"], *arguments],
        cwd=tmp_path, env=environment(PYDEVD_DISABLE_FILE_VALIDATION="1", HF_HUB_OFFLINE="1"), stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        editor = Editor(int(process.stdout.readline()))
        editor.send("initialize", adapterID="debugpy")
        editor.wait_for("response", "initialize")
        editor.send("attach", justMyCode=True)
        editor.wait_for("event", "initialized")
        editor.send("setBreakpoints", source={"path": str(workflow)}, breakpoints=[{"line": line}])
        editor.wait_for("response", "setBreakpoints")
        editor.send("configurationDone")
        stopped = editor.wait_for("event", "stopped")["body"]
        assert stopped["reason"] == "breakpoint"
        editor.send("stackTrace", threadId=stopped["threadId"])
        frame = editor.wait_for("response", "stackTrace")["body"]["stackFrames"][0]
        assert (frame["source"]["path"], frame["line"], frame["name"]) == (str(workflow), line, "execute")
    finally:
        process.kill()
        process.wait()
