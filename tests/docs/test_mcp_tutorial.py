"""The tutorial of tools and a corpus: it plays as it is, and its corpus is what its tasks ask for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ajet.config import load_experiment, resolve_reference
from ajet.record import EpisodeFiles
from tests.docs.snippets import ROOT
from tests.support.ajet_process import ajet
from tests.support.gaia_packages import packages
from tests.support.ports import free_port

__all__ = ["packages"]
FOLDER = ROOT / "tutorial" / "example_mcp_agent"
YAML = FOLDER / "mcp_agent.yaml"


def test_every_fact_is_in_the_corpus_and_held_out_towns_are_never_trained_on():
    rows = [json.loads(line) for line in (FOLDER / "corpus.jsonl").read_text().splitlines()]
    facts = {row["title"]: row["text"] for row in rows}
    towns = resolve_reference("towns.py->Towns", base=FOLDER, expect=object, key="the reader")
    reader = towns(load_experiment(YAML, backbone="local").config)
    train, held_out = reader.tasks("train"), reader.tasks("validation")
    assert not {task.task_id for task in train} & {task.task_id for task in held_out}
    for task in (*train, *held_out):
        assert f" {task.metadata['answer']} " in facts[task.task_id]
        assert task.task_id in task.init_messages[-1]["content"]


@pytest.mark.slow
def test_it_plays_on_debug_with_the_tools_that_it_starts(tmp_path: Path, packages: Path):
    port = f"towns_port={free_port()}"
    small = ["model.path=embedded:tiny-tools", "rollout.num_repeat=1", "debug.debug_first_n_tasks=1"]
    done = ajet("--conf", str(YAML), "--backbone", "debug", *small, port, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    (episodes,) = (tmp_path / "launcher_record").rglob("episodes")
    [episode] = EpisodeFiles(episodes).read(0, "debug")
    assert episode.status == "completed" and episode.scored, episode.failure
    assert [tool["function"]["name"] for tool in episode.tools[0]] == ["search", "e2b_run_code"]
    assert [message["role"] for message in episode.messages[:10]] == [
        "system", *["user", "assistant", "tool", "assistant"] * 2, "user",
    ]  # fmt: skip
