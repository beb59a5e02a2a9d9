"""The `openai` package for Node, unmodified, in a process of its own."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.contract.npm_packages import NODE_CLIENT, npm_package
from tests.support.client_fixtures import CHAT_TOOL, QUESTION, SYSTEM, Cell, Plays, Stage, Told, cases, play_and_prove

pytestmark = pytest.mark.slow

PLAYS = Plays()
SCRIPT = Path(__file__).parent / "node_client.mjs"


def play(on: Stage, streaming: bool, dialect: str) -> Told:
    folder = npm_package(NODE_CLIENT)
    (folder / SCRIPT.name).write_text(SCRIPT.read_text())  # node looks for packages beside the script
    way = "streaming" if streaming else "whole"
    environment = {**os.environ, "OPENAI_BASE_URL": on.endpoint.base_url, "OPENAI_API_KEY": on.endpoint.api_key}
    done = subprocess.run(
        ["node", str(folder / SCRIPT.name), dialect, way, json.dumps(CHAT_TOOL), SYSTEM, QUESTION],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    return Told(said["answer"], [tuple(counts) for counts in said["usage"]], said["pieces"], said["around"])


@PLAYS.cells("openai (Node)", "chat")
def chat(on: Stage, streaming: bool) -> Told:
    return play(on, streaming, "chat")


@PLAYS.cells("openai (Node)", "responses")
def responses(on: Stage, streaming: bool) -> Told:
    return play(on, streaming, "responses")


@PLAYS.cells("openai (Node)", "completions")
def completions(on: Stage, streaming: bool) -> Told:
    return play(on, streaming, "completions")


@pytest.mark.parametrize(("cell", "thinking"), cases(PLAYS), ids=str)
def test_its_episode_is_proven(cell: Cell, thinking: bool) -> None:
    play_and_prove(cell, PLAYS[cell], thinking=thinking)
