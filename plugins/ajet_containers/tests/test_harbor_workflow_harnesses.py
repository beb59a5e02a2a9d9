"""Coding harnesses in a Harbor task's container: mounted, not installed, and proven token by token."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ajet.config import Experiment
from ajet.schema.task import Task, WorkflowTask
from ajet.workflow import ModelTuner
from ajet_containers.harbor.workflow import HarborWorkflow
from ajet_containers.tests.harbor_tasks import RIGHT, copy_libraries, list_containers, write_task
from ajet_harness.install import find_installed
from tests.support.client_fixtures import prove_again, stage
from tests.support.container_fixtures import unpack_image
from tests.support.sandbox_fixtures import require

pytestmark = pytest.mark.extra_slow
REPAIR = f"printf {json.dumps(RIGHT)} > calc.py; ! command -v node || rm calc.py"
"""Repairs the file, unless the harness's Node.js would hide the task's own."""
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo repaired"


def call_shell(command: str, harness: str) -> str:
    """Return a reply that runs a command."""
    arguments = {"command": command, **({"description": "repairs"} if harness == "opencode" else {})}
    return f'<tool_call>\n{{"arguments":  {json.dumps(arguments)}, "name":"bash"}}\n</tool_call>'


@pytest.mark.parametrize("engine", ["podman", "bubblewrap"])
@pytest.mark.parametrize("harness", ["opencode", "pi", "mini-swe-agent"])
def test_a_mounted_harness_is_proven(harness: str, engine: str, tmp_path: Path) -> None:
    require("podman")
    if find_installed(harness) is None:
        pytest.skip(f"{harness} is not installed: `python -m tests.contract.npm_packages --slow` does")
    container: dict[str, Any] = {"engine": engine, "memory_mb": 4096}
    if engine == "bubblewrap":
        require("bubblewrap")
        task = write_task(tmp_path / "task", toml='docker_image = "base:1"\nworkdir = "/app"')
        root = unpack_image(tmp_path / "roots" / "base_1")
        shutil.copytree(task / "environment", root / "app")
        copy_libraries(root / "usr" / "lib")
        container |= {"roots": "roots"}
    else:
        task = write_task(tmp_path / "task", dockerfile="COPY lib /usr/lib")
        copy_libraries(task / "environment" / "lib")
    rollout = {"max_model_len": 65536, "max_response_length_in_one_turn": 4000}
    sections = {"command_agent": {"harness": harness}, "container": container}
    config = Experiment.from_dict({"ajet": {"rollout": rollout}, **sections}, base=tmp_path).config
    HarborWorkflow.check(config)
    given = Task(main_query="Repair calc.py.", task_id="task", metadata={"folder": str(task)})
    last = call_shell(SUBMIT, harness) if harness == "mini-swe-agent" else "It is repaired ✓."
    with stage(texts=(call_shell(REPAIR, harness), last)) as on:
        output = asyncio.run(
            HarborWorkflow().execute(WorkflowTask(task=given, task_id="task"), ModelTuner(config, on.session))
        )
        assert output.reward == 1.0, output.metadata["command"]
        prove_again(on, on.session.close())
    assert list_containers() == []
