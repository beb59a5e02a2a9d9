"""Coding agents that are command lines, unmodified: mini-swe-agent, from PyPI, in a process of its own.

Over Chat Completions it plays with the other harnesses (`plugins/ajet_harness/tests/test_presets.py`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.client_fixtures import Cell, Plays, Stage, Told, play_and_prove

PLAYS = Plays()
LOOK = 'Let me see ✓.\n<tool_call>\n{"arguments": {"command":  "expr 40 + 2"}, "name":"bash"}\n</tool_call>'
DONE = (
    'That is it.\n<tool_call>\n{"name": "bash", "arguments": {"command": '
    '"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && expr 40 + 2"}}\n</tool_call>'
)


def mini(on: Stage, folder: Path, *arguments: str) -> Told:
    """The `mini` command as a user runs it, but for confirmations."""
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": on.endpoint.base_url,
        "OPENAI_API_KEY": on.endpoint.api_key,
        "ANTHROPIC_BASE_URL": on.root,
        "ANTHROPIC_API_KEY": on.endpoint.api_key,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": str(folder / "config"),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [str(Path(sys.executable).with_name("mini")), "-t", "What is 40 + 2?", "-y", "--exit-immediately"]
    done = subprocess.run(
        [*command, "-o", "out.json", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    info = json.loads((folder / "out.json").read_text())["info"]
    assert info["exit_status"] == "Submitted" and info["model_stats"]["api_calls"] == 2
    return Told(info["submission"].strip())


@PLAYS.cells("mini-swe-agent", "anthropic", "whole")
def anthropic(on: Stage, streaming: bool, folder: Path) -> Told:
    return mini(on, folder, "-m", "anthropic/ajet")


@PLAYS.cells("mini-swe-agent", "responses", "whole")
def responses(on: Stage, streaming: bool, folder: Path) -> Told:
    return mini(on, folder, "-m", "openai/gpt-4o", "--model-class", "litellm_response")


@pytest.mark.slow
@pytest.mark.extra_slow  # five seconds each; test_command_workflow.py runs the command as the page says
@pytest.mark.parametrize("cell", PLAYS, ids=str)
def test_its_episode_is_proven(cell: Cell, tmp_path: Path) -> None:
    play_and_prove(cell, lambda on, streaming: PLAYS[cell](on, streaming, tmp_path), expect="42", texts=(LOOK, DONE))
