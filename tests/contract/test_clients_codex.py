"""@openai/codex from npm, unmodified, in a process of its own.

Extra slow: its package is 400 MB. What it is told: the gateway as its model provider, and to leave out tools that are
no functions (sub-agents, web search).
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.contract.npm_packages import CODEX, npm_package
from tests.support.client_fixtures import FINAL, QUESTION, Cell, Plays, Stage, Told, play_and_prove

PLAYS = Plays()
LOOK = 'Let me see ✓.\n<tool_call>\n{"arguments": {"cmd":  "expr 40 + 2"}, "name":"exec_command"}\n</tool_call>'
CONFIG = """\
model = "ajet"
model_provider = "ajet"
web_search = "disabled"

[agents]
enabled = false

[analytics]
enabled = false

[model_providers.ajet]
name = "ajet"
base_url = "BASE_URL"
env_key = "AJET_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


@PLAYS.cells("codex", "responses", "streaming")
def codex(on: Stage, streaming: bool, folder: Path) -> Told:
    (folder / "config.toml").write_text(CONFIG.replace("BASE_URL", on.endpoint.base_url))
    command = [str(npm_package(CODEX) / "node_modules" / ".bin" / "codex"), "exec", "--skip-git-repo-check"]
    done = subprocess.run(
        [*command, "--sandbox", "danger-full-access", QUESTION],
        cwd=folder,
        env={**os.environ, "CODEX_HOME": str(folder), "AJET_KEY": on.endpoint.api_key},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return Told(done.stdout.strip())


@pytest.mark.extra_slow
@pytest.mark.parametrize("cell", PLAYS, ids=str)
def test_its_episode_is_proven(cell: Cell, tmp_path: Path) -> None:
    play_and_prove(cell, lambda on, streaming: PLAYS[cell](on, streaming, tmp_path), texts=(LOOK, FINAL))
