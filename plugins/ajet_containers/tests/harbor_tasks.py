"""Harbor task folders for tests, and episodes of them with a scripted model."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

from ajet.config import Experiment
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet_containers.harbor.workflow import HarborWorkflow
from ajet_harness.install import choose_node_folder
from tests.support.container_fixtures import IMAGE
from tests.support.workflow_fixtures import scene

ADD = "def add(a, b):\n    return a {} b\n"
CHECKED = "cd /app && python3 -c 'from calc import add; assert add(2, 3) == 5'"
VERIFIER = f"{CHECKED} && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"
SOLUTION = "cat /solution/calc.py > /app/calc.py"
AGENT = """
import json, os, sys, urllib.request
def ask(text):
    body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
def solve():
    open("/app/calc.py", "w").write(ask(os.environ["AJET_TASK"]))
"""
RIGHT, WRONG = ADD.format("+"), ADD.format("*")


def write_task(
    folder: Path, *, verifier: str = VERIFIER, solution: str = "", dockerfile: str = "", toml: str = "", **files: str
) -> Path:
    """Write a task "repair calc.py" whose verifier and solution are shell scripts; `toml` begins in [environment]."""
    content = {
        "instruction.md": "Repair calc.py.",
        "task.toml": f'schema_version = "1.4"\n[environment]\nnetwork_mode = "no-network"\n{textwrap.dedent(toml)}',
        "tests/test.sh": f"#!/bin/bash\n{verifier}\n",
        "solution/solve.sh": f"#!/bin/bash\n{solution}\n",
        "solution/calc.py": RIGHT,
        "environment/calc.py": ADD.format("-"),
        "environment/Dockerfile": f"FROM {IMAGE}\nCOPY calc.py /app/calc.py\nWORKDIR /app\n{dockerfile}",
        **files,
    }
    for name, text in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def list_libraries(program: Path) -> list[Path]:
    """Return the shared libraries of a program on this machine."""
    printed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return [Path(path) for path in re.findall(r"=> (/\S+)", printed)]


def copy_libraries(folder: Path) -> None:
    """Copy this machine's libraries that the harnesses need: the tests' image lacks what a distribution's image has."""
    folder.mkdir(parents=True, exist_ok=True)
    libraries = list_libraries(choose_node_folder() / "bin" / "node")
    # Programs built for an older glibc load these two as well.
    for path in {*libraries, *libraries[0].parent.glob("librt.so*"), *libraries[0].parent.glob("libutil.so*")}:
        shutil.copy(path, folder)


def list_containers() -> list[str]:
    """Return the names of containers that ajet started."""
    words = ["podman", "ps", "--all", "--format", "{{.Names}}", "--filter", "label=ajet.sandbox"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def play(
    task: Path, script: str, *replies: str, container: dict[str, Any] | None = None, **agent: Any
) -> tuple[WorkflowOutput, Any]:
    """Play a task with a Python program inside. Return the output and the episode's calls."""
    program = task.parent / "agent.py"
    program.write_text(f"{AGENT}\n{textwrap.dedent(script)}\n")
    sections = {
        "command_agent": {"command": ["python3", "/agent.py"], **agent},
        "container": {"mounts": [f"{program}:/agent.py"], "memory_mb": 512, **(container or {})},
    }
    config = Experiment.from_dict({"ajet": {}, **sections}, base=task.parent).config
    HarborWorkflow.check(config)
    given = WorkflowTask(
        task=Task(main_query="Repair calc.py.", task_id=task.name, metadata={"folder": str(task)}), task_id=task.name
    )
    with scene(*(replies or (RIGHT,)), config=config) as played:
        output = asyncio.run(HarborWorkflow().execute(given, played.tuner))
        return output, played.session.close()
