"""Harbor's own runner as a command agent: the page's YAML plays one of Harbor's agents, proven token by token."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet import CommandWorkflow
from ajet.config import Experiment
from ajet.schema.task import Task, WorkflowTask
from ajet.workflow import ModelTuner
from ajet_containers.tests.harbor_package import ENVIRONMENT
from ajet_containers.tests.harbor_tasks import RIGHT, list_containers, list_libraries, write_task
from tests.support.client_fixtures import prove_again, stage
from tests.support.sandbox_fixtures import require

pytestmark = pytest.mark.extra_slow
PAGE = Path(__file__).parents[3] / "docs" / "harbor.md"
NEEDED = (Path("/usr/bin/tmux"), Path("/lib/terminfo"), Path("/usr/lib/locale/C.utf8"))
"""What Terminus needs in the image, with tmux's libraries."""


def read_page() -> dict[str, Any]:
    """Return the YAML of the page."""
    (text,) = re.findall(r'```yaml title="runner.yaml"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.S)
    tree: dict[str, Any] = yaml.safe_load(text)
    return tree


def copy_tmux(folder: Path) -> None:
    places = [(path, folder / path.relative_to("/")) for path in NEEDED]
    for path, target in [*places, *((path, folder / "usr" / "lib" / path.name) for path in list_libraries(NEEDED[0]))]:
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-rL", path, target], check=True)


def answer(*keystrokes: str) -> str:
    """Return a reply of Terminus that ends the task."""
    commands = [{"keystrokes": keys, "duration": 0.5} for keys in keystrokes]
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands, "task_complete": True})


def test_its_agent_plays_through_the_gateway(harbor: Path, tmp_path: Path) -> None:
    require("podman")
    if missing := [str(path) for path in NEEDED if not path.exists()]:
        pytest.skip(f"Terminus needs {', '.join(missing)}")
    task = write_task(tmp_path / "task", dockerfile="COPY root /\nENV LANG=C.UTF-8")
    copy_tmux(task / "environment" / "root")
    tree = read_page()
    agent = tree["command_agent"]
    agent["command"][0] = str(harbor)
    podman = {name: value for name, value in os.environ.items() if name.startswith("CONTAINERS_")}
    agent["env"] |= {"PYTHONPATH": str(ENVIRONMENT.parent), **podman}
    agent["files"]["job.yaml"] += f'environment: {{import_path: "{ENVIRONMENT.stem}:PodmanCommand"}}\n'
    settings = {"ajet": {"rollout": {"max_model_len": 32768}}, "command_agent": agent}
    config = Experiment.from_dict(settings, base=tmp_path).config
    given = Task(main_query="Repair calc.py.", task_id="task", metadata={"folder": str(task)})
    with stage(texts=(answer(f"printf {json.dumps(RIGHT)} > /app/calc.py\n"), answer())) as on:
        output = asyncio.run(
            CommandWorkflow().execute(WorkflowTask(task=given, task_id="task"), ModelTuner(config, on.session))
        )
        assert output.reward == 1.0, output.metadata["command"]
        prove_again(on, on.session.close())
    assert list_containers() == []
