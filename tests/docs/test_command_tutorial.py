"""The command agent's tutorial, with the tiny model it names; and its page's tables against the code."""

from __future__ import annotations

import re

import pytest

from ajet.record import Checkpoints, EpisodeFiles
from ajet_command.settings import CommandLimits, CommandSettings
from tests.docs.snippets import ROOT
from tests.support.ajet_process import ajet, metric_rows

YAML = ROOT / "tutorial" / "example_command_agent" / "command_agent.yaml"
PAGE = ROOT / "docs" / "command_agents.md"


@pytest.mark.slow
def test_it_plays_on_debug(tmp_path):
    done = ajet("--conf", str(YAML), "--backbone", "debug", "rollout.num_repeat=4", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    (episodes,) = (tmp_path / "launcher_record").rglob("episodes")
    played = EpisodeFiles(episodes).read(0, "debug")
    assert len(played) == 8 and all(episode.scored for episode in played), [episode.failure for episode in played]
    for episode in played:
        said = episode.metadata["command"]["stdout"]
        assert episode.metadata["final_answer"] == said.splitlines()[-1].strip()
        assert said.count("looked up: ") == len(episode.calls) - 1, "what the program says is what was captured"
        assert len(episode.timelines) == 1 and not any(call.fork for call in episode.calls)
    assert {episode.messages[0]["content"] for episode in played} == {
        "You know no prices. Look them up, then answer in \\boxed{}."
    }


@pytest.mark.extra_slow
def test_it_trains_on_local(tmp_path):
    small = ["trainer_common.total_training_steps=2", "data.train_batch_size=2", "trainer_common.test_freq=-1"]
    done = ajet("--conf", str(YAML), "--backbone", "local", "trainer_common.threads=1", *small, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    run = tmp_path / "launcher_record" / "command_agent"
    rows = metric_rows(run)
    assert [row["step"] for row in rows] == [1, 2] and all(row["train/scored"] == 16 for row in rows)
    assert all(row["train/workflow/command_seconds"] > 0 for row in rows)
    latest = Checkpoints(run / "checkpoints").latest()
    assert latest is not None and latest.step == 2


def test_the_page_names_every_key_and_its_default():
    rows = dict(re.findall(r"^\| `([a-z_]+)` \|([^|]*)\|", PAGE.read_text(), re.M))
    spelled = {"None": "null", "True": "true", "False": "false"}
    for model in (CommandSettings, CommandLimits):
        for name, field in model.model_fields.items():
            assert name in rows, name
            default = str(field.get_default(call_default_factory=True))
            if name not in ("command", "limits"):
                assert rows.pop(name).strip().strip("`") == spelled.get(default, default), name
    assert set(rows) == {"command", "limits"}
