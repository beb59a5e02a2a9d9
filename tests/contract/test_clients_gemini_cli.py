"""@google/gemini-cli from npm, unmodified, in a process of its own. Extra slow: its package is 100 MB.

Its settings name the way it signs in: with an address of its own alone it picks one that it then refuses.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.contract.npm_packages import GEMINI_CLI, npm_package
from tests.support.client_fixtures import FINAL, QUESTION, Cell, Plays, Stage, Told, play_and_prove

PLAYS = Plays()
CALL = '{"arguments": {"command":  "expr 40 + 2"}, "name":"run_shell_command"}'
LOOK = f"Let me see ✓.\n<tool_call>\n{CALL}\n</tool_call>"
SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False},
}


@PLAYS.cells("gemini-cli", "gemini", "streaming")
def gemini(on: Stage, streaming: bool, folder: Path) -> Told:
    (folder / ".gemini").mkdir()
    (folder / ".gemini" / "settings.json").write_text(json.dumps(SETTINGS))
    command = [str(npm_package(GEMINI_CLI) / "node_modules" / ".bin" / "gemini"), "--model", "ajet", "--yolo"]
    done = subprocess.run(
        [*command, "--skip-trust", "--prompt", QUESTION],
        cwd=folder,
        env={
            **os.environ,
            "HOME": str(folder),
            "GOOGLE_GEMINI_BASE_URL": on.root,
            "GEMINI_API_KEY": on.endpoint.api_key,
        },
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
    play_and_prove(
        cell,
        lambda on, streaming: PLAYS[cell](on, streaming, tmp_path),
        expect=f"Let me see ✓.\n{FINAL}",
        texts=(LOOK, FINAL),
    )
