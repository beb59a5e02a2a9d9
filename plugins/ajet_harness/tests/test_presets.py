"""Presets as data, and an episode of each: the harness from its registry, unmodified, run by `harness` alone.

Invariant: a test installs nothing; `python -m tests.contract.npm_packages --slow` does. A harness that is not installed
is skipped with that as its reason.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ajet.config import Experiment
from ajet.rollout.components import load_workflow
from ajet.schema.errors import ConfigError
from ajet.schema.task import Task, WorkflowTask
from ajet.workflow import CommandWorkflow, ModelTuner
from ajet_command.settings import CommandSettings
from ajet_harness.install import find_installed
from ajet_harness.presets import list_harnesses, read_preset
from tests.support.client_fixtures import (
    FINAL,
    PATHS,
    QUESTION,
    Cell,
    Plays,
    Stage,
    Told,
    play_and_prove,
    prove_again,
    stage,
)
from tests.support.rollouts import stage as rollout_stage
from tests.support.sandbox_fixtures import require

PLAYS = Plays()
THOUGHT = "Let me see ✓."
TOOLS = {
    "cline": ("run_commands", '"commands":  ["expr 40 + 2"]'),
    "codex": ("exec_command", '"cmd":  "expr 40 + 2"'),
    "continue": ("Bash", '"command":  "expr 40 + 2"'),
    "mini-swe-agent": ("bash", '"command":  "expr 40 + 2"'),
    "opencode": ("bash", '"command":  "expr 40 + 2", "description":"adds"'),
    "openhands": ("terminal", '"command":  "expr 40 + 2", "security_risk":"LOW"'),
    "pi": ("bash", '"command":  "expr 40 + 2"'),
    "qwen": ("run_shell_command", '"command":  "expr 40 + 2", "is_background": false'),
    "vibe": ("bash", '"command":  "expr 40 + 2"'),
}
"""The shell tool of each harness, and arguments in a spelling that no encoder would write."""
FINALS = {
    "mini-swe-agent": '<tool_call>\n{"name": "bash", "arguments": {"command": '
    f"\"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo '{FINAL}'\"}}}}\n</tool_call>"
}
"""The last reply of a harness that does not end at a text."""


def call_shell(harness: str) -> str:
    """Return a reply that runs a command by the harness's tool."""
    name, arguments = TOOLS[harness]
    return f'{THOUGHT}\n<tool_call>\n{{"arguments": {{{arguments}}}, "name":"{name}"}}\n</tool_call>'


def play(on: Stage, folder: Path, harness: str, **section: Any) -> Told:
    """Play the episode by the preset."""
    (folder / "work").mkdir()
    (folder / "work" / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    own = {"harness": harness, "template": "work", "folders": str(folder / "episodes"), "timeout": 300, **section}
    rollout = {"max_model_len": 65536, "max_response_length_in_one_turn": 4000}
    config = Experiment.from_dict({"ajet": {"rollout": rollout}, "command_agent": own}, base=folder).config
    task = WorkflowTask(task=Task(main_query=QUESTION, task_id="sum"), task_id="sum", episode_uuid="0123456789abcdef")
    output = asyncio.run(CommandWorkflow().execute(task, ModelTuner(config, on.session)))
    assert on.endpoint.api_key not in str(output)
    answer = output.metadata["final_answer"].strip()
    return Told(FINAL if FINAL in answer else answer)  # some print more than the last reply


@PLAYS.cells("aider", "chat", "streaming")
@PLAYS.cells("cline", "chat", "streaming")
@PLAYS.cells("continue", "chat", "streaming")
@PLAYS.cells("codex", "responses", "streaming")
@PLAYS.cells("mini-swe-agent", "chat", "whole")
@PLAYS.cells("opencode", "chat", "streaming")
@PLAYS.cells("openhands", "chat", "whole")
@PLAYS.cells("pi", "chat", "streaming")
@PLAYS.cells("qwen", "chat", "streaming")
@PLAYS.cells("vibe", "chat", "streaming")
def play_preset(on: Stage, streaming: bool, folder: Path, harness: str) -> Told:
    return play(on, folder, harness)


@pytest.mark.extra_slow  # their packages have 3.5 GB together
@pytest.mark.parametrize("cell", PLAYS, ids=str)
def test_its_episode_is_proven(cell: Cell, tmp_path: Path) -> None:
    if find_installed(cell.client) is None:
        pytest.skip(f"{cell.client} is not installed: `python -m tests.contract.npm_packages --slow` does")
    name = cell.client
    if name in TOOLS:
        texts = (call_shell(name), FINALS.get(name, FINAL))
        play_and_prove(cell, lambda on, streaming: PLAYS[cell](on, streaming, tmp_path, name), texts=texts)
        return
    with stage(texts=(FINAL,)) as on:  # without tools, after replies that the harness invented
        told = play(on, tmp_path, name)
        capture = on.session.close()
        prove_again(on, capture)
        assert told.answer == FINAL and on.wire == [(PATHS[cell.dialect], cell.streaming)]


@pytest.mark.extra_slow
def test_a_node_program_plays_in_a_sandbox(tmp_path: Path) -> None:
    require("bubblewrap")
    if find_installed("pi") is None:
        pytest.skip("pi is not installed: `python -m tests.contract.npm_packages --slow` does")
    tmp_path.chmod(0o755)  # for the sandbox's own user
    section = {"harness": "pi", "verify": {"command": ["true"]}}
    options: dict[str, Any] = {"isolation": "sandbox", "user_workflow": "ajet.workflow->CommandWorkflow"}
    with rollout_stage(CommandWorkflow, folder=tmp_path, sections={"command_agent": section}, **options) as played:
        episodes = [episode for group in played.play(1) for episode in group.episodes]
        assert [episode.reward for episode in episodes] == [1.0] * 2, [episode.failure for episode in episodes]
        assert all(episode.metadata["final_answer"].strip() == "yes" for episode in episodes)


def test_every_preset_plays() -> None:
    assert {cell.client for cell in PLAYS} == set(list_harnesses())


@pytest.mark.parametrize("name", list_harnesses())
def test_a_preset_is_a_complete_section(name):
    preset, settings = read_preset(name), CommandSettings.model_validate({"harness": name})
    assert settings.trains == ["default"] and settings.home
    assert bool(preset.npm) != bool(preset.requirements)
    assert all("@" in each[1:] for each in preset.npm) and all("==" in each for each in preset.requirements)
    assert "{api_key}" not in " ".join(settings.command)


def test_a_users_keys_have_precedence():
    own = {"harness": "pi", "stdin": "none", "env": {"PI_OFFLINE": None, "MINE": "1"}, "agent": "coder"}
    settings = CommandSettings.model_validate({**own, "files": {"note.txt": "hello"}, "answer": "last_line"})
    assert settings.env["PI_OFFLINE"] is None and settings.env["MINE"] == "1" and settings.env["PI_TELEMETRY"] == "0"
    assert {"note.txt", "~/pi/models.json"} <= set(settings.files)
    assert (settings.stdin, settings.answer, settings.trains) == ("none", "last_line", ["coder"])


def test_an_unknown_harness_is_refused_with_a_suggestion(tmp_path):
    ajet = {"rollout": {"user_workflow": "ajet.workflow->CommandWorkflow"}}
    with pytest.raises(ConfigError) as refused:
        load_workflow(Experiment.from_dict({"ajet": ajet, "command_agent": {"harness": "open-code"}}, base=tmp_path))
    assert refused.value.where == "command_agent.harness" and refused.value.do == "did you mean opencode?"
